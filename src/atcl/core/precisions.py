"""Precision of the arithmetic, chosen separately for attacks and for the update of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.errors import AtclError

PrecisionName = Literal["fp32", "tf32", "bf16"]

# For evaluation attacks alone: fp16 has the digits of tf32, but too narrow a range for gradients of training.
Lower = Literal["fp16"]


@dataclass(frozen=True)
class Precision:
    """What a model computes in; images, perturbation, loss and the optimiser's state are always fp32.

    Raises:
        AtclError: a precision has another name than fp32, tf32 or bf16

    Examples:
        >>> Precision(attack="bf16").on(torch.device("cpu"))
        Precision(attack='fp32', update='fp32')
    """

    attack: PrecisionName = "fp32"
    """of the frozen copy of the model that receives attacks and gives pseudo-labels: fp32, tf32 or bf16"""
    update: PrecisionName = "fp32"
    """of the model in training: fp32, tf32 or bf16"""

    def __post_init__(self) -> None:
        for kind in (self.attack, self.update):
            if kind not in get_args(PrecisionName):
                raise AtclError(f"a precision is one of {', '.join(get_args(PrecisionName))}, not {kind!r}")

    def on(self, device: torch.device) -> "Precision":
        """Return the precision used on a device: always fp32 on a CPU, where the others are slower."""
        return self if device.type == "cuda" else Precision()


class InBf16(Module):
    """A model whose layers compute in bf16 from weights in fp32, and which returns fp32."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = self.model(x)
        return logits.float()  # type: ignore[no-any-return]


@contextmanager
def multiplying(kind: PrecisionName | Lower) -> Iterator[None]:
    """Multiply fp32 numbers on a GPU with all their digits (fp32), or with a mantissa of ten bits (tf32)."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = kind != "fp32"
    torch.set_float32_matmul_precision("highest" if kind == "fp32" else "high")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)
