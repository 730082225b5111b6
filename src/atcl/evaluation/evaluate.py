"""The accuracy of a model under attacks, batch by batch; a stopped evaluation continues where it was."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError, pick
from atcl.core.modules import device_of, evaluating
from atcl.core.seeds import forked_rng
from atcl.data.images import as_float, checked_images
from atcl.datasets.truth import Split, Truth
from atcl.engine.replayed_model import Replayed, activation_bytes, replayed
from atcl.evaluation.attacks import ATTACKS, WORST, Attack
from atcl.evaluation.cache import (
    EvaluationCache,
    described,
    evaluation_context,
    finished_evaluations,
    machine,
    stored_cache,
)
from atcl.evaluation.epoch_accuracy import BATCH_SIZE, EpochAccuracy, Judge, epoch_accuracy
from atcl.evaluation.masking import suspicions

__all__ = [
    "BATCH_SIZE",
    "EpochAccuracy",
    "Judge",
    "Measurement",
    "Watch",
    "attacks_in_fp16",
    "batch_of",
    "epoch_accuracy",
    "evaluate",
    "exact_accuracy",
    "flagged",
    "measure",
    "withstood",
]

LARGEST_BATCH = 10_000  # images at a time, at most, of an attack with many small steps
MEMORY_SHARE = 1 / 8  # share of a GPU's memory that their activations may take

Watch = Callable[[str, str, int, int], None]  # attack, its pass, images done, images in all


@dataclass(frozen=True)
class Measurement:
    """One accuracy, with what it takes to measure it again."""

    accuracy: float  # percent
    correct: int
    images: int
    seed: int
    batch_size: int
    seconds: float
    attack: dict[str, Any]  # what was run, and within which threat
    after: dict[str, float] = field(default_factory=dict)  # accuracy after each pass, where there are several
    machine: dict[str, Any] = field(default_factory=dict)  # device, precision, version of PyTorch
    flags: tuple[str, ...] | None = None  # names of the signs of false robustness; None: not checked


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
    """Measure the accuracy of any classifier under attacks.

    Args:
        model: returns logits (n, K); batch statistics and dropout are in eval mode meanwhile.
        x: (n, C, H, W) images, uint8 or floats in [0, 1].
        y: (n,) their true classes.
        epsilon: radius of the ball that the attacks stay in, where pixels lie in [0, 1].
        attacks: names from `atcl list attacks`.
        norm: linf or l2.
        step_size: length of a step of PGD; None: epsilon / 8.
        seed: the random starts follow from it.
        batch_size: images at a time; None: chosen for each attack.
        checks: whether to check for signs of false robustness (docs/masking.md).
        keep: a folder in which finished batches are kept; the same call continues after them.
        watch: called after each batch with the attack, its pass, images done and images in all.

    Returns:
        A measurement for each attack and, for several, under "worst" one in which an image counts as right
        if it withstands all of them.

    Raises:
        AtclError: the model, the images or an option cannot be used; the message names the reason.

    Examples:
        >>> class Bright(torch.nn.Module):  # class 1 for bright images
        ...     def forward(self, x):
        ...         brightness = x.mean((1, 2, 3)) - 0.5
        ...         return torch.stack([-brightness, brightness], 1)
        >>> x = torch.tensor([0.0, 0.4, 0.6, 1.0]).view(4, 1, 1, 1)
        >>> attacks = ["natural", "pgd20"]
        >>> found = evaluate(Bright(), x, [0, 0, 1, 1], epsilon=0.2, attacks=attacks, checks=False)
        >>> {name: one.accuracy for name, one in found.items()}
        {'natural': 100.0, 'pgd20': 50.0, 'worst': 50.0}
    """
    if not isinstance(model, Module):
        raise AtclError(f"the model is a torch.nn.Module that returns logits, not a {type(model).__name__}")
    if isinstance(attacks, str):
        raise AtclError(f"attacks is a list of names: ['{attacks}']")
    if norm == "linf" and epsilon > 1:
        likely = f"{epsilon:g} of 255 steps would be {epsilon / 255:.4g}"
        raise AtclError(f"pixels lie between 0 and 1, and so does epsilon: {likely}")
    images = checked_images(x)
    if len(images) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    labels = torch.as_tensor(y)
    whole = labels if labels.is_floating_point() else labels.long()
    test = Split(images, Truth(whole, _classes_of(model, images)))
    threat = Threat(epsilon, max(epsilon, 1e-6) / 8 if step_size is None else step_size, norm)
    found = measure(model, test, threat, attacks, seed=seed, batch_size=batch_size, keep=keep, watch=watch)
    if not checks:
        return found
    flags = suspicions(model, test.x, test.truth.labels, threat, seed=seed)
    return flagged(found, [flag.name for flag in flags])


def _classes_of(model: Module, images: Tensor) -> int:
    """Return the number of logits that a model returns for an image, or refuse the model."""
    with evaluating(model), torch.no_grad():
        try:
            logits = model(as_float(images[:1].to(device_of(model, images.device))))
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            shape = tuple(images.shape[1:])
            raise AtclError(f"the model does not take images of shape {shape}: {why}") from None
    if not isinstance(logits, Tensor):
        raise AtclError(f"the model returns a {type(logits).__name__}, not a tensor of logits")
    if logits.ndim != 2 or len(logits) != 1:
        shape = tuple(logits.shape)
        raise AtclError(f"the model returns {shape} for one image, not logits of shape (1, classes)")
    return logits.shape[1]


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
    """Do what `evaluate` does, on a test set within a threat, without checks for false robustness.

    Args:
        model: returns logits (n, K).
        test: images with their true classes.
        threat: norm, epsilon and step size.
        attacks: names from `atcl list attacks`.
        seed: the random starts follow from it.
        batch_size: images at a time; None: chosen for each attack.
        keep: a folder in which finished batches are kept; the same call continues after them.
        extend: whether to add every attack that was finished in that folder on the same model and images,
            within the same threat; no attack is run for it.
        watch: called after each batch.
    """
    _check(test, attacks, seed, batch_size)
    context = evaluation_context(model, test) if keep else {}
    sizes = _batches(model, test, attacks, batch_size)
    device = device_of(model, test.x.device)
    headers: dict[str, dict[str, Any]] = {}
    for name, attack in ATTACKS.items():
        half = {"half": True} if attacks_in_fp16(attack, device) else {}
        settings = {"attack": name, "threat": asdict(threat), "seed": seed, "batch_size": sizes[name]}
        headers[name] = {**settings, **half, **context}
    finished = finished_evaluations(keep, headers["natural"]) if keep and extend else []
    done = [header for header in finished if header["attack"] in ATTACKS]
    known = []
    for name in (name for name in ATTACKS if name not in attacks):
        here = [one for one in done if (one["attack"], one["seed"]) == (name, seed) and one | context == one]
        if here:  # as it would be evaluated now if that was done, else in the largest batches
            largest = max(here, key=lambda header: header["batch_size"])
            headers[name] = headers[name] if headers[name] in here else largest
            sizes[name] = headers[name]["batch_size"]
            known.append(name)
    chosen = {name: pick(ATTACKS, name, "attack") for name in dict.fromkeys([*attacks, *known])}
    for attack in chosen.values():
        attack.check(test.truth.classes)
    found, standing, where = {}, torch.ones(len(test), dtype=torch.bool), machine(model)
    for name, attack in chosen.items():
        part = test.take(slice(attack.first))
        cache = EvaluationCache(keep, headers[name])
        right, after = withstood(model, part, threat, name, attack, seed, sizes[name], cache, watch)
        standing[: len(part)] &= right
        precision = {"crafted": cache.attack_precision} if "half" in headers[name] else {}
        about = {"about": attack.about, **asdict(threat), **precision}
        passes = after if len(after) > 1 else {}
        found[name] = _measured(right, seed, sizes[name], cache.seconds, about, passes, where)
    others = []  # with other random numbers or on another machine: an image that was broken there is broken
    for header in done:
        if keep is None or header in [headers[name] for name in chosen]:
            continue
        attack = ATTACKS[header["attack"]]
        images = len(test.take(slice(attack.first)))
        stood = stored_cache(keep, header).standing(attack.passes, images, header["batch_size"])
        if stood is not None:
            standing[:images] &= stood
            others.append(header)
    if len(chosen) + len(others) > 1:
        names = [*chosen, *(header["attack"] for header in others)]
        images = min(len(test), *(ATTACKS[name].first or len(test) for name in names))
        words = ", ".join([*chosen, *(described(header, context) for header in others)])
        about = {"about": f"for each image the worst of {words}", **asdict(threat)}
        size = max(one.batch_size for one in found.values())
        seconds = sum(one.seconds for one in found.values())
        found[WORST] = _measured(standing[:images], seed, size, seconds, about, {}, where)
    return found


def _batches(model: Module, test: Split, attacks: Sequence[str], batch_size: int | None) -> dict[str, int]:
    """Return how many images each attack takes at a time."""
    usual = batch_size or BATCH_SIZE
    asked = batch_size is None and any(pick(ATTACKS, name, "attack").wide for name in attacks)
    wide = batch_of(model, test) if asked else usual
    return {name: wide if attack.wide else usual for name, attack in ATTACKS.items()}


def batch_of(model: Module, test: Split) -> int:
    """Return how many images AutoAttack takes at a time.

    On a GPU these are up to 10,000, as many as keep the activations of the model's layers small.
    """
    device = device_of(model, test.x.device)
    if device.type != "cuda":
        return BATCH_SIZE
    x = as_float(test.x[:1].to(device))
    each = activation_bytes(model, x)
    if each < x.nbytes:  # its layers cannot be seen
        return BATCH_SIZE
    room = int(MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return max(BATCH_SIZE, min(LARGEST_BATCH, room // each // BATCH_SIZE * BATCH_SIZE))


def exact_accuracy(model: Module, test: Split, threat: Threat) -> EpochAccuracy:
    """Return natural and PGD20 accuracy as `measure` finds them, to the last bit."""

    def standing(name: str) -> Tensor:
        cache = EvaluationCache(None, {})
        return withstood(model, test, threat, name, ATTACKS[name], 0, BATCH_SIZE, cache)[0]

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
    """Return (n,) bool, which images are right after all passes of an attack, and the accuracy after each."""
    device = device_of(model, test.x.device)
    standing, after = torch.ones(len(test), dtype=torch.bool), {}
    half = attacks_in_fp16(attack, device)
    # AutoAttack draws from the global generator
    with evaluating(model), forked_rng(), replayed(model, batch_size, half) as quick:
        for step, run in attack.passes.items():
            index = standing.nonzero()[:, 0]
            for number, part in enumerate(index.split(batch_size) if len(index) else ()):
                right = cache.finished_batch(step, number, len(part))
                if right is None:
                    began = time.perf_counter()
                    x, labels = as_float(test.x[part].to(device)), test.truth.labels[part].to(device)
                    if isinstance(quick, Replayed):
                        quick.begin()
                    adv = run(quick, x, labels, threat, seed, number)
                    if half and isinstance(quick, Replayed) and quick.strayed(quick(adv), model(adv)):
                        adv = run(quick, x, labels, threat, seed, number)  # again, now in fp32
                    right = _right(model, adv, labels)
                    if quick is not model:  # an image that only the recording gets wrong was not attacked
                        right &= _right(quick, adv, labels)
                    right = right.cpu()
                    kind = quick.kind if isinstance(quick, Replayed) else "fp32"
                    cache.put(step, number, right, time.perf_counter() - began, kind)
                standing[part] = right
                if watch:
                    watch(name, step, min((number + 1) * batch_size, len(index)), len(index))
            after[step] = 100 * int(standing.sum()) / len(test)
    cache.close()
    return standing, after


def attacks_in_fp16(attack: Attack, device: torch.device) -> bool:
    """Return whether an attack runs on a copy of the model in fp16.

    It does so only where convolutions may keep no more digits than fp16 has.
    """
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
            f"the model returns {tuple(logits.shape)} for {len(labels)} images, "
            "not logits of shape (n, classes)"
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
    about: dict[str, Any],
    after: dict[str, float],
    where: dict[str, Any],
) -> Measurement:
    correct, n = int(right.sum()), len(right)
    return Measurement(100 * correct / n, correct, n, seed, batch_size, seconds, about, after, where)


def _check(test: Split, attacks: Sequence[str], seed: int, batch_size: int | None) -> None:
    if len(test) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    if (batch_size is not None and batch_size < 1) or not 0 <= seed < 2**63:
        raise AtclError(
            "batch_size is at least 1, and a seed lies in 0 to 2^63 - 1 "
            f"(batch_size {batch_size}, seed {seed})"
        )
    if not attacks:
        raise AtclError(f"name at least one attack of {', '.join(ATTACKS)}")
