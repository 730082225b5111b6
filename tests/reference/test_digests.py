"""The digest of a recipe names the folders of its results: no change of the source may change one."""

import json
from pathlib import Path

import pytest

from atcl.core.settings import digest, from_data, to_data
from atcl.recipes.catalogue import RECIPES, on_own_data, recipe
from atcl.recipes.schema import kinds

KNOWN: dict[str, str] = json.loads(Path(__file__).with_name("digests.json").read_text(encoding="utf-8"))
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", KNOWN)
def test_a_recipe_keeps_its_digest(name: str) -> None:
    assert digest(recipe(name)) == KNOWN[name]


def test_a_new_recipe_is_written_down() -> None:
    """A recipe that is not in digests.json belongs there: from then on its results lie under that name."""
    assert sorted(KNOWN) == sorted(RECIPES)


def test_a_recipe_for_data_of_ones_own_keeps_its_digest() -> None:
    assert digest(on_own_data(recipe("digits/warmup-pla"))) == "2946d479"


def test_each_result_in_the_ledger_is_read_as_the_recipe_that_its_folder_names() -> None:
    paths = sorted(RESULTS.rglob("result.json"))
    assert len(paths) >= 77
    for path in paths:
        result = json.loads(path.read_text(encoding="utf-8"))
        wanted = from_data(result["recipe"], kinds())
        assert path.parent.parent.name.endswith(f"-{digest(wanted)}")
        assert digest(wanted) == result["digest"]
        assert from_data(json.loads(json.dumps(to_data(wanted))), kinds()) == wanted
