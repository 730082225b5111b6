"""Checks before training: whether a recipe, its data and its model fit together.

Each raises an `AtclError` before anything is written.
"""

import copy

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.core.seeds import forked_rng
from atcl.data.images import as_float
from atcl.recipes.schema import Recipe
from atcl.runs.problem import Build, Problem
from atcl.runs.run import Run
from atcl.training.transitions import NATURAL
from atcl.training.weak_validation import check_invertible


def check_rules(wanted: Recipe, problem: Problem) -> None:
    """Refuse a recipe that chooses an epoch by data that the problem does not have."""
    if problem.test is None and "test" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch on a test set, and there is none: "
            "set selection and teacher to last, or to a rule on held-out labels"
        )
    if problem.held is None and "held" in wanted.needs:
        raise AtclError(
            "this recipe chooses an epoch by held-out labels, and there are none: "
            "set holdout, such as 0.1, or set selection to last"
        )
    if problem.held is not None:
        check_invertible(problem.held)


def check_model(run: Run, problem: Problem, build: Build | None) -> None:
    """Refuse a model that cannot be trained on the images of the problem.

    A new model receives two images. The global random state stays as it is.

    Args:
        run: names the model and the classes.
        problem: the images.
        build: returns a new model of your own; None: the recipe's model.
    """
    with forked_rng():
        model = run.fresh_model(build)
        if next(model.parameters(), None) is None:
            raise AtclError(f"the model {run.recipe.model} has no parameters to train: give another model")
        _check_copies(run, model)
        try:
            with evaluating(model), torch.no_grad():
                logits = model(as_float(problem.train.x[:2].cpu()))
        except RuntimeError as error:
            raise AtclError(
                f"the model {run.recipe.model} does not take images of shape {run.shape}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        _check_batches(run, model, problem)
    if logits.shape != (min(2, len(problem.train)), run.classes):
        raise AtclError(
            f"the model {run.recipe.model} returns {tuple(logits.shape)} for two images, "
            f"but there are {run.classes} classes: it must return a logit for each class"
        )


def _check_copies(run: Run, model: Module) -> None:
    """Refuse a model that cannot be copied: attacks and observers receive copies.

    A model that stores tensors computed from its parameters is such a model.
    """
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        remedy = "use weight_norm of torch.nn.utils.parametrizations, not that of torch.nn.utils"
        raise AtclError(
            f"the model {run.recipe.model} cannot be copied, as attacks need ({remedy}): "
            f"{str(error).split('.')[0]}"
        ) from None


def _check_batches(run: Run, model: Module, problem: Problem) -> None:
    """Refuse batches of one image where the batch norm of the model needs more than one.

    The last batch of an epoch may have one image. A batch norm of feature maps accepts it.
    """
    n, sizes = len(problem.train), [stage.batch_size for stage in run.recipe.stages]
    stage = next((number for number, size in enumerate(sizes) if size == 1 or n % size == 1), None)
    halves = {n // 2, (n + 1) // 2} if run.recipe.transition == "estimated" else set()
    single_in_halves = any(half % NATURAL.batch_size == 1 for half in halves)
    if (stage is None and not single_in_halves) or not _has_batch_norm(model):
        return
    try:
        with torch.no_grad():
            # a copy: the caller may keep the model, and a forward pass changes its statistics
            copy.deepcopy(model).train()(as_float(problem.train.x[:1].cpu()))
    except ValueError:
        if stage is None:
            raise AtclError(
                f"to estimate a transition matrix, a model trains on halves of {n} images in batches of "
                f"{NATURAL.batch_size}, which leaves a batch of one; the batch norm of {run.recipe.model} "
                "needs more: take two images less"
            ) from None
        others = [size for size in range(sizes[stage] + 1, sizes[stage] + n + 1) if n % size != 1]
        remedy = (
            f"give --stages.{stage}.batch-size {others[0]}, or one image more or less"
            if others
            else "give more images"
        )
        raise AtclError(
            f"{n} images in batches of {sizes[stage]} leave a batch of one, and the batch norm of "
            f"{run.recipe.model} needs more: {remedy}"
        ) from None


def _has_batch_norm(model: Module) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in model.modules())
