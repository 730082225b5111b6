"""`atcl export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_name
from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Export:
    """Write the chosen model of a run to a file for other programs, and check that both compute the same."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    format: str = "onnx"
    """a name from `atcl list exports`"""
    out: Path | None = None
    """the file; by default exported.FORMAT in the folder of the run"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        check_name("exports", self.format, "format")
        from atcl.loggers.progress import print_line
        from atcl.runs import layout
        from atcl.runs.export import EXPORTS, export
        from atcl.runs.run import open_run

        run = open_run(self.run_folder)
        path = self.out or run.folder / f"exported.{self.format}"
        ending = path.suffix[1:]
        if ending in EXPORTS and ending != self.format:
            raise AtclError(f"{path} would hold {self.format}: give --format {ending}, or another name")
        if path.parent.resolve() == run.folder.resolve() and path.name in layout.FILES:
            raise AtclError(f"{path} is a file of the run itself: choose another name")
        exported = export(run.model(), run.shape, run.class_names, path, self.format, kind=run.recipe.model)
        shape = ", ".join(map(str, run.shape))
        print_line(
            console,
            f"takes floats in [0, 1] of shape (n, {shape}), returns {run.classes} logits for each image",
        )
        print_line(
            console, f"compared with the model: the same classes, logits within {exported.difference:.1e}"
        )
        print_line(console, f"{exported.bytes:,} bytes written to {exported.path}")
