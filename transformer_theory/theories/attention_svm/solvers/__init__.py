r"""Solvers of the hard-margin problem :math:`\min \|W\|` subject to :class:`~..constraint_set.Constraints`, one file a norm.

They return a verified :class:`~..solution.MaxMargin` or raise; the batched ones return :class:`~..solution.MaxMargins`, a status a problem.
Source: :cite:t:`tarzanagh2023transformers`.
"""

from .frobenius import FEW, frobenius_max_margin, multipliers_of
from .frobenius_batched import frobenius_max_margins
from .generalised import Generalised, generalised_max_margin, generalised_max_margins
from .nuclear import nuclear_max_margin, nuclear_max_margins

__all__ = [
    "FEW",
    "Generalised",
    "frobenius_max_margin",
    "frobenius_max_margins",
    "generalised_max_margin",
    "generalised_max_margins",
    "multipliers_of",
    "nuclear_max_margin",
    "nuclear_max_margins",
]
