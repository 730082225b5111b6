"""`atcl report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Report:
    """Write an HTML page on one or more runs, with results, curves and adversarial images. It works offline,
    and shows the mean over the seeds of a recipe"""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs, finished or not"""
    out: Path | None = None
    """the file; by default report.html, for one run in its folder, for several in the present one"""
    images: int = 12
    """how many images the gallery shows at most; several runs share them"""
    gallery: bool = True
    """evaluate the test set for adversarial images, calibration and confusion; --no-gallery is faster"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """folder of the dataset's files; not needed for digits"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        from atcl.loggers.progress import print_line
        from atcl.reports.writing import report

        path = report(
            self.runs,
            self.out,
            images=self.images,
            gallery=self.gallery,
            device=self.device,
            data_dir=self.data_dir,
            notify=partial(print_line, console),
        )
        print_line(console, f"the page is in {path}")
