"""Checkable statements of scan-and-snap. Each refers to one named dynamics and has a control that
must fail.
"""

from . import flows, theorems, training

CLAIMS = (*theorems.CLAIMS, *flows.CLAIMS, *training.CLAIMS)

__all__ = ["CLAIMS"]
