"""`atcl figure`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from atcl.core.errors import AtclError, pick
from atcl.core.files import check_writable
from atcl.reproduce.figures.catalogue import FIGURES
from atcl.reproduce.figures.making import Missing, make, train_small
from atcl.reproduce.figures.plan import DIGITS_SETTING, PAPER_SETTING, Need, needs
from atcl.reproduce.figures.records import recorded_in
from atcl.runs import layout

ALL = "all"


@dataclass(frozen=True)
class Figure:
    """Draw a figure of the paper from recorded runs, as PNG, PDF and CSV. What has no run yet is named with the command that makes it"""

    name: Annotated[str, tyro.conf.Positional]
    """a name from `atcl list figures`, or all"""
    runs: Path = Path("runs")
    """where runs lie"""
    results: Path = Path("results")
    """the ledger, whose journals are read too"""
    out: Path | None = None
    """where the figure goes; by default figures, with --digits figures/digits"""
    digits: bool = False
    """draw it from small runs on the embedded digits, which are trained first where they are missing"""
    data_dir: Path | None = None
    """where the dataset's files lie; for figures that show images"""

    def run(self, console: Console, overrides: Sequence[str]) -> None:
        chosen = dict(FIGURES) if self.name == ALL else {self.name: pick(FIGURES, self.name, "figure")}
        out = self.out or Path("figures", *["digits"] * self.digits)
        check_writable(out, "give --out a folder")
        if self.results != Figure.results and not self.results.is_dir():
            raise AtclError(f"{self.results} is no folder: give --results that of a ledger, or leave it out")
        if self.runs.exists() and not self.runs.is_dir():  # one that is not there yet is where runs will go
            raise AtclError(f"{self.runs} is a file: give --runs a folder")
        setting = DIGITS_SETTING if self.digits else PAPER_SETTING
        runs = self.runs / "figures" if self.digits else self.runs
        everything = {
            (need.recipe, need.seed): need for need in needs(FIGURES.values(), setting)
        }  # so that one run serves them all
        if self.digits:
            asked = [everything[need.recipe, need.seed] for need in needs(chosen.values(), setting)]
            self._train(
                console, [need for need in asked if not (need.folder(runs) / layout.RESULT).exists()], runs
            )
        found = recorded_in(
            runs,
            self.results,
            lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False),
        )
        lacking, drawn = Missing(), 0
        for name, drawing in chosen.items():
            paths, missing = make(name, drawing, setting, found, out, self.data_dir)
            lacking |= missing
            drawn += bool(paths)
            said = ", ".join(path.name for path in paths) if paths else "no run yet"
            console.print(
                f"{name}: {said}"
                + (
                    f" ({len(missing)} run{'s are' if len(missing) > 1 else ' is'} missing)"
                    if missing and paths
                    else ""
                ),
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
        if lacking:
            console.print("what is missing is made by:", highlight=False)
            for key, need in everything.items():
                if key in lacking:
                    print(need.command(self.runs, taken=(need.folder(runs) / layout.RESULT).exists()))
        if drawn:
            console.print(
                f"{drawn} figure{'s' * (drawn > 1)} lie{'s' * (drawn == 1)} in {out}",
                highlight=False,
                markup=False,
            )

    def _train(self, console: Console, wanted: Sequence[Need], runs: Path) -> None:
        if not wanted:
            return
        console.print(f"{len(wanted)} small runs to train first, into {runs}", highlight=False, markup=False)
        bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        task = bar.add_task("training", total=len(wanted))
        if console.is_terminal:
            bar.start()
        try:
            train_small(wanted, runs, lambda done: bar.update(task, completed=done))
        finally:
            bar.stop()
