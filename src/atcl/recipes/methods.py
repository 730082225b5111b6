"""The training methods of the paper: functions from the settings of a dataset to a recipe."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from atcl.attacks.threat import Budget
from atcl.datasets.labels import LabelSource, Ordinary, RandomSets
from atcl.losses import PAPER
from atcl.recipes.defaults import DatasetDefaults
from atcl.recipes.schema import Recipe
from atcl.training.objectives import MinMax, Trades
from atcl.training.optimizers import Adam, AnyOptimizer, Sgd
from atcl.training.schedules import Constant, CosineRise, LinearFall, StepDecay
from atcl.training.stage import Stage
from atcl.training.supervision import PseudoLabels

Method = Callable[[DatasetDefaults], Recipe]


def oracle(defaults: DatasetDefaults) -> Recipe:
    """Adversarial training with true labels, for comparison; LOG of a single candidate is cross-entropy."""
    return _recipe(defaults, defaults.stage(), labels=Ordinary())


def direct(defaults: DatasetDefaults, loss: str = "log", labels: LabelSource | None = None) -> Recipe:
    """The direct combination: a complementary loss in adversarial training; the paper shows that it fails."""
    stage = defaults.stage(defaults.direct_lr.get(loss))
    return _recipe(defaults, replace(stage, objective=MinMax(loss)), labels=labels)


def direct_by(defaults: DatasetDefaults, optimizer: AnyOptimizer, lr: float) -> Recipe:
    """The direct combination with LOG and another optimiser."""
    # Paper: other optimisers failed too, without their settings; ours: the usual learning rate of each.
    return _recipe(defaults, replace(defaults.stage(lr), optimizer=optimizer))


def two_stage(defaults: DatasetDefaults, teacher: str = "last", labels: LabelSource | None = None) -> Recipe:
    """Natural training with LOG, then adversarial training of a new model on predictions of the first."""
    epochs, adversarial = defaults.two_stage
    first = replace(
        defaults.stage(),
        epochs=epochs,
        optimizer=defaults.natural_optimizer,
        lr=defaults.schedule(defaults.natural_lr, opening=epochs),
        budget=Budget(),
    )
    # Paper: the learning rate rises in complementary learning; official code: in one-stage adversarial
    # training too, but not in this stage.
    lr = defaults.schedule(defaults.lr, rise=0)
    second = replace(defaults.stage(), epochs=adversarial, lr=lr, teacher=teacher)
    return _recipe(defaults, first, second, labels=labels)


def warmup(defaults: DatasetDefaults, loss: str = "log") -> Recipe:
    """Warm-up Attack alone: natural epochs, then epsilon and step size rise along a cosine."""
    return _recipe(defaults, _warm(defaults, loss))


def pla(defaults: DatasetDefaults, loss: str = "log") -> Recipe:
    """Pseudo-Label Attack alone: natural epochs, then full strength at once while gamma falls."""
    # Paper: E_i as in the full method, epsilon fixed; official code: E_i natural epochs, in which alone
    # predictions are remembered, then full epsilon.
    strength = CosineRise(1.0, over=0, after=defaults.opening)
    supervision = PseudoLabels(first=defaults.remember_from, last=defaults.opening)
    stage = _falling(defaults, _warm(defaults, loss))
    return _recipe(defaults, replace(stage, strength=strength, supervision=supervision))


def warmup_pla(
    defaults: DatasetDefaults,
    loss: str = "log",
    grow: tuple[str, ...] = ("epsilon", "step_size"),
    labels: LabelSource | None = None,
) -> Recipe:
    """The paper's method: the attack grows while the loss moves from the candidates to the pseudo-labels."""
    return _recipe(defaults, replace(_falling(defaults, _warm(defaults, loss)), grow=grow), labels=labels)


def warmup_pla_fixed(defaults: DatasetDefaults) -> Recipe:
    """The paper's method with a fixed weight of the pseudo-labels: gamma stays at 0.5."""
    # Paper: gamma 0.5 throughout; ours: 1 in the natural opening, where at first no prediction is remembered.
    gamma = StepDecay(1.0, at=(defaults.opening + 1,), factor=0.5)
    return _recipe(defaults, replace(_falling(defaults, _warm(defaults)), gamma=gamma))


