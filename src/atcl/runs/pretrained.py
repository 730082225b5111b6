"""Headline models: small trained weights that travel with the package, each with a card, loaded by the name of their recipe."""

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

SHELF = Path(__file__).parent / "weights"  # package data: DATASET/METHOD.safetensors and DATASET/METHOD.json
LARGEST = 2_000_000  # bytes: a package of models is another package


def load(what: str | Path, device: str = "cpu", shelf: Path = SHELF) -> Module:
    """Return a trained model in eval mode: a headline model by its name, such as "digits/warmup-pla", or the chosen one of a run by its folder."""
    if (Path(what) / layout.RECIPE).exists():
        return open_run(what).model(device)
    card_path = shelf / f"{what}.json"
    if not card_path.exists():
        raise AtclError(_absent(str(what), shelf))
    card, path = read_json(card_path), shelf / f"{what}.safetensors"
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != card["sha256"]:
        raise AtclError(
            f"{path} does not hold the weights that its card speaks of: install the package again"
        )
    channels, height, width = card["shape"]
    model = pick(MODELS, card["model"], "model")(card["classes"], (channels, height, width))
    model.load_state_dict(checkpoints.from_bytes(content, path))
    return model.to(resolve(device)).eval()


def keep(run: Run, shelf: Path = SHELF) -> Path:
    """Put the chosen model of a finished run on the shelf, with a card that says what it is; return its path."""
    content, told = run.folder / layout.MODEL, run.result
    if told["model"]["bytes"] > LARGEST:
        raise AtclError(
            f"the model of {run.folder} has {told['model']['bytes']:,} bytes: the package takes none above {LARGEST:,}"
        )
    path = shelf.joinpath(*folder_of(run.name, run.recipe)).with_suffix(".safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.read_bytes())
    card = {
        "name": run.name,
        "seed": run.seed,
        "digest": told["digest"],
        "sha256": told["model"]["sha256"],
        "model": run.recipe.model,
        "classes": run.classes,
        "shape": list(run.shape),
        "names": run.names,
        "selection": told["selection"],
        "threat": told["recipe"]["threat"],
        "accuracy": {name: one["accuracy"] for name, one in told["metrics"].items()},
    }
    write_json(path.with_suffix(".json"), card)
    return path


def cards(shelf: Path = SHELF) -> dict[str, dict[str, Any]]:
    """Return the cards of all headline models, by name."""
    return {
        path.relative_to(shelf).with_suffix("").as_posix(): read_json(path)
        for path in sorted(shelf.glob("*/*.json"))
    }


def card_line(card: dict[str, Any]) -> str:
    """Return a card as one line."""
    threat, chosen, accuracy = (
        card["threat"],
        card["selection"],
        ", ".join(f"{name} {value:.1f}" for name, value in card["accuracy"].items()),
    )
    return f"seed {card['seed']}, epoch {chosen['epoch']} ({chosen['rule']}), {threat['norm']} epsilon {threat['epsilon']:.3g}: {accuracy}"


def _absent(name: str, shelf: Path) -> str:
    if name in RECIPES:
        return f"the weights of {name} do not come with the package: `atcl train {name}` makes them, then load the folder that it names"
    return f"there is no run and no headline model {name!r}{nearest(name, [*cards(shelf), *RECIPES], '; `atcl list recipes` tells the names')}"
