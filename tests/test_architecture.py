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


LOADERS = {"cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}  # whose loading can run what a file says


def unsafe(source: str, module: str = "") -> list[str]:
    """Return what in a source file could execute a data file: imports of unpicklers, and loads that may unpickle."""
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [name for name in names if name.partition(".")[0] in LOADERS]
            found += [
                name.name for name in node.names if name.name in ("loadmat", "read_pickle", "load") and names[0] in ("numpy", "torch", "pandas")
            ]
            found += ["loadmat"] if isinstance(node, ast.ImportFrom) and names[0].startswith("scipy.io") and module != "readers.py" else []
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in ("torch.load", "th.load") and given.get("weights_only") != "True":
                found.append(called)
            if called in ("np.load", "numpy.load", "np.lib.format.read_array") and given.get("allow_pickle") != "False":
                found.append(called)
            if called.rpartition(".")[2] in ("read_pickle", "Unpickler") or called in ("scipy.io.loadmat", "eval", "exec", "__import__"):
                found.append(called)
    return found


def test_nothing_is_loaded_in_a_way_that_could_execute_code() -> None:
    assert {path.name: found for path in SOURCE.rglob("*.py") if (found := unsafe(path.read_text(), path.name))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "import os, pickle as p", "from pickle import loads", "from joblib import load", "import dill", "import shelve",
        "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)", "from numpy import load", "from torch import load", "from scipy.io import loadmat",
        "scipy.io.loadmat(path)", "pandas.read_pickle(path)", "eval(text)",
    ],
)  # fmt: skip
def test_positive_control_what_could_execute_code_is_found(line: str) -> None:
    assert unsafe(line)


def test_what_cannot_execute_code_is_left_alone() -> None:
    lines = ["torch.load(path, weights_only=True)", "np.load(path, allow_pickle=False)", "import pickletools", "safetensors.torch.load(content)"]
    assert unsafe("\n".join(lines)) == []
