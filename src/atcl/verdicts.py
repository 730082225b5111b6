"""Judging a model: attack by attack and batch by batch, each verdict kept as it falls, so that a stopped evaluation goes on where it was."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from atcl import journal
from atcl.acceleration import replayed
from atcl.attacks import Threat, evaluating
from atcl.batches import as_float, checked_images
from atcl.errors import AtclError, pick
from atcl.evaluation import ATTACKS, Attack
from atcl.files import write_whole
from atcl.masking import Flag, suspicions
from atcl.seeds import forked_rng
from atcl.truth import Split, Truth

WORST = "worst"  # the pointwise worst case over everything run

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
    flags: tuple[str, ...] | None = None  # names of the signs of false robustness that were found; None: nobody looked


class Book:
    """The verdicts of one attack: whether each image of each batch was still right after each pass."""

    def __init__(self, path: Path | None = None, key: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.lines: dict[tuple[str, int], journal.Record] = {}
        if path is None:
            return
        header, *lines = journal.read(path) or [{}]
        if header == dict(key or {}):
            self.lines = {(line["pass"], line["batch"]): line for line in lines}
        kept = [dict(key or {}), *self.lines.values()]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, journal.packed(kept))  # without a last line that was cut off

    def verdict(self, name: str, number: int, images: int) -> Tensor | None:
        """Return (n,) bool, or None where this batch is not judged yet."""
        line = self.lines.get((name, number))
        if line is None or line["images"] != images:
            return None
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(line["right"]), np.uint8), count=images)
        return torch.from_numpy(bits.astype(bool))

    def put(self, name: str, number: int, right: Tensor, seconds: float) -> None:
        """Keep a batch's verdict."""
        bits = np.packbits(right.cpu().numpy()).tobytes().hex()
        line = {"pass": name, "batch": number, "images": len(right), "right": bits, "seconds": seconds}
        if self.path is not None:
            journal.append(self.path, line)
        self.lines[name, number] = line

    @property
    def seconds(self) -> float:
        """How long the verdicts took, however often it was stopped."""
        return float(sum(line["seconds"] for line in self.lines.values()))


def evaluate(
    model: Module, x: Any, y: Any, *, epsilon: float, attacks: Sequence[str] = ("natural", "pgd20", "cw30"), norm: str = "linf",
    step_size: float | None = None, seed: int = 0, batch_size: int = 500, checks: bool = True, keep: Path | None = None,
    watch: Watch | None = None,
) -> dict[str, Measurement]:  # fmt: skip
    """Measure any classifier that returns logits, on images x (uint8, or floats in [0, 1]) with true classes y; a step is epsilon / 8 by default."""
    images = checked_images(x)
    if len(images) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), images.device)
    with evaluating(model), torch.no_grad():
        logits = model(as_float(images[:1].to(device)))
    if logits.ndim != 2 or len(logits) != 1:
        raise AtclError(f"the model returns {tuple(logits.shape)} for one image, not logits of shape (1, classes)")
    labels = torch.as_tensor(y)
    test = Split(images, Truth(labels if labels.is_floating_point() else labels.long(), logits.shape[1]))
    key = {"images": len(test)} if keep else None
    threat = Threat(epsilon, step_size or max(epsilon, 1e-6) / 8, norm)
    found = measure(model, test, threat, attacks, seed=seed, batch_size=batch_size, keep=keep, key=key, watch=watch)
    return flagged(found, suspicions(model, test.x, test.truth.labels, threat, seed=seed)) if checks else found


def flagged(found: Mapping[str, Measurement], flags: Sequence[Flag]) -> dict[str, Measurement]:
    """Return the measurements, those under attack with the names of the flags."""
    return {name: one if name == "natural" else replace(one, flags=tuple(flag.name for flag in flags)) for name, one in found.items()}


