"""Every training method of the paper, as a short function from a task's settings to frozen data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from atcl.attacks import Budget, Threat
from atcl.batches import Augmentation
from atcl.errors import AtclError, pick
from atcl.labels import Biased, Complementary, FromFile, Given, LabelSource, Ordinary, RandomSets
from atcl.losses import PAPER, names_of
from atcl.models import Derived, Initial, Official
from atcl.objectives import MinMax, Trades, loss_of
from atcl.precisions import Precision
from atcl.schedules import Constant, CosineRise, LinearFall, StepDecay
from atcl.selection import RULES, Rule
from atcl.supervision import CandidatesOnly, PseudoLabels
from atcl.tasks import OWN, TASKS, Task
from atcl.training import Adam, Sgd, Stage


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
            raise AtclError("the first stage has no stage before it to go on from: leave fresh True and teacher none")
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if not stage.fresh and stage.optimizer != before.optimizer:
                raise AtclError("a stage that goes on from the one before keeps its optimiser: give both the same, or set fresh")
        for stage in self.stages:
            if loss_of(stage.objective).single and not (self.labels.single and stage.teacher == "none"):
                others = names_of(lambda loss: not loss.single)
                raise AtclError(f"the loss {stage.objective.loss!r} needs exactly one complementary label for each image: else use one of {others}")
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


Method = Callable[[Task], Recipe]


def oracle(task: Task) -> Recipe:
    """Adversarial training with true labels: LOG of a single candidate is cross-entropy."""
    return _recipe(task, task.stage(), labels=Ordinary())


def direct(task: Task, loss: str = "log", labels: LabelSource | None = None) -> Recipe:
    """A complementary loss in the min-max problem, as it is: the combination that fails."""
    return _recipe(task, replace(task.stage(task.direct_lr.get(loss)), objective=MinMax(loss)), labels=labels)


def direct_by(task: Task, optimizer: Sgd | Adam, lr: float) -> Recipe:
    """The direct combination with LOG and another optimiser."""
    # Paper: other optimisers failed too, with no settings given; ours: the customary learning rate of each.
    return _recipe(task, replace(task.stage(lr), optimizer=optimizer))


def two_stage(task: Task, teacher: str = "last", labels: LabelSource | None = None) -> Recipe:
    """Natural training with LOG, then adversarial training of a new model on the first one's predictions."""
    epochs, adversarial = task.two_stage
    first = replace(
        task.stage(), epochs=epochs, optimizer=task.natural_optimizer, lr=task.schedule(task.natural_lr, opening=epochs), budget=Budget()
    )  # fmt: skip
    # Paper: the rise belongs to complementary learning; official code: also to one-stage adversarial training. Not to this stage.
    second = replace(task.stage(), epochs=adversarial, lr=task.schedule(task.lr, rise=0), teacher=teacher)
    return _recipe(task, first, second, labels=labels)


def warmup(task: Task, loss: str = "log") -> Recipe:
    """Warm-up Attack alone: natural epochs, then epsilon and step size rise along a cosine."""
    return _recipe(task, _warm(task, loss))


def pla(task: Task, loss: str = "log") -> Recipe:
    """Pseudo-Label Attack alone: natural epochs, then full strength at once while gamma falls."""
    # Paper: E_i is shared, epsilon fixed; official code: E_i natural epochs, then full epsilon, the memory filled in the opening alone.
    strength = CosineRise(1.0, over=0, after=task.opening)
    supervision = PseudoLabels(first=task.remember_from, last=task.opening)
    return _recipe(task, replace(_falling(task, _warm(task, loss)), strength=strength, supervision=supervision))


def warmup_pla(task: Task, loss: str = "log", grow: tuple[str, ...] = ("epsilon", "step_size"), labels: LabelSource | None = None) -> Recipe:
    """The paper's method: the attack grows while the loss moves from the candidates to the pseudo-label."""
    return _recipe(task, replace(_falling(task, _warm(task, loss)), grow=grow), labels=labels)


