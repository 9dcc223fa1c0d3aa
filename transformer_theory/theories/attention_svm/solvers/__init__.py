r"""Solvers of the hard-margin problem :math:`\min \|W\|` subject to :class:`~..constraint_set.Constraints`, one file a norm.

They return a verified :class:`~..solution.MaxMargin` or raise; the batched ones return :class:`~..solution.MaxMargins`, a status a problem.
Source: :cite:t:`tarzanagh2023transformers`.
"""

from .frobenius import FEW, frobenius_max_margin, multipliers_of
from .frobenius_batched import frobenius_max_margins
from .generalised import Generalised, generalised_max_margin, generalised_max_margins
from .nuclear import nuclear_max_margin, nuclear_max_margins
from .official import official_rank, rank
from .other_norms import lp_max_margin, spectral_max_margin

__all__ = [
    "FEW",
    "Generalised",
    "frobenius_max_margin",
    "frobenius_max_margins",
    "generalised_max_margin",
    "generalised_max_margins",
    "lp_max_margin",
    "multipliers_of",
    "nuclear_max_margin",
    "nuclear_max_margins",
    "official_rank",
    "rank",
    "spectral_max_margin",
]
