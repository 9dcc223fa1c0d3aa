"""Checkable statements on coding rates, the MCR² optimum, ReduNet and clustering, each with a control that must fail."""

from . import algorithms, optimum, rates

CLAIMS = (*rates.CLAIMS, *optimum.CLAIMS, *algorithms.CLAIMS)

__all__ = ["CLAIMS"]
