"""Predictions of a run's chosen model on test images, before and after PGD20, as the page shows them."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Generator, Tensor
from torch.nn import Module

from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError, pick
from atcl.core.files import read_json
from atcl.core.modules import device_of, evaluating
from atcl.data.images import as_float
from atcl.datasets.sources import DATASETS
from atcl.datasets.truth import Split
from atcl.evaluation.attacks import ATTACKS
from atcl.evaluation.cache import fingerprint_of
from atcl.recipes.names import OWN
from atcl.runs import layout
from atcl.runs.problem import Build
from atcl.runs.run import Run

# as in an evaluation: a test set that is used whole is attacked in the same way as there
GALLERY_BATCH = 500
MOST = 2000  # images
BINS = 10
# floating-point operations that the predictions may cost: some seconds
WORK = {"cpu": 1.5e11, "cuda": 1e14}
PASSES_OF_PGD20 = 60  # of an image: 20 steps, each a forward pass and a backward pass that costs two


@dataclass(frozen=True)
class Predictions:
    """Test images with their adversarial images, and the probabilities that the model predicts.

    The first m of the n images are attacked.
    """

    index: Tensor  # (n,) positions in the test set
    true: Tensor  # (n,)
    natural: Tensor  # (n, K)
    x: Tensor  # (m, C, H, W) in [0, 1], the first m
    adv: Tensor  # (m, C, H, W)
    attacked: Tensor  # (m, K)
    whole: int  # images in the test set
    threat: Threat


@dataclass(frozen=True)
class Bin:
    """Predictions whose confidence lies between two bounds."""

    low: float
    high: float
    images: int
    confidence: float  # their mean
    accuracy: float  # the share of them that is right


def its_test_set(run: Run, data_dir: Path | None = None) -> Split:
    """Return the test set of a run, as the digest in its folder identifies it."""
    test = pick(DATASETS, run.recipe.dataset, "dataset")(data_dir).test
    if fingerprint_of(test) != read_json(run.folder / layout.RECIPE).get("test"):
        raise AtclError(
            "the test set that was found is not the one that the run was made with: "
            "give its folder with --data-dir"
        )
    return test


def predictions_for(
    run: Run,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    images: int = 12,
    build: Build | None = None,
    test: Split | None = None,
) -> Predictions:
    """Return the predictions of a run's chosen model on a sample of its test set that takes some seconds.

    Args:
        run: a finished run.
        data_dir: where the dataset's files lie.
        device: auto, cpu or cuda.
        images: how many images are attacked at least (and no fewer than 16).
        build: makes the model, where it is one of your own.
        test: the test set, where it is data of your own.

    Raises:
        AtclError: the test set is not there, or is not that of the run.
    """
    if test is None and run.recipe.dataset == OWN:
        raise AtclError(
            "this run learnt from data of your own, and no pictures with true classes are kept with it"
        )
    model = run.model(device, build)
    whole = test or its_test_set(run, data_dir)
    return predict_and_attack(model, whole, run.recipe.threat, at_least=max(images, 16))


def predict_and_attack(
    model: Module, test: Split, threat: Threat, *, at_least: int = 16, seed: int = 0
) -> Predictions:
    """Return predictions before and after PGD20, on images that are drawn by the seed if they are not all."""
    device = device_of(model, test.x.device)
    price = cost(model, test)
    room = WORK[device.type]
    natural_images = min(len(test), MOST, max(at_least, int(room / 3 / price)))
    attacked_images = min(natural_images, max(at_least, int(room / (PASSES_OF_PGD20 * price))))
    drawn = torch.randperm(len(test), generator=Generator().manual_seed(seed))
    index = torch.arange(len(test)) if attacked_images == len(test) else drawn[:natural_images]
    true = test.truth.labels[index]
    natural, attacked, adversarial = [], [], []
    with evaluating(model):
        for number, part in enumerate(index.split(GALLERY_BATCH)):
            x = as_float(test.x[part].to(device))
            natural.append(_probabilities(model, x))
            left = max(0, attacked_images - number * GALLERY_BATCH)
            if left:
                labels = test.truth.labels[part].to(device)
                adv = ATTACKS["pgd20"].passes["pgd20"](model, x[:left], labels[:left], threat, seed, number)
                adversarial.append(adv.cpu())
                attacked.append(_probabilities(model, adv))
    x = as_float(test.x[index[:attacked_images]])
    parts = torch.cat(natural), x, torch.cat(adversarial), torch.cat(attacked)
    return Predictions(index, true, *parts, len(test), threat)


@torch.no_grad()
def _probabilities(model: Module, x: Tensor) -> Tensor:
    logits: Tensor = model(x)
    if not bool(logits.isfinite().all()):
        raise AtclError(
            "the model returns numbers that are not finite: there is nothing to show of its predictions"
        )
    return logits.float().softmax(1).cpu()


def cost(model: Module, test: Split) -> int:
    """Return the floating-point operations of one image's forward pass through layers with weights.

    Unlike a time, it is the same on every machine. PyTorch's `FlopCounterMode` finds the same numbers, but
    takes seconds to import.
    """
    total = 0

    def count(module: Module, inputs: object, output: object) -> None:
        nonlocal total
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1 and isinstance(output, Tensor):
            positions = output.numel() // len(weight)  # each weight is used once for each
            total += 2 * weight.numel() * positions

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with evaluating(model), torch.no_grad():
            model(as_float(test.x[:1].to(device_of(model, test.x.device))))
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, total)


def calibration(probabilities: Tensor, true: Tensor, bins: int = BINS) -> list[Bin]:
    """Return the accuracy of predictions by their confidence, in equal bins; empty bins are left out."""
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == true).double()
    place = (confidence * bins).long().clamp(max=bins - 1)
    return [
        Bin(
            one / bins,
            (one + 1) / bins,
            int(mask.sum()),
            float(confidence[mask].mean()),
            float(right[mask].mean()),
        )
        for one in range(bins)
        if bool((mask := place == one).any())
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over images."""
    total = sum(one.images for one in bins)
    return sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / total


