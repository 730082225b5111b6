"""Judging a model: attack by attack and batch by batch, each verdict kept as it falls, so that a stopped evaluation goes on where it was."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import AttackStep, given, pgd, pgd_step
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError, pick
from atcl.core.modules import device_of, evaluating
from atcl.core.seeds import forked_rng, generator
from atcl.data.images import as_float, checked_images
from atcl.datasets.truth import Split, Truth
from atcl.engine.replayed_model import Replayed, activation_bytes, replayed
from atcl.evaluation.attacks import ATTACKS, WORST, Attack, cross_entropy_of
from atcl.evaluation.cache import (
    EvaluationCache,
    evaluation_context,
    finished_evaluations,
    machine,
    stored_cache,
)
from atcl.evaluation.masking import suspicions

BATCH_SIZE = 500  # images at a time
WIDEST, ROOM = (
    10_000,
    1 / 8,
)  # images at a time of an attack that keeps the host busy, at most, and share of a GPU that their activations may take

Judge = Callable[
    ..., Tensor
]  # images, labels, and where to start an attack -> (n,) bool: which the model gets right
Watch = Callable[[str, str, int, int], None]  # attack, its pass, images done, images in all


@dataclass(frozen=True)
class Measurement:
    """One accuracy with what it takes to measure it again."""

    accuracy: float  # percent
    correct: int
    images: int
    seed: int
    batch_size: int
    seconds: float
    attack: dict[str, Any]  # what was run, and within which threat
    after: dict[str, float] = field(default_factory=dict)  # accuracy after each pass, where there are several
    machine: dict[str, Any] = field(default_factory=dict)  # device, precision, version of PyTorch
    flags: tuple[str, ...] | None = (
        None  # names of the signs of false robustness that were found; None: nobody looked
    )


def evaluate(
    model: Module,
    x: Any,
    y: Any,
    *,
    epsilon: float,
    attacks: Sequence[str] = ("natural", "pgd20", "cw30"),
    norm: str = "linf",
    step_size: float | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    checks: bool = True,
    keep: Path | None = None,
    watch: Watch | None = None,
) -> dict[str, Measurement]:
    """Measure any classifier that returns logits, on images x (uint8, or floats in [0, 1]) with true classes y; a step is epsilon / 8 by default."""
    if not isinstance(model, Module):
        raise AtclError(f"the model is a torch.nn.Module that returns logits, not a {type(model).__name__}")
    if isinstance(attacks, str):
        raise AtclError(f"attacks is a list of names: ['{attacks}']")
    if norm == "linf" and epsilon > 1:
        raise AtclError(
            f"pixels lie between 0 and 1, and so does epsilon: {epsilon:g} of 255 steps would be {epsilon / 255:.4g}"
        )
    images = checked_images(x)
    if len(images) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    device = device_of(model, images.device)
    with evaluating(model), torch.no_grad():
        try:
            logits = model(as_float(images[:1].to(device)))
        except RuntimeError as error:
            raise AtclError(
                f"the model does not take images of shape {tuple(images.shape[1:])}: {str(error).splitlines()[0]}"
            ) from None
    if not isinstance(logits, Tensor):
        raise AtclError(f"the model returns a {type(logits).__name__}, not a tensor of logits")
    if logits.ndim != 2 or len(logits) != 1:
        raise AtclError(
            f"the model returns {tuple(logits.shape)} for one image, not logits of shape (1, classes)"
        )
    labels = torch.as_tensor(y)
    test = Split(images, Truth(labels if labels.is_floating_point() else labels.long(), logits.shape[1]))
    threat = Threat(epsilon, max(epsilon, 1e-6) / 8 if step_size is None else step_size, norm)
    found = measure(model, test, threat, attacks, seed=seed, batch_size=batch_size, keep=keep, watch=watch)
    return (
        flagged(
            found, [flag.name for flag in suspicions(model, test.x, test.truth.labels, threat, seed=seed)]
        )
        if checks
        else found
    )


def flagged(found: Mapping[str, Measurement], flags: Sequence[str]) -> dict[str, Measurement]:
    """Return the measurements, those under attack with the names of the flags."""
    return {
        name: one if name == "natural" else replace(one, flags=tuple(flags)) for name, one in found.items()
    }


def measure(
    model: Module,
    test: Split,
    threat: Threat,
    attacks: Sequence[str],
    *,
    seed: int = 0,
    batch_size: int | None = None,
    keep: Path | None = None,
    extend: bool = False,
    watch: Watch | None = None,
) -> dict[str, Measurement]:
    """Measure the accuracy of a model under each attack and, where there are several, under the worst of them for each image.

    With `keep`, a folder, every finished batch is kept there, and the same call goes on after it. `extend` adds the attacks whose verdicts on
    the same model, images and settings lie there already, all of them: nothing is run for them.
    """
    _check(test, attacks, seed, batch_size)
    place = evaluation_context(model, test) if keep else {}
    sizes = _batches(model, test, attacks, batch_size)
    device = device_of(model, test.x.device)
    halves = {
        name: {"half": True} if attacks_in_fp16(attack, device) else {} for name, attack in ATTACKS.items()
    }
    headers = {
        name: {
            "attack": name,
            "threat": asdict(threat),
            "seed": seed,
            "batch_size": sizes[name],
            **halves[name],
            **place,
        }
        for name in ATTACKS
    }
    done = (
        [top for top in finished_evaluations(keep, headers["natural"]) if top["attack"] in ATTACKS]
        if keep and extend
        else []
    )
    here = {
        name: [top for top in done if (top["attack"], top["seed"]) == (name, seed) and top | place == top]
        for name in ATTACKS
    }
    known = [name for name in ATTACKS if name not in attacks and here[name]]
    for name in known:  # as it would be judged now where it was, else in the largest batches
        tops = here[name]
        headers[name] = (
            headers[name] if headers[name] in tops else max(tops, key=lambda top: top["batch_size"])
        )
        sizes[name] = headers[name]["batch_size"]
    chosen = {name: pick(ATTACKS, name, "attack") for name in dict.fromkeys([*attacks, *known])}
    for attack in chosen.values():
        attack.check(test.truth.classes)
    found, standing, where = {}, torch.ones(len(test), dtype=torch.bool), machine(model)
    for name, attack in chosen.items():
        part = test.take(slice(attack.first))
        cache = EvaluationCache(keep, headers[name])
        right, after = withstood(model, part, threat, name, attack, seed, sizes[name], cache, watch)
        standing[: len(part)] &= right
        told = {
            "about": attack.about,
            **asdict(threat),
            **({"crafted": cache.attack_precision} if "half" in headers[name] else {}),
        }
        found[name] = _measured(
            right, seed, sizes[name], cache.seconds, told, after if len(after) > 1 else {}, where
        )
    more = []
    for top in [top for top in done if top not in [headers[name] for name in chosen]]:
        attack = ATTACKS[top["attack"]]
        known_of = (
            _remembered(
                stored_cache(keep, top), attack, len(test.take(slice(attack.first))), top["batch_size"]
            )
            if keep
            else None
        )
        if (
            known_of is not None
        ):  # with other random numbers, or elsewhere: whatever broke an image has broken it
            standing[: len(known_of)] &= known_of
            more.append(top)
    if len(chosen) + len(more) > 1:
        images = min(
            len(test),
            *(ATTACKS[name].first or len(test) for name in [*chosen, *(top["attack"] for top in more)]),
        )
        told = {
            "about": f"for each image the worst of {', '.join([*chosen, *(_otherwise(top, place) for top in more)])}",
            **asdict(threat),
        }
        largest = max(one.batch_size for one in found.values())
        found[WORST] = _measured(
            standing[:images], seed, largest, sum(one.seconds for one in found.values()), told, {}, where
        )
    return found


def _remembered(cache: EvaluationCache, attack: Attack, images: int, batch_size: int) -> Tensor | None:
    """Return (n,) bool: which images stood after all passes; None where another version made other passes, so that some verdict is not there."""
    standing = torch.ones(images, dtype=torch.bool)
    for step in attack.passes:
        index = standing.nonzero()[:, 0]
        for number, part in enumerate(index.split(batch_size) if len(index) else ()):
            right = cache.verdict(step, number, len(part))
            if right is None:
                return None
            standing[part] = right
    return standing


def _otherwise(top: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    """Return what was judged with other settings, in words."""
    words = f"{top['attack']} with seed {top['seed']} in batches of {top['batch_size']}{' in fp16' * ('half' in top)}"
    if top["machine"] == place["machine"] and top["versions"] == place["versions"]:
        return words
    tf32 = top["machine"]["precision"]["convolution_tf32"]
    return f"{words} ({top['machine']['device']}, torch {top['machine']['torch']}, atcl {top['versions']['atcl']}, tf32 {'on' if tf32 else 'off'})"


def _batches(model: Module, test: Split, attacks: Sequence[str], batch_size: int | None) -> dict[str, int]:
    """Return how many images each attack takes at a time."""
    usual = batch_size or BATCH_SIZE
    asked = batch_size is None and any(pick(ATTACKS, name, "attack").wide for name in attacks)
    wide = batch_of(model, test) if asked else usual
    return {name: wide if attack.wide else usual for name, attack in ATTACKS.items()}


def batch_of(model: Module, test: Split) -> int:
    """Return how many images AutoAttack takes at a time: on a GPU up to 10,000, as many as keep the activations of the model's layers small."""
    device = device_of(model, test.x.device)
    if device.type != "cuda":
        return BATCH_SIZE
    x = as_float(test.x[:1].to(device))
    each = activation_bytes(model, x)
    if each < x.nbytes:  # its layers are hidden from us
        return BATCH_SIZE
    room = int(ROOM * torch.cuda.get_device_properties(device).total_memory)
    return max(BATCH_SIZE, min(WIDEST, room // each // BATCH_SIZE * BATCH_SIZE))


@dataclass(frozen=True)
class EpochAccuracy:
    """Natural accuracy and that under PGD20, in two strokes: those who share a device begin each before anyone waits for its answer."""

    natural: Callable[[], Tensor]  # -> (n,) bool: which images are naturally right; it waits for nothing
    attacked: Callable[
        [Tensor], Tensor
    ]  # these -> (2,) percent; it waits for what it is given, and for nothing else


def epoch_accuracy(
    model: Module,
    attack_model: Module,
    test: Split,
    threat: Threat,
    attack_step: AttackStep,
    *,
    repeated: Callable[[Judge], Judge] = lambda judge: judge,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
) -> EpochAccuracy:
    """Return a look at natural accuracy and at that under PGD20 crafted on `twin`, for which only images that are naturally right are attacked."""
    device, geometry = device_of(model, test.x.device), pick(NORMS, threat.norm, "norm")
    idle = generator(device, seed)  # nothing is drawn inside

    @torch.no_grad()
    def naturally(x: Tensor, labels: Tensor) -> Tensor:
        right: Tensor = model(x).argmax(1) == labels
        return right

    def attack(x: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        return naturally(
            pgd(
                attack_model,
                x,
                cross_entropy_of(labels),
                **asdict(threat),
                steps=20,
                start=given(start),
                rng=idle,
                attack_step=attack_step,
            ),
            labels,
        )

    pure, quick = repeated(naturally), repeated(attack)
    one_size = quick is not attack or attack_step is not pgd_step  # what is recorded or compiled

    def there(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return as_float(x.to(device, non_blocking=True)), labels.to(device, non_blocking=True)

    def natural() -> Tensor:
        parts = (
            there(*part)
            for part in zip(test.x.split(batch_size), test.truth.labels.split(batch_size), strict=True)
        )
        # a smaller batch is not worth a recording; the answer of one lasts until the next
        return torch.cat(
            [(pure if len(x) == batch_size else naturally)(x, labels).clone() for x, labels in parts]
        )

    def attacked(right: Tensor) -> Tensor:
        standing = right.new_zeros((), dtype=torch.float64)
        index = right.nonzero()[:, 0].to(test.x.device)
        for number, part in enumerate(index.split(batch_size) if len(index) else ()):
            x, labels = there(test.x[part], test.truth.labels[part.to(test.truth.labels.device)])
            asked = [
                x,
                labels,
                STARTS["uniform"](x, threat.epsilon, geometry, generator(device, seed, number)),
            ]
            if one_size:  # the last batch, of another size each time, is filled up with its first image
                asked = [
                    torch.cat([one, one[:1].expand(batch_size - len(one), *one.shape[1:])]) for one in asked
                ]
            standing += quick(*asked)[: len(part)].sum()
        return 100 * torch.stack([right.sum().double(), standing]) / len(test)

    return EpochAccuracy(natural, attacked)


def exact_accuracy(model: Module, test: Split, threat: Threat) -> EpochAccuracy:
    """Return a look that finds, to the last bit, what `measure` finds."""

    def standing(name: str) -> Tensor:
        return withstood(model, test, threat, name, ATTACKS[name], 0, BATCH_SIZE, EvaluationCache(None, {}))[
            0
        ]

    return EpochAccuracy(
        partial(standing, "natural"),
        lambda right: 100 * torch.stack([right.sum(), standing("pgd20").sum()]).double() / len(test),
    )


def withstood(
    model: Module,
    test: Split,
    threat: Threat,
    name: str,
    attack: Attack,
    seed: int,
    batch_size: int,
    cache: EvaluationCache,
    watch: Watch | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return (n,) bool: which images stand after all passes of an attack; and the accuracy after each."""
    device = device_of(model, test.x.device)
    standing, after = torch.ones(len(test), dtype=torch.bool), {}
    half = attacks_in_fp16(attack, device)
    with (
        evaluating(model),
        forked_rng(),
        replayed(model, batch_size, half) as quick,
    ):  # AutoAttack draws from the global generator
        for step, run in attack.passes.items():
            index = standing.nonzero()[:, 0]
            for number, part in enumerate(index.split(batch_size) if len(index) else ()):
                right = cache.verdict(step, number, len(part))
                if right is None:
                    began = time.perf_counter()
                    x, labels = as_float(test.x[part].to(device)), test.truth.labels[part].to(device)
                    if isinstance(quick, Replayed):
                        quick.begin()
                    adv = run(quick, x, labels, threat, seed, number)
                    if (
                        half and isinstance(quick, Replayed) and quick.strayed(quick(adv), model(adv))
                    ):  # fp16 led it astray: fp32 does not
                        adv = run(quick, x, labels, threat, seed, number)
                    right = _right(model, adv, labels)
                    if (
                        quick is not model
                    ):  # an image that only the recording gets wrong was not attacked: it has not withstood
                        right &= _right(quick, adv, labels)
                    right = right.cpu()
                    cache.put(
                        step,
                        number,
                        right,
                        time.perf_counter() - began,
                        quick.kind if isinstance(quick, Replayed) else "fp32",
                    )
                standing[part] = right
                if watch:
                    watch(name, step, min((number + 1) * batch_size, len(index)), len(index))
            after[step] = 100 * int(standing.sum()) / len(test)
    cache.close()
    return standing, after


def attacks_in_fp16(attack: Attack, device: torch.device) -> bool:
    """Tell whether an attack looks at a copy of the model in fp16: only where convolutions may keep no more digits than that has."""
    return (
        attack.half
        and device.type == "cuda"
        and torch.backends.cudnn.allow_tf32
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


@torch.no_grad()
def _right(model: Module, x: Tensor, labels: Tensor) -> Tensor:
    logits = model(x)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise AtclError(
            f"the model returns {tuple(logits.shape)} for {len(labels)} images, not logits of shape (n, classes)"
        )
    if not bool(logits.isfinite().all()):
        raise AtclError("the model returns numbers that are not finite: its accuracy means nothing")
    right: Tensor = logits.argmax(1) == labels
    return right


def _measured(
    right: Tensor,
    seed: int,
    batch_size: int,
    seconds: float,
    told: dict[str, Any],
    after: dict[str, float],
    where: dict[str, Any],
) -> Measurement:
    correct = int(right.sum())
    return Measurement(
        100 * correct / len(right), correct, len(right), seed, batch_size, seconds, told, after, where
    )


def _check(test: Split, attacks: Sequence[str], seed: int, batch_size: int | None) -> None:
    if len(test) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    if (batch_size is not None and batch_size < 1) or not 0 <= seed < 2**63:
        raise AtclError(
            f"batch_size is at least 1, and a seed lies in 0 to 2^63 - 1 (batch_size {batch_size}, seed {seed})"
        )
    if not attacks:
        raise AtclError(f"name at least one attack of {', '.join(ATTACKS)}")
