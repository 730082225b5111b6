"""One progress bar for several runs, read from their journals."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from atcl.core.journal import read
from atcl.loggers.progress import ProgressBar, clock
from atcl.recipes.costs import costs
from atcl.reproduce.ledger import Job
from atcl.runs import layout


class JobsProgress(ProgressBar):
    """A progress bar that shows how much of several runs is done, and how long the rest will take."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.prices = {job.folder: costs(job.what.recipe) for job in jobs}
        self.total = sum(sum(price.values()) for price in self.prices.values())
        self.task = self.bar.add_task(f"{len(jobs)} runs", total=self.total, left="")
        self.began, self.before, self.done = time.perf_counter(), self.paid(), 0

    def paid(self) -> int:
        """Return the cost of all epochs that are done, in passes through the network."""
        done = {folder: read(folder / layout.JOURNAL) for folder in self.prices}
        return sum(
            self.prices[folder].get((one["stage"], one["epoch"]), 0)
            for folder, records in done.items()
            for one in records
        )

    def left(self, paid: int) -> str:
        """Return how long the rest will take, where there is something to estimate it from."""
        left = (time.perf_counter() - self.began) / max(paid - self.before, 1) * (self.total - paid)
        return f"{clock(left)} left" if self.before < paid < self.total else ""

    def look(self) -> None:
        """Update the bar."""
        if self.console.is_terminal:
            paid = self.paid()
            self.bar.update(self.task, completed=paid, left=self.left(paid))

    def notify(self, text: str) -> None:
        """Count one more run as done, and print a line above the bar."""
        self.done += 1
        left = "" if self.console.is_terminal else self.left(self.paid())  # on a terminal the bar shows it
        self.note(f"{text} ({self.done} of {len(self.prices)}{left and f', {left}'})")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)
