"""The checkable statements of the theory of learning in context."""

from . import algorithms, interventions, layers, steps, trained

CLAIMS = (*layers.CLAIMS, *steps.CLAIMS, *algorithms.CLAIMS, *trained.CLAIMS, *interventions.CLAIMS)

__all__ = ["CLAIMS"]
