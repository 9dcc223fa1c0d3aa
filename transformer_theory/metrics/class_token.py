"""Whether a network has a class token, and the base class of the metrics that measure it there.

Class and register tokens are recognised in the first activations after a reset: they are the tokens at the
beginning, and no others, that are the same in every sequence. If there is one of them, it is taken for a
class token. Several are a class token with registers, or registers alone: which of them the network reads is
not known.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.measurement import Measurement
from ..core.metric import ActivationKind, Activations, Metric


def same_everywhere(tokens: Float[Tensor, "batch seq dim"]) -> int:
    """Returns the number of tokens at the beginning that are the same in every sequence; 0 if others are as
    well, or all are.
    """
    same = (tokens == tokens[:1]).all(2).all(0)
    count = int(same.long().cumprod(0).sum())
    return count if len(tokens) > 1 and count == int(same.sum()) < len(same) else 0


class ClassTokenMetric(Metric):
    """Base class of the metrics that measure the class token of networks that have one.

    Attributes:
        leading: number of class and register tokens; None before the first update.
    """

    def reset(self) -> None:
        """Starts a new measurement."""
        super().reset()
        self.leading: int | None = None

    @property
    def class_token(self) -> bool | None:
        """Whether there is a class token; None before the first update."""
        return None if self.leading is None else self.leading == 1

    def recognise(self, tokens: Float[Tensor, "batch seq dim"]) -> int:
        """Returns the number of class and register tokens, which the first call after a reset decides."""
        if self.leading is None:
            self.leading = same_everywhere(tokens)
        return self.leading

    def merge(self, other: Any) -> None:
        """Adds the state of another metric.

        Raises:
            ValueError: the metrics have seen different numbers of class and register tokens.
        """
        if None not in (self.leading, other.leading) and self.leading != other.leading:
            raise ValueError(
                f"merge needs two states of one network, got one with {self.leading} class and register "
                f"tokens and one with {other.leading}; measure them apart"
            )
        self.leading = other.leading if self.leading is None else self.leading
        super().merge(other)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the sums by place, and the number of class and register tokens."""
        return super().state_dict() | (
            {} if self.leading is None else {"leading": torch.tensor(self.leading)}
        )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the state of :meth:`state_dict`."""
        super().load_state_dict({name: sums for name, sums in state.items() if name != "leading"})
        self.leading = int(state["leading"]) if "leading" in state else None


class TokenLayout(ClassTokenMetric):
    """Counts the tokens of a sequence, and the class and register tokens among them. Has no rows.

    Attributes:
        tokens: number of tokens of a sequence in the first block; 0 before the first update.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)

    def reset(self) -> None:
        """Starts a new count."""
        super().reset()
        self.tokens = 0

    def update(self, activations: Activations) -> None:
        """Reads the tokens of the first block."""
        if self.leading is None:
            self.recognise(activations.tokens)
            self.tokens = activations.tokens.shape[1]

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns no rows."""
        return ()
