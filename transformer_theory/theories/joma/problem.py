r"""One block of attention and an MLP on top: the model whose attention JoMA integrates out, its data and the paper's samplers.

A sample is a context :math:`x \in R^M` of tokens, a query m and a target. Tokens are embedded in orthonormal directions U. The query
attends to the context, :math:`b(z_m, x)`, the residual stream adds the query's own embedding, and units read the result:

.. math:: f = U_C b + u_m, \qquad h_k = \phi(w_k^\top f) = \phi(v_k^\top b + a_{km}), \qquad v_k = U_C^\top w_k, \quad a_{km} = w_k^\top
u_m .

Since U is orthonormal, gradient descent on :math:`w_k` is gradient descent on :math:`(v_k, a_k)`, so these are the state, and d never
enters. The units are the logits of a loss; what lies above them only enters through the backpropagated :math:`g_k = -\partial L / \partial
h_k\, \phi'`.
Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Contexts:
    """Samples of equal weight. Source: :cite:t:`tian2024joma`.

    Attributes:
        counts: how often each token occurs in the context (or its share), ``[n, M]``, >= 0, no context empty.
        query: which query asks, ``[n]``, from 0.
        targets: what the loss compares with, ``[*runs, n]``; runs may have different ones.

    Raises:
        ValueError: a count is negative or not finite, a context is empty, lengths differ, or a query or target is negative or no integer.
    """

    counts: Float[Tensor, "n M"]
    query: Int[Tensor, " n"]
    targets: Int[Tensor, "*runs n"]

    def __post_init__(self):
        counts, n = self.counts, len(self.counts)
        if counts.ndim != 2 or not bool(torch.isfinite(counts).all()) or bool((counts < 0).any()) or not bool((counts.sum(-1) > 0).all()):
            raise ValueError(
                f"counts must be [n, M], finite, >= 0, with a token in each row, got {list(counts.shape)}; drop empty contexts"
            )
        if not n or len(self.query) != n or self.targets.shape[-1] != n:
            came = f"{n} contexts, {len(self.query)} queries, {self.targets.shape[-1]} targets"
            raise ValueError(f"contexts, queries and targets must be equally many and at least one, got {came}")
        if self.query.is_floating_point() or self.targets.is_floating_point():
            raise ValueError(f"queries and targets must be integers, got {self.query.dtype} and {self.targets.dtype}; convert with .long()")
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
    """The trained numbers of one block (or their velocities): logits z, lower layer v, its component a along each query.

    Attributes:
        logits: z, ``[*runs, Q, M]``.
        lower: v, ``[*runs, K, M]``, K units.
        offset: a, ``[*runs, K, Q]``.
    """

    logits: Float[Tensor, "*runs Q M"]
    lower: Float[Tensor, "*runs K M"]
    offset: Float[Tensor, "*runs K Q"]

    @no_type_check  # the new block is checked
    def plus(self, velocity: "Block", step: float) -> "Block":
        """``self + step * velocity``."""
        return Block(self.logits + step * velocity.logits, self.lower + step * velocity.lower, self.offset + step * velocity.offset)


def gaussian_block(
    contexts: Contexts, *, units: int, scale: float, generator: torch.Generator, runs: tuple[int, ...] = (), logit: float = 0.0
) -> Block:
    """A Gaussian start: v, a and z of standard deviation ``scale``, z around ``logit``. Source: :cite:t:`tian2024joma`, Fig. 2.

    Args:
        contexts: for the numbers of queries and tokens.
        units: K; with cross-entropy at least the number of next tokens.
        scale: standard deviation.
        generator: draws everything.
        runs: leading shape, each run with its own draw.
        logit: mean of z.
    """
    Q, M = contexts.queries, contexts.tokens

    def draw(*shape: int) -> Tensor:
        return scale * torch.randn(*runs, *shape, generator=generator, dtype=torch.float64)

    lower, offset = draw(units, M), draw(units, Q)
    return Block(logit + draw(Q, M), lower, offset)


def zero_block(contexts: Contexts, *, units: int, runs: tuple[int, ...] = ()) -> Block:
    """Everything zero. Source: none, a start."""
    Q, M = contexts.queries, contexts.tokens
    z, v, a = (torch.zeros(*runs, *shape, dtype=torch.float64) for shape in ((Q, M), (units, M), (units, Q)))
    return Block(z, v, a)


def gaussian_contexts(generator: torch.Generator, *, distinct: int = 10, common: int = 10, classes: int = 20) -> Contexts:
    r"""One context a class, whose distinct tokens form a bump: :math:`x_{il} = e^{-(l - i D / K)^2 / 30}`, common ones uniform in [0, 1/2].

    Rows are divided by their sums. The paper's Fig. 2 has 10 + 10 tokens and 20 classes. Source: :cite:t:`tian2024joma`.

    Args:
        generator: draws the common tokens.
        distinct, common: numbers of tokens, the distinct ones first.
        classes: K, one context each.
    """
    i, token = torch.arange(classes, dtype=torch.float64), torch.arange(distinct, dtype=torch.float64)
    bump = torch.exp(-((token - (i * distinct / classes)[:, None]) ** 2) / 30)
    return _one_each(torch.cat([bump, 0.5 * torch.rand(classes, common, generator=generator, dtype=torch.float64)], dim=1))


def random_contexts(generator: torch.Generator, *, distinct: int = 10, common: int = 10, classes: int = 20) -> Contexts:
    """As :func:`gaussian_contexts`, all tokens uniform in [0, 1/2]. Source: :cite:t:`tian2024joma`."""
    return _one_each(0.5 * torch.rand(classes, distinct + common, generator=generator, dtype=torch.float64))


def _one_each(weights: Float[Tensor, "K M"]) -> Contexts:
    K = len(weights)
    return Contexts(weights / weights.sum(1, keepdim=True), torch.zeros(K, dtype=torch.long), torch.arange(K))


def sampled_contexts(
    generator: torch.Generator, *, n: int = 32, tokens: int = 8, length: int = 16, classes: int = 5, queries: int = 1
) -> Contexts:
    """Bags of ``length`` tokens drawn from a random distribution a class, as counts divided by the length. Source: none, a sampler."""
    draw = torch.rand(classes, tokens, generator=generator, dtype=torch.float64) ** 3
    targets = torch.arange(n) % classes
    ids = torch.multinomial(draw[targets], length, replacement=True, generator=generator)
    counts = torch.zeros(n, tokens, dtype=torch.float64).scatter_add_(1, ids, torch.full(ids.shape, 1 / length, dtype=torch.float64))
    query = torch.arange(n) // classes % queries
    return Contexts(counts, query, targets)
