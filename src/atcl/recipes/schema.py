"""A recipe: a whole run as data."""

from dataclasses import dataclass
from typing import Literal

from atcl.attacks.threat import Budget, Threat
from atcl.core.errors import AtclError, pick
from atcl.core.precisions import Precision
from atcl.data.augment import Augmentation
from atcl.datasets.labels import Biased, Complementary, FromFile, Given, LabelSource, Ordinary, RandomSets
from atcl.losses import names_of
from atcl.models import Derived, Initial, Official
from atcl.training.objectives import MinMax, Trades, loss_of
from atcl.training.optimizers import Adam, Sgd
from atcl.training.schedules import Constant, CosineRise, LinearFall, StepDecay
from atcl.training.selection import RULES, Rule
from atcl.training.stage import Stage
from atcl.training.supervision import CandidatesOnly, PseudoLabels


@dataclass(frozen=True)
class Recipe:
    """A run as data: it prints, compares, round-trips through JSON and takes overrides."""

    dataset: str
    """a name from `atcl list datasets`"""
    labels: LabelSource
    model: str
    """a name from `atcl list models`"""
    stages: tuple[Stage, ...]
    threat: Threat
    selection: str = "last"
    """which epoch is reported, a name from `atcl list rules`: the last, the best by held-out labels, or by PGD20 on the test set (the paper's)"""
    holdout: float = 0.0
    """share of the training images whose labels are held out, to choose and judge by"""
    shape: tuple[int, int, int] = (3, 32, 32)
    """channels, height and width of the images; pictures of your own are brought to it"""
    transition: Literal["declared", "estimated"] = "declared"
    """what FORWARD is corrected by: the matrix that the labels declare (none: the uniform one), or one estimated from the data first"""
    initial: Initial = Derived()
    """how the first weights are drawn; Official: those that the paper's code draws from the same seed"""

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise AtclError(f"holdout is a share of the training images in [0, 1), not {self.holdout}")
        if min(self.shape) < 1:
            raise AtclError(f"an image has at least 1 channel and 1 pixel each way, not {self.shape}")
        if not self.stages:
            raise AtclError("a recipe has at least one stage")
        if not self.stages[0].fresh or self.stages[0].teacher != "none":
            raise AtclError(
                "the first stage has no stage before it to go on from: leave fresh True and teacher none"
            )
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if not stage.fresh and stage.optimizer != before.optimizer:
                raise AtclError(
                    "a stage that goes on from the one before keeps its optimiser: give both the same, or set fresh"
                )
        for stage in self.stages:
            if loss_of(stage.objective).single and not (self.labels.single and stage.teacher == "none"):
                others = names_of(lambda loss: not loss.single)
                raise AtclError(
                    f"the loss {stage.objective.loss!r} needs exactly one complementary label for each image: else use one of {others}"
                )
        for number in range(len(self.stages)):
            self.rule(number)

    def rule(self, number: int) -> Rule | None:
        """Return the rule by which an epoch of a stage is kept, for the teacher of the next or for the report; None: the last."""
        if number + 1 == len(self.stages):
            return pick(RULES, self.selection, "selection rule")
        teacher = self.stages[number + 1].teacher
        return None if teacher == "none" else pick(RULES, teacher, "rule for a teacher")

    @property
    def needs(self) -> set[str]:
        """What its rules look at: held-out labels, the test set, or neither."""
        return {rule.on for rule in map(self.rule, range(len(self.stages))) if rule}

    @property
    def looks_at_test_truth(self) -> bool:
        """Whether the weights depend on the truth of the test set: the paper's choice of a teacher, declared."""
        return any(rule and rule.on == "test" for rule in map(self.rule, range(len(self.stages) - 1)))


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Recipe,
        Stage,
        Budget,
        Precision,
        Threat,
        Sgd,
        Adam,
        MinMax,
        Trades,
        Constant,
        CosineRise,
        LinearFall,
        StepDecay,
        CandidatesOnly,
        PseudoLabels,
        Augmentation,
        Ordinary,
        Complementary,
        RandomSets,
        Biased,
        FromFile,
        Given,
        Derived,
        Official,
    )
}


OWN = "own"  # the dataset's name in the recipe of a run on data that the user brought
