r"""Comparison of predicted and measured changes of the attention logits, with the null distributions of the ladder.

Let p and m be the predicted and measured changes of the logits of M tokens, both without their mean, which softmax ignores. The ladder
measures the relative error, and its two parts apart:

.. math:: \text{error} = \frac{\|p - m\|}{\|m\|}, \qquad \text{direction} = 1 - \frac{p^\top m}{\|p\| \|m\|}, \qquad
    \text{size} = \Big| \ln \frac{\|p\|}{\|m\|} \Big| .

All three are 0 if the invariant holds. Predicting no change has error 1. If p has nothing to do with m, the error is about
:math:`\sqrt{1 + \|p\|^2 / \|m\|^2}`.

**The null.** Frequent tokens move most, both in the logits and in the lower layer, whatever the theory says. A null that permuted all
tokens would therefore be too easy to beat. :func:`similar_orders` permutes tokens within groups of four of similar frequency. The size does
not change under a permutation of tokens, so its null comes from the caller: predictions of other trainings. They are a second null of
the error as well: a prediction that is too large has a large error, and so has each of its permutations.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ....core.ladder import Ladder
from ....core.measurement import Measurement, Null
from ....core.sources import Source
from ....core.statistics import HEADLINE_DRAWS, permutations
from ..invariants import goodness_of_fit

NAME, SOURCE = "joma", Source("tian2024joma", "Theorem 1", "second-hand")
NULL_KIND = "tokens of the prediction permuted among tokens of similar frequency"
LADDER = Ladder(quantity="error of the invariant", unit="", side="<=", null_kind=NULL_KIND)
EARLY, DIRECTION, SIZE = "error of the invariant, early in training", "error of the direction", "error of the size"
NO_CHANGE = "the predicted or the measured change of the logits is not finite, or the same for all tokens"
GROUP = 4  # number of tokens of similar frequency that exchange their predictions


@dataclass(frozen=True, eq=False)
class Change:
    """Predicted and measured changes of the attention logits over a training.

    Attributes:
        predicted, measured: changes, ``[*heads, M]``; the errors are means over the heads.
        early: predicted and measured changes after a tenth of the training; None if they were not measured.
        frequency: share of each token in the contexts, ``[M]``.
        others: predictions whose sizes are the null of the size, ``[draws, *heads, M]``, and the method by which they were drawn.
        note: a sentence on the training.
    """

    predicted: Float[Tensor, "*heads M"]
    measured: Float[Tensor, "*heads M"]
    early: tuple[Tensor, Tensor] | None
    frequency: Float[Tensor, " M"]
    others: tuple[str, Tensor]
    note: str = ""


def similar_orders(frequency: Float[Tensor, " M"], keys: Int[Tensor, "draws M"]) -> Int[Tensor, "draws M"]:
    """Returns permutations of tokens within groups of :data:`GROUP` tokens of similar frequency.

    Args:
        frequency: frequency of each token.
        keys: permutations of all tokens; the order of the keys within a group is the new order of the group.
    Returns:
        For each draw the token that replaces each token, ``[draws, M]``.
    """
    by_frequency = frequency.argsort(descending=True, stable=True)
    group = torch.empty_like(by_frequency)
    group[by_frequency] = torch.arange(len(frequency)) // GROUP
    # All keys are below M, so group * M + key sorts by group first and by key within the group.
    shuffled = (group * len(frequency) + keys).argsort(-1)
    orders = torch.empty_like(shuffled)
    orders[:, group.argsort(stable=True)] = shuffled
    return orders


def rows_of(change: Change, *, generator: Generator | None = None, data: str = "", model: str = "") -> Iterator[Measurement]:
    """Yields the error, the error early in training, and the errors of direction and size, each with its null.

    Args:
        change: predicted and measured changes.
        generator: draws the permutations of the null. None: they depend on the number of tokens only, for data that seeds share.
        data, model: columns of the rows.
    """
    M = len(change.frequency)
    orders = similar_orders(change.frequency, permutations(M, HEADLINE_DRAWS, generator))
    row = partial(Measurement, NAME, "rung", side="<=", source=SOURCE, data=data, model=model, predicted=0.0)

    def errors(predicted: Tensor, measured: Tensor) -> tuple[list[float], list[float]]:
        """Returns errors and errors of the direction, of the prediction first and of its permutations after it."""
        fit = goodness_of_fit(torch.cat([predicted[None], predicted[..., orders].movedim(-2, 0)]), measured)
        # Rounding can take a correlation above 1.
        return _mean_over_heads(fit.error).tolist(), _mean_over_heads((1 - fit.correlation).clamp(min=0)).tolist()

    error, direction = errors(change.predicted, change.measured)
    columns = {"source": SOURCE, "data": data, "model": model, "note": change.note}
    if not all(map(math.isfinite, error + direction)):
        yield LADDER.row(NAME, None, reason=NO_CHANGE, **columns)
        return
    yield LADDER.row(NAME, error[0], null=Null(NULL_KIND, tuple(error[1:])), n=M, predicted=0.0, **columns)
    yield row(DIRECTION, direction[0], null=Null(NULL_KIND, tuple(direction[1:])), n=M)
    kind, others = change.others
    # The second null: the predictions of others may have the wrong size, but so may the theory's.
    foreign = _mean_over_heads(goodness_of_fit(others, change.measured).error).tolist()
    yield LADDER.row(NAME, error[0], null=Null(kind, tuple(foreign)), n=M, predicted=0.0, setting=f"null: {kind}", **columns)
    size, *draws = _mean_over_heads(_log_ratio(torch.cat([change.predicted[None], others]), change.measured)).tolist()
    yield row(SIZE, size, null=Null(kind, tuple(draws)), unit="nats", n=M)
    if change.early is not None:
        early, _ = errors(*change.early)
        if math.isfinite(early[0]):
            yield row(EARLY, early[0], null=Null(NULL_KIND, tuple(early[1:])), n=M)


def _log_ratio(predicted: Tensor, measured: Tensor) -> Tensor:
    """Returns the absolute logarithm of the ratio of the norms, ``[draws, *heads]``."""
    p, m = (x - x.mean(-1, keepdim=True) for x in (predicted, measured))
    return (p.norm(dim=-1) / m.norm(dim=-1)).log().abs()


def _mean_over_heads(values: Float[Tensor, "draws *heads"]) -> Float[Tensor, " draws"]:
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def failed(error: Exception) -> Iterator[Measurement]:
    """Yields the row of a training that did not converge."""
    yield LADDER.row(NAME, None, reason=str(error), source=SOURCE)
