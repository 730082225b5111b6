"""A recipe: the settings of a whole run."""

from dataclasses import dataclass
from typing import Literal

from atcl.attacks.threat import Budget, Threat
from atcl.core.errors import AtclError, pick
from atcl.core.precisions import Precision
from atcl.data.augment import AUGMENTATIONS
from atcl.datasets.labels import LABELS, Given, LabelSource
from atcl.losses import names_of
from atcl.models import Derived, Initial, Official
from atcl.training.objectives import OBJECTIVES, loss_of
from atcl.training.optimizers import OPTIMIZERS
from atcl.training.schedules import SCHEDULES
from atcl.training.selection import RULES, Rule
from atcl.training.stage import Stage
from atcl.training.supervision import SUPERVISIONS


@dataclass(frozen=True)
class Recipe:
    """The settings of a whole run: data, model, stages of training, evaluation.

    Raises:
        AtclError: the settings contradict each other.

    Examples:
        >>> from dataclasses import replace
        >>> from atcl.recipes.catalogue import recipe
        >>> replace(recipe("digits/warmup-pla"), model="mlp").threat.epsilon
        0.15
    """

    dataset: str
    """a name from `atcl list datasets`"""
    labels: LabelSource
    """where the complementary labels come from"""
    model: str
    """a name from `atcl list models`"""
    stages: tuple[Stage, ...]
    """the stages of training, one after the other"""
    threat: Threat
    """the strength of the attacks in evaluation"""
    selection: str = "last"
    """which epoch is reported, a name from `atcl list rules`: the last, the best on held-out labels, or the
    best by PGD20 on the test set (as in the paper)"""
    holdout: float = 0.0
    """share of the training images that are held out, to choose and evaluate a model on their labels"""
    shape: tuple[int, int, int] = (3, 32, 32)
    """channels, height and width of the images; pictures of your own are resized to it"""
    transition: Literal["declared", "estimated"] = "declared"
    """the transition matrix of FORWARD: declared by the source of the labels (otherwise uniform), or
    estimated from the data first"""
    initial: Initial = Derived()
    """how the first weights are drawn; Official: as the paper's code draws them from the same seed"""

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise AtclError(f"holdout is a share of the training images in [0, 1), not {self.holdout}")
        if min(self.shape) < 1:
            raise AtclError(f"an image has at least 1 channel, 1 row and 1 column, not {self.shape}")
        if not self.stages:
            raise AtclError("a recipe has at least one stage")
        if not self.stages[0].fresh or self.stages[0].teacher != "none":
            raise AtclError(
                "the first stage has no stage to continue: leave its fresh True and its teacher none"
            )
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if not stage.fresh and stage.optimizer != before.optimizer:
                raise AtclError(
                    "a stage that continues the previous one keeps its optimiser: "
                    "give both the same, or set fresh"
                )
        for stage in self.stages:
            if loss_of(stage.objective).single and not (self.labels.single and stage.teacher == "none"):
                others = names_of(lambda loss: not loss.single)
                loss = stage.objective.loss
                raise AtclError(
                    f"the loss {loss!r} needs exactly one complementary label for each image: "
                    f"for other labels use one of {others}"
                )
        for number in range(len(self.stages)):
            self.rule(number)

    def rule(self, number: int) -> Rule | None:
        """Return the rule that chooses an epoch of a stage, or None for the last epoch.

        The chosen model is the teacher of the next stage or, after the last stage, the result of the run.
        """
        if number + 1 == len(self.stages):
            return pick(RULES, self.selection, "selection rule")
        teacher = self.stages[number + 1].teacher
        return None if teacher == "none" else pick(RULES, teacher, "rule for a teacher")

    @property
    def needs(self) -> set[str]:
        """What its rules measure on: `held` (held-out labels), `test` (the test set), both or neither."""
        return {rule.on for rule in map(self.rule, range(len(self.stages))) if rule}

    @property
    def uses_test_truth(self) -> bool:
        """Whether weights depend on true labels of the test set: the paper chooses the teacher by them."""
        return any(rule and rule.on == "test" for rule in map(self.rule, range(len(self.stages) - 1)))


def kinds() -> dict[str, type]:
    """Return the classes that a saved recipe may hold, by name, with what was added to the registries."""
    found = (
        Recipe,
        Stage,
        Budget,
        Precision,
        Threat,
        *OPTIMIZERS.values(),
        *OBJECTIVES.values(),
        *SCHEDULES.values(),
        *SUPERVISIONS.values(),
        *(augmentation.of for augmentation in AUGMENTATIONS.values()),
        *LABELS.values(),
        Given,
        Derived,
        Official,
    )
    return {kind.__name__: kind for kind in found}
