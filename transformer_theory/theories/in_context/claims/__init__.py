"""The checkable statements of the theory of learning in context."""

from . import algorithms, layers, steps, trained

CLAIMS = (*layers.CLAIMS, *steps.CLAIMS, *algorithms.CLAIMS, *trained.CLAIMS)

__all__ = ["CLAIMS"]
