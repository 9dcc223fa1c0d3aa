"""The checkable statements of the theory of graph tokens."""

from . import graphs, heads, layers

CLAIMS = (*heads.CLAIMS, *layers.CLAIMS, *graphs.CLAIMS)

__all__ = ["CLAIMS"]
