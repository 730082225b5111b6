"""Live progress on a terminal."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from atcl.core.journal import Record
from atcl.evaluation.attacks import heading
from atcl.recipes.costs import costs
from atcl.runs.run import Run
from atcl.runs.watcher import Watcher


class ProgressBar:
    """A progress bar that is drawn on a terminal alone."""

    console: Console
    bar: Progress

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()


class RunProgress(ProgressBar, Watcher):
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(
        self,
        console: Console,
        beside: "RunProgress | None" = None,
        label: str = "",
        opening: Sequence[str] = (),
    ) -> None:
        self.console, self.label = console, label
        self.opening = list(opening)  # said before anything else, and not at all where the run is refused
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}")
        self.bar = (
            beside.bar if beside else Progress(*columns, console=console)
        )  # several runs share one display
        self.costs: dict[tuple[int, int], int] = {}
        self.paid, self.rates = 0, list[float]()

    def engine(self, about: str) -> None:
        """Tell what carries the steps out."""
        self.notify(f"engine {about}")

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Show what is about to run."""
        self.costs = {place: cost for place, cost in costs(run.recipe).items() if place > (stage, epoch)}
        if epoch:
            self.notify(
                f"going on after epoch {epoch}"
                + (f" of stage {stage + 1}" if len(run.recipe.stages) > 1 else "")
            )
        self.epochs = [stage.epochs for stage in run.recipe.stages]
        self.task = self.bar.add_task(f"{self.label}starting", total=sum(self.costs.values()), left="")
        self.total = sum(self.costs.values())
        self.every = max(1, len(self.costs) // 20)

    def epoch(self, record: Record) -> None:
        """Show an epoch and how long the rest will take, reckoned by the attack steps that it still holds."""
        price = self.costs.get((record["stage"], record["epoch"]), 1)
        self.paid += price
        self.rates.append(record["seconds"] / price)
        left = statistics.median(self.rates[-5:]) * (self.total - self.paid)  # the first may have compiled
        line = self.label + epoch_line(record, self.epochs)
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.paid, description=line, left=f"{clock(left)} left")
        elif record["epoch"] % self.every == 0 or self.paid == self.total:
            self.console.print(f"{line}  {clock(left)} left", highlight=False, markup=False)

    def notify(self, text: str) -> None:
        """Print a line above the bar."""
        while self.opening:
            self.console.print(self.opening.pop(0), highlight=False, soft_wrap=True, markup=False)
        self.console.print(self.label + text, highlight=False, markup=False)


@contextmanager
def progress_bars(
    console: Console, names: Sequence[str], opening: Sequence[str] = ()
) -> Iterator[list[RunProgress]]:
    """Show several runs in one display, each line with the name of its run."""
    with RunProgress(console, label=f"{names[0]}: " if len(names) > 1 else "", opening=opening) as first:
        yield [first, *(RunProgress(console, first, f"{name}: ") for name in names[1:])]


class EvaluationProgress(ProgressBar):
    """How far an evaluation is: attack, pass, images, time left; silent where no one watches."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.console = console
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, attack: str, step: str, done: int, total: int) -> None:
        """Show that so many images are judged in a pass of an attack."""
        name = heading(attack) + ("" if step == attack else f", {step}")
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total)
        self.bar.update(self.tasks[name], completed=done)


def epoch_line(record: Record, epochs: Sequence[int]) -> str:
    """Return an epoch's record as one line."""
    stage = f"stage {record['stage'] + 1} " if len(epochs) > 1 else ""
    parts = [
        f"{stage}epoch {record['epoch']:>3}/{epochs[record['stage']]}",
        f"epsilon {record['epsilon']:.3f}",
        f"gamma {record['gamma']:.2f}",
        f"loss {record['loss']:.3f}",
    ]
    if record["agreement"] is not None:
        parts.append(f"agreement {100 * record['agreement']:.0f}%")
    else:
        parts.append(f"inside candidates {100 * record['inside']:.0f}%")
    if "test_pgd20" in record:
        parts.append(f"test pgd20 {record['test_pgd20']:.1f}%")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
