"""Evaluations on the disk: of each finished batch, which images the model still got right."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
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

END = "end"  # the name of a last, empty pass: the evaluation is finished


class EvaluationCache:
    """The evaluation by one attack: which images of each batch were right after each pass.

    Args:
        folder: where it is kept; None: in memory alone.
        header: what identifies the evaluation: attack, threat, seed, model, images, machine.
    """

    def __init__(self, folder: Path | None, header: Mapping[str, Any]) -> None:
        self.path = None if folder is None else path_of(folder, header)
        self.lines: dict[tuple[str, int], journal.Record] = {}
        if self.path is None:
            return
        self.lines = _lines(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        records = [dict(header), *self.lines.values()]
        write_whole(self.path, journal.to_lines(records))  # drops a last line that was cut off

    def finished_batch(self, name: str, number: int, images: int) -> Tensor | None:
        """Return (n,) bool, which images of a batch are right; None where it is not evaluated yet."""
        line = self.lines.get((name, number))
        if line is None or line["images"] != images:
            return None
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(line["right"]), np.uint8), count=images)
        return torch.from_numpy(bits.astype(bool))

    def put(
        self, name: str, number: int, right: Tensor, seconds: float, attack_precision: str = "fp32"
    ) -> None:
        """Keep which images of a batch are right, and the precision that the attack was computed in."""
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
        """Mark the evaluation as finished."""
        if (END, 0) not in self.lines:
            self._append({"pass": END, "batch": 0, "images": 0, "right": "", "seconds": 0.0})

    def standing(self, passes: Iterable[str], images: int, batch_size: int) -> Tensor | None:
        """Return (n,) bool, which images are right after all passes; None where a batch is missing.

        A batch is missing where another version of the package made other passes.
        """
        standing = torch.ones(images, dtype=torch.bool)
        for name in passes:
            index = standing.nonzero()[:, 0]
            for number, part in enumerate(index.split(batch_size) if len(index) else ()):
                right = self.finished_batch(name, number, len(part))
                if right is None:
                    return None
                standing[part] = right
        return standing

    @property
    def attack_precision(self) -> str:
        """The precision that the attack was computed in; several where a batch needed a higher one."""
        return " and ".join(sorted({line["crafted"] for line in self.lines.values() if "crafted" in line}))

    @property
    def seconds(self) -> float:
        """How long the evaluation took in all, over every call that continued it."""
        return float(sum(line["seconds"] for line in self.lines.values()))

    def _append(self, line: journal.Record) -> None:
        if self.path is not None:
            journal.append(self.path, line)
        self.lines[line["pass"], line["batch"]] = line


def stored_cache(folder: Path, header: Mapping[str, Any]) -> EvaluationCache:
    """Return the evaluation with this header, to be read alone."""
    cache = EvaluationCache(None, header)
    cache.lines = _lines(path_of(folder, header))
    return cache


def _lines(path: Path) -> dict[tuple[str, int], journal.Record]:
    _, *lines = journal.read(path) or [{}]
    return {(line["pass"], line["batch"]): line for line in lines}


def path_of(folder: Path, header: Mapping[str, Any]) -> Path:
    """Return the file of the evaluation with this header; each header has a file of its own."""
    digest = hashlib.sha256(_plain(header).encode()).hexdigest()[:8]
    return folder / f"{header['attack']}-{digest}.jsonl"


def finished_evaluations(folder: Path, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the headers of all finished evaluations of the same model and images within the same threat.

    Attack, seed, batch size, machine and versions may differ.
    """
    free = {"attack": "", "seed": 0, "batch_size": 0, "half": False, "machine": {}, "versions": {}}
    wanted, found = _plain({**header, **free}), []
    for path in sorted(folder.glob("*.jsonl")):
        top, *lines = journal.read(path) or [{}]
        if any(line["pass"] == END for line in lines) and _plain({**top, **free}) == wanted:
            found.append(top)
    return found


def described(header: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """Return in words the settings of an evaluation, and its machine if that is not this one."""
    half = " in fp16" if "half" in header else ""
    words = f"{header['attack']} with seed {header['seed']} in batches of {header['batch_size']}{half}"
    if header["machine"] == context["machine"] and header["versions"] == context["versions"]:
        return words
    place = header["machine"]
    tf32 = "on" if place["precision"]["convolution_tf32"] else "off"
    versions = f"torch {place['torch']}, atcl {header['versions']['atcl']}"
    return f"{words} ({place['device']}, {versions}, tf32 {tf32})"


def _plain(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True)


def evaluation_context(model: Module, test: Split) -> dict[str, Any]:
    """Return what an evaluation depends on beside the attack: model, images with truth, machine, versions."""
    x = as_float(test.x[:1].to(device_of(model, test.x.device)))
    return {
        "model": digest_of_model(model, x),
        "test": fingerprint_of(test),
        "machine": machine(model),
        "versions": {"atcl": __version__, "pyautoattack": version("pyautoattack")},
    }


def digest_of_model(model: Module, x: Tensor) -> str:
    """Return sixteen hexadecimal digits that identify a model by its modules, attributes and weights.

    Attributes that a forward pass changes do not count. Neither does the code of the model, nor what is
    inside objects other than numbers, strings, tensors, arrays and collections of them.
    """
    with evaluating(model), torch.no_grad(), forked_rng():
        model(x)  # the first pass may set things up
        before = _parts(model)
        model(1 - x)
        after = _parts(model)
    kinds = [(name, type(module).__qualname__) for name, module in model.named_modules()]
    # what a forward pass changes, such as a counter, does not identify the model
    same = sorted((key, words) for key, words in before.items() if after.get(key) == words)
    return hashlib.sha256(repr((kinds, same)).encode()).hexdigest()[:16]


def _parts(model: Module) -> dict[str, str]:
    """Return, by name, a description of every attribute of a model's modules."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        values = vars(module).items()
        own = {key: value for key, value in values if key not in _PLAIN and not isinstance(value, Module)}
        held = own | dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        found |= {f"{name}.{key}": _words(value) for key, value in held.items()}
    return found


_PLAIN = {*vars(Module())}  # the attributes that every module has


def _words(value: Any) -> str:
    """Return a description of a value that is the same in each process; of any other object its class."""
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
    """Return the device that a model runs on, its precision and PyTorch's version."""
    return hardware(device_of(model, torch.device("cpu")))


def fingerprint_of(split: Split) -> str:
    """Return a digest of images and true classes."""
    return digest_of([split.x, split.truth.labels])


def digest_of(tensors: Sequence[Tensor]) -> str:
    """Return sixteen hexadecimal digits that identify the values of tensors."""
    summary = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        summary.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        summary.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return summary.hexdigest()[:16]