def warmup_pla_fixed(task: Task) -> Recipe:
    """The method as the paper analyses it: gamma stays at 0.5."""
    # Paper: gamma 0.5 throughout; ours: 1 in the natural opening, where no prediction is remembered that could be guessed from.
    return _recipe(task, replace(_falling(task, _warm(task)), gamma=StepDecay(1.0, at=(task.opening + 1,), factor=0.5)))


def watched_by_all_rules(task: Task, method: Method) -> Recipe:
    """A method with a tenth of the labels held out: each epoch's journal tells what every rule would choose by."""
    return replace(method(task), holdout=0.1, selection="test_pgd20")


def pseudo_labels(task: Task, scheduling: int, gamma_falls: bool = True) -> Recipe:
    """Ten epochs of the method without a natural opening, to watch the pseudo-labels form; or of warm-up alone, where gamma stays at 1."""
    quick = replace(task, opening=0, scheduling=scheduling, remember_from=1, epochs=10)
    stage = _falling(quick, _warm(quick))
    # Paper: "other setups fixed"; its table still changes after epsilon_e has passed epsilon / 2, so here the memory never stands still.
    gamma = stage.gamma if gamma_falls else Constant(1.0)
    return _recipe(quick, replace(stage, supervision=PseudoLabels(first=1), gamma=gamma))


def trades(task: Task) -> Recipe:
    """A natural opening, then TRADES with the pseudo-labels in the place of true ones."""
    opening = replace(
        task.stage(), epochs=task.opening, budget=Budget(), lr=task.schedule(task.lr, opening=task.opening),
        supervision=PseudoLabels(first=task.remember_from),
    )  # fmt: skip
    rest = replace(
        task.stage(), epochs=task.epochs - task.opening, lr=task.schedule(task.lr, rise=0), objective=Trades("scl_nl", on="clean", weight=1.0),
        budget=_trades_budget(task), gamma=Constant(0.0), supervision=PseudoLabels(first=1, last=0), fresh=False,
    )  # fmt: skip
    return _recipe(task, opening, rest)


def trades_log(task: Task) -> Recipe:
    """The attack of TRADES, and LOG of the adversarial images."""
    return _recipe(task, replace(task.stage(), objective=_trades_attack(), budget=_trades_budget(task)))


def trades_pla(task: Task) -> Recipe:
    """The attack of TRADES, and the loss of Pseudo-Label Attack alone."""
    stage = pla(task).stages[0]
    return _recipe(task, replace(stage, objective=_trades_attack(), budget=_trades_budget(task)))


def _recipe(task: Task, *stages: Stage, labels: LabelSource | None = None) -> Recipe:
    """Return a recipe of these stages, with the task's labels unless said otherwise."""
    return Recipe(
        task.dataset, labels or task.labels, task.model, stages, task.threat, task.selection, task.holdout, task.shape, initial=task.initial
    )


def _warm(task: Task, loss: str = "log") -> Stage:
    # Paper: "previous setups", which have a learning rate for each loss.
    stage = task.stage(task.direct_lr.get(loss), opening=task.opening)
    return replace(stage, objective=MinMax(loss), strength=CosineRise(1.0, over=task.scheduling, after=task.opening))


