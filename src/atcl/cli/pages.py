"""The HTML page of a run, written after training and again after an evaluation."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from atcl.core.errors import AtclError
from atcl.loggers.progress import print_line
from atcl.reports.writing import GALLERY_IMAGES, gallery_of, page, write
from atcl.runs import layout
from atcl.runs.run import Run, open_run


def page_after_training(
    console: Console, runs: Sequence[Run], parent: Path, device: str, data_dir: Path | None
) -> None:
    """Write the page of each run that was trained, and for several runs a page for all of them.

    An error is one line on the console and is not raised, since the runs are finished.

    Args:
        console: where to print.
        runs: the runs.
        parent: the folder of the page for all of them.
        device: where the images of the page are evaluated.
        data_dir: folder of the dataset's files.
    """
    pages = {run.folder / layout.REPORT: [run] for run in runs}
    if len(runs) > 1:
        pages[parent / layout.REPORT] = list(runs)
    if _written(partial(print_line, console), pages, device, data_dir):
        print_line(console, f"the page is in {list(pages)[-1]}")


def page_after_evaluation(console: Console, run: Run, device: str, data_dir: Path | None) -> None:
    """Write the page in a run's folder again, if there is one; a page that it shares with others stays.

    Args:
        console: where to print.
        run: the run.
        device: where the images of the page are evaluated.
        data_dir: folder of the dataset's files.
    """
    own, shared = run.folder / layout.REPORT, run.folder.parent / layout.REPORT
    if own.exists() and _written(partial(print_line, console), {own: [run]}, device, data_dir):
        print_line(console, f"written again: {own}")
    folders = [str(other.folder) for other in beside(run)]
    if shared.exists() and len(folders) > 1:
        again = shlex.join(["atcl", "report", *folders, "--out", str(shared)])
        print_line(console, f"{shared} is older than this evaluation: `{again}` writes it again")


def beside(run: Run) -> list[Run]:
    """Return the run and the runs of other seeds of its recipe in the folders beside it: seed-1, seed-2, …"""
    runs = []
    for folder in run.folder.parent.glob("seed-*"):
        with suppress(AtclError):  # a folder that is not of a run is left out
            runs.append(open_run(folder))
    alike = [other for other in runs if (other.name, other.recipe) == (run.name, run.recipe)]
    return sorted(alike, key=lambda other: other.seed) if run in alike else [run]


def _written(
    notify: Callable[[str], None], pages: Mapping[Path, Sequence[Run]], device: str, data_dir: Path | None
) -> bool:
    runs = {run.folder: run for shown in pages.values() for run in shown}
    try:
        galleries = {
            folder: gallery_of(run, len(runs), GALLERY_IMAGES, device, data_dir, None, None, notify)
            for folder, run in runs.items()
        }
        for path, shown in pages.items():
            write(page(shown, galleries), path)
    except Exception as error:  # a command must not fail because of its page
        again = shlex.join(["atcl", "report", str(next(iter(runs)))])
        reason = " ".join(str(error).split()) or type(error).__name__
        notify(f"no page was written ({reason}); `{again}` tries again")
        return False
    return True
