"""`atcl report`."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from atcl.core.errors import AtclError
from atcl.reports.writing import GALLERY_IMAGES, page, report, seen, write
from atcl.runs import layout
from atcl.runs.run import Run, open_run


@dataclass(frozen=True)
class Report:
    """Write one HTML page that shows runs: results, curves, images under attack; it works offline. Runs of one recipe become a mean over seeds"""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs, finished or not"""
    out: Path | None = None
    """the file; by default report.html, in the folder of the run where there is one, else here"""
    images: int = GALLERY_IMAGES
    """of the gallery, at most; several runs share the page"""
    gallery: bool = True
    """look at the test set: images with their twins, calibration, confusion; --no-gallery is faster"""
    device: str = "auto"
    """auto, cpu or cuda"""
    data_dir: Path | None = None
    """where the dataset's files lie; not needed for digits"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        tell = Teller(console)
        path = report(
            self.runs,
            self.out,
            images=self.images,
            gallery=self.gallery,
            device=self.device,
            data_dir=self.data_dir,
            notify=tell,
        )
        tell(f"the page lies in {path}")


@dataclass(frozen=True)
class Teller:
    """A line on the terminal."""

    console: Console

    def __call__(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def after_training(
    console: Console, runs: Sequence[Run], parent: Path, device: str, data_dir: Path | None
) -> None:
    """Write the page of each run that was trained, and of several one for all; whatever goes wrong is told in a line, for the runs are done."""
    pages = {run.folder / layout.REPORT: [run] for run in runs} | (
        {parent / layout.REPORT: list(runs)} if len(runs) > 1 else {}
    )
    if _written(Teller(console), pages, device, data_dir):
        Teller(console)(f"the page lies in {list(pages)[-1]}")


def after_evaluation(console: Console, run: Run, device: str, data_dir: Path | None) -> None:
    """Write the page in the folder of a run that was measured anew, where there is one; one that it shares with others is its user's to remake."""
    own, shared, tell = run.folder / layout.REPORT, run.folder.parent / layout.REPORT, Teller(console)
    if own.exists() and _written(tell, {own: [run]}, device, data_dir):
        tell(f"made anew: {own}")
    if shared.exists() and len(folders := [str(one.folder) for one in beside(run)]) > 1:
        tell(
            f"{shared} is older than this: `{shlex.join(['atcl', 'report', *folders, '--out', str(shared)])}` makes it anew"
        )


def beside(run: Run) -> list[Run]:
    """Return the run with those of other seeds that training put beside it, seed-1, seed-2, …, all of one recipe."""
    found = []
    for folder in run.folder.parent.glob("seed-*"):
        with suppress(AtclError):  # what is no run is on no page
            found.append(open_run(folder))
    alike = [one for one in found if (one.name, one.recipe) == (run.name, run.recipe)]
    return sorted(alike, key=lambda one: one.seed) if run in alike else [run]


def _written(tell: Teller, pages: Mapping[Path, Sequence[Run]], device: str, data_dir: Path | None) -> bool:
    runs = {run.folder: run for shown in pages.values() for run in shown}
    try:
        looks = {
            folder: seen(run, len(runs), GALLERY_IMAGES, device, data_dir, None, None, tell)
            for folder, run in runs.items()
        }
        for path, shown in pages.items():
            write(page(shown, looks), path)
    except Exception as error:  # what is trained or measured never fails for want of a page
        again = shlex.join(["atcl", "report", str(next(iter(runs)))])
        tell(
            f"no page was written ({' '.join(str(error).split()) or type(error).__name__}); `{again}` tries again"
        )
        return False
    return True
