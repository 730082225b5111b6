"""What an attack may do: the budget of training, the threat of evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atcl.attacks.norms import NORMS, STARTS
from atcl.core.errors import AtclError, pick

GROWING = ("epsilon", "step_size", "steps")  # the parts of a budget that a warm-up may raise


@dataclass(frozen=True)
class Budget:
    """What an attack may do while training, and how it grows."""

    epsilon: float = 0.0
    """radius of the ball around each image"""
    step_size: float = 0.0
    """length of one ascent"""
    steps: int = 0
    """number of ascents; 0 trains on the natural images"""
    norm: str = "linf"
    """linf or l2"""
    start: str = "uniform"
    """uniform in the ball, gaussian (TRADES) or natural"""

    def __post_init__(self) -> None:
        if not (
            self.epsilon >= 0
            and self.step_size >= 0
            and math.isfinite(self.epsilon)
            and math.isfinite(self.step_size)
        ):
            raise AtclError(
                f"epsilon and step_size must be numbers of at least 0 (epsilon {self.epsilon}, step_size {self.step_size})"
            )
        if self.steps < 0:
            raise AtclError(f"an attack takes at least 0 steps, not {self.steps}")
        if self.epsilon > 0 and self.steps == 0:
            raise AtclError(
                f"epsilon is {self.epsilon} but the attack takes 0 steps: give steps, or epsilon 0 for natural training"
            )
        if self.steps > 0 and self.step_size == 0:
            raise AtclError(f"the attack takes {self.steps} steps of length 0: give a step_size")
        pick(NORMS, self.norm, "norm")
        pick(STARTS, self.start, "start")

    def grown(self, strength: float, grow: Sequence[str]) -> "Budget":
        """Return the budget with each part in `grow` at `strength` of its full size; at strength 0, no attack."""
        if strength <= 0:
            return replace(self, epsilon=0.0, step_size=0.0, steps=0)
        return replace(
            self,
            epsilon=self.epsilon * strength if "epsilon" in grow else self.epsilon,
            step_size=self.step_size * strength if "step_size" in grow else self.step_size,
            # rounded first, so that half of 40 steps is 20 however the cosine rounds
            steps=max(1, math.ceil(round(self.steps * strength, 9))) if "steps" in grow else self.steps,
        )


@dataclass(frozen=True)
class Threat:
    """The adversary that a model is judged by."""

    epsilon: float
    """radius of the ball around each image"""
    step_size: float
    """length of one step of PGD20 and CW30"""
    norm: str = "linf"
    """linf or l2"""

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 < self.step_size < math.inf):
            raise AtclError(
                f"a threat needs epsilon of at least 0 and a positive step_size (epsilon {self.epsilon}, step_size {self.step_size})"
            )
        pick(NORMS, self.norm, "norm")
