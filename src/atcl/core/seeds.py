"""Random numbers that depend on one seed alone, and not on what was drawn before."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator


def forked_rng() -> AbstractContextManager[None]:
    """Restore the global random state of PyTorch, on every device, at the end of the block."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


def host_random() -> tuple[Any, ...]:
    """Return the state of every global generator on the host: those of Python, NumPy and PyTorch."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2], torch.get_rng_state().numpy().tobytes()


class OwnRandom:
    """A global random state for each of several runs that share a process and take turns."""

    def __init__(self) -> None:
        self.host = torch.get_rng_state()
        self.devices = [shared.clone_state() for shared in _gpu_generators()]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use this state as the global one within the block."""
        host, shared = torch.get_rng_state(), [gpu.graphsafe_get_state() for gpu in _gpu_generators()]
        torch.set_rng_state(self.host)
        # Swap the state objects, do not copy their content: a CUDA graph reads the one it was recorded with.
        for gpu, own in zip(_gpu_generators(), self.devices, strict=True):
            gpu.graphsafe_set_state(own)
        try:
            yield
        finally:
            self.host = torch.get_rng_state()
            torch.set_rng_state(host)
            for gpu, before in zip(_gpu_generators(), shared, strict=True):
                gpu.graphsafe_set_state(before)


def _gpu_generators() -> tuple[Generator, ...]:
    """Return the global generator of each GPU."""
    if not torch.cuda.is_available():
        return ()
    torch.cuda.init()
    return torch.cuda.default_generators


def derive(seed: int, *path: int | str) -> int:
    """Return a seed for one use of a run's seed: `path` names the use, for example `"model", stage`."""
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(device: torch.device, seed: int, *path: int | str) -> Generator:
    """Return a generator for one use of a run's seed.

    With a new one for each batch, a resumed run draws what the whole run would have drawn.
    """
    return Generator(device).manual_seed(derive(seed, *path))
