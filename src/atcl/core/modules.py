"""What can be done with any torch module: find its device, and put it into eval mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module


def device_of(model: Module, otherwise: torch.device) -> torch.device:
    """Return the device of a model, or `otherwise` for a model without parameters and buffers."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), otherwise)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Put every submodule into eval mode, and afterwards restore the mode that each one had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
