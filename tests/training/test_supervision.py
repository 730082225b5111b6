from itertools import pairwise

import torch
from torch import nn

from atcl.data.weak import WeakData, rule_out
from atcl.datasets.labels import Complementary, weaken
from atcl.training.learner import Learner
from atcl.training.loop import fit
from atcl.training.optimizers import Adam
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels, blank_memory, guesses, relabel, remembered
from tests import tiny

CANDIDATES = rule_out(2, 4, [[0], [1, 2]])


def test_memory_begins_even_over_the_candidates() -> None:
    torch.testing.assert_close(
        blank_memory(CANDIDATES), torch.tensor([[0, 1 / 3, 1 / 3, 1 / 3], [0.5, 0, 0, 0.5]])
    )


def test_memory_moves_towards_predictions_and_stays_off_the_complementary_labels() -> None:
    memory = blank_memory(CANDIDATES)
    probabilities = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1]])
    moved = remembered(memory, probabilities, CANDIDATES, beta=0.9)
    torch.testing.assert_close(moved[0], torch.tensor([0, 0.31, 0.31, 0.31]))
    torch.testing.assert_close(moved[1], torch.tensor([0.46, 0, 0, 0.46]))


def test_a_guess_is_always_a_candidate() -> None:
    assert guesses(torch.zeros(2, 4), CANDIDATES).tolist() == [1, 0]
    assert guesses(torch.tensor([[0.0, 0.1, 0.5, 0.4], [0.2, 0.0, 0.0, 0.3]]), CANDIDATES).tolist() == [2, 3]


def test_memory_learns_in_its_epochs_alone() -> None:
    data = weaken(tiny.split(), Complementary(), 0)
    lr = tiny.RECIPES["digits/oracle"].stages[0].lr
    stage = Stage(6, 8, Adam(), lr, supervision=PseudoLabels(first=3, last=4))
    learner = Learner(tiny.TinyNet(), data, stage)
    seen = [learner.memory.clone()]
    fit(learner, data, stage, seed=0, observers=[lambda snapshot: seen.append(snapshot.memory)])
    changed = [not torch.equal(before, after) for before, after in pairwise(seen)]
    assert changed == [False, False, True, True, False, False]


def test_memory_keeps_predictions_for_natural_images_in_eval_mode_before_the_attack() -> None:
    """One step on the whole set: the memory receives the softmax of the untouched model, without dropout."""
    data = weaken(tiny.split(), Complementary(), 0)
    stage = tiny.RECIPES["digits/pseudo-labels-rapid"].stages[0]
    supervision = PseudoLabels(beta=0.5)
    alone = Stage(1, 20, stage.optimizer, stage.lr, budget=stage.budget, supervision=supervision)
    torch.manual_seed(0)
    model = tiny.TinyNet()
    learner = Learner(model, data, alone)
    with torch.no_grad():
        first = model.eval()(data.x.float() / 255).softmax(1)
    model.train()
    fit(learner, data, alone, seed=0)
    expected = remembered(blank_memory(data.candidates), first, data.candidates, 0.5)
    torch.testing.assert_close(learner.memory, expected)


def test_relabelling_takes_the_arg_max_over_all_classes_even_one_ruled_out() -> None:
    data = WeakData(torch.rand(3, 1, 1, 4), rule_out(3, 4, [0, 1, 2]))
    relabelled = relabel(data, nn.Flatten(), batch_size=2)
    assert torch.equal(relabelled.candidates.int().argmax(1), data.x.flatten(1).argmax(1))
    assert (relabelled.candidates.sum(1) == 1).all()
