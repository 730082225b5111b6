"""A training step as the official code does it, written anew for a comparison of times.

It is eager, with deterministic cuDNN, noise from NumPy, and a `backward()` for each attack step.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass
class Official:
    """A model with optimiser and memory of pseudo-labels, trained on images in the host's memory."""

    model: nn.Module
    # (n, C, H, W) floats, cropped and flipped already: the time of a loader's workers does not count
    x: Tensor
    complementary: Tensor  # (n,)
    epsilon: float
    step_size: float
    steps: int
    gamma: float = 0.5
    lr: float = 0.01

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)
        self.classes = int(self.complementary.max()) + 1
        self.candidates = torch.ones(len(self.x), self.classes)
        self.candidates[torch.arange(len(self.x)), self.complementary] = 0
        self.candidates = self.candidates.to(self.device)
        self.memory = self.candidates / self.candidates.sum(1, keepdim=True)

    def loss(self, logits: Tensor, candidates: Tensor, guess: Tensor) -> Tensor:
        """Return LOG with pseudo-labels: softmax first, then the logarithm."""
        weights = self.gamma * candidates + (1 - self.gamma) * nn.functional.one_hot(guess, self.classes)
        return -(self.classes - 1) * (weights * logits.softmax(1)).sum(1).log().mean()

    def attack(self, x: Tensor, candidates: Tensor, guess: Tensor) -> Tensor:
        """Return the attacked images; gradients of all weights are computed, too, and not used."""
        self.model.eval()
        noise = np.random.uniform(-self.epsilon, self.epsilon, tuple(x.shape))
        adv = (x.detach() + torch.from_numpy(noise).float().to(self.device)).clamp(0, 1)
        for _ in range(self.steps):
            adv.requires_grad_()
            loss = self.loss(self.model(adv), candidates, guess)
            self.model.zero_grad()
            loss.backward()
            assert adv.grad is not None
            adv = adv.detach() + self.step_size * adv.grad.sign()
            adv = torch.min(torch.max(adv, x - self.epsilon), x + self.epsilon).clamp(0, 1)
        return adv.detach()

    def step(self, index: Tensor) -> float:
        """Update the memory, attack, and train; return the loss, which waits for the device."""
        x, index = self.x[index].to(self.device), index.to(self.device)
        candidates = self.candidates[index]
        self.model.eval()
        with torch.no_grad():
            probabilities = self.model(x).softmax(1)
        self.memory[index] = (0.9 * self.memory[index] + 0.1 * probabilities) * candidates
        guess = self.memory[index].argmax(1)
        adv = self.attack(x, candidates, guess)
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(self.model(adv), candidates, guess)
        loss.backward()
        self.optimizer.step()
        return loss.item()
