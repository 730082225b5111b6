"""The figures of the paper.

Panels name the paper's datasets; in the setting of small runs, the digits take the place of Kuzushiji.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import starmap

from atcl.losses import PAPER
from atcl.recipes.defaults import DatasetDefaults
from atcl.recipes.schema import Recipe
from atcl.reproduce.figures.plan import Curve, CurveSource, Drawing, FigurePanel, Setting, Words
from atcl.reproduce.figures.records import Points
from atcl.reproduce.figures.style import SERIES, STYLES

PROBABILITY = "probability of the true class (0 to 1)"

METRICS = {  # of an attack: title, axis
    "cosine": ("likeness to the attack by true label", "cosine of gradient signs (-1 to 1)"),
    "l1": ("distance to the images of that attack", "L1 distance (sum of pixels in 0 to 1)"),
    "drop": ("taken from y: p(y|x) - p(y|adv)", "drop in probability (-1 to 1)"),
    "attacked": ("left to y: p(y|adv)", PROBABILITY),
    "lowered": ("attacks that lower p(y) at all", "share of images (%)"),
}


def loss_label(name: str) -> str:
    """Return the name of a loss in figures."""
    return name.upper()


def _accuracy(label: str, method: str, **more: object) -> Curve:
    return Curve(label, CurveSource(method), "test_pgd20", **more)  # type: ignore[arg-type]


def _accuracies(title: str, curves: Iterable[Curve], dataset: str = "kuzushiji") -> FigurePanel:
    """Return a panel of robust accuracies, whose axis reaches 50 % at least: chance is near its bottom."""
    return FigurePanel(title, "PGD20 test accuracy (%)", tuple(curves), dataset, least=50.0)


def _failure(setting: Setting) -> tuple[FigurePanel, ...]:
    direct = [_accuracy(loss_label(loss), _direct(loss)) for loss in PAPER]
    return (
        _accuracies(
            "(a) direct LOG and two-stage",
            (_accuracy("LOG", "direct-log"), _accuracy("two-stage", "two-stage-test-teacher")),
        ),
        _accuracies("(b) other complementary losses", direct),
        _accuracies("(c) other ways to train LOG", _tricks(setting.defaults["kuzushiji"])),
    )


def _tricks(task: DatasetDefaults) -> tuple[Curve, ...]:
    # Paper: the alternatives are not listed; these are ours
    other = "adam" if task.optimizer.__class__.__name__ == "Sgd" else "sgd"
    lr = task.direct_lr.get("log", task.lr)
    trials: tuple[tuple[str, str, Words], ...] = (
        ("as it is", "direct-log", ()),
        (f"lr {lr * 10:g}", "direct-log", ("--stages.0.lr.value", f"{lr * 10:g}")),
        (f"lr {lr / 10:g}", "direct-log", ("--stages.0.lr.value", f"{lr / 10:g}")),
        ("Adam" if other == "adam" else "SGD", f"direct-log-{other}", ()),
        ("weight decay 5e-4", "direct-log", ("--stages.0.optimizer.weight_decay", "0.0005")),
        (
            f"batches of {task.batch_size // 4}",
            "direct-log",
            ("--stages.0.batch_size", str(task.batch_size // 4)),
        ),
    )
    return tuple(
        Curve(label, CurveSource(method, partial(_same, words)), "test_pgd20", style)
        for (label, method, words), style in zip(trials, SERIES, strict=True)
    )


def _gradients(setting: Setting) -> tuple[FigurePanel, ...]:
    runs = {"oracle": "oracle", "LOG": "direct-log", "warm-up + PLA": "warmup-pla-fixed"}
    kinds = (
        (
            "(a) variance of gradient directions",
            "trace of the covariance (0 to 1)",
            "gradient.variance",
            False,
        ),
        ("(b) last layer", "L2 norm of the gradient", "gradient.last_norm", True),
        ("(c) first layer", "L2 norm of the gradient", "gradient.first_norm", True),
    )
    return tuple(
        FigurePanel(
            title, y, tuple(Curve(label, CurveSource(run), key) for label, run in runs.items()), log=log
        )
        for title, y, key, log in kinds
    )


def _attack_panels(
    names: Iterable[str], metrics: Iterable[str], dataset: str = "kuzushiji", head: str = ""
) -> tuple[FigurePanel, ...]:
    """Return a panel for each metric, of attacks on the oracle with each loss.

    The attack through the true label is among them, except where it is what the others are compared with.
    """
    panels = []
    for metric in metrics:
        title, y = METRICS[metric]
        shown = [*names, *(["oracle"] if metric not in ("cosine", "l1") else [])]
        scale = 100.0 if metric == "lowered" else 1.0
        curves = [
            Curve(_attack_label(name), CurveSource("oracle"), f"attack.{name}.{metric}", scale=scale)
            for name in shown
        ]
        if metric == "attacked":
            curves.append(Curve("natural images", CurveSource("oracle"), "attack.oracle.natural"))
        panels.append(FigurePanel(f"{head}{title}", y, tuple(curves), dataset))
    return tuple(panels)


def _attacks(setting: Setting) -> tuple[FigurePanel, ...]:
    return _attack_panels(("log", "pla"), ("cosine", "l1", "drop", "lowered"))


def _attack_analysis(setting: Setting) -> tuple[FigurePanel, ...]:
    rows = [("mnist", "MNIST: "), ("kuzushiji", "Kuzushiji: ")]
    heads = [(dataset, head if len(setting.defaults) > 1 else "") for dataset, head in rows]
    return tuple(
        panel for dataset, head in heads for panel in _attack_panels((*PAPER, "pla"), METRICS, dataset, head)
    )


def _instances(setting: Setting) -> tuple[FigurePanel, ...]:
    panels = []
    for metric in ("cosine", "l1", "drop", "attacked"):
        shown = [*PAPER, "pla", *(["oracle"] if metric not in ("cosine", "l1") else [])]
        for number in range(4):
            curves = tuple(
                Curve(_attack_label(name), CurveSource("oracle"), f"instance.{name}.{metric}", part=number)
                for name in shown
            )
            panels.append(FigurePanel(f"image {number + 1}", METRICS[metric][1], curves, seeds=1))
    return tuple(panels)


def _gradient_norms(setting: Setting) -> tuple[FigurePanel, ...]:
    runs = {"oracle": "oracle", **{loss_label(loss): _direct(loss) for loss in PAPER}}
    return tuple(
        FigurePanel(
            f"{label}, {layer} layer",
            "L2 norm of the gradient",
            (Curve(label, CurveSource(run), f"gradient.{layer}_norm"),),
            log=True,
            singles=True,
        )
        for layer in ("last", "first")
        for label, run in runs.items()
    )


def _ablation(setting: Setting) -> tuple[FigurePanel, ...]:
    task = setting.defaults["kuzushiji"]
    schedule = (
        Curve(
            "epsilon, share of the full", CurveSource("warmup-pla"), "", STYLES["warm-up"], planned=_strength
        ),
        Curve("gamma", CurveSource("warmup-pla"), "", STYLES["PLA"], planned=_gamma),
    )
    parts = {"LOG": "direct-log", "warm-up": "warmup", "PLA": "pla", "warm-up + PLA": "warmup-pla"}
    # Paper: the values are not listed; these are ours
    spans = [round(task.scheduling * share) for share in (0.2, 0.6, 1.0, 1.4)]
    lengths = tuple(
        Curve(f"E_s = {span}", CurveSource("warmup-pla", partial(_within, span)), "test_pgd20", style)
        for span, style in zip(spans, SERIES, strict=False)
    )
    return (
        FigurePanel("(a) schedules", "share of the maximum (0 to 1)", schedule),
        _accuracies(
            "(b) without either part" + (", Kuzushiji" if len(setting.defaults) > 1 else ""),
            starmap(_accuracy, parts.items()),
        ),
        _accuracies("(c) without either part, CIFAR-10", starmap(_accuracy, parts.items()), "cifar10"),
        _accuracies("(d) epochs of scheduling", lengths),
    )


def _images(setting: Setting) -> tuple[FigurePanel, ...]:
    heads = {"mnist": "MNIST", "kuzushiji": "Kuzushiji" if len(setting.defaults) > 1 else "8x8 digits"}
    return tuple(
        FigurePanel(head, "", (Curve("oracle", CurveSource("oracle"), "loss"),), dataset, seeds=1)
        for dataset, head in heads.items()
    )


def _label_number(setting: Setting) -> tuple[FigurePanel, ...]:
    counts = (1, 3, 5, 7)
    curves = tuple(
        Curve(
            f"{count} label{'s' * (count > 1)}",
            CurveSource("direct-log", partial(_labels, count)),
            "test_pgd20",
            style,
        )
        for count, style in zip(counts, SERIES[1:], strict=False)
    )
    return (
        _accuracies("direct LOG with several complementary labels", (*curves, _accuracy("oracle", "oracle"))),
    )


def _one(title: str, methods: dict[str, str]) -> Callable[[Setting], tuple[FigurePanel, ...]]:
    return lambda setting: (_accuracies(title, starmap(_accuracy, methods.items())),)


def _pseudo_labels(setting: Setting) -> tuple[FigurePanel, ...]:
    speeds = {
        "slow: ε grows over 50 epochs": "pseudo-labels-slow",
        "rapid: ε grows over 10 epochs": "pseudo-labels-rapid",
    }
    curves = tuple(
        Curve(label, CurveSource(method), "pseudo_label_accuracy", style, scale=100)
        for (label, method), style in zip(speeds.items(), SERIES[::3], strict=True)
    )
    return (FigurePanel("accuracy of pseudo-labels", "right pseudo-labels (%)", curves),)


def _direct(loss: str) -> str:
    return f"direct-{loss.replace('_', '-')}"


def _attack_label(name: str) -> str:
    return name if name == "oracle" else loss_label(name)


def _same(words: Words, task: DatasetDefaults) -> Words:
    return words


def _labels(count: int, task: DatasetDefaults) -> Words:
    return () if count == 1 else ("--labels.number", str(count))


def _within(span: int, task: DatasetDefaults) -> Words:
    if span == task.scheduling:
        return ()
    last = task.opening + span // 2
    return (
        "--stages.0.strength.over",
        str(span),
        "--stages.0.gamma.over",
        str(span),
        "--stages.0.supervision.last",
        str(last),
    )


def _strength(recipe: Recipe) -> Points:
    stage = recipe.stages[0]
    return {epoch: stage.strength(epoch) for epoch in range(1, stage.epochs + 1)}


def _gamma(recipe: Recipe) -> Points:
    stage = recipe.stages[0]
    return {epoch: stage.gamma(epoch) for epoch in range(1, stage.epochs + 1)}


FIGURES: dict[str, Drawing] = {
    "failure": Drawing(
        "failure of the direct combination: LOG and two-stage, other losses, other ways to train (fig_0)",
        _failure,
    ),
    "gradients": Drawing(
        "variance of gradient directions, norms of the gradients of last and first layer (fig_1 a-c)",
        _gradients,
    ),
    "attacks": Drawing(
        "quality of attacks with LOG and PLA on the oracle in training (fig_1 d-f), "
        "and how many lower the true class at all",
        _attacks,
        2,
    ),
    "ablation": Drawing(
        "schedules, warm-up and PLA without each other, epochs of scheduling (fig_abl)", _ablation, 2
    ),
    "gradient-norms": Drawing(
        "norms of the gradients of last and first layer for each loss, seed by seed", _gradient_norms, 4
    ),
    "attack-analysis": Drawing(
        "quality of attacks with every loss, on MNIST and Kuzushiji", _attack_analysis, 5
    ),
    "instances": Drawing("the same on four single training images", _instances, 4),
    "adversarial-images": Drawing("images attacked with each loss, on one model", _images, 1, images=True),
    "label-number": Drawing("direct training with several complementary labels per image", _label_number, 1),
    "trades": Drawing(
        "TRADES and its variants beside the method",
        _one(
            "TRADES",
            {
                "TRADES": "trades",
                "TRADES-LOG": "trades-log",
                "TRADES-PLA": "trades-pla",
                "warm-up + PLA": "warmup-pla",
            },
        ),
        1,
    ),
    "exp": Drawing(
        "the method with EXP in the place of LOG",
        _one(
            "EXP",
            {
                "EXP": "direct-exp",
                "warm-up (EXP)": "warmup-exp",
                "PLA (EXP)": "pla-exp",
                "warm-up + PLA (EXP)": "warmup-pla-exp",
                "warm-up + PLA": "warmup-pla",
            },
        ),
        1,
    ),
    "pseudo-labels": Drawing(
        "accuracy of pseudo-labels while epsilon grows slowly, or rapidly", _pseudo_labels, 1
    ),
    "warmup": Drawing(
        "what the warm-up raises: epsilon and step size, the number of steps, or epsilon and steps",
        _one(
            "strategies of warm-up",
            {
                "warm-up + PLA": "warmup-pla",
                "warm-up (k) + PLA": "warmup-pla-k",
                "warm-up (ε, k) + PLA": "warmup-pla-epsilon-k",
            },
        ),
        1,
    ),
}
