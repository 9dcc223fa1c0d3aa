r"""One block of attention and an MLP: data, weights, forms of attention, and the paper's samplers.

A sample is a context :math:`x \in R^M` over M contextual tokens (counts or shares), a query m and a target.
Tokens have orthonormal embeddings U. The query attends to the context with logits :math:`z_m`, the residual
stream adds the embedding of the query, and K units receive the sum:

.. math:: f = U_C b + u_m, \qquad h_k = \phi(w_k^\top f) = \phi(v_k^\top b + a_{km}), \qquad v_k = U_C^\top
    w_k, \quad a_{km} = w_k^\top
    u_m .

U is orthonormal, so gradient descent on :math:`w_k` is gradient descent on :math:`(v_k, a_k)`. These are the
state; the embedding dimension never enters. The :math:`h_k` are the logits of a loss; layers above would only
change :math:`g_k = -\partial L / \partial h_k\, \phi'`.

The attention b is one of

.. math::
    \text{linear } b = z \circ x, \qquad
    \text{exponential } b = e^{z/T} \circ x / A, \qquad
    \text{softmax } b = \frac{e^{z/T} \circ x}{\sum_l e^{z_l/T} x_l},

with a constant A and a temperature T. Each form has a curve :math:`\phi(z)`, not to be confused with the
activation above, and a factor
:math:`\kappa`. :mod:`.invariants` states when training conserves :math:`\phi(z_l) - \kappa \sum_k v_{kl}^2`.
The curve and the factor are :math:`z^2` and 1 for linear attention, and :math:`z` and 1/(2T) otherwise.

Shapes: n samples, M tokens, Q queries, K units, ``*runs`` independent runs. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass
from typing import Protocol, no_type_check, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.validation import as_float64, as_int64, in_range, positive

Rows = Float[Tensor, "*runs n M"]
Counts = Float[Tensor, "n M"]


@dataclass(frozen=True, eq=False)
class Contexts:
    """Samples of equal weight.

    Attributes:
        counts: number of occurrences, or share, of each token in each context, >= 0; each row has a positive
            sum, ``[n, M]``.
        query: index of each sample's query, ``[n]``.
        targets: index of each sample's target, ``[*runs, n]``; runs can have different targets.

    Raises:
        ValueError: a count is negative or not finite, a context is empty, lengths differ, or a query or
            target is negative.
        TypeError: queries or targets are not integers.
    """

    counts: Float[Tensor, "n M"]
    query: Int[Tensor, " n"]
    targets: Int[Tensor, "*runs n"]

    def __post_init__(self):
        for name, convert in (("counts", as_float64), ("query", as_int64), ("targets", as_int64)):
            object.__setattr__(self, name, convert(name, getattr(self, name)))
        counts, n = self.counts, len(self.counts)
        if (
            counts.ndim != 2
            or not bool(torch.isfinite(counts).all())
            or bool((counts < 0).any())
            or not bool((counts.sum(-1) > 0).all())
        ):
            raise ValueError(
                "counts must be [n, M], finite and >= 0 with a positive sum per row, got "
                f"{list(counts.shape)}; drop empty contexts"
            )
        if not n or len(self.query) != n or self.targets.shape[-1] != n:
            lengths = f"{n} contexts, {len(self.query)} queries, {self.targets.shape[-1]} targets"
            raise ValueError(
                f"contexts, queries and targets must have one length of at least 1, got {lengths}"
            )
        if int(self.query.min()) < 0 or int(self.targets.min()) < 0:
            raise ValueError("queries and targets must be numbered from 0, got a negative one")

    @property
    def queries(self) -> int:
        """Number Q of queries."""
        return int(self.query.max()) + 1

    @property
    def tokens(self) -> int:
        """Number M of contextual tokens."""
        return self.counts.shape[-1]


@dataclass(frozen=True, eq=False)
class Block:
    """The trained parameters of a block, or their velocities.

    Attributes:
        logits: attention logits z, ``[*runs, Q, M]``.
        lower: lower layer v, ``[*runs, K, M]``.
        offset: component a of the lower layer along the embedding of each query, ``[*runs, K, Q]``.
    """

    logits: Float[Tensor, "*runs Q M"]
    lower: Float[Tensor, "*runs K M"]
    offset: Float[Tensor, "*runs K Q"]

    def __post_init__(self):
        for name in ("logits", "lower", "offset"):
            object.__setattr__(self, name, as_float64(name, getattr(self, name)))

    @no_type_check  # the constructor checks the shapes of the new block
    def plus(self, velocity: "Block", step: float) -> "Block":
        """Returns ``self + step * velocity``."""
        return Block(
            self.logits + step * velocity.logits,
            self.lower + step * velocity.lower,
            self.offset + step * velocity.offset,
        )


@runtime_checkable
class AttentionForm(Protocol):
    """A form of attention: the methods that the dynamics and the invariants call."""

    @property
    def factor(self) -> float:
        """Coefficient kappa of the squared weights in the invariant."""
        ...

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Returns b of each sample, ``[*runs, n, M]``."""
        ...

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        r"""Maps the gradient :math:`\gamma` with respect to b to that with respect to z, :math:`(\partial b /
        \partial z)^\top \gamma`.
        """
        ...

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns phi(z), elementwise."""
        ...


@dataclass(frozen=True)
class Linear:
    """b = z * x."""

    factor: float = 1.0

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Returns z * x. This is not a distribution: it is negative where a logit is negative."""
        return logits * counts

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """Returns x * gradient."""
        return counts * gradient

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns z squared."""
        return logits.square()


@dataclass(frozen=True)
class Exponential:
    """b = exp(z / T) * x / A.

    Raises:
        ValueError: the normaliser or the temperature is not positive.
    """

    normaliser: float = 1.0
    temperature: float = 1.0

    def __post_init__(self):
        positive(normaliser=self.normaliser, temperature=self.temperature)

    @property
    def factor(self) -> float:
        """1 / (2T)."""
        return 0.5 / self.temperature

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Returns exp(z / T) * x / A, which is unbounded in the logits."""
        return torch.exp(logits / self.temperature) * counts / self.normaliser

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """Returns b * gradient / T."""
        return attended * gradient / self.temperature

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns z."""
        return logits


@dataclass(frozen=True)
class Softmax:
    """b = exp(z / T) * x divided by its sum. This is a softmax over positions: a token that occurs twice has
    twice the weight.

    Raises:
        ValueError: the temperature is not positive.
    """

    temperature: float = 1.0

    def __post_init__(self):
        positive(temperature=self.temperature)

    @property
    def factor(self) -> float:
        """1 / (2T)."""
        return 0.5 / self.temperature

    def attend(self, logits: Rows, counts: Counts) -> Rows:
        """Returns a distribution over the tokens for each sample."""
        # Compute x e^{z/T} in the log domain: it does not overflow, and log 0 = -inf gives absent tokens
        # exactly zero weight.
        return torch.softmax(logits / self.temperature + counts.log(), dim=-1)

    def pull(self, logits: Rows, counts: Counts, attended: Rows, gradient: Rows) -> Rows:
        """Returns b * (gradient - b . gradient) / T."""
        return attended * (gradient - (attended * gradient).sum(-1, keepdim=True)) / self.temperature

    def curve(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns z."""
        return logits


