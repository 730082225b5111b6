"""Looking at a run's chosen model: what it says of test images before and after PGD20. It sees their truth; training may not import it."""

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
from atcl.recipes.schema import OWN
from atcl.runs import layout
from atcl.runs.problem import Build
from atcl.runs.run import Run

GALLERY_BATCH = (
    500  # as in an evaluation, so that a test set that is looked at whole is attacked as it was there
)
MOST = 2000  # images
BINS = 10
# floating-point operations that a look may cost: some seconds
WORK = {"cpu": 1.5e11, "cuda": 1e14}
PASSES_OF_PGD20 = 60  # of an image under PGD20: 20 ascents, each forth and twice as much back


@dataclass(frozen=True)
class Predictions:
    """Test images, their twins, and the probabilities that the model gives to each class; those beyond the twins were not attacked."""

    index: Tensor  # (n,) places in the test set
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
    """Return the test set that a run was made with."""
    test = pick(DATASETS, run.recipe.dataset, "dataset")(data_dir).test
    if fingerprint_of(test) != read_json(run.folder / layout.RECIPE).get("test"):
        raise AtclError(
            "the test set that was found is not the one that the run was made with: give its folder with --data-dir"
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
    """Return what a run's chosen model says of a sample of its test set, as many images as take some seconds."""
    if test is None and run.recipe.dataset == OWN:
        raise AtclError(
            "this run learnt from data of your own, and no pictures with true classes are kept with it"
        )
    model = run.model(device, build)
    return predict_and_attack(
        model, test or its_test_set(run, data_dir), run.recipe.threat, at_least=max(images, 16)
    )


def predict_and_attack(
    model: Module, test: Split, threat: Threat, *, at_least: int = 16, seed: int = 0
) -> Predictions:
    """Return what a model says of images before and after PGD20; where not all are looked at, they are drawn by the seed."""
    device = device_of(model, test.x.device)
    price = cost(model, test)
    room = WORK[device.type]
    natural_images = min(len(test), MOST, max(at_least, int(room / 3 / price)))
    attacked_images = min(natural_images, max(at_least, int(room / (PASSES_OF_PGD20 * price))))
    drawn = torch.randperm(len(test), generator=Generator().manual_seed(seed))
    index = torch.arange(len(test)) if attacked_images == len(test) else drawn[:natural_images]
    true = test.truth.labels[index]
    natural, attacked, twins = [], [], []
    with evaluating(model):
        for number, part in enumerate(index.split(GALLERY_BATCH)):
            x = as_float(test.x[part].to(device))
            natural.append(_probabilities(model, x))
            left = max(0, attacked_images - number * GALLERY_BATCH)
            if left:
                labels = test.truth.labels[part].to(device)
                adv = ATTACKS["pgd20"].passes["pgd20"](model, x[:left], labels[:left], threat, seed, number)
                twins.append(adv.cpu())
                attacked.append(_probabilities(model, adv))
    x = as_float(test.x[index[:attacked_images]])
    return Predictions(
        index, true, torch.cat(natural), x, torch.cat(twins), torch.cat(attacked), len(test), threat
    )


@torch.no_grad()
def _probabilities(model: Module, x: Tensor) -> Tensor:
    logits: Tensor = model(x)
    if not bool(logits.isfinite().all()):
        raise AtclError(
            "the model returns numbers that are not finite: there is nothing to show of its predictions"
        )
    return logits.float().softmax(1).cpu()


def cost(model: Module, test: Split) -> int:
    """Return the operations of one image's way through a model's layers of weights: the same on every machine, unlike a time."""
    total = 0

    def count(module: Module, inputs: object, output: object) -> None:
        nonlocal total
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1 and isinstance(output, Tensor):
            total += (
                2 * weight.numel() * (output.numel() // len(weight))
            )  # each weight serves every place of its output

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with evaluating(model), torch.no_grad():
            model(as_float(test.x[:1].to(device_of(model, test.x.device))))
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, total)


def calibration(probabilities: Tensor, true: Tensor, bins: int = BINS) -> list[Bin]:
    """Return how often predictions are right, by how sure they are: equal bins of the confidence, none without images."""
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
    """Return the expected calibration error: the mean distance of confidence and accuracy, each bin counted by its images."""
    return sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / sum(
        one.images for one in bins
    )


def confusion(predicted: Tensor, true: Tensor, classes: int) -> Tensor:
    """Return (K, K) counts: images of each true class by the class that is predicted."""
    return torch.bincount(true * classes + predicted, minlength=classes * classes).view(classes, classes)


def outcomes(seen: Predictions) -> list[str]:
    """Return for each attacked image whether it stays right, is turned, or was wrong before the attack."""
    m = len(seen.adv)
    before, after = (found.argmax(1) == seen.true[:m] for found in (seen.natural[:m], seen.attacked))
    return [
        "wrong" if not first else "stays" if then else "turned"
        for first, then in zip(before.tolist(), after.tolist(), strict=True)
    ]


def chosen(outcome: Sequence[str], true: Sequence[int], number: int) -> list[int]:
    """Return places of images for a gallery: those that stay right and those that are turned by turns, each from the class shown least so far.

    Where either is missing, one that was wrong before the attack takes its place.
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
    """Return how much a difference can be magnified before a pixel of these images would leave the scale."""
    largest = float((seen.adv[list(places)] - seen.x[list(places)]).abs().max()) if places else 0.0
    return 0.5 / largest if largest > 0 else 1.0


def picture(image: Tensor, side: int) -> str:
    """Return an image (C, H, W) in [0, 1] as a PNG data URI, no larger than `side` each way."""
    visible = (
        image if len(image) == 3 else image.mean(0, keepdim=True)
    )  # other than grey and colour have no look of their own
    pixels = (visible.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    shown = Image.fromarray(pixels[..., 0] if len(visible) == 1 else pixels)
    if max(shown.size) > side:
        shown.thumbnail((side, side), Image.Resampling.BOX)
    buffer = io.BytesIO()
    shown.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def side_for(pictures: int, channels: int, room: int) -> int:
    """Return the side of pictures such that so many, uncompressed, fill no more than `room` bytes."""
    return max(8, min(128, math.isqrt(room // max(1, pictures * min(channels, 3)))))
