"""Pretrained models: small trained weights in the package, each with a card, loaded by a recipe's name."""

import hashlib
from pathlib import Path
from typing import Any

from torch.nn import Module

from atcl.core import checkpoints
from atcl.core.device import resolve
from atcl.core.errors import AtclError, nearest, pick
from atcl.core.files import read_json, write_json, write_whole
from atcl.models import MODELS
from atcl.recipes.catalogue import RECIPES
from atcl.runs import layout
from atcl.runs.run import Run, folder_of, open_run

WEIGHTS = Path(__file__).parent / "weights"  # DATASET/METHOD.safetensors and DATASET/METHOD.json
LARGEST = 2_000_000  # bytes: larger models would make the package too large


def load(what: str | Path, device: str = "cpu", folder: Path = WEIGHTS) -> Module:
    """Return a trained model in eval mode.

    Args:
        what: the name of a pretrained model, from `atcl list weights`, or the folder of a run.
        device: auto, cpu or cuda.
        folder: the folder of the pretrained models.

    Raises:
        AtclError: there is no such model, or its file was changed.

    Examples:
        >>> import torch
        >>> load("digits/warmup-pla")(torch.rand(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if (Path(what) / layout.RECIPE).exists():
        return open_run(what).model(device)
    card_path = folder / f"{what}.json"
    if not card_path.exists():
        raise AtclError(_absent(str(what), folder))
    card, path = read_json(card_path), folder / f"{what}.safetensors"
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != card["sha256"]:
        raise AtclError(f"{path} does not hold the weights that its card names: install the package again")
    channels, height, width = card["shape"]
    model = pick(MODELS, card["model"], "model")(card["classes"], (channels, height, width))
    model.load_state_dict(checkpoints.from_bytes(content, path))
    return model.to(resolve(device)).eval()


def keep(run: Run, folder: Path = WEIGHTS) -> Path:
    """Store the chosen model of a finished run as a pretrained model, with a card that describes it.

    Args:
        run: the run.
        folder: the folder of the pretrained models.

    Returns:
        The path of the weights.

    Raises:
        AtclError: the model is too large for the package.
    """
    content, result = run.folder / layout.MODEL, run.result
    if result.model["bytes"] > LARGEST:
        raise AtclError(
            f"the model of {run.folder} has {result.model['bytes']:,} bytes: "
            f"the package takes none above {LARGEST:,}; choose a smaller model"
        )
    path = folder.joinpath(*folder_of(run.name, run.recipe)).with_suffix(".safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.read_bytes())
    card = {
        "name": run.name,
        "seed": run.seed,
        "digest": result.digest,
        "sha256": result.model["sha256"],
        "model": run.recipe.model,
        "classes": run.classes,
        "shape": list(run.shape),
        "names": run.names,
        "selection": result.to_json()["selection"],
        "threat": result.recipe["threat"],
        "accuracy": {name: one.accuracy for name, one in result.metrics.items()},
    }
    write_json(path.with_suffix(".json"), card)
    return path


def cards(folder: Path = WEIGHTS) -> dict[str, dict[str, Any]]:
    """Return the cards of all pretrained models, by name."""
    return {
        path.relative_to(folder).with_suffix("").as_posix(): read_json(path)
        for path in sorted(folder.glob("*/*.json"))
    }


def card_line(card: dict[str, Any]) -> str:
    """Return a card as one line."""
    threat, chosen = card["threat"], card["selection"]
    accuracies = ", ".join(f"{name} {value:.1f}" for name, value in card["accuracy"].items())
    return (
        f"seed {card['seed']}, epoch {chosen['epoch']} ({chosen['rule']}), "
        f"{threat['norm']} epsilon {threat['epsilon']:.3g}: {accuracies}"
    )


def _absent(name: str, folder: Path) -> str:
    if name in RECIPES:
        return (
            f"the weights of {name} are not in the package: "
            f"`atcl train {name}` makes them, then load the folder that it names"
        )
    hint = nearest(name, [*cards(folder), *RECIPES], "; `atcl list recipes` shows the names")
    return f"there is no run and no pretrained model {name!r}{hint}"
