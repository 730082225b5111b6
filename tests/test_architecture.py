"""The rooms and their permitted imports, as docs/architecture.md draws them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atcl"
FIRST_WITH_TRUTH = "datasets"  # the rooms before it train, and none of them can import a true label


def imported(source: str, known: set[str]) -> set[str]:
    """Return the modules of the package that a piece of source imports.

    It is "atcl" where the source imports the whole package, or a name that only running it shows.
    """
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


def running(source: str) -> str:
    """Return a piece of source without what only a type checker reads."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return ast.unparse(tree)


IMPORTS = {
    name: imported(path.read_text(encoding="utf-8"), set(MODULES)) - {name} for name, path in MODULES.items()
}
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
    block = re.search(
        r"```rooms\n(.*?)```", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.S
    )
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


def test_rooms_that_train_come_before_any_with_true_labels() -> None:
    """With the order this is the leak rule: no module that trains can reach a true label by import."""
    order = list(drawn())
    training = order[: order.index(FIRST_WITH_TRUTH)]
    assert {"training", "losses", "attacks", "engine", "data"} <= set(training)
    for name in INSIDE:
        if room_of(name) in training:
            assert not [used for used in reachable(name) if room_of(used) not in training], name


def test_positive_control_the_rooms_after_it_do_reach_the_truth() -> None:
    assert "atcl.datasets.truth" in reachable("atcl.runs.execute")


def reachable(name: str, imports: dict[str, set[str]] = IMPORTS) -> set[str]:
    seen: set[str] = set()
    rest = [name]
    while rest:
        new = imports.get(rest.pop(), set()) - seen
        seen |= new
        rest += new
    return seen


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Neither when it is imported nor, by an import within a function, when it is used."""
    used = {
        name: imported(running(path.read_text(encoding="utf-8")), set(MODULES)) - {name}
        for name, path in MODULES.items()
    }
    assert [name for name in MODULES if name in reachable(name, used)] == []


def test_a_room_has_a_short_docstring_and_few_modules() -> None:
    rooms = [path for path in SOURCE.rglob("*") if path.is_dir() and list(path.glob("*.py"))]
    assert len(rooms) >= 16
    for room in rooms:
        about = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert 1 <= len(re.findall(r"[.:](?=\s|$)", about)) <= 5, room
        assert len(list(room.glob("*.py"))) - 1 <= 14, room


def test_the_loop_stays_on_one_screen_with_its_step_in_plain_sight() -> None:
    tree = ast.parse(MODULES["atcl.training.loop"].read_text(encoding="utf-8"))
    (fit,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fitting"]
    assert fit.end_lineno is not None
    assert fit.end_lineno - fit.lineno < 75
    body = ast.unparse(fit)
    assert "loss.backward()" in body
    assert "learner.optimizer.step()" in body


def public_names(source: str) -> set[str]:
    """Return the public names that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_is_defined_in_one_module_alone() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for name in public_names(path.read_text(encoding="utf-8")):
            homes.setdefault(name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_module_outgrows_its_one_idea() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert max(lengths.values()) <= 400, lengths
