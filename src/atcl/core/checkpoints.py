"""Checkpoints: one safetensors file for each of the last two epochs, whole or recognised as damaged, written while training goes on."""

import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from atcl.core.errors import AtclError, one_line
from atcl.core.files import sync_folder, write_whole

KEPT = 2
_NAME = re.compile(r"stage-(\d+)-epoch-(\d+)-([0-9a-f]{16})\.safetensors")


def save(folder: Path, stage: int, epoch: int, tensors: Mapping[str, Tensor]) -> Path:
    """Write a checkpoint, whole, then drop all but the last two, and any of this epoch or later that an earlier try left."""
    content = to_bytes(tensors)
    folder.mkdir(exist_ok=True)
    stale = [path for path in stored(folder) if _place(path) >= (stage, epoch)]
    path = folder / f"stage-{stage}-epoch-{epoch:04d}-{_digest(content)}.safetensors"
    write_whole(path, content)
    for old in stale:
        if old != path:
            old.unlink()
    for old in stored(folder)[KEPT:]:
        old.unlink()
    sync_folder(folder)
    return path


class Writer:
    """Writes the checkpoints of a run while it goes on, one at a time; what goes wrong is raised at the next, or at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(1)
        self.pending: Future[Path] | None = None

    def save(self, stage: int, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Take a copy of the tensors as they are now, and write it."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.wait()
        self.pending = self.pool.submit(save, self.folder, stage, epoch, copied)

    def wait(self) -> None:
        """Wait until all is written."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, ending: BaseException | None, *_: object) -> None:
        try:
            self.wait()
        except Exception as error:
            if ending is None:
                raise
            ending.add_note(
                f"its last checkpoint was not written: {error}"
            )  # what ended the run stays the error that is raised
        finally:
            self.pool.shutdown()


def newest(folder: Path, notify: Callable[[str], None]) -> dict[str, Tensor] | None:
    """Return the newest whole checkpoint, None where there is none at all; name each damaged one, and refuse where all are."""
    paths = stored(folder)
    for path in paths:
        content = path.read_bytes()
        if path.name.endswith(f"-{_digest(content)}.safetensors"):
            return from_bytes(content, path)
        notify(f"checkpoint {path} is damaged; going on from the one before it")
    if paths:
        raise AtclError(f"no checkpoint in {folder} is whole: move the folder away to start afresh")
    return None


def stored(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    return sorted((path for path in folder.glob("*") if _NAME.fullmatch(path.name)), key=_place, reverse=True)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )


def from_bytes(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, a format that cannot carry code."""
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # its head can ask for types that PyTorch lacks, and for sides beyond 64 bits
        said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise AtclError(f"{path} is not a whole safetensors file: {one_line(said)}") from error


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the tensors on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _place(path: Path) -> tuple[int, int]:
    """Return stage and epoch of a checkpoint."""
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1]), int(match[2])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
