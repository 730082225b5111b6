"""The evidence of `masking`: one model attacked in several ways on the same images, to compare the ways."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from atcl.attacks.norms import Start
from atcl.attacks.pgd import AttackLoss, cw_margin, given, pgd
from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError, pick
from atcl.core.modules import device_of, evaluating
from atcl.core.seeds import derive, forked_rng, generator
from atcl.data.images import as_float, checked_images

PASSES = 5  # of the natural images
DRAWS = 20  # of noise: as many queries of the model as PGD20 makes
ERASING_STEPS = 40  # of a quarter of the radius each: together five diameters of the ball


@dataclass(frozen=True)
class Evidence:
    """What the checks use: logits of n images and, after each attack, of the m that are naturally right."""

    labels: Tensor  # (n,) the true classes
    passes: Tensor  # (PASSES, n, K) the same images each time
    right: Tensor  # (n,) bool: the first pass is finite and the prediction right
    norm: str
    radius: float  # of a ball around any image that contains plain grey
    loss_gradient: Tensor  # (m, C, H, W) of the cross-entropy at the natural images
    margin_gradient: Tensor  # (m, C, H, W)
    pgd5: Tensor  # (m, K), as all that follow
    pgd20: Tensor  # continues where PGD5 ended
    cw30: Tensor
    noise: Tensor  # of a draw that breaks the image, if one does
    square: Tensor  # of the natural image if PGD20 or CW30 breaks it already
    erased: Tensor  # PGD in the ball that contains plain grey
    grey: Tensor

    def kept(self, logits: Tensor) -> Tensor:
        """Return (m,) bool: the images that are still right; logits that are not finite break nothing."""
        return _kept(logits, self.labels[self.right])


@dataclass(frozen=True)
class Geometry:
    """What the attacks need to know of a norm.

    Args:
        square: its name in pyautoattack.
        erasing: returns, for a number of pixels, the radius of a ball that contains plain grey around any
            image.
        canvas: returns the height and width on which Square works, for those of the images.
    """

    square: str
    erasing: Callable[[int], float]
    canvas: Callable[[int, int], tuple[int, int]]


def gather_evidence(
    model: Module,
    x: Tensor,  # (n, C, H, W) uint8, or float in [0, 1]
    labels: Tensor,  # (n,) int64
    threat: Threat,
    *,
    seed: int,
    batch_size: int,
    images: int,
    queries: int,
) -> Evidence:
    """Return the logits after every attack that the checks compare, on at most `images` of the images.

    The arguments are those of `suspicions`.
    """
    x = checked_images(x)
    if labels.shape != (len(x),) or labels.dtype != torch.int64 or not len(x):
        raise AtclError(
            "give one label of type int64 for each of at least one image; "
            f"got {len(x)} images, labels {tuple(labels.shape)} {labels.dtype}"
        )
    if min(batch_size, images, queries) < 1 or not 0 <= seed < 2**63:
        raise AtclError(
            f"batch_size, images and queries are at least 1, and a seed lies in 0 to 2^63 - 1 "
            f"(batch_size {batch_size}, images {images}, queries {queries}, seed {seed})"
        )
    device = device_of(model, x.device)
    if len(x) > images:
        sample = torch.randperm(len(x), generator=generator(torch.device("cpu"), seed, "sample"))[:images]
        x, labels = x[sample.to(x.device)], labels[sample.to(labels.device)]
    with forked_rng(), evaluating(model):
        torch.manual_seed(derive(seed, "model"))  # what the model itself draws, if it does
        return _evidence(
            _Connected(model), as_float(x.to(device)), labels.to(device), threat, seed, batch_size, queries
        )


def _evidence(
    model: Module, x: Tensor, labels: Tensor, threat: Threat, seed: int, batch_size: int, queries: int
) -> Evidence:
    with torch.no_grad():
        passes = torch.stack(
            [torch.cat([model(part) for part in x.split(batch_size)]) for _ in range(PASSES)]
        )
    classes = passes.shape[2]
    if classes < 2 or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise AtclError(
            f"the model has {classes} classes: it needs at least two, and labels in 0 to {classes - 1}"
        )
    right = passes[0].isfinite().all(1) & _kept(passes[0], labels)
    geometry = pick(GEOMETRIES, threat.norm, "norm of the checks for false robustness")
    radius = max(geometry.erasing(x[0].numel()), threat.epsilon)
    if not bool(right.any()):  # there is nothing to break
        return Evidence(labels, passes, right, threat.norm, radius, *[x[right]] * 2, *[passes[0][right]] * 7)
    batches = zip(x[right].split(batch_size), labels[right].split(batch_size), strict=True)
    parts = [
        _attacked(model, *batch, threat, radius, queries, derive(seed, "attacks", number))
        for number, batch in enumerate(batches)
    ]
    attacked = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Evidence(labels, passes, right, threat.norm, radius, **attacked)


def _attacked(
    model: Module, x: Tensor, labels: Tensor, threat: Threat, radius: float, queries: int, seed: int
) -> dict[str, Tensor]:
    """Return, for one batch, gradients at the images and logits after each attack."""
    rng = generator(x.device, seed)

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum")

    def attack_step(
        attack_loss: AttackLoss,
        steps: int,
        start: str | Start = "uniform",
        epsilon: float = threat.epsilon,
        step_size: float = threat.step_size,
    ) -> Tensor:
        return pgd(
            model,
            x,
            attack_loss,
            epsilon=epsilon,
            step_size=step_size,
            steps=steps,
            norm=threat.norm,
            start=start,
            rng=rng,
        )

    five = attack_step(loss, 5)
    adversarial = {
        "pgd5": five,
        "pgd20": attack_step(loss, 15, given(five)),
        "cw30": attack_step(cw_margin(labels), 30),
        "erased": attack_step(loss, ERASING_STEPS, epsilon=radius, step_size=radius / 4),
        "grey": torch.full_like(x, 0.5),
    }
    gradients = {
        "loss_gradient": _gradient(model, x, loss),
        "margin_gradient": _gradient(model, x, cw_margin(labels)),
    }
    with torch.no_grad():
        logits = {name: model(adv) for name, adv in adversarial.items()}
        logits["noise"] = logits["square"] = model(x)
        for _ in range(DRAWS):
            drawn = model(attack_step(loss, 0))
            logits["noise"] = torch.where(_kept(logits["noise"], labels)[:, None], drawn, logits["noise"])
        left = _kept(logits["pgd20"], labels) & _kept(logits["cw30"], labels)
        if bool(left.any()):
            adv = x.clone()
            adv[left] = square_attack(
                model, x[left], labels[left], threat, queries=queries, seed=derive(seed, "square")
            )
            logits["square"] = model(adv)
    return gradients | logits


def square_attack(
    model: Module, x: Tensor, labels: Tensor, threat: Threat, *, queries: int, seed: int
) -> Tensor:
    """Return the images after the official Square attack, which uses the logits alone.

    Andriushchenko et al. 2020.
    """
    geometry = GEOMETRIES[threat.norm]
    height, width = x.shape[2:]
    rows, columns = geometry.canvas(height, width)

    def scores(canvas: Tensor) -> Tensor:  # (n, K)
        # Square counts a tie as a success without ending, and fails on NaN. Here a tie goes to the first
        # class, as in argmax, and NaN counts as 0.
        logits: Tensor = model(canvas[..., :height, :width]).nan_to_num().double()
        order = torch.linspace(0, 1e-9, logits.shape[1], dtype=logits.dtype, device=logits.device)
        return logits - order * logits.abs().amax(1, keepdim=True).clamp(min=1)

    from pyautoattack.square import SquareAttack  # only here: opening a run needs no attack

    attack = SquareAttack(
        scores, norm=geometry.square, n_queries=queries, eps=threat.epsilon, seed=seed, device=x.device
    )
    with forked_rng(), torch.no_grad():  # it seeds the global generator
        adv: Tensor = attack.perturb(F.pad(x, (0, columns - width, 0, rows - height)), labels)
    return adv[..., :height, :width]


class _Connected(Module):
    """A model whose logits, in fp32 and in a tensor of their own, depend on the image.

    So a gradient that the model cuts off is zero, and not an error.
    """

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        if logits.ndim != 2:
            raise AtclError(f"a classifier returns logits (n, K); this model returns {tuple(logits.shape)}")
        return logits.float() + 0 * x.flatten(1).sum(1, keepdim=True)


def _kept(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) bool: right, or not finite, which is no adversarial image."""
    return (logits.argmax(1) == labels) | ~logits.isfinite().all(1)


def _gradient(model: Module, x: Tensor, attack_loss: AttackLoss) -> Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(attack_loss(model(x)), x)
    return gradient


def _tiled(height: int, width: int) -> tuple[int, int]:
    """Return the side of the smallest square on which the start of Square in L2 is defined.

    The tiles of a fifth of its side must not overlap its edge.
    """

    def fits(side: int) -> bool:
        tile = side // 5
        return tile == 1 or (tile > 1 and (side - 5 * tile) // 2 + side // tile * tile <= side)

    side = max(height, width)
    while not fits(side):
        side += 1
    return side, side


GEOMETRIES: dict[str, Geometry] = {
    "linf": Geometry("Linf", lambda pixels: 0.5, lambda height, width: (height, width)),
    "l2": Geometry("L2", lambda pixels: 0.5 * math.sqrt(pixels), _tiled),
}
