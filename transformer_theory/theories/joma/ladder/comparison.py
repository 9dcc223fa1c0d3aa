r"""Comparison of predicted and measured changes of the attention logits, with the null distributions of the
ladder.

Let p and m be the predicted and measured changes of the logits of M tokens, both without their mean, which
softmax ignores. Three numbers compare them:

.. math:: \text{cosine} = \frac{p^\top m}{\|p\| \|m\|}, \qquad \text{size} = \ln \frac{\|p\|}{\|m\|}, \qquad
    \text{error} = \frac{\|p - m\|}{\|m\|} .

They are 1, 0 and 0 if the invariant holds. The cosine is the quantity of the ladder, since the theory names
it on all rungs. The size depends on the ratio of the learning rates of logits and lower layer, which neither
AdamW nor a network with factored scores has. There the theory names neither size nor error. The error mixes
the two: an error above 1 may come from the wrong tokens or from a size that is too large. Predicting no
change has error 1, so a null of small predictions would beat a right direction of the wrong size.

**The nulls.** Frequent tokens move most, both in the logits and in the lower layer, whatever the theory says.
A null that permuted all tokens would therefore be too easy to beat. :func:`similar_orders` permutes tokens
within groups of four of similar frequency. The second null comes from the caller: predictions from other
weights, for example of blocks that start alike and learn shuffled targets. It asks whether the direction
depends on what this block learnt, or on contexts and start alone. It is the null of the size as well, which a
permutation of tokens does not change.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ....core.ladder import Ladder
from ....core.measurement import CORRELATION, Measurement, Null
from ....core.sources import Source
from ....core.statistics import LADDER_DRAWS, permutations
from ..invariants import goodness_of_fit

NULL_KIND = "tokens of the prediction permuted among tokens of similar frequency"
LADDER = Ladder(
    theory="joma",
    quantity="cosine of predicted and measured logit change",
    side=">=",
    bounds=CORRELATION,
    null=NULL_KIND,
    source=Source("tian2024joma", "Theorem 1", "second-hand"),
)
EARLY, SIZE, ERROR = (
    f"{LADDER.quantity}, early in training",
    "log ratio of predicted and measured size",
    "error of the invariant",
)
NO_CHANGE = "the predicted or the measured change of the logits is not finite, or the same for all tokens"
GROUP = 4  # number of tokens of similar frequency that exchange their predictions


@dataclass(frozen=True, eq=False)
class Change:
    """Predicted and measured changes of the attention logits over a training.

    Attributes:
        predicted, measured: changes, ``[*heads, M]``; cosine, size and error are means over the heads.
        early: predicted and measured changes after a tenth of the training; None if they were not measured.
        frequency: share of each token in the contexts, ``[M]``.
        others: kind and draws of the second null: predictions from other weights, ``[draws, *heads, M]``.
        sized: whether the theory fixes the size of the prediction: logits and lower layer have learning
            rates.
        note: a sentence on the training.
    """

    predicted: Float[Tensor, "*heads M"]
    measured: Float[Tensor, "*heads M"]
    early: tuple[Tensor, Tensor] | None
    frequency: Float[Tensor, " M"]
    others: tuple[str, Tensor]
    sized: bool
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


def rows_of(
    change: Change, *, generator: Generator | None = None, data: str = "", model: str = ""
) -> Iterator[Measurement]:
    """Yields the cosine with its two nulls, the size, the error, and the cosine early in training.

    Args:
        change: predicted and measured changes.
        generator: draws the permutations of the null. None: they depend on the number of tokens only, for
            data that seeds share.
        data, model: columns of the rows.
    """
    M = len(change.frequency)
    orders = similar_orders(change.frequency, permutations(M, LADDER_DRAWS, generator))
    columns = {"data": data, "model": model, "n": M}

    def with_orders(predicted: Tensor) -> Tensor:
        """Returns the prediction and, after it, its permutations."""
        return torch.cat([predicted[None], predicted[..., orders].movedim(-2, 0)])

    cosine, *cosines = _cosines(with_orders(change.predicted), change.measured)
    error, *errors = _mean_over_heads(
        goodness_of_fit(with_orders(change.predicted), change.measured).error
    ).tolist()
    kind, others = change.others
    # Theirs is the prediction from other weights of the same logits: only p changes, m stays.
    theirs = _cosines(others, change.measured)
    if not all(map(math.isfinite, [cosine, *cosines, *theirs])):
        yield LADDER.row(None, reason=NO_CHANGE, **columns, note=change.note)
        return
    nulls = Null(NULL_KIND, tuple(cosines)), Null(kind, tuple(theirs))
    yield LADDER.row(cosine, predicted=1.0, nulls=nulls, **columns, note=change.note)
    size, *sizes = _mean_over_heads(
        _log_ratio(torch.cat([change.predicted[None], others]), change.measured)
    ).tolist()
    predicted, row = (0.0 if change.sized else None), partial(LADDER.other_row, **columns)
    yield row(
        SIZE,
        size,
        predicted=predicted,
        side="==" if change.sized else None,
        nulls=(Null(kind, tuple(sizes)),),
        unit="nats",
    )
    yield row(
        ERROR,
        error,
        predicted=predicted,
        side="<=",
        nulls=(Null(NULL_KIND, tuple(errors)),),
        note="Predicting no change has error 1.",
    )
    if change.early is not None:
        predicted, measured = change.early
        early, *draws = _cosines(with_orders(predicted), measured)
        if math.isfinite(early):
            same = {"predicted": 1.0, "side": LADDER.side, "bounds": LADDER.bounds}
            yield row(EARLY, early, nulls=(Null(NULL_KIND, tuple(draws)),), **same)


def _cosines(predicted: Tensor, measured: Tensor) -> list[float]:
    """Returns the cosine of each draw, ``[draws]``, a mean over the heads. Rounding can take a cosine beyond
    1.
    """
    return _mean_over_heads(goodness_of_fit(predicted, measured).correlation.clamp(-1, 1)).tolist()


def _log_ratio(predicted: Tensor, measured: Tensor) -> Tensor:
    """Returns the logarithm of the ratio of the norms, ``[draws, *heads]``; it is positive if the prediction
    is too large.
    """
    p, m = (x - x.mean(-1, keepdim=True) for x in (predicted, measured))
    return (p.norm(dim=-1) / m.norm(dim=-1)).log()


def _mean_over_heads(values: Float[Tensor, "draws *heads"]) -> Float[Tensor, " draws"]:
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def failed(error: Exception) -> Iterator[Measurement]:
    """Yields the row of a training that did not converge."""
    yield LADDER.row(None, reason=str(error))
