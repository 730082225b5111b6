"""What holds for every augmentation in the registry."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from atcl.core.settings import digest, from_data, to_data
from atcl.data.augment import AUGMENTATIONS, AnyAugmentation
from atcl.recipes.catalogue import recipe
from atcl.recipes.schema import kinds
from atcl.training.learner import Learner
from atcl.training.loop import fit
from tests import tiny

EXAMPLES = pytest.mark.parametrize(
    "augment", [kind.example for kind in AUGMENTATIONS.values()], ids=AUGMENTATIONS
)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(n: int = 16) -> Tensor:
    return torch.rand(n, 3, 12, 10, generator=seeded())


@EXAMPLES
def test_it_returns_other_images_of_the_same_form_in_the_same_range(augment: AnyAugmentation) -> None:
    x = images()
    before = x.clone()
    out = augment(x, seeded())
    assert torch.equal(x, before), "the images that it was given have changed"
    assert (out.shape, out.dtype, out.device) == (x.shape, x.dtype, x.device)
    assert bool((out >= 0).all())
    assert bool((out <= 1).all())
    assert bool((out != x).flatten(1).any(1).any())


@EXAMPLES
def test_its_random_numbers_come_from_the_generator_alone(augment: AnyAugmentation) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = augment(images(), seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert torch.equal(first, augment(images(), seeded(1)))
    assert not torch.equal(first, augment(images(), seeded(2)))


@EXAMPLES
def test_each_image_is_changed_by_draws_of_its_own(augment: AnyAugmentation) -> None:
    same = images(1).expand(32, -1, -1, -1).contiguous()
    out = augment(same, seeded())
    assert len({tuple(one.flatten().tolist()) for one in out}) > 1


@EXAMPLES
def test_it_is_part_of_a_recipe(augment: AnyAugmentation) -> None:
    plain = recipe("digits/warmup-pla")
    changed = replace(plain, stages=(replace(plain.stages[0], augmentation=augment),))
    assert from_data(to_data(changed), kinds()) == changed
    assert digest(changed) != digest(plain)


@EXAMPLES
def test_training_with_it_repeats(augment: AnyAugmentation) -> None:
    stage = replace(tiny.RECIPES["digits/warmup-pla"].stages[0], augmentation=augment, epochs=2)

    def weights() -> Tensor:
        torch.manual_seed(0)
        data = tiny.problem(tiny.RECIPES["digits/warmup-pla"].labels).train
        learner = Learner(tiny.TinyNet(), data, stage)
        fit(learner, data, stage, seed=3)
        return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])

    assert torch.equal(weights(), weights())
