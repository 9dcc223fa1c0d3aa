r"""Prediction of the change of each attention logit from counts, and its rank agreement with a measured
change.

The prediction is the exact population flow on the counted :math:`P(l \mid n)` and class shares, with a fast
decoder (:math:`\eta_Z = \eta_Y / 10`), at the time :math:`4\, t_0'`, :math:`t_0' = K \ln M / \eta_Y`. It is
integrated by 200 Euler steps, many label permutations at once. It is defined for any classes, so it is the
same on all rungs; Lemma 4's flow needs linearly independent ones.

The prediction is counted on held-out sequences. Training can learn accidents of its own sequences by heart,
but not those of others. The null permutes the next tokens of the held-out sequences: the frequencies of the
tokens and their joint occurrence stay, the classes are lost. It is not centred at zero: frequent tokens are
predicted to lose attention, and do lose it, with any next tokens.

On the digits each seed holds out other sequences of the same data. One permutation of the next tokens of all
sequences therefore gives draw i of every seed (:func:`permuted_next_tokens`), and the mean of draws i is a
draw of the null of the mean.

Source: :cite:t:`tian2023scan` (Lemmas 1 and 2: gradient descent on long sequences follows this flow).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.errors import NotConverged
from ....core.ladder import Ladder
from ....core.measurement import CORRELATION, Measurement, Null
from ....core.sources import Source
from ....core.statistics import LADDER_DRAWS, permutations
from ....data.tokens import TokenData
from ..closed_form import scanning_time
from ..comparison import MAX_TOKENS, NAME, PAPER
from ..dynamics import Batch, Weights, gradient_descent
from ..on_data import HEADLINE as BY_DISTINCTNESS
from ..orders import PERMUTED_HELD_OUT, rank_correlation

LADDER = Ladder(
    theory=NAME,
    quantity="rank agreement of predicted and measured logit change on held-out sequences",
    side=">=",
    bounds=CORRELATION,
    null=PERMUTED_HELD_OUT,
    source=Source(PAPER, "Lemma 2", "confirmed"),
)
LEARNT = "rank agreement of predicted and measured logit change on learnt sequences"
CEILING = "rank agreement of the predictions from held-out and learnt sequences"

# Twice the time t0 = 2 t0' after which attention snaps. Flows on few sequences later learn them by heart: on
# the digits, predictions from two parts of the data agree best at this time (docs/theories/scan_snap.md).
# time of the prediction, and of the trainings in the theory's own parametrisation, in units of t0'
HORIZON = 4.0
# eta_Z / eta_Y of the prediction: the theory assumes a decoder that learns much faster than attention
FAST_DECODER = 0.1
EULER_STEPS = 200  # steps of the flow: a class's logits move by at most 4 ln M / 200 per step


@dataclass(frozen=True, eq=False)
class SplitSequences:
    """The sequences of one query, in a part to learn and a held-out part.

    Attributes:
        counts, target: contextual tokens of the learnt sequences as counts, ``[n, S]``, and their classes,
            ``[n]``.
        held_counts, held_target: the same of the held-out sequences, ``[m, S]`` and ``[m]``.
        classes, vocab_size: K and M.
        permuted: next tokens of the held-out sequences in each draw of the null, ``[draws, m]``.
        permuted_learnt: next tokens of the learnt sequences in the same draws, ``[draws, n]``. None: drawn
            independently.
        data: the learnt sequences as tokens, for networks. None: drawn as counts.
    """

    counts: Float[Tensor, "n S"]
    target: Int[Tensor, " n"]
    held_counts: Float[Tensor, "m S"]
    held_target: Int[Tensor, " m"]
    classes: int
    vocab_size: int
    permuted: Int[Tensor, "draws m"]
    permuted_learnt: Int[Tensor, "draws n"] | None = None
    data: TokenData | None = None


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted changes of the logits of the compared tokens.

    Attributes:
        tokens: the most frequent tokens, of those that occur in both parts, ``[some]``.
        held_out: change predicted from the held-out sequences; row 0 is the prediction, the others are the
            null, ``[1 + draws, some]``.
        learnt: change predicted from the learnt sequences, ``[some]``.
        distinctness: distinctness in the held-out sequences, rows as in ``held_out``.
    """

    tokens: Int[Tensor, " some"]
    held_out: Float[Tensor, "runs some"]
    learnt: Float[Tensor, " some"]
    distinctness: Float[Tensor, "runs some"]


def permuted_next_tokens(labels: Int[Tensor, " n"], part: Int[Tensor, " m"]) -> Int[Tensor, "draws m"]:
    """Returns the next tokens of the sequences of one part in each draw of the null.

    Draw i permutes the next tokens of all sequences, those of the learnt part included, in the same way for
    all seeds. A sequence that several seeds hold out thus has the same next token in all of them.
    Permutations within each held-out part would treat the seeds as independent, although they share
    sequences, and the null of their mean would be too narrow.

    Args:
        labels: next tokens of all sequences, ``[n]``.
        part: indices of the sequences, ``[m]``.
    """
    return labels[permutations(len(labels), LADDER_DRAWS)][:, part]


