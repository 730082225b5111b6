"""Random numbers that follow from one seed, whatever was drawn before."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator


def forked_rng() -> AbstractContextManager[None]:
    """Leave the global random state, of every device, as it was found."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


def host_random() -> tuple[Any, ...]:
    """Return the state of all that a model could draw from on the host."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2], torch.get_rng_state().numpy().tobytes()


class OwnRandom:
    """A global random state of one's own, for one of several that take turns."""

    def __init__(self) -> None:
        self.host = torch.get_rng_state()
        self.devices = [common.clone_state() for common in _on_devices()]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put it in the place of the common one meanwhile."""
        host, common = torch.get_rng_state(), [one.graphsafe_get_state() for one in _on_devices()]
        torch.set_rng_state(self.host)
        # the state itself changes place, not its content: recorded steps of several runs read theirs at any time
        for one, own in zip(_on_devices(), self.devices, strict=True):
            one.graphsafe_set_state(own)
        try:
            yield
        finally:
            self.host = torch.get_rng_state()
            torch.set_rng_state(host)
            for one, before in zip(_on_devices(), common, strict=True):
                one.graphsafe_set_state(before)


def _on_devices() -> tuple[Generator, ...]:
    """Return the global generators of the GPUs, where there are any."""
    if not torch.cuda.is_available():
        return ()
    torch.cuda.init()
    return torch.cuda.default_generators


def derive(seed: int, *path: int | str) -> int:
    """Return a seed of its own for each use of a run's seed."""
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(device: torch.device, seed: int, *path: int | str) -> Generator:
    """Return a generator that draws the same numbers wherever a loop was begun: one for each batch makes it resumable."""
    return Generator(device).manual_seed(derive(seed, *path))
