"""Checkable statements of scan-and-snap. Each refers to one named dynamics and has a control that must fail."""

from . import theorems, training

CLAIMS = (*theorems.CLAIMS, *training.CLAIMS)

__all__ = ["CLAIMS"]