def _falling(task: Task, stage: Stage) -> Stage:
    # Paper: the memory learns from the start until epsilon_e passes epsilon / 2; official code: not in epochs 1 to 5.
    supervision = PseudoLabels(first=task.remember_from, last=task.opening + task.scheduling // 2)
    return replace(stage, gamma=LinearFall(1.0, over=task.scheduling, after=task.opening), supervision=supervision)


def _trades_attack() -> Trades:
    return Trades("log", on="adv", weight=0.0)


def _trades_budget(task: Task) -> Budget:
    return replace(task.budget, start="gaussian")


METHODS: dict[str, Method] = {
    "warmup-pla": warmup_pla,
    "oracle": oracle,
    **{f"direct-{loss.replace('_', '-')}": partial(direct, loss=loss) for loss in PAPER},
    "direct-log-sgd": partial(direct_by, optimizer=Sgd(), lr=0.01),
    "direct-log-adam": partial(direct_by, optimizer=Adam(), lr=1e-3),
    "two-stage": two_stage,
    "two-stage-test-teacher": partial(two_stage, teacher="test_natural"),
    "warmup": warmup,
    **{f"warmup-{loss.replace('_', '-')}": partial(warmup, loss=loss) for loss in PAPER if loss != "log"},
    "pla": pla,
    **{f"pla-{loss.replace('_', '-')}": partial(pla, loss=loss) for loss in ("scl_nl", "scl_exp", "exp")},
    **{f"warmup-pla-{loss.replace('_', '-')}": partial(warmup_pla, loss=loss) for loss in ("scl_nl", "scl_exp", "exp")},
    "warmup-pla-fixed": warmup_pla_fixed,
    "warmup-pla-k": partial(warmup_pla, grow=("steps",)),
    "warmup-pla-epsilon-k": partial(warmup_pla, grow=("epsilon", "steps")),
    "trades": trades,
    "trades-log": trades_log,
    "trades-pla": trades_pla,
    "direct-log-mcl": partial(direct, loss="log", labels=RandomSets()),
    "direct-exp-mcl": partial(direct, loss="exp", labels=RandomSets()),
    "two-stage-mcl": partial(two_stage, labels=RandomSets()),
    "warmup-pla-mcl": partial(warmup_pla, labels=RandomSets()),
    "warmup-pla-rules": partial(watched_by_all_rules, method=warmup_pla),
    "two-stage-rules": partial(watched_by_all_rules, method=two_stage),
    "pseudo-labels-slow": partial(pseudo_labels, scheduling=50),
    "pseudo-labels-rapid": partial(pseudo_labels, scheduling=10),
    "pseudo-labels-slow-warmup": partial(pseudo_labels, scheduling=50, gamma_falls=False),
    "pseudo-labels-rapid-warmup": partial(pseudo_labels, scheduling=10, gamma_falls=False),
}


def on_own_data(wanted: Recipe) -> Recipe:
    """Return a recipe for data of one's own: their labels as they come, an epoch chosen by held-out ones."""
    own = TASKS[OWN]
    return replace(wanted, dataset=OWN, labels=own.labels, selection=own.selection, holdout=own.holdout, initial=own.initial)


def _offered(wanted: Recipe) -> bool:
    """Tell whether a method can be had: on data of one's own only with the labels that came with them, and with no test set."""
    return wanted.dataset != OWN or (isinstance(wanted.labels, Given) and "test" not in wanted.needs)


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{name}/{method}": partial(build, task) for name, task in TASKS.items() for method, build in METHODS.items() if _offered(build(task))
}


def with_derived_weights(wanted: Recipe) -> Recipe:
    """Return a recipe as it was before those of the paper's datasets drew the official weights: results of both kinds are told apart by it."""
    return replace(wanted, initial=Derived())


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Recipe, Stage, Budget, Precision, Threat, Sgd, Adam, MinMax, Trades, Constant, CosineRise, LinearFall, StepDecay,
        CandidatesOnly, PseudoLabels, Augmentation, Ordinary, Complementary, RandomSets, Biased, FromFile, Given, Derived, Official,
    )
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """Return a recipe by its name, `dataset/method`."""
    for halves, whole in ((METHODS, f"digits/{name}"), (TASKS, f"{name}/warmup-pla")):
        if name in list(halves):
            raise AtclError(f"a recipe is named dataset/method, such as {whole}, not {name!r}; `atcl list recipes` tells all")
    return made(pick(RECIPES, name, "recipe"))


@cache  # each is checked epoch by epoch when it is made, and a run is compared with many
def made(build: Callable[[], Recipe]) -> Recipe:
    """Return what a maker of recipes gives, made once."""
    return build()
