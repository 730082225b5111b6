"""What a trained model says of pictures: class, probability, and whether the prediction withstands an attack."""

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
    """A model's answer for one picture."""

    file: str
    name: str  # of the class
    probability: float
    withstands: (
        bool | None
    )  # whether PGD20 at the recipe's epsilon leaves the class as it is; None: not tried


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
    """Return a prediction for each picture, and for each picture in each folder, that is named."""
    if batch_size < 1 or not 0 <= seed < 2**63:
        raise AtclError(
            f"batch_size is at least 1, and a seed lies in 0 to 2^63 - 1 (batch_size {batch_size}, seed {seed})"
        )
    if not images:
        raise AtclError("name at least one picture, or a folder of pictures")
    files = find_pictures(images)
    x, wrong = read_pictures(files, run.shape)
    if wrong:
        raise AtclError(
            "\n  ".join(
                [
                    f"{len(wrong)} of {len(files)} pictures cannot be read; nothing was predicted:",
                    *wrong.values(),
                ]
            )
        )
    model = run.model(device, build)
    threat, place = run.recipe.threat if attack else None, next(model.parameters()).device
    answers = [
        _answer(model, part, threat, generator(place, seed, number))
        for number, part in enumerate(x.split(batch_size))
    ]
    probability, label, withstands = (torch.cat(parts).tolist() for parts in zip(*answers, strict=True))
    return [
        Prediction(str(file), run.class_names[number], share, bool(kept) if attack else None)
        for file, share, number, kept in zip(files, probability, label, withstands, strict=True)
    ]


def predictions_as_csv(predictions: Sequence[Prediction]) -> str:
    """Return predictions as a table with a header."""
    page = io.StringIO()
    writer = csv.DictWriter(page, _row(predictions[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**_row(one), "probability": f"{one.probability:.6f}"} for one in predictions)
    return page.getvalue()


def predictions_as_json(predictions: Sequence[Prediction]) -> str:
    """Return predictions as a list of objects."""
    return json.dumps([_row(one) for one in predictions], indent=2) + "\n"


def _row(one: Prediction) -> dict[str, object]:
    tried = {} if one.withstands is None else {"withstands": one.withstands}
    return {"file": one.file, "class": one.name, "probability": one.probability, **tried}


def _answer(model: Module, x: Tensor, threat: Threat | None, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return probability, class and whether it withstands, each (n,)."""
    x = as_float(x.to(rng.device))
    with evaluating(model), torch.no_grad():
        probability, label = model(x).softmax(1).max(1)
    if not bool(probability.isfinite().all()):
        raise AtclError("the model returns numbers that are not finite: its predictions mean nothing")
    adv = away_from(model, x, label, threat, rng) if threat else x
    with evaluating(model), torch.no_grad():
        return probability, label, model(adv).argmax(1) == label
