r"""The theory's own block trained on a subject: with softmax attention beside shuffled next tokens, and with exponential attention.

Linear units, cross-entropy over the next tokens, gradient flow from a small Gaussian start, by Runge and Kutta's method.
Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .dynamics import Model, Path, rk4, train
from .forms import Exponential, Softmax
from .invariants import drift, fixed_mean, mean_attention, moving_mean, unfactored
from .problem import Block, Contexts, gaussian_block
from .subject import Subject

STEP, STEPS, KEPT, SCALE, SHUFFLES = 0.5, 100, 50, 0.1, 3


@dataclass(frozen=True, eq=False)
class Softmaxed:
    """Training with softmax attention: run 0 on the data's next tokens, the others on shuffled ones; predicted and true changes of z.

    Attributes:
        path: what training passed through.
        true, fixed, moving: the change of z, and as predicted with the mean attention of the start and of each moment, ``[t, runs, M]``.
        moved: total variation distance of the mean attention of run 0, end and start.
        unfactored: relative size of what the factorisation leaves out of dz/dt of run 0, the larger of start and end.
    """

    path: Path
    true: Float[Tensor, "t runs M"]
    fixed: Float[Tensor, "t runs M"]
    moving: Float[Tensor, "t runs M"]
    moved: float
    unfactored: float


@dataclass(frozen=True, eq=False)
class Drift:
    """Training with exponential attention: how far z - sum v^2 / 2 of query 0 moved.

    Attributes:
        path: what training passed through.
        squares, logits: the change of sum v^2 / 2 and of z, which the theory takes to be equal, ``[M]``.
        share: the largest drift of their difference over tokens and times, as a share of the largest change of z; Runge-Kutta leaves less
            than a thousandth where nothing is stiff.
    """

    path: Path
    squares: Float[Tensor, " M"]
    logits: Float[Tensor, " M"]
    share: float


def can_move(contexts: Contexts) -> bool:
    """Whether softmax attention has a choice: some context holds more than one token."""
    return bool(((contexts.counts > 0).sum(1) > 1).any())


def train_softmax(read: Subject, generator: Generator) -> Softmaxed:
    """Trains a block and three with shuffled next tokens from one start.

    Args:
        read: of whose contexts one holds more than one token.
        generator: draws shuffles and start.
    Raises:
        NotConverged: a state is not finite. Source: :cite:t:`tian2024joma`.
    """
    own, model, n = read.own, Model(Softmax()), len(read.own.query)
    shuffled = [own.targets[torch.randperm(n, generator=generator)] for _ in range(SHUFFLES)]
    contexts = Contexts(own.counts, own.query, torch.stack([own.targets, *shuffled]))
    start = gaussian_block(own, units=read.classes, scale=SCALE, generator=generator)
    runs = Block(*(part.expand(1 + SHUFFLES, *part.shape) for part in (start.logits, start.lower, start.offset)))
    path = train(runs, contexts, model, step=STEP, steps=STEPS, method=rk4, keep=range(0, STEPS, STEPS // KEPT))
    z, mean = path.states.logits[..., 0, :], mean_attention(model, contexts, path)[:, 0]
    return Softmaxed(
        path,
        z - z[0],
        fixed_mean(model, contexts, path),
        moving_mean(model, contexts, path),
        float((mean[-1] - mean[0]).abs().sum()) / 2,
        float(unfactored(model, contexts, path)[[0, -1], 0].max()),
    )


def train_exponential(contexts: Contexts, classes: int, generator: Generator) -> Drift:
    """Trains a block with exponential attention.

    Args:
        contexts: of one query or several.
        classes: K, units.
        generator: draws the start.
    Raises:
        NotConverged: a state is not finite. Source: :cite:t:`tian2024joma`.
    """
    start = gaussian_block(contexts, units=classes, scale=SCALE, generator=generator)
    path = train(start, contexts, Model(Exponential()), step=STEP, steps=STEPS, method=rk4, keep=range(0, STEPS, STEPS // KEPT))
    squares, z = path.states.lower.square().sum(-2) / 2, path.states.logits[:, 0]
    share = float(drift(Exponential(), path)) / float((z - z[0]).abs().max())
    return Drift(path, squares[-1] - squares[0], z[-1] - z[0], share)
