"""Checkable statements about the construction and about transformers without positions, each with a control
that must fail.
"""

from . import construction, interventions, invariance, precision

CLAIMS = (*construction.CLAIMS, *precision.CLAIMS, *invariance.CLAIMS, *interventions.CLAIMS)

__all__ = ["CLAIMS"]
