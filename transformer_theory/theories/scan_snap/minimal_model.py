r"""The theory's one-layer model, trained by exact gradient descent on the data, and copies that learn shuffled next tokens.

The copies are the null: every quantity is measured in them too. Held-out sequences separate generalisation from memorisation.

The flows describe infinitely long sequences. The sufficient length depends on the classes, the rates and the number of steps, so the effect
of the length is measured (:func:`redrawn_error`). Sequences of the same number, length and next tokens are drawn from the counted
:math:`P(l | n)` and learnt with the same rates and steps. On them the theory can fail only because they are finite. If the exact flow is
wrong on the *redrawn* sequences, its error on the data is no evidence against the theory. Source of the model: :cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from .closed_form import scanning_time
from .dynamics import Batch, Sequences, Trajectory, Weights, attend, epochs, forward, gradient_descent, minibatches, sequence_batches
from .multinomial import draw_counts
from .predictions import Prediction, relative_error
from .problem import CountedSequences
from .query_data import QueryData

BATCH, SHUFFLES = 128, 3
MIN_STEPS, MAX_STEPS = 50, 1000  # range of the default number of steps, as long as scanning takes no longer
MAX_SCANNING_STEPS = 10_000  # largest default number of steps
BUDGET = 1e9  # largest number of multiplications of all training runs with the default number of steps
RECORDED_STEPS = 50  # number of steps at which the logits are recorded
REDRAWN_SETS = 2  # sets of redrawn sequences, each as large as the data


@dataclass(frozen=True, eq=False)
class MinimalRuns:
    """The model trained on the sequences: run 0 on their next tokens, the others on shuffled ones.

    Attributes:
        path: logits over the steps, losses, and the final state.
        accuracy: share of the training sequences whose (possibly shuffled) next token the run predicts, ``[runs]``.
        held_out: share of the held-out sequences whose true next token the run predicts, ``[runs]``; empty without held-out sequences.
        sharpness: 1 - H / log T of attention over the T positions, mean over the training sequences, ``[runs]``.
        shuffled: next tokens of the other runs, ``[runs - 1, n]``.
    """

    path: Trajectory
    accuracy: Float[Tensor, " runs"]
    held_out: Float[Tensor, " runs_or_none"]
    sharpness: Float[Tensor, " runs"]
    shuffled: Int[Tensor, "others n"]

    @property
    def logits(self) -> Float[Tensor, "t runs S"]:
        """Attention logits at the recorded steps, the start included."""
        return self.path.attention[:, :, 0]

    @property
    def change(self) -> Float[Tensor, "runs S"]:
        """Total change of each token's logit."""
        return self.logits[-1]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.path.steps[-1])


def default_steps(data: QueryData, *, eta_y: float) -> int:
    """Returns the number of steps that a billion multiplications allow, between 50 and 1000, but at least twice t0', up to 10,000.

    Before t0' attention has not finished scanning, and even the sign of the correlations depends on the number of steps.
    """
    n, K = len(data.counted.target), data.classes.classes
    # A step multiplies the counts of a batch that are not zero by the K + 1 columns of the decoder, in each run.
    per_step = (1 + SHUFFLES) * min(BATCH, n) * float((data.counted.counts > 0).double().sum(1).mean()) * (K + 1)
    enough = math.ceil(2 * scanning_time(classes=K, vocab_size=data.classes.vocab_size, eta_y=eta_y))
    return int(max(min(MAX_STEPS, max(MIN_STEPS, BUDGET / per_step)), min(enough, MAX_SCANNING_STEPS)))


def train_minimal_model(data: QueryData, *, steps: int, eta_y: float, eta_z: float, generator: Generator) -> MinimalRuns:
    """Trains by exact gradient descent from zero, in batches of up to 128, on the sequences and on three shuffles of their next tokens.

    Args:
        data: the sequences.
        steps: number of steps.
        eta_y, eta_z: learning rates of decoder and attention.
        generator: draws shuffles and batches.
    Raises:
        ValueError: see :func:`~.dynamics.gradient_descent`.
        NotConverged: the loss is not finite.
    """
    counted, n = data.counted, len(data.counted.target)
    shuffled = torch.stack([counted.target[torch.randperm(n, generator=generator)] for _ in range(SHUFFLES)])
    targets = torch.cat([counted.target[None], shuffled])
    path = gradient_descent(
        Weights.zeros(data.classes.tokens, 1, data.classes.classes, counted.vocab_size, runs=(len(targets),)),
        minibatches(counted, BATCH, generator=generator, targets=targets),
        steps=steps,
        eta_y=eta_y,
        eta_z=eta_z,
        keep=np.unique(np.geomspace(1, steps, RECORDED_STEPS).astype(int)).tolist(),
    )
    training = _whole_batch(counted, targets)
    accuracy = forward(path.final, training).correct
    held_out = torch.empty(0, dtype=torch.float64)
    if data.held_out is not None:
        held_out = forward(path.final, _whole_batch(data.held_out, data.held_out.target.expand(len(targets), -1))).correct
    return MinimalRuns(path, accuracy, held_out, _sharpness(attend(path.final, training), counted.counts, data.context), shuffled)


def _whole_batch(data: CountedSequences, targets: Int[Tensor, "runs n"]) -> Batch:
    runs = len(targets)
    return Batch(data.counts.expand(runs, -1, -1), data.query.expand(runs, -1), targets)


def _sharpness(attended: Float[Tensor, "runs n S"], counts: Float[Tensor, "n S"], context: int) -> Float[Tensor, " runs"]:
    """Returns 1 - H / log T over positions, mean over the sequences."""
    # A token that occurs k times with weight c has k positions of weight c/k: -k (c/k) ln(c/k) = -c ln(c/k).
    entropy = -torch.special.xlogy(attended, attended / counts.clamp(min=1)).sum(-1)
    return (1 - entropy / math.log(context)).mean(-1) if context > 1 else torch.zeros(len(attended), dtype=torch.float64)


def redrawn_error(data: QueryData, flow: Prediction, runs: MinimalRuns, *, eta_y: float, eta_z: float, generator: Generator) -> float:
    """Returns the relative error of a flow on sequences redrawn from P(l | n), for the worse of two sets of sequences.

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
    counts = draw_counts(data.classes.conditional, target.expand(REDRAWN_SETS, -1), context=data.context, generator=generator)
    draw, batch_of = epochs(len(target), BATCH, generator=generator), sequence_batches(counts)

    def draw_batch(step: int) -> Sequences:
        index = draw(step)
        return batch_of(index, query[index].expand(REDRAWN_SETS, -1), target[index].expand(REDRAWN_SETS, -1))

    start = Weights.zeros(data.classes.tokens, 1, data.classes.classes, data.classes.vocab_size, runs=(REDRAWN_SETS,))
    path = gradient_descent(start, draw_batch, steps=runs.steps, eta_y=eta_y, eta_z=eta_z)
    return float(relative_error(flow.logits[-1], path.final.attention[:, 0]).max())
