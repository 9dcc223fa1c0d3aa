r"""The theory's one-layer model, trained by exact gradient descent on the data, and copies that learn
shuffled next tokens.

The copies are the null: every quantity is measured in them too. They learn the same batches, in float32.
Held-out sequences separate generalisation from memorisation.

The flows describe infinitely long sequences. The sufficient length depends on the classes, the rates and the
number of steps, so the effect of the length is measured (:func:`redrawn_error`). Sequences of the same
number, length and next tokens are drawn from the counted :math:`P(l | n)` and learnt with the same rates and
steps. On them the theory can fail only because they are finite. If the exact flow is wrong on the *redrawn*
sequences, its error on the data is no evidence against the theory. Source of the model:
:cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.statistics import permutations
from .closed_form import scanning_time
from .dynamics import (
    Batch,
    Sequences,
    Trajectory,
    Weights,
    epochs,
    forward,
    gradient_descent,
    minibatches,
    sequence_batches,
)
from .multinomial import draw_counts
from .predictions import Prediction, relative_error
from .query_data import QueryData

BATCH = 128
MIN_STEPS, MAX_STEPS = 50, 1000  # range of the default number of steps, as long as scanning takes no longer
MAX_SCANNING_STEPS = 10_000  # largest default number of steps
BUDGET = 2.5e8  # largest number of multiplications of one training run with the default number of steps
RECORDED_STEPS = 50  # number of steps at which the logits are recorded
REDRAWN_SETS = 2  # sets of redrawn sequences, each as large as the data


@dataclass(frozen=True, eq=False)
class MinimalRuns:
    """The model trained on the sequences: run 0 on their next tokens, the others on shuffled ones.

    Attributes:
        path: run 0: logits over the steps, losses, and the final state.
        logits: attention logits of all runs at the recorded steps, the start included, ``[t, runs, S]``.
        accuracy: share of the training sequences whose (possibly shuffled) next token the run predicts,
            ``[runs]``.
        held_out: share of the held-out sequences whose true next token the run predicts, ``[runs]``; empty
            without held-out sequences.
        sharpness: 1 - H / log T of attention over the T positions, mean over the training sequences,
            ``[runs]``.
        shuffled: next tokens of the other runs, ``[runs - 1, n]``.
    """

    path: Trajectory
    logits: Float[Tensor, "t runs S"]
    accuracy: Float[Tensor, " runs"]
    held_out: Float[Tensor, " runs_or_none"]
    sharpness: Float[Tensor, " runs"]
    shuffled: Int[Tensor, "others n"]

    @property
    def change(self) -> Float[Tensor, "runs S"]:
        """Total change of each token's logit."""
        return self.logits[-1]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.path.steps[-1])


def default_steps(data: QueryData, *, eta_y: float) -> int:
    """Returns the number of steps that 250 million multiplications allow, between 50 and 1000, but at least
    twice t0', up to 10,000.

    Before t0' attention has not finished scanning, and even the sign of the correlations depends on the
    number of steps.
    """
    n, K = len(data.counted.target), data.classes.classes
    # A step multiplies the counts of a batch that are not zero by the K + 1 columns of the decoder.
    per_step = min(BATCH, n) * float((data.counted.counts > 0).double().sum(1).mean()) * (K + 1)
    enough = math.ceil(2 * scanning_time(classes=K, vocab_size=data.classes.vocab_size, eta_y=eta_y))
    return int(max(min(MAX_STEPS, max(MIN_STEPS, BUDGET / per_step)), min(enough, MAX_SCANNING_STEPS)))


