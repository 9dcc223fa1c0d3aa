r"""What finite sequences alone make of a prediction for infinitely long ones: descent on sequences drawn from the theory itself.

The flows are about sequences without end. How long is long enough depends on the classes, on rates and on steps, not on length alone, so it
is measured: as many sequences as were learnt, of the same length and next tokens, are drawn from the counted :math:`P(l | n)`, and learnt
with the same rates and steps. Here the theory is right but for length; where the exact flow is wrong on *these*, being wrong on the data
says nothing about it.

Source: ours; the flows and their assumption of long sequences are those of :cite:t:`tian2023scan`.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .dynamics import Batch, Weights, epochs, gradient_descent
from .dynamics.multinomial import Multinomial
from .predictions import Prediction
from .subject import Subject
from .trained import BATCH, Trained

SETS = 2  # of sequences, each as many as were learnt


def redrawn_error(read: Subject, flow: Prediction, trained: Trained, *, eta_y: float, eta_z: float, generator: Generator) -> float:
    """Relative error of the flow on redrawn sequences, the worse of two sets: see :func:`relative_error`.

    Args:
        read: the sequences.
        flow: a prediction of the logits of all tokens.
        trained: the training on the data, whose steps are taken.
        eta_y, eta_z: learning rates.
        generator: draws sequences and batches.
    Raises:
        NotConverged: the weights became infinite.

    Source: ours.
    """
    numbers = np.random.Generator(np.random.Philox(int(torch.randint(2**63 - 1, (1,), generator=generator))))
    source, target, query = Multinomial(read.classes.conditional.numpy(), read.context, tabled=0), read.counted.target, read.counted.query
    counts = torch.stack([torch.from_numpy(source.draw(target.numpy(), numbers)).double() for _ in range(SETS)])
    draw = epochs(len(target), BATCH, generator=generator)

    def batch(step: int) -> Batch:
        index = draw(step)
        return Batch(counts[:, index], query[index].expand(SETS, -1), target[index].expand(SETS, -1))

    start = Weights.zeros(read.classes.tokens, 1, read.classes.classes, read.classes.vocab_size, runs=(SETS,))
    path = gradient_descent(start, batch, steps=trained.steps, eta_y=eta_y, eta_z=eta_z)
    return float(relative_error(flow.logits[-1], path.final.attention[:, 0]).max())


def relative_error(predicted: Float[Tensor, " S"], change: Float[Tensor, "runs S"]) -> Float[Tensor, " runs"]:
    """Euclidean distance of predicted and measured change of the logits, as a share of the measured one.

    Source: ours.
    """
    return torch.linalg.vector_norm(predicted - change, dim=1) / torch.linalg.vector_norm(change, dim=1).clamp(min=1e-300)
