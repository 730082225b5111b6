"""Observers on a GPU: they record the same numbers with and without CUDA graphs.

Without a GPU these tests skip.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atcl.analysis import observers as observing
from atcl.analysis.observers import OBSERVATIONS, ObserverContext, Observers
from atcl.core import journal
from atcl.engine.engines import StepGraph
from atcl.runs.layout import ANALYSIS
from atcl.runs.spec import Execution
from atcl.runs.start import train
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and this machine has none"),
]


@pytest.mark.parametrize(
    "name",
    ["digits/warmup-pla", "digits/direct-forward", "digits/trades", "cifar10/oracle", "digits/warmup-pla-k"],
)
def test_recorded_observations_find_what_plain_ones_find(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two are plain; later ones have other weights, attacks and gamma than were recorded."""
    recipe = tiny.changing(tiny.RECIPES[name])
    plays: Counter[int] = Counter()  # by the number of tensors that a graph receives

    def counted(self: StepGraph, *given: Tensor) -> Tensor:
        plays[len(given)] += 1
        return play(self, *given)

    play, found = StepGraph.play, {}
    monkeypatch.setattr(StepGraph, "play", counted)
    for way in ("recorded", "plain"):
        if way == "plain":
            assert plays[3] > 0  # PGD20 on test images
            assert plays[4] > 0  # attacks
            # gradients; a step receives its index alone
            assert sum(plays[number] for number in plays if number > 4) > 0
            # without an engine that records
            monkeypatch.setattr(observing, "ObserverContext", lambda *parts: ObserverContext(*parts[:-1]))
        execution = Execution(device="cuda", deterministic=True, observing=Observers(tuple(OBSERVATIONS), 1))
        problem = tiny.problem(recipe.labels)
        run = train(recipe, out=tmp_path / way, problem=problem, build=tiny.TinyNet, execution=execution)
        found[way] = journal.read(run.folder / ANALYSIS)
    assert len(found["plain"]) == 8 * len(recipe.stages)
    for ours, theirs in zip(found["recorded"], found["plain"], strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=1e-3, abs=1e-3), (key, ours["epoch"])
