"""Several views of each image: who makes them, who receives them, and that they follow from the seed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from atcl.core.errors import AtclError
from atcl.data.augment import Augmentation, Cutout
from atcl.losses import Targets
from atcl.training.learner import Learner
from atcl.training.loop import fit
from tests import tiny

RECIPE = tiny.CUSTOM["digits/two-views"]
(STAGE,) = RECIPE.stages


def test_a_batch_holds_a_view_from_each_augmentation_of_the_same_images() -> None:
    data = tiny.problem(RECIPE.labels).train
    index = torch.tensor([3, 0, 7])
    batch = data.batch(index, Augmentation(), Generator().manual_seed(1), (Cutout(size=3), Cutout(size=2)))
    assert torch.equal(batch.x, data.x[index] / 255)
    assert len(batch.views) == 3
    for view in batch.others:
        changed = (view != batch.x).flatten(1)
        assert bool(changed.any(1).all())
        assert bool((view.flatten(1)[changed] == 0.5).all())  # what cutout leaves is the image
    assert not torch.equal(*batch.others)


def test_further_views_leave_the_draws_of_the_first_as_they_were() -> None:
    data, index = tiny.problem(RECIPE.labels).train, torch.arange(8)
    crop = Augmentation(padding=2, flip=True)
    alone, beside = (
        data.batch(index, crop, Generator().manual_seed(1), views).x for views in ((), (Cutout(size=3),))
    )
    assert torch.equal(alone, beside)


def test_the_objective_receives_them_in_order_and_its_loss_is_what_training_lowers() -> None:
    seen: list[tuple[Tensor, ...]] = []

    class Recording(tiny.TwoViews):
        def training_loss(
            self, model: nn.Module, x: Tensor, adv: Tensor, targets: Targets, *others: Tensor
        ) -> tuple[Tensor, Tensor]:
            seen.append((x, adv, *others))
            return super().training_loss(model, x, adv, targets, *others)

    def weights(weight: float) -> dict[str, Any]:
        stage = replace(STAGE, objective=Recording(weight=weight))
        data = tiny.problem(RECIPE.labels).train
        torch.manual_seed(0)
        learner = Learner(tiny.TinyNet().eval(), data, stage)
        fit(learner, data, stage, seed=2)
        return learner.model.state_dict()

    with_views, without = weights(1.0), weights(0.0)
    assert all(len(views) == 3 for views in seen)
    assert any(not torch.equal(x, second) for x, _, second in seen)
    assert not torch.equal(with_views["layers.0.weight"], without["layers.0.weight"])
    assert torch.equal(weights(1.0)["layers.0.weight"], with_views["layers.0.weight"])


@pytest.mark.parametrize("views", [(), (Cutout(size=2), Cutout(size=3))])
def test_a_number_of_views_that_the_objective_does_not_use_is_refused(views: tuple[Cutout, ...]) -> None:
    with pytest.raises(AtclError, match="uses 2 views of each image, but the stage makes"):
        replace(STAGE, views=views)
