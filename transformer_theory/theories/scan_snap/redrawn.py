r"""What finite sequences alone make of a prediction for infinitely long ones: descent on sequences drawn from the theory itself.

The flows are about sequences without end. How long is long enough depends on the classes, on rates and on steps, not on length alone, so it
is measured: as many sequences as were learnt, of the same length and next tokens, are drawn from the counted :math:`P(l | n)`, and learnt
with the same rates and steps. Here the theory is right but for length; where its prediction misses a line on *these*, missing it on the
data says nothing about the theory.

Source: ours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from .dynamics import Batch, Weights, epochs, gradient_descent
from .dynamics.multinomial import Multinomial
from .orders import agreement
from .predictions import Prediction, half_way
from .subject import Subject
from .trained import BATCH, Trained

SETS = 2  # of sequences, each as many as were learnt


@dataclass(frozen=True)
class Redrawn:
    """A prediction beside descent on redrawn sequences, the worst of two sets.

    Attributes:
        order: rank correlation of predicted and measured change of the logits, the smallest.
        error: distance of predicted and measured change as a share of the measured one, the largest.
        factor: between predicted and measured half-way step, the largest.
    """

    order: float
    error: float
    factor: float


def redrawn(
    read: Subject, flow: Prediction, trained: Trained, *, top: Int[Tensor, " some"], eta_y: float, eta_z: float, generator: Generator
) -> Redrawn:
    """Learns what the flow would be right about, were sequences long.

    Args:
        read: the sequences.
        flow: a prediction of the logits of all tokens.
        trained: the training on the data, whose steps are taken.
        top: tokens whose order is compared.
        eta_y, eta_z: learning rates.
        generator: draws sequences and batches.
    Raises:
        NotConverged: the weights became infinite.

    Source: ours.
    """
    z, times = _logits(read, trained, eta_y, eta_z, generator), trained.path.steps.double()
    orders = agreement(flow.logits[-1, top], z[-1][:, top])
    errors = relative_error(flow.logits[-1], z[-1])
    factors = factor(half_way(times, flow.logits), torch.tensor([half_way(times, z[:, run]) for run in range(SETS)]))
    return Redrawn(float(orders.min()), float(errors.max()), float(factors.max()))


def relative_error(predicted: Float[Tensor, " S"], change: Float[Tensor, "runs S"]) -> Float[Tensor, " runs"]:
    """Euclidean distance of predicted and measured change of the logits, as a share of the measured one.

    Source: ours.
    """
    return torch.linalg.vector_norm(predicted - change, dim=1) / torch.linalg.vector_norm(change, dim=1).clamp(min=1e-300)


def factor(predicted: float, measured: Float[Tensor, " runs"]) -> Float[Tensor, " runs"]:
    """Between half-way steps, at least 1; the first step is the earliest that counts.

    Source: ours.
    """
    return (measured.clamp(min=1) / max(predicted, 1)).log().abs().exp()


def _logits(read: Subject, trained: Trained, eta_y: float, eta_z: float, generator: Generator) -> Float[Tensor, "t sets S"]:
    """Attention logits over the steps, learnt from each of the sets."""
    numbers = np.random.Generator(np.random.Philox(int(torch.randint(2**63 - 1, (1,), generator=generator))))
    source, target, query = Multinomial(read.classes.conditional.numpy(), read.context, tabled=0), read.counted.target, read.counted.query
    counts = torch.stack([torch.from_numpy(source.draw(target.numpy(), numbers)).double() for _ in range(SETS)])
    draw = epochs(len(target), BATCH, generator=generator)

    def batch(step: int) -> Batch:
        index = draw(step)
        return Batch(counts[:, index], query[index].expand(SETS, -1), target[index].expand(SETS, -1))

    start = Weights.zeros(read.classes.tokens, 1, read.classes.classes, read.classes.vocab_size, runs=(SETS,))
    kept = trained.path.steps.tolist()
    return gradient_descent(start, batch, steps=trained.steps, eta_y=eta_y, eta_z=eta_z, keep=kept).attention[:, :, 0]
