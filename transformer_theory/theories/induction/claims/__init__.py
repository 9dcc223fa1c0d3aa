"""The checkable statements of the theory of induction heads."""

from . import chains, heads, memories, training

CLAIMS = (*heads.CLAIMS, *chains.CLAIMS, *memories.CLAIMS, *training.CLAIMS)

__all__ = ["CLAIMS"]
