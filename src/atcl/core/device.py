"""The machine: which device to use, and what the numbers were made with."""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from atcl.core.errors import AtclError
from atcl.core.precisions import multiplying
from atcl.core.version import __version__


def resolve(device: str) -> torch.device:
    """Return the device of a name; `auto` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise AtclError(f"unknown device {device!r}: give auto, cpu or cuda") from None
    if resolved.type not in ("cpu", "cuda"):
        raise AtclError(f"unknown device {device!r}: give auto, cpu or cuda")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise AtclError("this machine has no CUDA GPU that PyTorch can use: give --device cpu, or auto")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise AtclError(
            f"there is no device {device!r}: the GPUs are cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return resolved


def precision(strict_fp32: bool) -> AbstractContextManager[None]:
    """Where asked for, compute in full fp32: convolutions on a GPU else use tf32, PyTorch's default."""
    return multiplying("fp32") if strict_fp32 else nullcontext()


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """Where asked for, let the same steps give the same bits: only algorithms that do, and none chosen by its speed."""
    if not wanted:
        yield
        return
    enabled, softly = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    chosen, workspace = torch.backends.cudnn.benchmark, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        with multiplying("fp32"):
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=softly)
        torch.backends.cudnn.benchmark = chosen
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def free_memory() -> None:
    """Give back what a GPU holds for tensors and recordings that are gone, so that other processes can have it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def environment(device: torch.device) -> dict[str, Any]:
    """Return what the numbers were made with."""
    return {
        "atcl": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **hardware(device),
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what an accuracy depends on beside the model: PyTorch's version, the device and its precision."""
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "precision": {
            "matmul": torch.get_float32_matmul_precision(),
            "convolution_tf32": torch.backends.cudnn.allow_tf32,
        },
    }


def _commit() -> str | None:
    """Return the commit of the source, where the package runs from a checkout."""
    here = Path(__file__).parent
    try:
        ours, described = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10)
            for words in (
                ["ls-files", "--error-unmatch", Path(__file__).name],
                ["describe", "--always", "--dirty"],
            )
        )
        return (
            described.stdout.strip() if ours.returncode == 0 else None
        )  # the package may be installed inside another checkout
    except (OSError, subprocess.SubprocessError):
        return None
