"""How strong an attack may be: the budget in training, the threat in evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atcl.attacks.norms import NORMS, STARTS
from atcl.core.errors import AtclError, pick

GROWING = ("epsilon", "step_size", "steps")  # the parts of a budget that a warm-up may raise


@dataclass(frozen=True)
class Budget:
    """How strong the attack is in training; the default is no attack.

    Raises:
        AtclError: a number is negative or not finite, a name is unknown, or they contradict each other.

    Examples:
        >>> Budget(epsilon=0.2, step_size=0.05, steps=10).grown(0.5, ("epsilon", "steps"))
        Budget(epsilon=0.1, step_size=0.05, steps=5, norm='linf', start='uniform')
    """

    epsilon: float = 0.0
    """radius of the ball around each image"""
    step_size: float = 0.0
    """length of one step"""
    steps: int = 0
    """number of steps; 0 trains on the natural images"""
    norm: str = "linf"
    """linf or l2"""
    start: str = "uniform"
    """where the attack starts: uniform in the ball, gaussian around the image (TRADES), or natural"""

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 <= self.step_size < math.inf):
            sizes = f"epsilon {self.epsilon}, step_size {self.step_size}"
            raise AtclError(f"epsilon and step_size must be numbers of at least 0 ({sizes})")
        if self.steps < 0:
            raise AtclError(f"an attack takes at least 0 steps, not {self.steps}")
        if self.epsilon > 0 and self.steps == 0:
            raise AtclError(
                f"epsilon is {self.epsilon} but the attack takes 0 steps: "
                "give steps, or epsilon 0 for natural training"
            )
        if self.steps > 0 and self.step_size == 0:
            raise AtclError(f"the attack takes {self.steps} steps of length 0: give a step_size")
        pick(NORMS, self.norm, "norm")
        pick(STARTS, self.start, "start")

    def grown(self, strength: float, grow: Sequence[str]) -> "Budget":
        """Return the budget at a part of its full strength.

        Args:
            strength: from 0, which is no attack, to 1.
            grow: what is multiplied by the strength: `epsilon`, `step_size`, `steps`.
        """
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
    """How strong the attacks are that evaluate a model.

    Raises:
        AtclError: epsilon is negative, the step size is not positive, or the norm is unknown.

    Examples:
        >>> Threat(epsilon=8 / 255, step_size=2 / 255).norm
        'linf'
    """

    epsilon: float
    """radius of the ball around each image"""
    step_size: float
    """length of one step of PGD20 and CW30"""
    norm: str = "linf"
    """linf or l2"""

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 < self.step_size < math.inf):
            sizes = f"epsilon {self.epsilon}, step_size {self.step_size}"
            raise AtclError(f"a threat needs epsilon of at least 0 and a positive step_size ({sizes})")
        pick(NORMS, self.norm, "norm")
