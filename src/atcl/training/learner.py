"""The state of training: model, optimiser, memory of predictions, averaged weights."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.data.images import as_float
from atcl.data.weak import WeakData
from atcl.engine.attack_model import takes_channels_last, tensors_of
from atcl.training.stage import Phase, Stage
from atcl.training.supervision import blank_memory


class Learner:
    """The state of training: model, optimiser, memory of predictions, averaged weights.

    The settings of the epoch are tensors, so that a compiled or recorded step reads their current values.

    Args:
        model: the model to train; it is moved to the device of the data.
        data: the training set.
        stage: the first stage of training.

    Examples:
        >>> from atcl.data.weak import rule_out
        >>> from atcl.training.optimizers import Sgd
        >>> from atcl.training.schedules import Constant
        >>> data = WeakData(torch.rand(4, 1, 2, 2), rule_out(4, 3, [0, 1, 2, 0]))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> learner = Learner(model, data, Stage(1, 2, Sgd(), Constant(0.1)))
        >>> learner.epoch, learner.memory.shape
        (0, torch.Size([4, 3]))
    """

    def __init__(self, model: Module, data: WeakData, stage: Stage) -> None:
        device = data.device
        self.model: Module = model.to(device).train()
        if takes_channels_last(self.model, as_float(data.images(data.some()))):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.frozen = _frozen_copy(self.model)  # for observers and evaluation, see `refresh`
        self.rng = Generator(device)
        self.epsilon, self.step_size, self.gamma, self.lr = (torch.zeros((), device=device) for _ in range(4))
        self.optimizer = stage.optimizer(self.model, self.lr)
        self.memory = blank_memory(data.candidates)  # (n, K)
        self.averaged: Module | None = None  # in eval mode, where the stage averages weights
        self.average_norm = torch.zeros((), device=device)  # sum of the weights of the average, see `average`
        self.begin(stage)

    def begin(self, stage: Stage) -> None:
        """Prepare for the first epoch of a stage: the first one, or one that continues with this learner."""
        self.epoch = 0
        self.decay = stage.average
        if not stage.average:
            self.averaged = None
        elif self.averaged is None:
            self.averaged = _frozen_copy(self.model)
            self.average_norm.zero_()

    def set_epoch(self, phase: Phase) -> None:
        """Set epsilon, step size, gamma and learning rate to those of an epoch."""
        self.frozen.eval()  # in case an observer put it into training mode
        for setting, value in (
            (self.epsilon, phase.budget.epsilon),
            (self.step_size, phase.budget.step_size),
            (self.gamma, phase.gamma),
            (self.lr, phase.lr),
        ):
            setting.fill_(value)

    @torch.no_grad()
    def average(self) -> None:
        """Update the averaged weights after a step, in place; without them, do nothing.

        The weights after t steps are averaged with the factors decay^(t-1), ..., decay, 1, divided by their
        sum. So the initial weights have no part in the average, even after few steps. The statistics of batch
        normalisation are averaged in the same way: this is closer to the statistics of the averaged model
        than the last ones are, and needs no second pass over the data.
        """
        if self.averaged is None:
            return
        self.average_norm.mul_(self.decay).add_(1)
        tensors = list(zip(tensors_of(self.averaged), tensors_of(self.model), strict=True))
        means, values = zip(*[pair for pair in tensors if pair[0].is_floating_point()], strict=True)
        differences = torch._foreach_sub(values, means)  # one kernel for many tensors
        torch._foreach_mul_(differences, 1 / self.average_norm)
        torch._foreach_add_(means, differences)
        if counts := [pair for pair in tensors if not pair[0].is_floating_point()]:
            ours, theirs = zip(*counts, strict=True)
            torch._foreach_copy_(ours, theirs)

    def refresh(self) -> Module:
        """Copy the weights, the averaged ones if there are any, into the frozen model, and return it."""
        _copy(self.model if self.averaged is None else self.averaged, self.frozen)
        return self.frozen

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model the averaged weights, if there are any, within the block."""
        if self.averaged is None:
            yield
            return
        own = _frozen_copy(self.model)
        _copy(self.averaged, self.model)
        try:
            yield
        finally:
            _copy(own, self.model)

    def state(self) -> dict[str, Tensor]:
        """Return the state as named tensors, for a checkpoint."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self.model.parameters()):
            for name, tensor in self.optimizer.state[parameter].items():
                state[f"optimizer.{number}.{name}"] = tensor
        if self.averaged is not None:
            state |= {f"averaged.{name}": tensor for name, tensor in self.averaged.state_dict().items()}
            state["average_norm"] = self.average_norm
        return {**state, "memory": self.memory, "epoch": torch.tensor(self.epoch)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state, in place: recorded steps read and write the same tensors."""
        self.model.load_state_dict(_below("model.", state))
        if self.averaged is not None:
            self.averaged.load_state_dict(_below("averaged.", state))
            self.average_norm.copy_(state["average_norm"])
        parameters = list(self.model.parameters())
        for key, tensor in _below("optimizer.", state).items():
            number, name = key.split(".")
            parameter = parameters[int(number)]
            slot = self.optimizer.state[parameter]
            if name not in slot:
                # in the memory layout of its parameter, as fused optimisers require
                like = parameter if tensor.shape == parameter.shape else tensor
                slot[name] = torch.empty_like(like, dtype=tensor.dtype).detach()
            slot[name].copy_(tensor)
        self.memory.copy_(state["memory"])
        self.epoch = int(state["epoch"])
        self.refresh()


def evaluated_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that are evaluated from a saved state: the averaged ones, if there are any."""
    return _below("averaged.", state) or _below("model.", state)


def _below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


def _frozen_copy(model: Module) -> Module:
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def _copy(source: Module, target: Module) -> None:
    for new, old in zip(tensors_of(source), tensors_of(target), strict=True):
        old.copy_(new)
