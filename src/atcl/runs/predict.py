"""Predictions for pictures: class, probability, and whether the prediction withstands an attack."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.attacks.threat import Threat
from atcl.core.errors import AtclError
from atcl.core.modules import evaluating
from atcl.core.seeds import generator
from atcl.data.images import as_float
from atcl.data.picture_files import find_pictures, read_pictures
from atcl.runs.problem import Build
from atcl.runs.run import Run
from atcl.training.weak_validation import away_from


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture.

    Args:
        file: the picture.
        name: the name of the class.
        probability: the probability that the model gives the class.
        withstands: whether PGD20 with the recipe's epsilon leaves the class as it is; None: not attacked.
    """

    file: str
    name: str
    probability: float
    withstands: bool | None


def predict(
    run: Run,
    images: Sequence[Path | str],
    *,
    attack: bool = True,
    device: str = "cpu",
    seed: int = 0,
    batch_size: int = 500,
    build: Build | None = None,
) -> list[Prediction]:
    """Return a prediction for each picture.

    Args:
        run: a finished run.
        images: pictures, and folders of pictures.
        attack: whether to attack each prediction with PGD20.
        device: auto, cpu or cuda.
        seed: for the random starts of the attack.
        batch_size: images at a time.
        build: returns a new model of your own kind, if the run has one.

    Raises:
        AtclError: a picture cannot be read, or the model returns numbers that are not finite.

    Examples:
        >>> from atcl.runs.run import open_run
        >>> run = open_run("runs/digits/warmup-pla/seed-1")  # doctest: +SKIP
        >>> predict(run, ["three.png"])  # doctest: +SKIP
        [Prediction(file='three.png', name='3', probability=0.84, withstands=True)]
    """
    if batch_size < 1 or not 0 <= seed < 2**63:
        raise AtclError(
            "give a batch_size of at least 1 and a seed from 0 to 2^63 - 1, "
            f"not batch_size {batch_size} and seed {seed}"
        )
    if not images:
        raise AtclError("name at least one picture, or a folder of pictures")
    files = find_pictures(images)
    x, unreadable = read_pictures(files, run.shape)
    if unreadable:
        heading = f"{len(unreadable)} of {len(files)} pictures cannot be read; nothing was predicted:"
        raise AtclError("\n  ".join([heading, *unreadable.values()]))
    model = run.model(device, build)
    threat, there = run.recipe.threat if attack else None, next(model.parameters()).device
    batches = [
        _predicted(model, batch, threat, generator(there, seed, number))
        for number, batch in enumerate(x.split(batch_size))
    ]
    probabilities, classes, withstands = (torch.cat(parts).tolist() for parts in zip(*batches, strict=True))
    return [
        Prediction(str(file), run.class_names[label], probability, bool(same) if attack else None)
        for file, probability, label, same in zip(files, probabilities, classes, withstands, strict=True)
    ]


def predictions_as_csv(predictions: Sequence[Prediction]) -> str:
    """Return predictions as CSV with a header.

    Examples:
        >>> print(predictions_as_csv([Prediction("three.png", "3", 0.84, True)]), end="")
        file,class,probability,withstands
        three.png,3,0.840000,True
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _row(predictions[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**_row(one), "probability": f"{one.probability:.6f}"} for one in predictions)
    return text.getvalue()


def predictions_as_json(predictions: Sequence[Prediction]) -> str:
    """Return predictions as JSON, a list of objects."""
    return json.dumps([_row(one) for one in predictions], indent=2) + "\n"


def _row(one: Prediction) -> dict[str, object]:
    attacked = {} if one.withstands is None else {"withstands": one.withstands}
    return {"file": one.file, "class": one.name, "probability": one.probability, **attacked}


def _predicted(
    model: Module, x: Tensor, threat: Threat | None, rng: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the probability and the class of each image, and whether it withstands the attack, each (n,)."""
    x = as_float(x.to(rng.device))
    with evaluating(model), torch.no_grad():
        probability, label = model(x).softmax(1).max(1)
    if not bool(probability.isfinite().all()):
        raise AtclError("the model returns numbers that are not finite: train it again")
    adv = away_from(model, x, label, threat, rng) if threat else x
    with evaluating(model), torch.no_grad():
        return probability, label, model(adv).argmax(1) == label
