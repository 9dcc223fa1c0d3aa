"""The checkable statements of the theory of induction heads."""

from .chains import CHAINS
from .heads import HEADS
from .memories import MEMORY
from .training import TRAINING

CLAIMS = HEADS + CHAINS + MEMORY + TRAINING

__all__ = ["CLAIMS"]