def watched_by_all_rules(defaults: DatasetDefaults, method: Method) -> Recipe:
    """A method with a tenth of the labels held out; the journal has the metrics of all selection rules."""
    return replace(method(defaults), holdout=0.1, selection="test_pgd20")


def pseudo_labels(defaults: DatasetDefaults, scheduling: int, gamma_falls: bool = True) -> Recipe:
    """Ten epochs without a natural opening, to observe pseudo-labels, or of warm-up alone with gamma 1."""
    quick = replace(defaults, opening=0, scheduling=scheduling, remember_from=1, epochs=10)
    stage = _falling(quick, _warm(quick))
    # Paper: "other setups fixed"; its table still changes after epsilon_e has passed epsilon / 2, so here
    # predictions are remembered in all epochs.
    gamma = stage.gamma if gamma_falls else Constant(1.0)
    return _recipe(quick, replace(stage, supervision=PseudoLabels(first=1), gamma=gamma))


def trades(defaults: DatasetDefaults) -> Recipe:
    """A natural opening, then TRADES with pseudo-labels in place of true labels."""
    opening = replace(
        defaults.stage(),
        epochs=defaults.opening,
        budget=Budget(),
        lr=defaults.schedule(defaults.lr, opening=defaults.opening),
        supervision=PseudoLabels(first=defaults.remember_from),
    )
    rest = replace(
        defaults.stage(),
        epochs=defaults.epochs - defaults.opening,
        lr=defaults.schedule(defaults.lr, rise=0),
        objective=Trades("scl_nl", on="clean", weight=1.0),
        budget=_trades_budget(defaults),
        gamma=Constant(0.0),
        supervision=PseudoLabels(first=1, last=0),
        fresh=False,
    )
    return _recipe(defaults, opening, rest)


def trades_log(defaults: DatasetDefaults) -> Recipe:
    """The attack of TRADES, and LOG of the adversarial images."""
    stage = replace(defaults.stage(), objective=_trades_attack(), budget=_trades_budget(defaults))
    return _recipe(defaults, stage)


def trades_pla(defaults: DatasetDefaults) -> Recipe:
    """The attack of TRADES, and the loss of Pseudo-Label Attack alone."""
    stage = pla(defaults).stages[0]
    return _recipe(defaults, replace(stage, objective=_trades_attack(), budget=_trades_budget(defaults)))


def _recipe(defaults: DatasetDefaults, *stages: Stage, labels: LabelSource | None = None) -> Recipe:
    """Return a recipe of these stages, by default with the labels of the dataset's settings."""
    return Recipe(
        defaults.dataset,
        labels or defaults.labels,
        defaults.model,
        stages,
        defaults.threat,
        defaults.selection,
        defaults.holdout,
        defaults.shape,
        initial=defaults.initial,
    )


def _warm(defaults: DatasetDefaults, loss: str = "log") -> Stage:
    # Paper: "previous setups", which have a learning rate for each loss.
    stage = defaults.stage(defaults.direct_lr.get(loss), opening=defaults.opening)
    strength = CosineRise(1.0, over=defaults.scheduling, after=defaults.opening)
    return replace(stage, objective=MinMax(loss), strength=strength)


def _falling(defaults: DatasetDefaults, stage: Stage) -> Stage:
    # Paper: predictions are remembered from the start until epsilon_e passes epsilon / 2;
    # official code: not in epochs 1 to 5.
    supervision = PseudoLabels(first=defaults.remember_from, last=defaults.opening + defaults.scheduling // 2)
    gamma = LinearFall(1.0, over=defaults.scheduling, after=defaults.opening)
    return replace(stage, gamma=gamma, supervision=supervision)


def _trades_attack() -> Trades:
    return Trades("log", on="adv", weight=0.0)


def _trades_budget(defaults: DatasetDefaults) -> Budget:
    return replace(defaults.budget, start="gaussian")


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
    **{
        f"warmup-pla-{loss.replace('_', '-')}": partial(warmup_pla, loss=loss)
        for loss in ("scl_nl", "scl_exp", "exp")
    },
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
