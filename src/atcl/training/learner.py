"""All that training changes, in one place: model, optimiser, memory."""

import copy

import torch
from torch import Generator, Tensor
from torch.nn import Module

from atcl.data.images import as_float
from atcl.data.weak import WeakData
from atcl.engine.attack_model import takes_channels_last, tensors_of
from atcl.training.stage import Phase, Stage
from atcl.training.supervision import blank_memory


class Learner:
    """All that training changes: model, optimiser, memory of predictions, and the dials that an epoch turns."""

    def __init__(self, model: Module, data: WeakData, stage: Stage) -> None:
        device = data.device
        self.model: Module = model.to(device).train()
        if takes_channels_last(self.model, as_float(data.images(data.some()))):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.frozen: Module = copy.deepcopy(self.model).eval().requires_grad_(False)  # what observers look at
        self.rng = Generator(device)
        # 0-d tensors, so that a compiled or captured step reads them anew in each epoch
        self.epsilon, self.step_size, self.gamma, self.lr = (torch.zeros((), device=device) for _ in range(4))
        self.optimizer = stage.optimizer(self.model, self.lr)
        self.memory = blank_memory(data.candidates)
        self.epoch = 0

    def refresh(self) -> Module:
        """Copy the model into its frozen twin, and return that."""
        with torch.no_grad():
            for old, new in zip(tensors_of(self.frozen), tensors_of(self.model), strict=True):
                old.copy_(new)
        return self.frozen

    def turn(self, phase: Phase) -> None:
        """Set the dials of an epoch."""
        self.frozen.eval()  # whatever an observer did to it
        for dial, value in (
            (self.epsilon, phase.budget.epsilon),
            (self.step_size, phase.budget.step_size),
            (self.gamma, phase.gamma),
            (self.lr, phase.lr),
        ):
            dial.fill_(value)

    def state(self) -> dict[str, Tensor]:
        """Return everything that must outlive the process, as named tensors."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self.model.parameters()):
            for name, tensor in self.optimizer.state[parameter].items():
                state[f"optimizer.{number}.{name}"] = tensor
        return {**state, "memory": self.memory, "epoch": torch.tensor(self.epoch)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Put a saved state back, in place: a captured step points at these very tensors."""
        self.model.load_state_dict(
            {
                name.removeprefix("model."): tensor
                for name, tensor in state.items()
                if name.startswith("model.")
            }
        )
        parameters = list(self.model.parameters())
        for key, tensor in state.items():
            if key.startswith("optimizer."):
                _, number, name = key.split(".")
                parameter = parameters[int(number)]
                slot = self.optimizer.state[parameter]
                if (
                    name not in slot
                ):  # in the layout of its parameter: fused optimisers walk both as they lie in memory
                    slot[name] = torch.empty_like(
                        parameter if tensor.shape == parameter.shape else tensor, dtype=tensor.dtype
                    ).detach()
                slot[name].copy_(tensor)
        self.memory.copy_(state["memory"])
        self.epoch = int(state["epoch"])
        self.refresh()
