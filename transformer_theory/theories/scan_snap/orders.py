r"""Two orders of the same tokens: how far they agree, and how far they would by chance; and which tokens count as distinct or common.

The *distinctness* of a token is :math:`\max_n P(l|n) / \sum_n P(l|n)`: 1 if it occurs in one class only, 1/K if it is equally likely in
all (:cite:t:`tian2023scan` has the two ends). On real data the ends are rare, so a token counts as distinct if it is nearer to the
first end than to the second. Orders are compared by Goodman and Kruskal's rank correlation, in which ties do not count.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEVEL = 0.05  # share of random orders that may be as good as one that counts
FEWEST, MOST, WORK = 200, 2000, 2_000_000  # random orders, and pairs of tokens in all of them


def distinctness(conditional: Float[Tensor, "K S"]) -> Float[Tensor, " S"]:
    """Share of the likeliest class in each token: between 1/K and 1.

    Args:
        conditional: P(l | n); every token occurs in some class.

    Source: :cite:t:`tian2023scan` for the ends.
    """
    return conditional.max(0).values / conditional.sum(0)


@dataclass(frozen=True, eq=False)
class Groups:
    """Which tokens count as distinct and which as common, ``[S]`` each, and the rule in words."""

    distinct: Bool[Tensor, " S"]
    common: Bool[Tensor, " S"]
    rule: str


def groups(values: Float[Tensor, " S"], classes: int) -> Groups:
    """Distinct: nearer to 1 than to 1/K. If that leaves a group empty: the most and least distinct quarter.

    Args:
        values: distinctness of each token.
        classes: K.

    Source: :cite:t:`tian2023scan` for the words; the line is ours.
    """
    distinct = values > (1 + 1 / classes) / 2
    if bool(distinct.any()) and not bool(distinct.all()):
        return Groups(distinct, ~distinct, "distinct: nearer to one class only than to all alike; common: the rest")
    rank = values.argsort(stable=True).argsort(stable=True)
    S, size = len(rank), max(1, len(rank) // 4)
    return Groups(rank >= S - size, rank < size, "distinct: the quarter of the tokens that is most distinct; common: the least")


def agreement(a: Float[Tensor, " S"], b: Float[Tensor, "*runs S"]) -> Float[Tensor, "*runs"]:
    """Goodman and Kruskal's rank correlation: concordant minus discordant pairs, as a share of both; ties do not count.

    Returns:
        A number in [-1, 1] a run; NaN if every pair is tied.

    Source: textbook.
    """
    first, second = torch.triu_indices(len(a), len(a), 1)
    differ = a[first] != a[second]  # ties do not count, and distinctness has many
    first, second = first[differ], second[differ]
    order = torch.sign(a[first] - a[second]) * torch.sign(b[..., first] - b[..., second])
    return order.sum(-1) / order.abs().sum(-1)


def chance(a: Float[Tensor, " S"], b: Float[Tensor, " S"], generator: torch.Generator) -> float:
    """The smallest agreement that at most 5 % of random orders reach, of 200 (many tokens) to 2000 (few) that are drawn.

    Of few tokens, or tied ones, more than 5 % reach even the largest: with one common token among S distinct ones the best order has
    probability 1/S. Then no agreement counts.

    Returns:
        A number in [-1, 1]; NaN if no agreement counts, or every pair is tied.

    Source: textbook.
    """
    draws = min(MOST, max(FEWEST, WORK // len(b) ** 2))
    shuffled = b[torch.rand(draws, len(b), generator=generator, dtype=torch.float64).argsort(1)]
    values = agreement(a, shuffled).sort().values
    reached = 1 - torch.searchsorted(values, values) / draws
    rare = values[(reached <= LEVEL) & values.isfinite()]
    return float(rare[0]) if len(rare) else math.nan


@dataclass(frozen=True)
class Order:
    """How far the order that something predicts is the order of how far the logits moved.

    Attributes:
        value: rank correlation, NaN if every pair is tied.
        chance: see :func:`chance`.
        null: mean of the same over trainings on shuffled next tokens.
        tokens: how many were ordered.
    """

    value: float
    chance: float
    null: float
    tokens: int

    @property
    def line(self) -> float:
        """What the value must reach to count: chance, or more than the null where that is larger; NaN if no value would count."""
        beyond = math.nextafter(self.null, math.inf)  # what shuffled next tokens show as well is no evidence
        line = beyond if beyond > self.chance else self.chance
        return line if line <= 1 else math.nan


def order_of(predicted: Float[Tensor, " S"], change: Float[Tensor, "runs S"], generator: torch.Generator) -> Order:
    """The prediction against run 0, with the others as its null.

    Source: ours.
    """
    value, *others = agreement(predicted, change).tolist()
    nulls = [other for other in others if math.isfinite(other)]
    null = sum(nulls) / len(nulls) if nulls else math.nan
    return Order(value, chance(predicted, change[0], generator), null, len(predicted))