def conditionals(
    counts: Float[Tensor, "n S"], targets: Int[Tensor, "runs n"], classes: int
) -> Float[Tensor, "runs K S"]:
    """Counts P(l | n) for several assignments of classes to the same sequences. Classes without a token get
    equal probabilities.

    Args:
        counts: counts of the contextual tokens, ``[n, S]``.
        targets: class of each sequence in each run, ``[runs, n]``.
        classes: K.
    """
    member = (targets[:, None] == torch.arange(classes)[:, None]).to(counts.dtype)  # [runs, K, n]
    total = member @ counts
    size = total.sum(-1, keepdim=True)
    return torch.where(size > 0, total / size.clamp(min=1), 1 / counts.shape[1])


def predicted_change(
    conditional: Float[Tensor, "runs K S"],
    share: Float[Tensor, " K"],
    *,
    vocab_size: int,
    horizon: float = HORIZON,
) -> Float[Tensor, "runs S"]:
    r"""Returns the change of the attention logits in the exact population flow at ``horizon`` :math:`t_0'`,
    by Euler steps.

    Args:
        conditional: :math:`P(l \mid n)` of each run, ``[runs, K, S]``.
        share: share of each class, ``[K]``.
        vocab_size: M.
        horizon: time in units of t0'.
    Raises:
        ValueError: M is below 2.
    """
    R, K, S = conditional.shape
    step = horizon * scanning_time(classes=K, vocab_size=vocab_size, eta_y=1.0) / EULER_STEPS
    query, target = torch.zeros(R, K, dtype=torch.long), torch.arange(K).expand(R, K)
    # P(l | n) in the place of counts, and the shares as weights: one step is an Euler step of the population
    # flow.
    batch = Batch(conditional, query, target, share, log_counts=conditional.log())
    start = Weights.zeros(S, 1, K, vocab_size, runs=(R,), dtype=conditional.dtype)
    path = gradient_descent(start, lambda _: batch, steps=EULER_STEPS, eta_y=step, eta_z=FAST_DECODER * step)
    return path.final.attention[:, 0]


def predict(sequences: SplitSequences) -> Prediction:
    """Predicts the change of the logits from the held-out sequences, from permutations of their next tokens,
    and from the learnt ones.

    Raises:
        NotConverged: the flow is not finite.
    """
    learnt, held = sequences.counts.sum(0), sequences.held_counts.sum(0)
    top = (learnt * (held > 0)).argsort(descending=True, stable=True)[:MAX_TOKENS]
    tokens = top[(learnt * held)[top] > 0].sort().values
    targets = torch.cat([sequences.held_target[None], sequences.permuted])
    by_run = conditionals(sequences.held_counts[:, tokens], targets, sequences.classes)
    own = conditionals(sequences.counts[:, tokens], sequences.target[None], sequences.classes)
    # All draws have the class shares of the value. Permutations keep them: those within the held-out part
    # exactly, those of all sequences up to rounding, since a stratified split gives each part the shares of
    # the whole.
    shares = [
        torch.bincount(part, minlength=sequences.classes).double() / len(part)
        for part in (targets[0], sequences.target)
    ]
    changes = [predicted_change(P, w, vocab_size=sequences.vocab_size) for P, w in zip((by_run, own), shares)]
    return Prediction(tokens, changes[0], changes[1][0], by_run.amax(1) / by_run.sum(1))


def agreement_rows(
    prediction: Prediction, change: Callable[[], Float[Tensor, " S"]], note: str
) -> Iterator[Measurement]:
    """Yields the headline of a rung, its agreement with the prediction from the learnt sequences, and the
    agreement of both predictions.

    Args:
        prediction: the prediction for the sequences.
        change: trains a model and returns the measured change of the logit of each token, ``[S]``.
        note: description of the training.
    """
    try:
        measured = change().double()[prediction.tokens]
    except NotConverged as error:
        yield LADDER.row(None, reason=f"training diverged: {error}")
        return
    n = len(prediction.tokens)
    value, null = _with_null(measured, prediction.held_out)
    columns = {"nulls": (null,), "n": n, "split": "validation", "note": note}
    yield LADDER.row(value, predicted=1.0, basis="limit", **columns)
    value, null = _with_null(measured, prediction.distinctness)
    columns = {"nulls": (null,), "n": n, "split": "validation", "note": note}
    yield LADDER.other_row(BY_DISTINCTNESS, value, side=">=", bounds=CORRELATION, **columns)
    learnt = float(rank_correlation(prediction.learnt, measured))
    columns = {"split": "train", "note": "training may learn by heart what it predicts"}
    yield LADDER.other_row(LEARNT, learnt, side=">=", bounds=CORRELATION, n=n, **columns)
    value, null = _with_null(prediction.learnt, prediction.held_out)
    note = "reliability of the prediction: both parts are samples of the same sequences"
    yield LADDER.other_row(CEILING, value, side=">=", bounds=CORRELATION, nulls=(null,), n=n, note=note)


def _with_null(change: Tensor, predictions: Float[Tensor, "runs some"]) -> tuple[float, Null]:
    """Returns the rank agreement of a change with the first prediction, and with the others as the null."""
    value, *draws = rank_correlation(change, predictions).tolist()
    return value, Null(LADDER.null, tuple(draws))