def confusion(predicted: Tensor, true: Tensor, classes: int) -> Tensor:
    """Return (K, K) counts of images: true classes in rows, predicted ones in columns."""
    return torch.bincount(true * classes + predicted, minlength=classes * classes).view(classes, classes)


def outcomes(seen: Predictions) -> list[str]:
    """Return for each attacked image whether it stays right, becomes wrong, or was wrong before."""
    m = len(seen.adv)
    before, after = (found.argmax(1) == seen.true[:m] for found in (seen.natural[:m], seen.attacked))
    return [
        "wrong" if not first else "stays" if then else "turned"
        for first, then in zip(before.tolist(), after.tolist(), strict=True)
    ]


def chosen(outcome: Sequence[str], true: Sequence[int], number: int) -> list[int]:
    """Return the positions of images for a gallery.

    Images that stay right and images that become wrong take turns, each from the class that is shown least
    so far. If there are too few of either, images that were wrong before the attack take their place.
    """
    left = {
        kind: [place for place, one in enumerate(outcome) if one == kind]
        for kind in ("stays", "turned", "wrong")
    }
    shown: dict[int, int] = {}
    found: list[int] = []
    while len(found) < number and any(left.values()):
        wanted = "stays" if len(found) % 2 == 0 else "turned"
        kind = next(one for one in (wanted, "wrong", "turned", "stays") if left[one])
        place = min(left[kind], key=lambda at: (shown.get(true[at], 0), at))
        left[kind].remove(place)
        shown[true[place]] = shown.get(true[place], 0) + 1
        found.append(place)
    return sorted(found, key=lambda at: (true[at], at))


def magnification(seen: Predictions, places: Sequence[int]) -> float:
    """Return the factor by which differences of these images can be magnified within the range of pixels."""
    largest = float((seen.adv[list(places)] - seen.x[list(places)]).abs().max()) if places else 0.0
    return 0.5 / largest if largest > 0 else 1.0


def picture(image: Tensor, side: int) -> str:
    """Return an image (C, H, W) in [0, 1] as a PNG data URI, at most `side` wide and high."""
    visible = image if len(image) == 3 else image.mean(0, keepdim=True)  # other channels are shown as grey
    pixels = (visible.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    shown = Image.fromarray(pixels[..., 0] if len(visible) == 1 else pixels)
    if max(shown.size) > side:
        shown.thumbnail((side, side), Image.Resampling.BOX)
    buffer = io.BytesIO()
    shown.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def side_for(pictures: int, channels: int, room: int) -> int:
    """Return the side of pictures such that so many of them, uncompressed, take at most `room` bytes."""
    return max(8, min(128, math.isqrt(room // max(1, pictures * min(channels, 3)))))
