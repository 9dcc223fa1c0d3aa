"""Checkable statements of scan-and-snap, each with a control that must fail, and each about one named dynamics."""

from . import theorems, training

CLAIMS = (*theorems.CLAIMS, *training.CLAIMS)

__all__ = ["CLAIMS"]
