"""The machine: which device to use, and which hardware and versions made the numbers."""

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
    """Return the device with a name: cpu, cuda, cuda:1, ...; `auto` is the GPU where there is one."""
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
    if resolved.type == "cuda" and (resolved.index or 0) >= (count := torch.cuda.device_count()):
        raise AtclError(f"there is no device {device!r}: the GPUs are cuda:0 to cuda:{count - 1}")
    return resolved


def available_cores() -> int:
    """Return how many cores this process may use; where the system does not say, how many the machine has."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    return os.cpu_count() or 1


def precision(strict_fp32: bool) -> AbstractContextManager[None]:
    """With `strict_fp32`, compute in full fp32; by default PyTorch lets convolutions on a GPU use tf32."""
    return multiplying("fp32") if strict_fp32 else nullcontext()


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """With `wanted`, allow deterministic algorithms alone, so that the same steps give the same bits."""
    if not wanted:
        yield
        return
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with this alone
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        with multiplying("fp32"):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def free_memory() -> None:
    """Release the GPU memory of deleted tensors and CUDA graphs, so that other processes can use it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def environment(device: torch.device) -> dict[str, Any]:
    """Return the versions, the commit and the hardware that a run's numbers come from."""
    return {
        "atcl": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **hardware(device),
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what an accuracy depends on besides the model: PyTorch's version, the device, the precision."""
    on_gpu = device.type == "cuda"
    processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else processor,
        "precision": {
            "matmul": torch.get_float32_matmul_precision(),
            "convolution_tf32": torch.backends.cudnn.allow_tf32,
        },
    }


def _commit() -> str | None:
    """Return the commit of the source, or None where the package does not run from a checkout of its own."""
    try:
        # the package may be installed inside a checkout of another project, which does not track this file
        tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
        commit = _git("describe", "--always", "--dirty")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() if tracked.returncode == 0 else None


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
