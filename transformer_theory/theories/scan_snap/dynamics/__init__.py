r"""Training of the one-layer model by gradient descent, in count form: the exact dynamics, finite samples included.

The model of :cite:t:`tian2023scan`: softmax attention of the query over the contextual tokens (the query itself is no key), attended
tokens normalised to Euclidean norm one, a linear decoder Y, cross-entropy. No positions and one-hot tokens, so a sequence is its vector of
counts, and nothing costs more for a longer sequence. Everything takes leading axes of independent runs (seeds, learning rates).

:mod:`.weights` the two matrices, :mod:`.batches` any sequences and Lemma 1's descent directions, :mod:`.sampling` the paper's fresh
sequences, :mod:`.multinomial` their counts, :mod:`.grouped` their directions class by class, :mod:`.optimisers`, :mod:`.training` the
loop.
"""

from .batches import Batch, Descent, Pass, attend, epochs, forward, minibatches, population
from .grouped import GroupedBatch, Layout
from .optimisers import Adam, HeavyBall
from .sampling import sampled
from .training import State, Trajectory, gradient_descent, load, save
from .weights import Weights

__all__ = [
    "Adam",
    "Batch",
    "Descent",
    "GroupedBatch",
    "HeavyBall",
    "Layout",
    "Pass",
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
]
