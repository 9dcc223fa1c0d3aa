"""Whether a network has a class token, and the base class of the metrics that measure it there.

The class token is recognised in the first activations after a reset: the first token, and no other, is the same in every sequence.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.metric import Metric


def has_class_token(tokens: Float[Tensor, "batch seq dim"]) -> bool:
    """Returns whether the first token, and no other, is the same in every sequence of the first block's input."""
    same = (tokens == tokens[:1]).all(2).all(0)
    return len(tokens) > 1 and len(same) > 1 and bool(same[0]) and not bool(same[1:].any())


class ClassTokenMetric(Metric):
    """Base class of the metrics that measure the class token of networks that have one.

    Attributes:
        class_token: whether there is a class token; None before the first update.
    """

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.class_token: bool | None = None

    def recognise(self, tokens: Float[Tensor, "batch seq dim"]) -> bool:
        """Returns whether there is a class token, which the first call after a reset decides."""
        if self.class_token is None:
            self.class_token = has_class_token(tokens)
        return self.class_token

    def merge(self, other: Any) -> None:
        """Adds the state of another metric.

        Raises:
            ValueError: one metric has seen a class token and the other has not.
        """
        if None not in (self.class_token, other.class_token) and self.class_token != other.class_token:
            raise ValueError("merge needs two states of one network, got one with a class token and one without; measure them apart")
        self.class_token = other.class_token if self.class_token is None else self.class_token
        super().merge(other)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the sums by place, and whether there is a class token."""
        return super().state_dict() | ({} if self.class_token is None else {"class_token": torch.tensor(self.class_token)})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the state of :meth:`state_dict`."""
        super().load_state_dict({name: sums for name, sums in state.items() if name != "class_token"})
        self.class_token = bool(state["class_token"]) if "class_token" in state else None
