r"""The theory's own one-layer model, trained on given sequences by exact gradient descent, beside copies that learn shuffled next tokens.

Everything that is said of the first run is said of the shuffled ones too: that is the null. Held-out sequences tell what was learnt from
what was learnt by heart.

Source: :cite:t:`tian2023scan`; the null is ours.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .dynamics import Batch, Trajectory, Weights, attend, forward, gradient_descent, minibatches
from .problem import CountedSequences
from .subject import Subject

BATCH, STEPS, SHUFFLES = 128, 1000, 3
FEWEST = 50  # steps that are made whatever they cost
WORK = 1e9  # multiplications that the training may cost if the number of steps is not given
LOOKS = 50  # steps at which logits are kept


@dataclass(frozen=True, eq=False)
class Trained:
    """The model trained on the sequences: run 0 on their own next tokens, the others on shuffled ones.

    Attributes:
        path: logits over the steps, losses, and the end.
        accuracy: share of its own training sequences that each run gets right.
        held_out: share of the held-out sequences, with their true next tokens; empty if nothing is held out.
        sharpness: 1 - entropy / log of the length of attention, mean over the training sequences.
        shuffled: next tokens of the runs after the first, ``[runs - 1, n]``.
    """

    path: Trajectory
    accuracy: Float[Tensor, " runs"]
    held_out: Float[Tensor, " runs_or_none"]
    sharpness: Float[Tensor, " runs"]
    shuffled: Int[Tensor, "others n"]

    @property
    def logits(self) -> Float[Tensor, "t runs S"]:
        """Attention logits at the steps that were kept, the start included."""
        return self.path.attention[:, :, 0]

    @property
    def change(self) -> Float[Tensor, "runs S"]:
        """How far the logit of each token moved."""
        return self.logits[-1]

    @property
    def steps(self) -> int:
        """How many were made."""
        return int(self.path.steps[-1])


def affordable(read: Subject) -> int:
    """How many steps a billion multiplications pay for: at most 1000, at least 50.

    Source: ours.
    """
    n, S, K = len(read.counted.target), read.classes.tokens, read.classes.classes
    return int(min(STEPS, max(FEWEST, WORK / ((1 + SHUFFLES) * min(BATCH, n) * S * (K + 1)))))


def train(read: Subject, *, steps: int, eta_y: float, eta_z: float, generator: torch.Generator) -> Trained:
    """Exact gradient descent from zero, batches of up to 128, on the sequences and on three shuffles of their next tokens.

    Args:
        read: the sequences.
        steps: how many.
        eta_y, eta_z: learning rates.
        generator: draws shuffles and batches.
    Raises:
        ValueError: see :func:`~.dynamics.gradient_descent`.
        NotConverged: the weights became infinite.

    Source: :cite:t:`tian2023scan`.
    """
    data, n = read.counted, len(read.counted.target)
    shuffled = torch.stack([data.target[torch.randperm(n, generator=generator)] for _ in range(SHUFFLES)])
    targets = torch.cat([data.target[None], shuffled])
    path = gradient_descent(
        Weights.zeros(read.classes.tokens, 1, read.classes.classes, data.vocab_size, runs=(len(targets),)),
        minibatches(data, BATCH, generator=generator, targets=targets),
        steps=steps,
        eta_y=eta_y,
        eta_z=eta_z,
        keep=np.unique(np.geomspace(1, steps, LOOKS).astype(int)).tolist(),
    )
    seen = _batch(data, targets)
    correct = forward(path.final, seen).correct
    held = torch.empty(0, dtype=torch.float64)
    if read.held_out is not None:
        held = forward(path.final, _batch(read.held_out, read.held_out.target.expand(len(targets), -1))).correct
    return Trained(path, correct, held, _sharpness(attend(path.final, seen), data.counts, read.context), shuffled)


def _batch(data: CountedSequences, targets: Int[Tensor, "runs n"]) -> Batch:
    runs = len(targets)
    return Batch(data.counts.expand(runs, -1, -1), data.query.expand(runs, -1), targets)


def _sharpness(attended: Float[Tensor, "runs n S"], counts: Float[Tensor, "n S"], context: int) -> Float[Tensor, " runs"]:
    """1 - H / log T over positions, the mean over sequences: a token that occurs several times shares its weight among them."""
    entropy = -torch.special.xlogy(attended, attended / counts.clamp(min=1)).sum(-1)
    return (1 - entropy / math.log(context)).mean(-1) if context > 1 else torch.zeros(len(attended), dtype=torch.float64)
