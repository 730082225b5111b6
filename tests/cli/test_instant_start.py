"""What needs no model imports no PyTorch: help, lists, wrong names, completion and `import atcl`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import atcl
from atcl.cli.catalogue import LISTED, as_json
from atcl.cli.entry import main
from atcl.cli.names import CATALOGUE, LISTED_KINDS, catalogue, listed
from atcl.recipes.catalogue import RECIPES

SLOW = {"torch", "sklearn", "scipy", "matplotlib", "pyautoattack", "PIL", "ray", "tensorboard", "numpy"}
REPORT = f"import json; print(json.dumps(sorted({SLOW!r} & set(sys.modules))), file=sys.stderr)"


@pytest.fixture(scope="module", autouse=True)
def _catalogue_is_newest() -> None:
    """The catalogue is read only if no source is newer; another test checks what it holds."""
    CATALOGUE.touch()


def slow_imports(program: str) -> set[str]:
    """Return which slow packages a program has imported in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(found.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["--help"],
        *(["list", kind] for kind in LISTED_KINDS),
        ["list", "nothing"],
        ["trian"],
        ["train", "digits/warmup-plaa"],
        ["reproduce", "tabel1"],
        ["figure", "gradient"],
        ["completion", "bash"],
        ["completion", "words", "train"],
        ["completion", "words", "train", "--engine"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_model_imports_no_pytorch(words: list[str]) -> None:
    assert slow_imports(f"from atcl.cli import main; main({words!r})") == set()


@pytest.mark.parametrize("command", ["train", "list", "reproduce"])
def test_the_help_of_a_command_needs_no_pytorch(command: str) -> None:
    program = f"from atcl.cli import main\ntry: main([{command!r}, '--help'])\nexcept SystemExit: pass"
    assert slow_imports(program) == set()


def test_positive_control_a_recipe_is_shown_with_pytorch() -> None:
    assert "torch" in slow_imports("from atcl.cli import main; main(['show', 'digits/warmup-pla'])")


def test_import_atcl_is_lazy_and_every_name_is_there() -> None:
    assert slow_imports("import atcl; dir(atcl); atcl.__version__; atcl.AtclError") == set()
    assert "torch" in slow_imports("from atcl import pgd")
    for name in atcl.__all__:
        assert getattr(atcl, name) is not None
    assert dir(atcl) == sorted(atcl.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        atcl.tarin  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_finds_the_same_names() -> None:
    source = Path(atcl.__file__).read_text(encoding="utf-8")
    declared = {line.rpartition(" as ")[2] for line in source.splitlines() if line.startswith("    from ")}
    assert declared | {"replace"} == set(atcl.__all__)


def test_the_catalogue_holds_what_the_registries_hold() -> None:
    assert CATALOGUE.read_text(encoding="utf-8") == as_json(), "run `make catalogue`"
    assert set(LISTED_KINDS) == set(LISTED)


def test_where_sources_of_a_checkout_are_newer_the_registries_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "src" / "atcl"
    old = package / "cli" / "catalogue.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps({"losses": {"gone": "a loss that is not there any more"}}), encoding="utf-8")
    (package / "newer.py").touch()
    os.utime(old, (0, 0))
    monkeypatch.setattr("atcl.cli.names.CATALOGUE", old)
    catalogue.cache_clear()
    try:
        assert set(listed("losses")) == {"gone"}  # nobody edits an installation
        catalogue.cache_clear()
        (tmp_path / ".git").mkdir()
        assert listed("losses") == LISTED["losses"]
    finally:
        catalogue.cache_clear()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], "train"),
        (["train"], "digits/warmup-pla"),
        (["train", "digits/warmup-pla", "--engine"], "captured"),
        (["train", "--seed", "3"], "--device"),
        (["train", "-h"], "--device"),
        (["list"], "losses"),
        (["evaluate", "runs/a", "--attacks"], "autoattack"),
        (["train", "--log"], "csv"),
    ],
)
def test_what_the_shell_completes(
    typed: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "words", *typed]) == 0
    assert expected in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_for_the_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "atcl completion words " in capsys.readouterr().out


def test_a_recipe_that_a_program_has_added_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "digits/mine", RECIPES["digits/warmup-pla"])
    assert main(["show", "digits/mine"]) == 0
