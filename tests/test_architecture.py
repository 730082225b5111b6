"""The rooms and their permitted imports, as docs/architecture.md draws them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atcl"
FIRST_WITH_TRUTH = "datasets"  # the rooms before it train, and none of them can import a true label


def imported(source: str, known: set[str]) -> set[str]:
    """Return the modules of the package that a piece of source imports; "atcl" where it takes the whole or hides the name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.add("atcl")  # relative imports are not used here
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "atcl":
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] == "atcl"}
        elif isinstance(node, ast.Name) and node.id in ("__import__", "importlib"):
            found.add("atcl")
    return found


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
IMPORTS = {name: imported(path.read_text(), set(MODULES)) - {name} for name, path in MODULES.items()}
INSIDE = {name for name in MODULES if name.count(".") >= 1 and name != "atcl.__main__"}


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from atcl.datasets.truth import Truth", {"atcl.datasets.truth"}),
        ("from atcl.datasets import truth, labels", {"atcl.datasets.truth", "atcl.datasets.labels"}),
        ("from atcl import datasets", {"atcl.datasets"}),
        ("from atcl.losses import LOSSES", {"atcl.losses"}),
        ("import atcl.datasets.truth", {"atcl.datasets.truth"}),
        ("import atcl", {"atcl"}),
        ("from atcl import Truth", {"atcl"}),
        ("from .truth import Truth", {"atcl"}),
        ("def f():\n    from atcl.datasets.truth import Truth", {"atcl.datasets.truth"}),
        ("__import__('atcl.datasets.truth')", {"atcl"}),
        ("import torch", set()),
    ],
)
def test_no_form_of_import_goes_unseen(source: str, found: set[str]) -> None:
    assert imported(source, set(MODULES)) == found


def drawn() -> dict[str, set[str]]:
    """Return the rooms in the order of the page, each with the rooms that it imports."""
    block = re.search(r"```rooms\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)
    assert block
    lines = [line for line in block[1].strip().splitlines() if not line.startswith("--")]
    return {name.strip(): set(used.split()) for name, used in (line.split(":") for line in lines)}


def test_the_page_draws_every_room_with_the_rooms_that_it_imports() -> None:
    found: dict[str, set[str]] = {room_of(name): set() for name in INSIDE}
    for name in INSIDE:
        found[room_of(name)] |= {room_of(used) for used in IMPORTS[name]} - {room_of(name)}
    assert found == drawn()


def test_a_room_imports_only_rooms_above_it() -> None:
    order = list(drawn())
    wrong = {name: used - set(order[: order.index(name)]) for name, used in drawn().items()}
    assert not {name: used for name, used in wrong.items() if used}


def test_rooms_that_train_come_before_any_that_knows_the_truth() -> None:
    """With the order this is the leak rule: no module that trains can reach a true label by import."""
    order = list(drawn())
    training = order[: order.index(FIRST_WITH_TRUTH)]
    assert {"training", "losses", "attacks", "engine", "data"} <= set(training)
    for name in INSIDE:
        if room_of(name) in training:
            assert not [used for used in reachable(name) if room_of(used) not in training], name


def test_positive_control_the_rooms_after_it_do_reach_the_truth() -> None:
    assert "atcl.datasets.truth" in reachable("atcl.runs.execute")


def reachable(name: str) -> set[str]:
    seen: set[str] = set()
    rest = [name]
    while rest:
        new = IMPORTS.get(rest.pop(), set()) - seen
        seen |= new
        rest += new
    return seen


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert [name for name in MODULES if name in reachable(name)] == []


def test_a_room_says_what_it_is_and_is_small() -> None:
    rooms = [path for path in SOURCE.rglob("*") if path.is_dir() and list(path.glob("*.py"))]
    assert len(rooms) >= 16
    for room in rooms:
        about = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
        assert 1 <= len(re.findall(r"[.:](?=\s|$)", about)) <= 5, room
        assert len(list(room.glob("*.py"))) - 1 <= 14, room


def test_the_loop_stays_on_one_screen_with_its_step_in_plain_sight() -> None:
    tree = ast.parse(MODULES["atcl.training.loop"].read_text())
    (fit,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fitting"]
    assert fit.end_lineno is not None
    assert fit.end_lineno - fit.lineno < 75
    body = ast.unparse(fit)
    assert "loss.backward()" in body
    assert "learner.optimizer.step()" in body


def test_no_module_outgrows_its_one_idea() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert max(lengths.values()) <= 400, lengths


LOADERS = {
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "shelve",
}  # whose loading can run what a file says


def unsafe(source: str, module: str = "") -> list[str]:
    """Return what in a source file could execute a data file: imports of unpicklers, and loads that may unpickle."""
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            found += [name for name in names if name.partition(".")[0] in LOADERS]
            found += [
                name.name
                for name in node.names
                if name.name in ("loadmat", "read_pickle", "load")
                and names[0] in ("numpy", "torch", "pandas")
            ]
            found += (
                ["loadmat"]
                if isinstance(node, ast.ImportFrom)
                and names[0].startswith("scipy.io")
                and module != "readers.py"
                else []
            )
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in ("torch.load", "th.load") and given.get("weights_only") != "True":
                found.append(called)
            if (
                called in ("np.load", "numpy.load", "np.lib.format.read_array")
                and given.get("allow_pickle") != "False"
            ):
                found.append(called)
            if called.rpartition(".")[2] in ("read_pickle", "Unpickler") or called in (
                "scipy.io.loadmat",
                "eval",
                "exec",
                "__import__",
            ):
                found.append(called)
    return found


def test_nothing_is_loaded_in_a_way_that_could_execute_code() -> None:
    assert {
        path.name: found for path in SOURCE.rglob("*.py") if (found := unsafe(path.read_text(), path.name))
    } == {}


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
    lines = [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "import pickletools",
        "safetensors.torch.load(content)",
    ]
    assert unsafe("\n".join(lines)) == []
