"""Checkpoints: a safetensors file for each of the last two epochs, written while training goes on.

The name of each file ends in a digest of its content, so that a damaged file is recognised.
"""

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from atcl.core.errors import AtclError, Notify, one_line
from atcl.core.files import sync_folder, write_whole

KEPT = 2  # two checkpoints, so that one remains where the newest is damaged
_NAME = re.compile(r"stage-(\d+)-epoch-(\d+)-([0-9a-f]{16})\.safetensors")


def save(folder: Path, stage: int, epoch: int, tensors: Mapping[str, Tensor]) -> Path:
    """Write the checkpoint of an epoch and return its path.

    Afterwards the folder holds the last two checkpoints. Those of this epoch or later ones, which an
    interrupted attempt may have left, are removed.
    """
    content = to_bytes(tensors)
    folder.mkdir(exist_ok=True)
    stale = [path for path in stored(folder) if _stage_and_epoch(path) >= (stage, epoch)]
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
    """Writes the checkpoints of a run in a thread, one at a time, while training goes on.

    An error in writing is raised when the next checkpoint is saved, or at the end of the `with` block.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(1)
        self.pending: Future[Path] | None = None

    def save(self, stage: int, epoch: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors now, and write the copy in the background."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.wait()
        self.pending = self.pool.submit(save, self.folder, stage, epoch, copied)

    def wait(self) -> None:
        """Wait until the last checkpoint is written, and raise the error if writing failed."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, *_: object) -> None:
        try:
            self.wait()
        except Exception as error:
            if raised is None:
                raise
            # the error that ended the run is the one to raise
            raised.add_note(f"its last checkpoint was not written: {error}")
        finally:
            self.pool.shutdown()


def newest(folder: Path, notify: Notify) -> dict[str, Tensor] | None:
    """Return the newest checkpoint that is whole, or None where the folder holds none.

    Args:
        folder: where the checkpoints of the run are
        notify: receives a message about each damaged checkpoint

    Raises:
        AtclError: every checkpoint is damaged
    """
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
    checkpoints = (path for path in folder.glob("*") if _NAME.fullmatch(path.name))
    return sorted(checkpoints, key=_stage_and_epoch, reverse=True)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    # cloned, since safetensors refuses tensors that share memory
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(own)


def from_bytes(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, a format that cannot carry code."""
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # its header can name types that PyTorch lacks, or sizes beyond 64 bits
        said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise AtclError(f"{path} is not a whole safetensors file: {one_line(said)}") from error


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the tensors on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _stage_and_epoch(path: Path) -> tuple[int, int]:
    """Return the stage and the epoch in the name of a checkpoint."""
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1]), int(match[2])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
