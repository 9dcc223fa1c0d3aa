r"""Rank correlations of predicted and measured orders of tokens, with their chance levels.

The correlation is Goodman and Kruskal's: concordant minus discordant pairs, divided by their sum. It ignores
tied pairs.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.measurement import Null
from ...core.statistics import LEVEL

SHUFFLED = "models trained on shuffled next tokens"  # kinds of nulls
PERMUTED_HELD_OUT = "permuted held-out next tokens"
# random orders, and pairs of tokens in all of them together
MIN_DRAWS, MAX_DRAWS, MAX_PAIRS = 200, 2000, 2_000_000


def rank_correlation(a: Float[Tensor, " S"], b: Float[Tensor, "*runs S"]) -> Float[Tensor, "*runs"]:
    """Returns Goodman and Kruskal's rank correlation: concordant minus discordant pairs, divided by their
    sum, without tied pairs.

    Args:
        a: vector, ``[S]``.
        b: one vector per run, ``[*runs, S]``.
    Returns:
        A number in [-1, 1] per run; NaN if every pair is tied.
    """
    first, second = torch.triu_indices(len(a), len(a), 1)
    # drop pairs tied in a before the product over runs: distinctness has many ties
    differ = a[first] != a[second]
    first, second = first[differ], second[differ]
    order = torch.sign(a[first] - a[second]) * torch.sign(b[..., first] - b[..., second])
    return order.sum(-1) / order.abs().sum(-1)


def chance_level(a: Float[Tensor, " S"], b: Float[Tensor, " S"], generator: Generator) -> float:
    """Returns the smallest rank correlation that at most 5 % of random orders reach, from 200 to 2000 draws.

    The number of draws is 200 for many tokens and 2000 for few. With few or tied tokens more than 5 % of the
    orders can reach the largest correlation: with one common token among S the best order has probability
    1/S. Then no correlation is significant.

    Args:
        a, b: the two vectors, ``[S]``; b is permuted.
        generator: draws the permutations.
    Returns:
        A number in [-1, 1]; NaN if no correlation is significant, or every pair is tied.
    """
    draws = min(MAX_DRAWS, max(MIN_DRAWS, MAX_PAIRS // len(b) ** 2))
    shuffled = b[torch.rand(draws, len(b), generator=generator, dtype=torch.float64).argsort(1)]
    values = rank_correlation(a, shuffled).sort().values
    # Share of draws that reach each value, ties included: searchsorted counts the values strictly below.
    tail_share = 1 - torch.searchsorted(values, values) / draws
    significant = values[(tail_share <= LEVEL) & values.isfinite()]
    return float(significant[0]) if len(significant) else math.nan


@dataclass(frozen=True)
class RankCorrelation:
    """Rank correlation of a prediction and the change of the logits.

    Attributes:
        value: the correlation in the training run on the true next tokens; NaN if every pair is tied.
        threshold: smallest significant value; NaN if no value would be significant.
        null: the correlation at chance level; None if it was not drawn.
        tokens: number of tokens that are ordered.
    """

    value: float
    threshold: float
    null: Null | None
    tokens: int

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "undefined: all tokens are tied"
        null = "" if self.null is None else f"; {self.null.kind} {self.null.mean:+.2f}"
        threshold = (
            f"threshold {self.threshold:.2f}"
            if math.isfinite(self.threshold)
            else "no value would be significant"
        )
        return f"{self.value:+.2f} ({threshold}{null})"


def correlate(
    predicted: Float[Tensor, " S"], change: Float[Tensor, "runs S"], generator: Generator
) -> RankCorrelation:
    """Returns the rank correlation of the prediction with the change in run 0; the other runs are the null.

    The threshold is the chance level of random orders, or the number just above the mean of the null if that
    is larger.
    """
    value, *others = rank_correlation(predicted, change).tolist()
    threshold, null = (
        chance_level(predicted, change[0], generator),
        Null(SHUFFLED, tuple(others)) if others else None,
    )
    if null is not None:
        # the mean itself is not better than shuffled next tokens
        above_null = math.nextafter(null.mean, math.inf)
        threshold = above_null if above_null > threshold else threshold
    return RankCorrelation(value, threshold if threshold <= 1 else math.nan, null, len(predicted))


def smallest_significant(null: Null) -> float:
    """Returns the smallest correlation whose permutation p-value is at most 5 %; NaN if there is none, or if
    there are too few draws.
    """
    rank = int(LEVEL * (1 + len(null.draws)) + 1e-9) - 1  # number of draws that may reach the value
    if rank < 0:
        return math.nan
    threshold = math.nextafter(sorted(null.draws, reverse=True)[rank], math.inf)
    return threshold if threshold <= 1 else math.nan