def train_minimal_model(
    data: QueryData, *, steps: int, eta_y: float, eta_z: float, shuffles: int, generator: Generator
) -> MinimalRuns:
    """Trains by exact gradient descent from zero, in batches of up to 128, on the sequences and on shuffles
    of their next tokens.

    Args:
        data: the sequences.
        steps: number of steps.
        eta_y, eta_z: learning rates of decoder and attention.
        shuffles: number of runs on shuffled next tokens. The shuffles depend only on the number of sequences.
        generator: draws the batches, which all runs share.
    Raises:
        ValueError: see :func:`~.dynamics.gradient_descent`.
        NotConverged: the loss is not finite.
    """
    counted = data.counted
    shuffled = counted.target[permutations(len(counted.target), shuffles)]
    keep = np.unique(np.geomspace(1, steps, RECORDED_STEPS).astype(int)).tolist()

    def train(targets: Tensor, dtype: torch.dtype, order: Generator) -> Trajectory:
        start = Weights.zeros(
            data.classes.tokens,
            1,
            data.classes.classes,
            counted.vocab_size,
            runs=(len(targets),),
            dtype=dtype,
        )
        batches = minibatches(
            replace(counted, counts=counted.counts.to(dtype)), BATCH, generator=order, targets=targets
        )
        return gradient_descent(start, batches, steps=steps, eta_y=eta_y, eta_z=eta_z, keep=keep)

    order = torch.Generator()
    order.set_state(generator.get_state())
    path = train(counted.target[None], torch.float64, generator)
    paths = [path, train(shuffled, torch.float32, order)] if shuffles else [path]
    measured = []
    for trained in paths:
        for run, decoder in enumerate(trained.final.decoder):
            weights = Weights(decoder.double(), trained.final.attention[run].double(), trained.final.rest)
            measured.append(_evaluate(weights, data, counted.target if trained is path else shuffled[run]))
    accuracy, held_out, sharpness = (torch.tensor(values, dtype=torch.float64) for values in zip(*measured))
    logits = torch.cat([trained.attention[:, :, 0].double() for trained in paths], dim=1)
    return MinimalRuns(
        path, logits, accuracy, held_out[: 0 if data.held_out is None else None], sharpness, shuffled
    )


def _evaluate(weights: Weights, data: QueryData, target: Int[Tensor, " n"]) -> tuple[float, float, float]:
    """Returns accuracy on the training sequences, accuracy on the held-out ones (NaN if there are none), and
    sharpness of one run.
    """
    counts, query = data.counted.counts, data.counted.query
    training = forward(weights, Batch(counts, query, target))
    held_out = math.nan
    if data.held_out is not None:
        unseen = forward(weights, Batch(data.held_out.counts, data.held_out.query, data.held_out.target))
        held_out = _accuracy(unseen.logits, data.held_out.target)
    return (
        _accuracy(training.logits, target),
        held_out,
        float(_sharpness(training.attended, counts, data.context)),
    )


def _accuracy(logits: Float[Tensor, "n K"], target: Int[Tensor, " n"]) -> float:
    return float((logits.argmax(-1) == target).double().mean())


def _sharpness(
    attended: Float[Tensor, "n S"], counts: Float[Tensor, "n S"], context: int
) -> Float[Tensor, ""]:
    """Returns 1 - H / log T over positions, mean over the sequences."""
    # A token that occurs k times with weight c has k positions of weight c/k: -k (c/k) ln(c/k) = -c ln(c/k).
    entropy = -torch.special.xlogy(attended, attended / counts.clamp(min=1)).sum(-1)
    return (1 - entropy / math.log(context)).mean() if context > 1 else entropy.new_zeros(())


def redrawn_error(
    data: QueryData, flow: Prediction, runs: MinimalRuns, *, eta_y: float, eta_z: float, generator: Generator
) -> float:
    """Returns the relative error of a flow on sequences redrawn from P(l | n), for the worse of two sets of
    sequences.

    The error is defined by :func:`~.predictions.relative_error`.

    Args:
        data: the sequences; their number, length and next tokens are reused.
        flow: a prediction of the logits of all tokens.
        runs: training runs on the data; their number of steps is reused.
        eta_y, eta_z: learning rates of decoder and attention.
        generator: draws sequences and batches.
    Raises:
        NotConverged: the loss is not finite.
    """
    target, query = data.counted.target, data.counted.query
    counts = draw_counts(
        data.classes.conditional, target.expand(REDRAWN_SETS, -1), context=data.context, generator=generator
    )
    draw, batch_of = epochs(len(target), BATCH, generator=generator), sequence_batches(counts)

    def draw_batch(step: int) -> Sequences:
        index = draw(step)
        return batch_of(index, query[index].expand(REDRAWN_SETS, -1), target[index].expand(REDRAWN_SETS, -1))

    start = Weights.zeros(
        data.classes.tokens, 1, data.classes.classes, data.classes.vocab_size, runs=(REDRAWN_SETS,)
    )
    path = gradient_descent(start, draw_batch, steps=runs.steps, eta_y=eta_y, eta_z=eta_z)
    return float(relative_error(flow.logits[-1], path.final.attention[:, 0]).max())
