"""Precision of the arithmetic: of the attack's copy of the model and of the update, separately."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import Module

from atcl.core.errors import AtclError

PrecisionName = Literal["fp32", "tf32", "bf16"]
Lower = Literal[
    "fp16"
]  # only of a copy that judges look at: it has the digits of tf32, but a range too narrow for gradients as they come


@dataclass(frozen=True)
class Precision:
    """What a model computes in; images, perturbation, loss and the optimiser's state are fp32 always."""

    attack: PrecisionName = "fp32"
    """of the frozen copy that attacks and pseudo-labels look at: fp32, tf32 or bf16"""
    update: PrecisionName = "fp32"
    """of the model in training"""

    def __post_init__(self) -> None:
        for kind in (self.attack, self.update):
            if kind not in get_args(PrecisionName):
                raise AtclError(f"a precision is one of {', '.join(get_args(PrecisionName))}, not {kind!r}")

    def on(self, device: torch.device) -> "Precision":
        """Return what holds on a device: a CPU computes in fp32 whatever is said, since the others are slower there."""
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
    """Multiply fp32 numbers on a GPU as they are (fp32), or with their mantissa cut to ten bits (tf32)."""
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = kind != "fp32"
    torch.set_float32_matmul_precision("highest" if kind == "fp32" else "high")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])
