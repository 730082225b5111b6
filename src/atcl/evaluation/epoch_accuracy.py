"""Natural and PGD20 accuracy after an epoch of training, faster than a full evaluation."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import Module

from atcl.attacks.norms import NORMS, STARTS
from atcl.attacks.pgd import AttackStep, given, pgd, pgd_step
from atcl.attacks.threat import Threat
from atcl.core.errors import pick
from atcl.core.modules import device_of
from atcl.core.seeds import generator
from atcl.data.images import as_float
from atcl.datasets.truth import Split
from atcl.evaluation.attacks import cross_entropy_of

BATCH_SIZE = 500  # images at a time

# images, labels, and the images that an attack starts from -> (n,) bool: which the model gets right
Judge = Callable[..., Tensor]


@dataclass(frozen=True)
class EpochAccuracy:
    """Natural and PGD20 accuracy in two steps, so that runs on one device can start before any of them waits.

    Args:
        natural: returns (n,) bool, which images the model gets right; it does not wait for the device.
        attacked: takes that and returns (2,), natural and PGD20 accuracy in percent; it waits for its input
            alone.
    """

    natural: Callable[[], Tensor]
    attacked: Callable[[Tensor], Tensor]


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
    """Return the functions that compute natural and PGD20 accuracy; only images that are right are attacked.

    Args:
        model: the model that is evaluated.
        attack_model: the same model, perhaps in a lower precision, which PGD20 attacks.
        test: images with their true classes.
        threat: norm, epsilon and step size of the attack.
        attack_step: one step of the attack, as the engine runs it.
        repeated: returns a faster form of work that is done for every batch, such as a CUDA graph.
        seed: the starts of the attack follow from it.
        batch_size: images at a time.
    """
    device, geometry = device_of(model, test.x.device), pick(NORMS, threat.norm, "norm")
    idle = generator(device, seed)  # the start is given: `pgd` draws nothing from it

    @torch.no_grad()
    def naturally(x: Tensor, labels: Tensor) -> Tensor:
        right: Tensor = model(x).argmax(1) == labels
        return right

    def attack(x: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        adv = pgd(
            attack_model,
            x,
            cross_entropy_of(labels),
            **asdict(threat),
            steps=20,
            start=given(start),
            rng=idle,
            attack_step=attack_step,
        )
        return naturally(adv, labels)

    pure, quick = repeated(naturally), repeated(attack)
    one_size = quick is not attack or attack_step is not pgd_step  # recorded or compiled for one batch size

    def on_device(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return as_float(x.to(device, non_blocking=True)), labels.to(device, non_blocking=True)

    def natural() -> Tensor:
        parts = zip(test.x.split(batch_size), test.truth.labels.split(batch_size), strict=True)
        batches = (on_device(*part) for part in parts)
        # a smaller batch is not worth a recording; a recording overwrites its output at the next call
        return torch.cat(
            [(pure if len(x) == batch_size else naturally)(x, labels).clone() for x, labels in batches]
        )

    def attacked(right: Tensor) -> Tensor:
        standing = right.new_zeros((), dtype=torch.float64)
        index = right.nonzero()[:, 0].to(test.x.device)
        for number, part in enumerate(index.split(batch_size) if len(index) else ()):
            x, labels = on_device(test.x[part], test.truth.labels[part.to(test.truth.labels.device)])
            start = STARTS["uniform"](x, threat.epsilon, geometry, generator(device, seed, number))
            inputs = [x, labels, start]
            if one_size:  # the last batch differs in size each time: it is filled up with its first image
                missing = batch_size - len(x)
                inputs = [torch.cat([one, one[:1].expand(missing, *one.shape[1:])]) for one in inputs]
            standing += quick(*inputs)[: len(part)].sum()
        return 100 * torch.stack([right.sum().double(), standing]) / len(test)

    return EpochAccuracy(natural, attacked)
