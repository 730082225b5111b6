"""The examples in docstrings give what they show, and every public function and class has one."""

import doctest
import inspect
import pkgutil
from importlib import import_module

import pytest

import atcl

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(atcl.__path__, "atcl.")
    if not module.name.endswith(".__main__")  # importing it would start the command line
)
DATA = ("LOSSES", "MODELS", "RECIPES", "__version__")  # no functions or classes
PUBLIC = sorted(set(atcl.__all__) - {*DATA, "replace"})  # `replace` is Python's own


def test_modules_of_every_depth_are_found() -> None:
    assert {"atcl.losses", "atcl.attacks.pgd", "atcl.reproduce.figures.catalogue"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert not found.failed, capsys.readouterr().out


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_and_classes_have_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(atcl, name)) or ""
    _, heading, examples = text.partition("Examples:\n")
    assert heading, f"the docstring of atcl.{name} has no section `Examples:`"
    assert doctest.DocTestParser().get_examples(examples), f"the section of atcl.{name} has no `>>>`"


@pytest.mark.parametrize("name", DATA)
def test_what_needs_no_example_is_neither_function_nor_class(name: str) -> None:
    assert not callable(getattr(atcl, name))
