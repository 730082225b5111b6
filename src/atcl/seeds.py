"""Random numbers that follow from one seed, whatever was drawn before."""

import hashlib
from contextlib import AbstractContextManager

import torch
from torch import Generator


def forked_rng() -> AbstractContextManager[None]:
    """Leave the global random state, of every device, as it was found."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


def derive(seed: int, *path: int | str) -> int:
    """Return a seed of its own for each use of a run's seed."""
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(device: torch.device, seed: int, *path: int | str) -> Generator:
    """Return a generator that draws the same numbers wherever a loop was begun: one for each batch makes it resumable."""
    return Generator(device).manual_seed(derive(seed, *path))
