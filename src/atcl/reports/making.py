"""How a run was made: the command that makes it again, the machine, the recipe."""

from typing import Any

from atcl.core.settings import options
from atcl.reports.gathering import RunSummary, chosen_by, rerun
from atcl.reports.markup import Child, Markup, el
from atcl.reports.parts import scrolled, table


def making(told: RunSummary) -> Markup:
    """Return how a run was made: the command, the recipe, the machine."""
    result = told.result or {}
    place = result.get("environment", {})
    facts = {
        "run": str(told.run.folder),
        "seed": told.run.seed,
        "reported": chosen_by(told),
        "per epoch": f"PGD20 on the test set, crafted in {' and '.join(sorted(told.crafted))}"
        if told.crafted
        else None,
        "training": f"{result['training_seconds']:,.0f} s" if "training_seconds" in result else None,
        "engine": _engine(result["engine"]) if "engine" in result else None,
        **{key: _plain(value) for key, value in place.items()},
        "data": " ".join(str(value) for value in result.get("data", {}).values() if value) or None,
        "model": f"{result['model']['bytes']:,} bytes, sha256 {result['model']['sha256'][:16]}…"
        if "model" in result
        else None,
    }
    rows: list[tuple[Child, list[Child]]] = [
        (key, [str(value)]) for key, value in facts.items() if value is not None
    ]
    command = el(
        "div",
        el("pre", el("code", rerun(told)), tabindex=0, aria_label="Command to rerun"),
        el("button", "Copy", type="button", class_="copy"),
        class_="command",
    )
    recipe = el(
        "details",
        el("summary", "Recipe, setting by setting"),
        el("pre", el("code", "\n".join(options(told.run.recipe))), tabindex=0, aria_label="Recipe"),
    )
    return el(
        "div",
        el("h3", "Run it again"),
        command,
        el("h3", "Environment"),
        scrolled(table(None, [], rows, class_="facts"), "Environment"),
        el("h3", "Recipe"),
        recipe,
    )


def _engine(told: dict[str, Any]) -> str:
    peak = f"{told['peak_gpu_bytes'] / 2**30:.2f} GiB of GPU memory" if told.get("peak_gpu_bytes") else ""
    together = f"{told['together']} runs at once" if told.get("together", 1) > 1 else ""
    return ", ".join(
        part
        for part in (str(told.get("name")), "compiled" if told.get("compiled") else "", together, peak)
        if part
    )


def _plain(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
