"""Schedules: numbers as functions of the epoch, which is counted from 1."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

from atcl.core.errors import AtclError


class ByEpoch(Protocol):
    """The interface of a schedule."""

    def __call__(self, epoch: int, /) -> float:
        """Return the number for an epoch, counted from 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same number in every epoch.

    Examples:
        >>> [Constant(0.1)(epoch) for epoch in (1, 2, 3)]
        [0.1, 0.1, 0.1]
    """

    value: float
    """the number"""

    def __call__(self, epoch: int) -> float:
        return self.value


@dataclass(frozen=True)
class CosineRise:
    """Zero for `after` epochs, then a cosine rise to `to` within `over` epochs (Eq. eq_eps, Warm-up Attack).

    Raises:
        AtclError: a number of epochs is negative.

    Examples:
        >>> [round(CosineRise(to=1.0, over=2, after=1)(epoch), 6) for epoch in (1, 2, 3, 4)]
        [0.0, 0.5, 1.0, 1.0]
    """

    to: float
    """the value at the end"""
    over: int
    """epochs of the rise"""
    after: int = 0
    """epochs before the rise"""

    def __post_init__(self) -> None:
        _check_span(self.over, self.after)

    def __call__(self, epoch: int) -> float:
        return self.to / 2 * (1 - math.cos(_progress(epoch, self.over, self.after) * math.pi))


@dataclass(frozen=True)
class LinearFall:
    """`start` for `after` epochs, then a linear fall to zero within `over` epochs.

    It is Eq. eq_eps of the paper for Pseudo-Label Attack.

    Raises:
        AtclError: a number of epochs is negative.

    Examples:
        >>> [LinearFall(start=1.0, over=2, after=1)(epoch) for epoch in (1, 2, 3, 4)]
        [1.0, 0.5, 0.0, 0.0]
    """

    start: float
    """the value at the beginning"""
    over: int
    """epochs of the fall"""
    after: int = 0
    """epochs before the fall"""

    def __post_init__(self) -> None:
        _check_span(self.over, self.after)

    def __call__(self, epoch: int) -> float:
        return self.start * (1 - _progress(epoch, self.over, self.after))


@dataclass(frozen=True)
class StepDecay:
    """A linear rise to `value`, which is then multiplied by `factor` at certain epochs.

    Examples:
        >>> [StepDecay(1.0, at=(4,), factor=0.5, rise=2)(epoch) for epoch in (1, 2, 3, 4)]
        [0.5, 1.0, 1.0, 0.5]
    """

    value: float
    """the value after the rise"""
    at: tuple[int, ...] = ()
    """the epochs from which on it is multiplied by the factor, once for each"""
    factor: float = 0.1
    """the factor"""
    rise: int = 0
    """epochs of the rise; 0 for none"""

    def __call__(self, epoch: int) -> float:
        risen = min(epoch / self.rise, 1.0) if self.rise else 1.0
        return self.value * risen * self.factor ** sum(epoch >= start for start in self.at)


SCHEDULES: dict[str, type[ByEpoch]] = {
    "constant": Constant,
    "cosine-rise": CosineRise,
    "linear-fall": LinearFall,
    "step-decay": StepDecay,
}

# Type checkers accept whatever has the interface; the command line offers what the registry names.
if TYPE_CHECKING:
    Schedule = ByEpoch
else:
    Schedule = Union[tuple(SCHEDULES.values())]  # noqa: UP007


def _progress(epoch: int, over: int, after: int) -> float:
    """Return 0 up to epoch `after`, 1 from epoch `after + over` on, and a linear rise between them."""
    if epoch <= after:
        return 0.0
    return min((epoch - after) / over, 1.0) if over else 1.0


def _check_span(over: int, after: int) -> None:
    if over < 0 or after < 0:
        counts = f"over {over}, after {after}"
        raise AtclError(f"a schedule's `over` and `after` count epochs and cannot be negative ({counts})")
