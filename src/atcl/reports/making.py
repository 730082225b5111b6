"""How a run was made: the command that makes it again, the machine, the recipe."""

from typing import Any

from atcl.core.settings import options
from atcl.reports.gathering import RunSummary, chosen_by, rerun
from atcl.reports.markup import Child, Markup, el
from atcl.reports.parts import scrolled, table
from atcl.runs.result import EngineUse, Result


def making(summary: RunSummary) -> Markup:
    """Return how a run was made: the command, the recipe, the machine."""
    result = summary.result
    precisions = " and ".join(sorted(summary.crafted))
    facts = {
        "run": str(summary.run.folder),
        "seed": summary.run.seed,
        "reported": chosen_by(summary),
        "per epoch": f"PGD20 on the test set, attack in {precisions}" if precisions else None,
        **(_of_result(result) if result else {}),
    }
    rows: list[tuple[Child, list[Child]]] = [
        (key, [str(value)]) for key, value in facts.items() if value is not None
    ]
    command = el(
        "div",
        el("pre", el("code", rerun(summary)), tabindex=0, aria_label="Command to rerun"),
        el("button", "Copy", type="button", class_="copy"),
        class_="command",
    )
    recipe = el(
        "details",
        el("summary", "Recipe, setting by setting"),
        el("pre", el("code", "\n".join(options(summary.run.recipe))), tabindex=0, aria_label="Recipe"),
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


def _of_result(result: Result) -> dict[str, str | None]:
    model = result.model
    return {
        "training": f"{result.training_seconds:,.0f} s",
        "engine": _engine(result.engine) if result.engine else None,
        **{key: _plain(value) for key, value in result.environment.items()},
        "data": " ".join(str(value) for value in result.data.values() if value) or None,
        "model": f"{model['bytes']:,} bytes, sha256 {model['sha256'][:16]}…" if model else None,
    }


def _engine(engine: EngineUse) -> str:
    peak = f"{engine.peak_gpu_bytes / 2**30:.2f} GiB of GPU memory" if engine.peak_gpu_bytes else ""
    together = f"{engine.together} runs at once" if engine.together > 1 else ""
    compiled = "compiled" if engine.compiled else ""
    return ", ".join(part for part in (engine.name, compiled, together, peak) if part)


def _plain(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
