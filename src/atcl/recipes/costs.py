"""What a recipe costs, in passes through the network."""

from atcl.recipes.schema import Recipe


def costs(wanted: Recipe) -> dict[tuple[int, int], int]:
    """Return the price of each (stage, epoch), in passes through the network.

    Three for the update, one for each attack step, some for PGD20 on a test set.
    """
    looks = [
        4 if (rule := wanted.rule(number)) and rule.on == "test" else 0
        for number in range(len(wanted.stages))
    ]  # a sixth as many images
    return {
        (number, epoch): 3 + stage.phase(epoch).budget.steps + looks[number]
        for number, stage in enumerate(wanted.stages)
        for epoch in range(1, stage.epochs + 1)
    }


def passes(wanted: Recipe, images: int) -> int:
    """Return how often a model goes through its layers, forth or back, in a run: the size of the job."""
    return sum(
        (3 + 2 * stage.phase(epoch).budget.steps) * -(-images // stage.batch_size)
        for stage in wanted.stages
        for epoch in range(1, stage.epochs + 1)
    )
