r"""Gradient descent of the one-layer model in count form: the exact dynamics, finite samples included.

The model of :cite:t:`tian2023scan`: softmax attention of the query over the contextual tokens (the query is
not a key), attended tokens scaled to Euclidean norm one, a linear decoder Y, cross-entropy. Tokens are
one-hot and positions do not enter, so a sequence is a vector of counts, and the cost does not depend on its
length. All tensors can have leading axes of independent runs (seeds, learning rates).

:mod:`.model` defines the matrices, batches and descent directions, :mod:`.sampling` draws the paper's fresh
sequences, :mod:`.grouped` computes their descent directions class by class, :mod:`.minibatches` those of
counted sequences of a data set, and :mod:`.training` contains the optimisers and the loop.
"""

from .grouped import GroupedBatch, Layout
from .minibatches import SparseBatch, epochs, minibatches, sequence_batches
from .model import Batch, Descent, Pass, Weights, attend, forward, population
from .sampling import sampled
from .training import Adam, HeavyBall, Optimiser, Sequences, State, Trajectory, gradient_descent, load, save

__all__ = [
    "Adam",
    "Batch",
    "Descent",
    "GroupedBatch",
    "HeavyBall",
    "Layout",
    "Optimiser",
    "Pass",
    "Sequences",
    "SparseBatch",
    "State",
    "Trajectory",
    "Weights",
    "attend",
    "epochs",
    "forward",
    "gradient_descent",
    "load",
    "minibatches",
    "population",
    "sampled",
    "save",
    "sequence_batches",
]