def measure(
    model: Module, test: Split, threat: Threat, attacks: Sequence[str], *, seed: int = 0, batch_size: int = 500, keep: Path | None = None,
    key: Mapping[str, Any] | None = None, watch: Watch | None = None,
) -> dict[str, Measurement]:  # fmt: skip
    """Measure the accuracy of a model under each attack and, where there are several, under the worst of them for each image.

    With `keep`, a folder, every finished batch is kept there under the `key` that tells what was judged, and the same call goes on after it.
    """
    _check(test, attacks, seed, batch_size)
    chosen = {name: pick(ATTACKS, name, "attack") for name in dict.fromkeys(attacks)}
    for attack in chosen.values():
        attack.check(test.truth.classes)
    found, standing = {}, torch.ones(len(test), dtype=torch.bool)
    for name, attack in chosen.items():
        asked = {"attack": name, "threat": asdict(threat), "seed": seed, "batch_size": batch_size, **(key or {})}
        book = Book(keep / f"{name}.jsonl" if keep else None, asked)
        part = test if attack.first is None or attack.first >= len(test) else test.take(slice(attack.first))
        found[name], right = withstood(model, part, threat, name, attack, seed, batch_size, book, watch)
        standing[: len(part)] &= right
    if len(chosen) > 1:
        images = min(one.images for one in found.values())
        told = {"about": f"for each image the worst of {', '.join(chosen)}", **asdict(threat)}
        seconds = sum(one.seconds for one in found.values())
        found[WORST] = _measured(standing[:images], seed, batch_size, seconds, told)
    return found


def withstood(
    model: Module, test: Split, threat: Threat, name: str, attack: Attack, seed: int, batch_size: int, book: Book, watch: Watch | None
) -> tuple[Measurement, Tensor]:
    """Return the accuracy after all passes, and (n,) bool: which images stand."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), test.x.device)
    standing, after = torch.ones(len(test), dtype=torch.bool), {}
    with evaluating(model), forked_rng(), replayed(model, batch_size) as quick:  # AutoAttack draws from the global generator
        for step, run in attack.passes.items():
            index = standing.nonzero()[:, 0]
            for number, part in enumerate(index.split(batch_size) if len(index) else ()):
                right = book.verdict(step, number, len(part))
                if right is None:
                    began = time.perf_counter()
                    x, labels = as_float(test.x[part].to(device)), test.truth.labels[part].to(device)
                    right = _right(model, run(quick, x, labels, threat, seed, number), labels).cpu()
                    book.put(step, number, right, time.perf_counter() - began)
                standing[part] = right
                if watch:
                    watch(name, step, min((number + 1) * batch_size, len(index)), len(index))
            after[step] = 100 * int(standing.sum()) / len(test)
    told = {"about": attack.about, **asdict(threat)}
    return _measured(standing, seed, batch_size, book.seconds, told, after if len(after) > 1 else {}), standing


@torch.no_grad()
def _right(model: Module, x: Tensor, labels: Tensor) -> Tensor:
    logits = model(x)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise AtclError(f"the model returns {tuple(logits.shape)} for {len(labels)} images, not logits of shape (n, classes)")
    if not bool(logits.isfinite().all()):
        raise AtclError("the model returns numbers that are not finite: its accuracy means nothing")
    right: Tensor = logits.argmax(1) == labels
    return right


def _measured(right: Tensor, seed: int, batch_size: int, seconds: float, told: dict[str, Any], after: dict[str, float] | None = None) -> Measurement:
    correct = int(right.sum())
    return Measurement(100 * correct / len(right), correct, len(right), seed, batch_size, seconds, told, after or {})


def _check(test: Split, attacks: Sequence[str], seed: int, batch_size: int) -> None:
    if len(test) == 0:
        raise AtclError("there is nothing to evaluate on: the test set is empty")
    if batch_size < 1 or not 0 <= seed < 2**63:
        raise AtclError(f"batch_size is at least 1, and a seed lies in 0 to 2^63 - 1 (batch_size {batch_size}, seed {seed})")
    if not attacks:
        raise AtclError(f"name at least one attack of {', '.join(ATTACKS)}")
