"""Results and stages on the terminal: captions and tables."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from atcl.core.settings import digest
from atcl.evaluation.attacks import heading
from atcl.evaluation.evaluate import Measurement
from atcl.evaluation.reported import REPORTED
from atcl.loggers.progress import print_line
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.runs.result import Measurements, Result
from atcl.runs.run import Run
from atcl.training.selection import RULES
from atcl.training.stage import Stage
from atcl.training.weak_validation import Estimate


def print_result(console: Console, run: Run) -> None:
    """Print the accuracies of a finished run on its test set, and the estimates from held-out labels."""
    result = run.result
    print_line(console, caption(result))
    if result.metrics:
        console.print(metrics_table(result.metrics, REPORTED))
        if result.flags is None:
            print_line(console, f"`atcl evaluate {run.folder}` checks for signs of false robustness")
    if result.held:
        images = result.held["robust"].images
        print_line(
            console,
            f"estimated from the complementary labels of {images} held-out images, without true labels:",
        )
        console.print(held_table(result.held))


def caption(result: Result) -> str:
    """Return a line that names the run, and says how its epoch was chosen."""
    threat, stages, chosen = result.recipe["threat"], result.recipe["stages"], result.selection
    rule = RULES.get(chosen.rule)
    plain = result.name in RECIPES and digest(recipe(result.name)) == result.digest
    changed = "" if plain else " with changed settings"
    by_test = any(stage["teacher"].startswith("test_") for stage in stages)
    teacher = ", its teacher chosen on the test set" if by_test else ""
    stage = f"stage {chosen.stage + 1} " if len(stages) > 1 else ""
    return (
        f"{result.name}{changed}, seed {result.seed}, {threat['norm']} epsilon {threat['epsilon']:.3g}, "
        f"{stage}epoch {chosen.epoch} ({rule.about if rule else 'the last'}){teacher}"
    )


def metrics_table(metrics: Measurements, names: Sequence[str]) -> Table:
    """Return a table of accuracies.

    Args:
        metrics: the measurements, by attack.
        names: the attacks to show, in this order; those without a measurement are left out.
    """
    signs = "signs of false robustness"
    table = Table()
    for title in ("attack", "accuracy", "images", "seconds", signs):
        table.add_column(title, justify="left" if title in ("attack", signs) else "right")
    for name in names:
        if one := metrics.get(name):
            table.add_row(
                heading(name),
                f"{one.accuracy:.2f}%",
                str(one.images),
                f"{one.seconds:.1f}",
                _signs(name, one),
            )
    return table


def _signs(name: str, measurement: Measurement) -> str:
    if name == "natural":
        return ""
    return "not checked" if measurement.flags is None else ", ".join(measurement.flags) or "none"


def held_table(held: Mapping[str, Estimate]) -> Table:
    """Return a table of the estimates from held-out complementary labels, with their standard errors."""
    table = Table()
    for title in ("", "natural", "attacked"):
        table.add_column(title, justify="right" if title else "left")
    for title, *scores in (
        ("right predictions", "accuracy_natural", ""),
        ("right predictions that withstand PGD20", "", "robust"),
        ("predictions that are candidates", "inside_natural", "inside_attacked"),
    ):
        table.add_row(title, *(_percent(held.get(score)) for score in scores))
    return table


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.1f}"
    return f"{100 * estimate.mean:.1f}{error}%"


def schedule_table(stage: Stage) -> Table:
    """Return a table of the schedules of a stage; epochs with the same values share a row."""
    table = Table()
    for title in ("epochs", "epsilon", "step size", "steps", "gamma", "lr", "remembers"):
        table.add_column(title, justify="right")
    rows: list[tuple[list[int], tuple[str, ...]]] = []
    for epoch in range(1, stage.epochs + 1):
        cells = _schedule_cells(stage, epoch)
        if rows and rows[-1][1] == cells:
            rows[-1][0].append(epoch)
        else:
            rows.append(([epoch], cells))
    for epochs, cells in rows:
        table.add_row(str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}-{epochs[-1]}", *cells)
    return table


def _schedule_cells(stage: Stage, epoch: int) -> tuple[str, ...]:
    phase = stage.phase(epoch)
    return (
        f"{phase.budget.epsilon:.4f}",
        f"{phase.budget.step_size:.4f}",
        str(phase.budget.steps),
        f"{phase.gamma:.3f}",
        f"{phase.lr:g}",
        "yes" if phase.remember else "",
    )
