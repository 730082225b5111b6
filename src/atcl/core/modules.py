"""Any torch module: where it lies, and its eval mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module


def device_of(model: Module, otherwise: torch.device) -> torch.device:
    """Return where a model lies; one without parameters and buffers lies nowhere, and goes where its images are."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), otherwise)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Put every part of the model into eval mode, and put each back as it was found."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
