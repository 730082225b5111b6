"""Gradient norms of the first and last layer, recorded as part of each training step."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from atcl.analysis.gradients import first_and_last, layer_norms
from atcl.engine.engines import EAGER, Engine, Step
from atcl.training.learner import Learner


@dataclass(frozen=True)
class NormRecorder(Engine):
    """An engine whose steps also add up the norms of the gradients.

    The sums are part of the step: where that is recorded in a CUDA graph, so are they.
    """

    inner: Engine = EAGER
    totals: Tensor = field(default_factory=lambda: torch.zeros(3))  # first layer, last layer, steps
    note: Callable[[], Tensor] = lambda: torch.zeros(2)  # -> (2,) norms of the current gradients

    @staticmethod
    def of(learner: Learner, inner: Engine) -> "NormRecorder":
        """Return the engine that records the gradients of a learner whose steps `inner` runs."""
        layers = first_and_last(learner.model)
        names = {*layers[0], *layers[1]}
        parameters = {name: one for name, one in learner.model.named_parameters() if name in names}

        def note() -> Tensor:
            return layer_norms({name: parameter.grad for name, parameter in parameters.items()}, layers)

        totals = torch.zeros(3, device=learner.memory.device)
        return NormRecorder(
            inner.name, inner.compiles, inner.records, inner.notify, inner.failures, inner, totals, note
        )

    def whole(self, step: Step, rng: Generator) -> Step:
        def noting(index: Tensor, steps: int, remember: bool) -> Tensor:
            tally = step(index, steps, remember)
            self.totals[:2] += self.note()
            self.totals[2] += 1
            return tally

        return self.inner.whole(noting, rng)

    def means(self) -> tuple[float, ...]:
        """Return the mean norms over the steps since the last call; nothing if there were none."""
        first, last, steps = self.totals.tolist()
        self.totals.zero_()
        return (first / steps, last / steps) if steps else ()
