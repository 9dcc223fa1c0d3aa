"""The checkable statements of the theory of induction heads."""

from . import chains, heads, interventions, memories, training

CLAIMS = (*heads.CLAIMS, *chains.CLAIMS, *memories.CLAIMS, *training.CLAIMS, *interventions.CLAIMS)

__all__ = ["CLAIMS"]
