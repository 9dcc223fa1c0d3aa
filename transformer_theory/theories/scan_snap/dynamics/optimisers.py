r"""What a step makes of a descent direction d: plain and heavy-ball descent, and Adam.

    heavy ball     u = beta u + d                                            (beta = 0: plain)
    Adam           m = b1 m + (1 - b1) d,  s = b2 s + (1 - b2) d^2,  u = (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

and the weights move by the learning rate times u. The theory has plain descent; the paper's experiments use the others. Steps on the pooled
column of Y ("rest") are those of each of the equal columns it stands for.

Source: those that the experiments of :cite:t:`tian2023scan` use; the constants of Adam are its usual ones.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Memory = tuple[Tensor, ...]


@runtime_checkable
class Optimiser(Protocol):
    """A rule with memory."""

    def start(self, weights: Tensor) -> Memory:
        """The memory before the first step."""
        ...

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """The update u of step 1, 2, ...; changes the memory in place."""
        ...


@dataclass(frozen=True)
class HeavyBall:
    """Gradient descent with momentum; none by default.

    Raises:
        ValueError: momentum outside [0, 1).
    """

    momentum: float = 0.0

    def __post_init__(self):
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    def start(self, weights: Tensor) -> Memory:
        """The speed, at rest; nothing without momentum."""
        return (torch.zeros_like(weights),) if self.momentum else ()

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """The speed."""
        return memory[0].mul_(self.momentum).add_(direction) if memory else direction


@dataclass(frozen=True)
class Adam:
    """Adam with the usual constants.

    Raises:
        ValueError: a factor outside [0, 1), or ``eps`` not positive.
    """

    first: float = 0.9
    second: float = 0.999
    floor: float = 1e-8

    def __post_init__(self):
        if not (0 <= self.first < 1 and 0 <= self.second < 1 and self.floor > 0):
            raise ValueError(f"factors must lie in [0, 1) and the floor above 0, got {self.first}, {self.second} and {self.floor}")

    def start(self, weights: Tensor) -> Memory:
        """Both means, at zero."""
        return torch.zeros_like(weights), torch.zeros_like(weights)

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """The first mean over the root of the second, both freed from their start."""
        mean, square = memory
        mean.lerp_(direction, 1 - self.first)
        square.mul_(self.second).addcmul_(direction, direction, value=1 - self.second)
        return mean / (1 - self.first**step) / ((square / (1 - self.second**step)).sqrt_() + self.floor)
