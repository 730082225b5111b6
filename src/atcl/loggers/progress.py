"""Progress of training and evaluation on a terminal."""

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


def print_line(console: Console, text: str) -> None:
    """Print a line without markup and colours; only the terminal breaks it."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


class ProgressBar:
    """A progress bar that is drawn only if the console is a terminal."""

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
    """Shows a run: a progress bar on a terminal, elsewhere a line for one in twenty epochs.

    Args:
        console: where to print.
        beside: the progress of another run, whose display this one shares.
        label: printed before each line.
        opening: lines to print before the first message; a run that is refused prints none of them.

    Examples:
        >>> RunProgress(Console(), label="seed 1: ").notify("engine eager on cpu")
        seed 1: engine eager on cpu
    """

    def __init__(
        self,
        console: Console,
        beside: "RunProgress | None" = None,
        label: str = "",
        opening: Sequence[str] = (),
    ) -> None:
        self.console, self.label = console, label
        self.opening = list(opening)
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}")
        self.bar = beside.bar if beside else Progress(*columns, console=console)
        self.costs: dict[tuple[int, int], int] = {}  # of each epoch to train, by stage and epoch
        self.done = 0  # sum of the costs of the epochs that are done
        self.rates = list[float]()  # seconds for one unit of cost, for each of them

    def engine(self, about: str) -> None:
        """Print the engine."""
        self.notify(f"engine {about}")

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Start the bar, which counts the costs of the epochs to train."""
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
        """Show an epoch, and the time left, which follows from the costs of the epochs to come."""
        cost = self.costs.get((record["stage"], record["epoch"]), 1)
        self.done += cost
        self.rates.append(record["seconds"] / cost)
        # the median, since the first epoch may have compiled
        left = statistics.median(self.rates[-5:]) * (self.total - self.done)
        line = self.label + epoch_line(record, self.epochs)
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.done, description=line, left=f"{clock(left)} left")
        elif record["epoch"] % self.every == 0 or self.done == self.total:
            self.console.print(f"{line}  {clock(left)} left", highlight=False, markup=False)

    def notify(self, text: str) -> None:
        """Print a message above the bar."""
        while self.opening:
            self.console.print(self.opening.pop(0), highlight=False, soft_wrap=True, markup=False)
        self.console.print(self.label + text, highlight=False, markup=False)


@contextmanager
def progress_bars(
    console: Console, names: Sequence[str], opening: Sequence[str] = ()
) -> Iterator[list[RunProgress]]:
    """Yield the progress of each of several runs, in one display.

    Args:
        console: where to print.
        names: printed before the lines of each run, if there are several.
        opening: lines to print before the first message.
    """
    with RunProgress(console, label=f"{names[0]}: " if len(names) > 1 else "", opening=opening) as first:
        yield [first, *(RunProgress(console, first, f"{name}: ") for name in names[1:])]


class EvaluationProgress(ProgressBar):
    """Shows how far an evaluation is: attack, pass, images, time left; nothing if this is no terminal.

    Args:
        console: where to print.
    """

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
        """Show how many images a pass of an attack has done.

        Args:
            attack: the name of the attack.
            step: the name of its pass.
            done: how many images are done.
            total: how many there are.
        """
        name = heading(attack) + ("" if step == attack else f", {step}")
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total)
        self.bar.update(self.tasks[name], completed=done)


def epoch_line(record: Record, epochs: Sequence[int]) -> str:
    """Return the record of an epoch as one line.

    Args:
        record: the line of the journal.
        epochs: the number of epochs in each stage.
    """
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
    """Return a duration as minutes and seconds, or as hours, minutes and seconds.

    Examples:
        >>> clock(75), clock(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