@in_range
def gaussian_block(
    contexts: Contexts,
    *,
    units: int,
    scale: float,
    generator: torch.Generator,
    runs: tuple[int, ...] = (),
    logit: float = 0.0,
) -> Block:
    """Draws initial weights: all entries are Gaussian with standard deviation ``scale``. z has mean
    ``logit``, v and a have mean 0.

    Args:
        contexts: samples whose numbers of queries and tokens determine the shapes.
        units: K; cross-entropy needs at least one unit per target.
        scale: standard deviation of all entries.
        generator: draws all entries.
        runs: leading shape of independent draws. Default: a single draw without a leading axis.
        logit: mean of z.
    """
    Q, M = contexts.queries, contexts.tokens

    def draw(*shape: int) -> Tensor:
        return scale * torch.randn(*runs, *shape, generator=generator, dtype=torch.float64)

    lower, offset = draw(units, M), draw(units, Q)
    return Block(logit + draw(Q, M), lower, offset)


def zero_block(contexts: Contexts, *, units: int, runs: tuple[int, ...] = ()) -> Block:
    """Returns a block of zeros with K = ``units``."""
    Q, M = contexts.queries, contexts.tokens
    z, v, a = (torch.zeros(*runs, *shape, dtype=torch.float64) for shape in ((Q, M), (units, M), (units, Q)))
    return Block(z, v, a)


def gaussian_contexts(
    generator: torch.Generator, *, distinct: int = 10, common: int = 10, classes: int = 20
) -> Contexts:
    r"""Draws one context per class, with a bump :math:`x_{il} = e^{-(l - i D / K)^2 / 30}` over its distinct
    tokens.

    The weights of the common tokens are uniform in [0, 1/2]. Each context is divided by its sum. The defaults
    are the sizes of the paper's Fig. 2.

    Args:
        generator: draws the common tokens.
        distinct, common: D and the number of common tokens; the distinct tokens come first.
        classes: K, number of contexts.
    """
    i, token = torch.arange(classes, dtype=torch.float64), torch.arange(distinct, dtype=torch.float64)
    bump = torch.exp(-((token - (i * distinct / classes)[:, None]) ** 2) / 30)
    return _one_per_class(
        torch.cat([bump, 0.5 * torch.rand(classes, common, generator=generator, dtype=torch.float64)], dim=1)
    )


def random_contexts(
    generator: torch.Generator, *, distinct: int = 10, common: int = 10, classes: int = 20
) -> Contexts:
    """Draws one context per class, like :func:`gaussian_contexts`, but with the weights of all tokens uniform
    in [0, 1/2].
    """
    return _one_per_class(
        0.5 * torch.rand(classes, distinct + common, generator=generator, dtype=torch.float64)
    )


def _one_per_class(weights: Float[Tensor, "K M"]) -> Contexts:
    K = len(weights)
    return Contexts(weights / weights.sum(1, keepdim=True), torch.zeros(K, dtype=torch.long), torch.arange(K))


def sampled_contexts(
    generator: torch.Generator,
    *,
    n: int = 32,
    tokens: int = 8,
    length: int = 16,
    classes: int = 5,
    queries: int = 1,
) -> Contexts:
    """Draws n contexts of ``length`` tokens each, as shares of the tokens.

    Each class has its own random distribution of tokens. The class of a context is its target.
    """
    # The cube concentrates the distributions on a few tokens.
    law = torch.rand(classes, tokens, generator=generator, dtype=torch.float64) ** 3
    targets = torch.arange(n) % classes
    ids = torch.multinomial(law[targets], length, replacement=True, generator=generator)
    counts = torch.zeros(n, tokens, dtype=torch.float64).scatter_add_(
        1, ids, torch.full(ids.shape, 1 / length, dtype=torch.float64)
    )
    # The query changes after each round of the classes, so that every class occurs with every query.
    query = torch.arange(n) // classes % queries
    return Contexts(counts, query, targets)
