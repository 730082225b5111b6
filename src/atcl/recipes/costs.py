"""What a recipe costs, in passes through the network."""

from atcl.recipes.schema import Recipe


def costs(wanted: Recipe) -> dict[tuple[int, int], int]:
    """Return the relative cost of each (stage, epoch), in passes through the network.

    It is 3 for the update, 1 for each attack step, and 4 for PGD20 on a test set.
    """
    # a test set has about a sixth as many images as a training set, so its 20 steps count as 4
    looks = [
        4 if (rule := wanted.rule(number)) and rule.on == "test" else 0
        for number in range(len(wanted.stages))
    ]
    return {
        (number, epoch): 3 + stage.phase(epoch).budget.steps + looks[number]
        for number, stage in enumerate(wanted.stages)
        for epoch in range(1, stage.epochs + 1)
    }


def passes(wanted: Recipe, images: int) -> int:
    """Return the number of forward and backward passes in a run.

    Args:
        wanted: the recipe of the run.
        images: how many there are in the training set.
    """
    return sum(
        (3 + 2 * stage.phase(epoch).budget.steps) * -(-images // stage.batch_size)
        for stage in wanted.stages
        for epoch in range(1, stage.epochs + 1)
    )
