"""The checkable statements of the theory of graph tokens."""

from .graphs import GRAPHS
from .heads import HEADS
from .layers import LAYERS

CLAIMS = HEADS + LAYERS + GRAPHS

__all__ = ["CLAIMS"]
