"""Verdicts on the disk: what was judged, and of every finished batch which images were still right."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from atcl.core import journal
from atcl.core.device import hardware
from atcl.core.files import write_whole
from atcl.core.modules import device_of, evaluating
from atcl.core.seeds import forked_rng
from atcl.core.version import __version__
from atcl.data.images import as_float
from atcl.datasets.truth import Split

END = "end"  # the pass that says that there is none left


class EvaluationCache:
    """The verdicts of one attack: whether each image of each batch was still right after each pass."""

    def __init__(self, folder: Path | None, header: Mapping[str, Any]) -> None:
        self.path = None if folder is None else path_of(folder, header)
        self.lines: dict[tuple[str, int], journal.Record] = {}
        if self.path is None:
            return
        self.lines = _lines(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(
            self.path, journal.to_lines([dict(header), *self.lines.values()])
        )  # without a last line that was cut off

    def verdict(self, name: str, number: int, images: int) -> Tensor | None:
        """Return (n,) bool, or None where this batch is not judged yet."""
        line = self.lines.get((name, number))
        if line is None or line["images"] != images:
            return None
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(line["right"]), np.uint8), count=images)
        return torch.from_numpy(bits.astype(bool))

    def put(
        self, name: str, number: int, right: Tensor, seconds: float, attack_precision: str = "fp32"
    ) -> None:
        """Keep a batch's verdict, and the precision of what the attack looked at."""
        bits = np.packbits(right.cpu().numpy()).tobytes().hex()
        self._append(
            {
                "pass": name,
                "batch": number,
                "images": len(right),
                "right": bits,
                "seconds": seconds,
                "crafted": attack_precision,
            }
        )

    def close(self) -> None:
        """Say that nothing is left to judge."""
        if (END, 0) not in self.lines:
            self._append({"pass": END, "batch": 0, "images": 0, "right": "", "seconds": 0.0})

    @property
    def attack_precision(self) -> str:
        """The precision of what the attack looked at; more than one where a batch was too much for the first."""
        return " and ".join(sorted({line["crafted"] for line in self.lines.values() if "crafted" in line}))

    @property
    def seconds(self) -> float:
        """How long the verdicts took, however often it was stopped."""
        return float(sum(line["seconds"] for line in self.lines.values()))

    def _append(self, line: journal.Record) -> None:
        if self.path is not None:
            journal.append(self.path, line)
        self.lines[line["pass"], line["batch"]] = line


def stored_cache(folder: Path, header: Mapping[str, Any]) -> EvaluationCache:
    """Return the verdicts that lie under a header, to be read alone."""
    cache = EvaluationCache(None, header)
    cache.lines = _lines(path_of(folder, header))
    return cache


def _lines(path: Path) -> dict[tuple[str, int], journal.Record]:
    _, *lines = journal.read(path) or [{}]
    return {(line["pass"], line["batch"]): line for line in lines}


def path_of(folder: Path, header: Mapping[str, Any]) -> Path:
    """Return where the verdicts under a header lie: each header has a file of its own, so that none is overwritten by another."""
    digest = hashlib.sha256(_plain(header).encode()).hexdigest()[:8]
    return folder / f"{header['attack']}-{digest}.jsonl"


def finished_evaluations(folder: Path, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the headers of all that was judged to its end on the same model, images and threat, by whatever attack and settings, wherever."""
    free = {"attack": "", "seed": 0, "batch_size": 0, "half": False, "machine": {}, "versions": {}}
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        top, *lines = journal.read(path) or [{}]
        if any(line["pass"] == END for line in lines) and _plain({**top, **free}) == _plain(
            {**header, **free}
        ):
            found.append(top)
    return found


def _plain(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True)


def evaluation_context(model: Module, test: Split) -> dict[str, Any]:
    """Return what verdicts depend on beside the attack: the model, images with their truth, the machine, the versions."""
    x = as_float(test.x[:1].to(device_of(model, test.x.device)))
    return {
        "model": digest_of_model(model, x),
        "test": fingerprint_of(test),
        "machine": machine(model),
        "versions": {"atcl": __version__, "pyautoattack": version("pyautoattack")},
    }


def digest_of_model(model: Module, x: Tensor) -> str:
    """Return sixteen hexadecimal digits that name a model: its modules, attributes and weights but for those that a look at images changes.

    Its code is not seen, nor what lies inside objects other than numbers, texts, tensors, arrays and collections of them.
    """
    with evaluating(model), torch.no_grad(), forked_rng():
        model(x)  # the first look may set things up
        before = _parts(model)
        model(1 - x)
        after = _parts(model)
    kinds = [(name, type(module).__qualname__) for name, module in model.named_modules()]
    same = sorted(
        (key, words) for key, words in before.items() if after.get(key) == words
    )  # a counter says nothing of a model
    return hashlib.sha256(repr((kinds, same)).encode()).hexdigest()[:16]


def _parts(model: Module) -> dict[str, str]:
    """Return in words what the modules of a model hold."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        own = {
            key: value
            for key, value in vars(module).items()
            if key not in _PLAIN and not isinstance(value, Module)
        }
        held = own | dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        found |= {f"{name}.{key}": _words(value) for key, value in held.items()}
    return found


_PLAIN = {*vars(Module())}  # what each module has


def _words(value: Any) -> str:
    """Return a value in words that are the same in each process; of an object that has none its kind."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype):
        return repr(value)
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return digest_of([value])
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_words(key)}: {_words(one)}' for key, one in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    return type(value).__qualname__


def machine(model: Module) -> dict[str, Any]:
    """Return the device that a model is judged on, its precision and PyTorch's version."""
    return hardware(device_of(model, torch.device("cpu")))


def fingerprint_of(split: Split) -> str:
    """Return a digest of images and truth."""
    return digest_of([split.x, split.truth.labels])


def digest_of(tensors: Sequence[Tensor]) -> str:
    """Return sixteen hexadecimal digits that name the tensors' values."""
    summary = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        summary.update(
            str((tensor.dtype, tuple(tensor.shape))).encode()
            + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return summary.hexdigest()[:16]
