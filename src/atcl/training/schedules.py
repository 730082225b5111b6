"""Numbers that change with the epoch: frozen data, called with the epoch counted from 1."""

import math
from dataclasses import dataclass

from atcl.core.errors import AtclError


@dataclass(frozen=True)
class Constant:
    """The same number in every epoch."""

    value: float

    def __call__(self, epoch: int) -> float:
        return self.value


@dataclass(frozen=True)
class CosineRise:
    """Zero for `after` epochs, then a cosine rise to `to` within `over` epochs (Eq. eq_eps, Warm-up Attack)."""

    to: float
    over: int
    after: int = 0

    def __post_init__(self) -> None:
        _check_span(self.over, self.after)

    def __call__(self, epoch: int) -> float:
        return self.to / 2 * (1 - math.cos(_progress(epoch, self.over, self.after) * math.pi))


@dataclass(frozen=True)
class LinearFall:
    """`start` for `after` epochs, then a straight fall to zero within `over` epochs (Eq. eq_eps, Pseudo-Label Attack)."""

    start: float
    over: int
    after: int = 0

    def __post_init__(self) -> None:
        _check_span(self.over, self.after)

    def __call__(self, epoch: int) -> float:
        return self.start * (1 - _progress(epoch, self.over, self.after))


@dataclass(frozen=True)
class StepDecay:
    """`value`, multiplied by `factor` from each epoch in `at` on; reached by a straight rise over the first `rise` epochs."""

    value: float
    at: tuple[int, ...] = ()
    factor: float = 0.1
    rise: int = 0

    def __call__(self, epoch: int) -> float:
        risen = min(epoch / self.rise, 1.0) if self.rise else 1.0
        return self.value * risen * self.factor ** sum(epoch >= start for start in self.at)


Schedule = Constant | CosineRise | LinearFall | StepDecay


def _progress(epoch: int, over: int, after: int) -> float:
    """Return the share of the way done: 0 up to epoch `after`, 1 from epoch `after + over` on."""
    if epoch <= after:
        return 0.0
    return min((epoch - after) / over, 1.0) if over else 1.0


def _check_span(over: int, after: int) -> None:
    if over < 0 or after < 0:
        raise AtclError(
            f"a schedule's `over` and `after` count epochs and cannot be negative (over {over}, after {after})"
        )
