"""`atcl figure`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from atcl.cli.names import check_name
from atcl.core.errors import AtclError

if TYPE_CHECKING:
    from atcl.reproduce.figures.plan import Need

ALL = "all"


@dataclass(frozen=True)
class Figure:
    """Draw a figure of the paper from recorded runs, as PNG, PDF and CSV. For missing runs, it prints the
    commands that train them"""

    name: Annotated[str, tyro.conf.Positional]
    """a name from `atcl list figures`, or all"""
    runs: Path = Path("runs")
    """the folder of the runs"""
    results: Path = Path("results")
    """the ledger, whose journals are read too"""
    out: Path | None = None
    """the folder of the figure; by default figures, with --digits figures/digits"""
    digits: bool = False
    """draw it from small runs on the embedded digits; those that are missing are trained first"""
    data_dir: Path | None = None
    """folder of the dataset's files; for figures that show images"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        if self.name != ALL:
            check_name("figures", self.name, "figure")
        from atcl.loggers.progress import print_line
        from atcl.reproduce.figures.catalogue import FIGURES
        from atcl.reproduce.figures.making import Missing, make
        from atcl.reproduce.figures.plan import DIGITS_SETTING, PAPER_SETTING, needs
        from atcl.reproduce.figures.records import recorded_in
        from atcl.runs import layout

        chosen = dict(FIGURES) if self.name == ALL else {self.name: FIGURES[self.name]}
        out = self.out or Path("figures", *["digits"] * self.digits)
        self._check_folders(out)
        setting = DIGITS_SETTING if self.digits else PAPER_SETTING
        runs = self.runs / "figures" if self.digits else self.runs
        # of all figures, since one run may serve several
        all_needs = {(need.recipe, need.seed): need for need in needs(FIGURES.values(), setting)}
        if self.digits:
            wanted = [all_needs[need.recipe, need.seed] for need in needs(chosen.values(), setting)]
            self._train(
                console, [need for need in wanted if not (need.folder(runs) / layout.RESULT).exists()], runs
            )
        records = recorded_in(runs, self.results, partial(print_line, console))
        lacking, drawn = Missing(), 0
        for name, drawing in chosen.items():
            paths, missing = make(name, drawing, setting, records, out, self.data_dir)
            lacking |= missing
            drawn += bool(paths)
            files = ", ".join(path.name for path in paths) if paths else "no run yet"
            without = f" ({_runs(len(missing))} missing)" if missing and paths else ""
            print_line(console, f"{name}: {files}{without}")
        if lacking:
            print_line(console, "these commands train the runs that are missing:")
            for key, need in all_needs.items():
                if key in lacking:
                    print(need.command(self.runs, taken=(need.folder(runs) / layout.RESULT).exists()))
        if drawn:
            print_line(console, f"{drawn} figure{'s are' if drawn > 1 else ' is'} in {out}")

    def _check_folders(self, out: Path) -> None:
        from atcl.core.files import check_writable

        check_writable(out, "give --out a folder")
        if self.results != Figure.results and not self.results.is_dir():
            raise AtclError(f"{self.results} is no folder: give --results that of a ledger, or leave it out")
        if self.runs.exists() and not self.runs.is_dir():  # a folder that is missing is made later
            raise AtclError(f"{self.runs} is a file: give --runs a folder")

    def _train(self, console: Console, wanted: "Sequence[Need]", runs: Path) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from atcl.loggers.progress import print_line
        from atcl.reproduce.figures.making import train_small

        if not wanted:
            return
        print_line(console, f"training {len(wanted)} small runs first, in {runs}")
        columns = TextColumn("training"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn()
        bar = Progress(*columns, console=console)
        task = bar.add_task("training", total=len(wanted))
        if console.is_terminal:
            bar.start()
        try:
            train_small(wanted, runs, lambda done: bar.update(task, completed=done))
        finally:
            bar.stop()


def _runs(number: int) -> str:
    return f"{number} run{'s are' if number > 1 else ' is'}"
