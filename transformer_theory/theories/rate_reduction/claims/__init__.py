"""Checkable statements on coding rates, the MCR² optimum, ReduNet and clustering, each with a control that
must fail.
"""

from . import algorithms, landscape, layers, lengths, optimum, rates

CLAIMS = (
    *rates.CLAIMS,
    *lengths.CLAIMS,
    *optimum.CLAIMS,
    *landscape.CLAIMS,
    *layers.CLAIMS,
    *algorithms.CLAIMS,
)

__all__ = ["CLAIMS"]
