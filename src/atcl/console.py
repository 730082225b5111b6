"""What a person sees: live progress, and tables."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from atcl.estimates import Place, costs
from atcl.experiments import HEADINGS
from atcl.journal import Record, read
from atcl.ledger import Job
from atcl.recipes import RECIPES, recipe
from atcl.runs import Run
from atcl.selection import RULES
from atcl.settings import digest
from atcl.stages import Watcher
from atcl.training import Stage


class Shown:
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


class Live(Shown, Watcher):
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, beside: "Live | None" = None, label: str = "", opening: Sequence[str] = ()) -> None:
        self.console, self.label = console, label
        self.opening = list(opening)  # said before anything else, and not at all where the run is refused
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}")
        self.bar = beside.bar if beside else Progress(*columns, console=console)  # several runs share one display
        self.costs: dict[Place, int] = {}
        self.paid, self.rates = 0, list[float]()

    def engine(self, about: str) -> None:
        """Tell what carries the steps out."""
        self.say(f"engine {about}")

    def begin(self, run: Run, stage: int, epoch: int) -> None:
        """Show what is about to run."""
        self.costs = {place: cost for place, cost in costs(run.recipe).items() if place > (stage, epoch)}
        if epoch:
            self.say(f"going on after epoch {epoch}" + (f" of stage {stage + 1}" if len(run.recipe.stages) > 1 else ""))
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
        line = self.label + described(record, self.epochs)
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.paid, description=line, left=f"{clock(left)} left")
        elif record["epoch"] % self.every == 0 or self.paid == self.total:
            self.console.print(f"{line}  {clock(left)} left", highlight=False, markup=False)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        while self.opening:
            self.console.print(self.opening.pop(0), highlight=False, soft_wrap=True, markup=False)
        self.console.print(self.label + text, highlight=False, markup=False)


@contextmanager
def lives(console: Console, names: Sequence[str], opening: Sequence[str] = ()) -> Iterator[list[Live]]:
    """Show several runs in one display, each line with the name of its run."""
    with Live(console, label=f"{names[0]}: " if len(names) > 1 else "", opening=opening) as first:
        yield [first, *(Live(console, first, f"{name}: ") for name in names[1:])]


class Together(Shown):
    """Several runs at once, read from their journals: how much of all is done, and how long the rest will take."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.console = console
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"), console=console)
        self.prices = {job.folder: costs(job.what.recipe) for job in jobs}
        self.total = sum(sum(price.values()) for price in self.prices.values())
        self.task = self.bar.add_task(f"{len(jobs)} runs", total=self.total, left="")
        self.began, self.before, self.done = time.perf_counter(), self.paid(), 0

    def paid(self) -> int:
        """Return the price of all epochs that are done."""
        done = {folder: read(folder / "journal.jsonl") for folder in self.prices}
        return sum(self.prices[folder].get((one["stage"], one["epoch"]), 0) for folder, records in done.items() for one in records)

    def left(self, paid: int) -> str:
        """Return how long the rest will take, where that can be told."""
        left = (time.perf_counter() - self.began) / max(paid - self.before, 1) * (self.total - paid)
        return f"{clock(left)} left" if self.before < paid < self.total else ""

    def look(self) -> None:
        """Bring the bar up to date."""
        if self.console.is_terminal:
            paid = self.paid()
            self.bar.update(self.task, completed=paid, left=self.left(paid))

    def say(self, text: str) -> None:
        """Print a line above the bar: one more is done."""
        self.done += 1
        left = "" if self.console.is_terminal else self.left(self.paid())  # the bar tells it
        self.note(f"{text} ({self.done} of {len(self.prices)}{left and f', {left}'})")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


class Judging(Shown):
    """How far an evaluation is: attack, pass, images, time left; silent where no one watches."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
        )  # fmt: skip
        self.console = console
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, attack: str, step: str, done: int, total: int) -> None:
        """Show that so many images are judged in a pass of an attack."""
        name = HEADINGS.get(attack, attack) + ("" if step == attack else f", {step}")
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total)
        self.bar.update(self.tasks[name], completed=done)


def described(record: Record, epochs: Sequence[int]) -> str:
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


def metrics_table(result: dict[str, Any], names: Sequence[str]) -> Table:
    """Return the accuracies of a result as a table."""
    table = Table()
    for heading in ("attack", "accuracy", "images", "seconds", "signs of false robustness"):
        table.add_column(heading, justify="left" if heading in ("attack", "signs of false robustness") else "right")
    for name in names:
        if one := result["metrics"].get(name):
            flags = "" if name == "natural" else "not looked for" if one["flags"] is None else ", ".join(one["flags"]) or "none"
            table.add_row(HEADINGS.get(name, name), f"{one['accuracy']:.2f}%", str(one["images"]), f"{one['seconds']:.1f}", flags)
    return table


def held_table(held: dict[str, dict[str, Any]]) -> Table:
    """Return what held-out complementary labels say of the chosen model, each with its standard error."""
    table = Table()
    for heading in ("", "natural", "attacked"):
        table.add_column(heading, justify="right" if heading else "left")
    for title, natural, attacked in (
        ("predictions that are right", "accuracy_natural", ""),
        ("that are right and withstand PGD20", "", "robust"),
        ("predictions inside the candidates", "inside_natural", "inside_attacked"),
    ):
        cells = [held.get(score) for score in (natural, attacked)]
        table.add_row(title, *(f"{100 * one['mean']:.1f} ± {100 * one['error']:.1f}%" if one else "" for one in cells))
    return table


def caption(result: dict[str, Any]) -> str:
    """Return what was measured, and how the reported epoch was chosen."""
    threat, chosen = result["recipe"]["threat"], result["selection"]
    rule = RULES.get(chosen["rule"])
    epoch = rule.about if rule else "the last"
    stages = result["recipe"]["stages"]
    changed = "" if result["name"] in RECIPES and digest(recipe(result["name"])) == result["digest"] else " with changed settings"
    teacher = ", its teacher chosen on the test set" if any(stage["teacher"].startswith("test_") for stage in stages) else ""
    where = f"stage {chosen['stage'] + 1} " if len(stages) > 1 else ""
    return (
        f"{result['name']}{changed}, seed {result['seed']}, {threat['norm']} epsilon {threat['epsilon']:.3g}, "
        f"{where}epoch {chosen['epoch']} ({epoch}){teacher}"
    )


def schedule_table(stage: Stage) -> Table:
    """Return what each epoch of a stage does; epochs that do the same share a row."""
    table = Table()
    for heading in ("epochs", "epsilon", "step size", "steps", "gamma", "lr", "remembers"):
        table.add_column(heading, justify="right")
    rows: list[tuple[list[int], tuple[str, ...]]] = []
    for epoch in range(1, stage.epochs + 1):
        phase = stage.phase(epoch)
        budget = phase.budget
        cells: tuple[str, ...] = (
            f"{budget.epsilon:.4f}",
            f"{budget.step_size:.4f}",
            str(budget.steps),
            f"{phase.gamma:.3f}",
            f"{phase.lr:g}",
            "yes" if phase.remember else "",
        )
        if rows and rows[-1][1] == cells:
            rows[-1][0].append(epoch)
        else:
            rows.append(([epoch], cells))
    for epochs, cells in rows:
        table.add_row(str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}-{epochs[-1]}", *cells)
    return table
