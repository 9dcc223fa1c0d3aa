r"""Three ways to attend, as objects: what a query makes of its context, and how a gradient flows back to its logits.

A context is a vector :math:`x \ge 0` over the M contextual tokens (counts, or shares), :math:`z` the query's logits. Attention is

.. math::
    \text{linear } b = z \circ x, \qquad
    \text{exponential } b = e^{z/T} \circ x / A, \qquad
    \text{softmax } b = \frac{e^{z/T} \circ x}{\sum_l e^{z_l/T} x_l},

A a constant, T the temperature. For :math:`\gamma = \partial L / \partial b`, :meth:`pull` returns :math:`(\partial b / \partial z)^\top
\gamma`. Each form has a curve :math:`\phi(z)` and a factor :math:`\kappa` so that training keeps :math:`\phi(z_l) - \kappa \sum_k
v_{kl}^2` constant, exactly for the first two (see :mod:`.invariants`): :math:`z^2` and 1, :math:`z` and 1/(2T).
Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "*runs n M"]
Counts = Float[Tensor, "n M"]


@runtime_checkable
class AttentionForm(Protocol):
    """What the dynamics and the invariants need of a way to attend. All tensors ``[*runs, n, M]``, counts ``[n, M]``."""

    @property
    def factor(self) -> float:
        """The coefficient kappa of the squared weights in the invariant."""
        ...

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """b, one row a sample."""
        ...

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """The gradient with respect to b taken back to the logits."""
        ...

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """phi(z), elementwise."""
        ...


@dataclass(frozen=True)
class Linear:
    """b = z * x. Source: :cite:t:`tian2024joma`."""

    factor: float = 1.0

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Not a distribution: negative where a logit is."""
        return logits * counts

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """x * gradient."""
        return counts * gradient

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """z squared."""
        return logits.square()


@dataclass(frozen=True)
class Exponential:
    """b = exp(z / T) * x / A. Source: :cite:t:`tian2024joma`.

    Raises:
        ValueError: the normaliser or the temperature is not positive.
    """

    normaliser: float = 1.0
    temperature: float = 1.0

    def __post_init__(self):
        _positive(normaliser=self.normaliser, temperature=self.temperature)

    @property
    def factor(self) -> float:
        """1 / (2T)."""
        return 0.5 / self.temperature

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Grows without bound with the logits."""
        return torch.exp(logits / self.temperature) * counts / self.normaliser

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """b * gradient / T."""
        return attended * gradient / self.temperature

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """z itself."""
        return logits


@dataclass(frozen=True)
class Softmax:
    """b = exp(z / T) * x, divided by its sum: over positions, so that a token that occurs twice gets twice the weight.

    Source: :cite:t:`tian2024joma`.

    Raises:
        ValueError: the temperature is not positive.
    """

    temperature: float = 1.0

    def __post_init__(self):
        _positive(temperature=self.temperature)

    @property
    def factor(self) -> float:
        """1 / (2T)."""
        return 0.5 / self.temperature

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Rows sum to one; a context without tokens is refused by :class:`~.problem.Contexts`."""
        return torch.softmax(logits / self.temperature + counts.log(), dim=-1)

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """b * (gradient - b . gradient) / T."""
        return attended * (gradient - (attended * gradient).sum(-1, keepdim=True)) / self.temperature

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """z itself."""
        return logits


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}; 1.0 is the usual one")
