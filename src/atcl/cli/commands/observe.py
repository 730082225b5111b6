"""`atcl observe`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Observe:
    """Analyse the checkpoints of a run, and add the numbers to its analysis.jsonl."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    observe: tuple[str, ...] = ("gradients", "attacks", "test")
    """names from `atcl list observations`"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """folder of the dataset's files; not needed for digits"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        from atcl.analysis.observe_checkpoints import observe_checkpoints
        from atcl.loggers.progress import print_line
        from atcl.runs import layout
        from atcl.runs.run import open_run

        run = open_run(self.run_folder)
        for record in observe_checkpoints(run, self.observe, data_dir=self.data_dir, device=self.device):
            print_line(console, f"stage {record['stage'] + 1}, epoch {record['epoch']}")
            for key, value in record.items():
                if isinstance(value, float):
                    print(f"  {key:28} {value:.4f}")
        print_line(console, f"kept in {run.folder / layout.ANALYSIS}")
