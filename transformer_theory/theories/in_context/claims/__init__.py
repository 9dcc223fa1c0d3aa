"""The checkable statements of the theory of learning in context."""

from .algorithms import ALGORITHMS
from .layers import LAYERS
from .steps import STEPS
from .trained import TRAINED

CLAIMS = LAYERS + STEPS + ALGORITHMS + TRAINED

__all__ = ["CLAIMS"]
