"""The modules and their permitted imports, as docs/architecture.md draws them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atcl"
BLIND = (
    "schedules", "seeds", "losses", "attacks", "objectives", "batches", "supervision", "models", "training",
    "transitions", "matrices", "tables", "heldout", "pictures", "folders", "precisions", "forms", "twins", "recordings", "engines", "packing",
)  # fmt: skip
SEEING = {
    "atcl", "truth", "labels", "labelled", "data", "evaluation", "probing", "masking", "tasks", "recipes", "runs", "stages", "running",
    "predicting", "paper", "experiments", "ledger", "estimates", "cells", "claims", "reports", "headline", "places", "reproducing", "listing",
    "console", "commands", "cli", "analysis", "observing", "lookback", "figures", "page", "boards",
}  # fmt: skip


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(source: str) -> set[str]:
    """Return the modules of the package that a piece of source imports, and "atcl" where it takes the whole or hides the name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.add("atcl")  # relative imports are not used here
        elif isinstance(node, ast.ImportFrom) and node.module == "atcl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("atcl."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {parts[min(1, len(parts) - 1)] for parts in names if parts[0] == "atcl"}
        elif isinstance(node, ast.Name) and node.id in ("__import__", "importlib"):
            found.add("atcl")
    return found


def imports() -> dict[str, set[str]]:
    """Return what each module of the package imports of the package; `models` counts as one."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        found.setdefault(module_of(path), set()).update(imported(path.read_text()))
    return {name: used - {name} for name, used in found.items()}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from atcl.truth import Truth", {"truth"}),
        ("from atcl import truth, losses", {"truth", "losses"}),
        ("import atcl.truth", {"truth"}),
        ("import atcl.models.layers", {"models"}),
        ("import atcl", {"atcl"}),
        ("from .truth import Truth", {"atcl"}),
        ("def f():\n    from atcl.truth import Truth", {"truth"}),
        ("__import__('atcl.truth')", {"atcl"}),
        ("import torch", set()),
    ],
)
def test_no_form_of_import_goes_unseen(source: str, found: set[str]) -> None:
    assert imported(source) == found


def permitted() -> dict[str, set[str]]:
    block = re.search(r"```imports\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)
    assert block
    return {name.strip(): set(used.split()) for name, used in (line.split(":") for line in block[1].strip().splitlines())}


def test_the_page_names_every_module_and_its_imports_exactly() -> None:
    drawn = {name: used for name, used in imports().items() if name not in ("__init__", "__main__")}
    assert drawn == permitted()


def reachable(name: str, arrows: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    rest = [name]
    while rest:
        for used in arrows.get(rest.pop(), set()) - seen:
            seen.add(used)
            rest.append(used)
    return seen


@pytest.mark.parametrize("name", BLIND)
def test_training_cannot_reach_the_truth_by_import(name: str) -> None:
    assert not reachable(name, imports()) & SEEING


def test_there_is_no_cycle() -> None:
    arrows = imports()
    assert [name for name in arrows if name in reachable(name, arrows)] == []


def test_the_loop_stays_on_one_screen_with_its_step_in_plain_sight() -> None:
    tree = ast.parse((SOURCE / "training.py").read_text())
    (fit,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fitting"]
    assert fit.end_lineno is not None
    assert fit.end_lineno - fit.lineno < 60
    body = ast.unparse(fit)
    assert "loss.backward()" in body
    assert "learner.optimizer.step()" in body


def test_no_module_outgrows_its_one_idea() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert max(lengths.values()) <= 330, lengths


def test_nothing_is_loaded_in_a_way_that_could_execute_code() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "torch.load(" not in text.replace("safetensors.torch.load(", "")
        # readers.py holds the one unpickler, which makes arrays and nothing else (tests/test_readers.py)
        assert path.name == "readers.py" or "pickle" not in text
