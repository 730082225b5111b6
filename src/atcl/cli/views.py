"""What a person sees: tables."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from atcl.core.settings import digest
from atcl.evaluation.attacks import heading
from atcl.recipes.catalogue import RECIPES, recipe
from atcl.training.selection import RULES
from atcl.training.stage import Stage


def metrics_table(result: dict[str, Any], names: Sequence[str]) -> Table:
    """Return the accuracies of a result as a table."""
    table = Table()
    for title in ("attack", "accuracy", "images", "seconds", "signs of false robustness"):
        table.add_column(
            title, justify="left" if title in ("attack", "signs of false robustness") else "right"
        )
    for name in names:
        if one := result["metrics"].get(name):
            flags = (
                ""
                if name == "natural"
                else "not looked for"
                if one["flags"] is None
                else ", ".join(one["flags"]) or "none"
            )
            table.add_row(
                heading(name), f"{one['accuracy']:.2f}%", str(one["images"]), f"{one['seconds']:.1f}", flags
            )
    return table


def held_table(held: dict[str, dict[str, Any]]) -> Table:
    """Return what held-out complementary labels say of the chosen model, each with its standard error."""
    table = Table()
    for title in ("", "natural", "attacked"):
        table.add_column(title, justify="right" if title else "left")
    for title, natural, attacked in (
        ("predictions that are right", "accuracy_natural", ""),
        ("that are right and withstand PGD20", "", "robust"),
        ("predictions inside the candidates", "inside_natural", "inside_attacked"),
    ):
        cells = [held.get(score) for score in (natural, attacked)]
        table.add_row(
            title, *(f"{100 * one['mean']:.1f} ± {100 * one['error']:.1f}%" if one else "" for one in cells)
        )
    return table


def caption(result: dict[str, Any]) -> str:
    """Return what was measured, and how the reported epoch was chosen."""
    threat, chosen = result["recipe"]["threat"], result["selection"]
    rule = RULES.get(chosen["rule"])
    epoch = rule.about if rule else "the last"
    stages = result["recipe"]["stages"]
    changed = (
        ""
        if result["name"] in RECIPES and digest(recipe(result["name"])) == result["digest"]
        else " with changed settings"
    )
    teacher = (
        ", its teacher chosen on the test set"
        if any(stage["teacher"].startswith("test_") for stage in stages)
        else ""
    )
    where = f"stage {chosen['stage'] + 1} " if len(stages) > 1 else ""
    return (
        f"{result['name']}{changed}, seed {result['seed']}, {threat['norm']} epsilon {threat['epsilon']:.3g}, "
        f"{where}epoch {chosen['epoch']} ({epoch}){teacher}"
    )


def schedule_table(stage: Stage) -> Table:
    """Return what each epoch of a stage does; epochs that do the same share a row."""
    table = Table()
    for title in ("epochs", "epsilon", "step size", "steps", "gamma", "lr", "remembers"):
        table.add_column(title, justify="right")
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
