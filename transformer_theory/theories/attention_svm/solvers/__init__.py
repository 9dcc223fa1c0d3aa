r"""Solvers of the hard-margin problem :math:`\min \|W\|` subject to :class:`~..constraint_set.Constraints`,
by norm.

A solver of one problem returns a verified :class:`~..solution.MaxMargin` or raises an error. A solver of a
batch returns :class:`~..solution.MaxMargins` with a status per problem.

To follow one Frobenius solve, read :mod:`.frobenius` (arguments, verification, errors), :mod:`.active_set`
(the method) and :mod:`.contradictions` (proofs of infeasibility). A batch is solved in
:mod:`.frobenius_batched`; if it has more constraints than entries of W, by steps on W
(:mod:`.primal_interior`). To follow one nuclear solve, read :mod:`.nuclear` (reduction to small matrices,
verification), :mod:`.interior_point` (the method) and :mod:`.newton_polish` (the last digits). A bound on the
rank of W is in :mod:`.low_rank`. :mod:`.tolerances` lists every threshold that several files use.
"""

from .conic import lp_max_margin, official_rank, spectral_max_margin
from .frobenius import dual_multipliers, frobenius_max_margin
from .frobenius_batched import frobenius_max_margins, many_dual_multipliers
from .generalised import Generalised, generalised_max_margin, generalised_max_margins
from .low_rank import LowRank, low_rank_max_margin
from .nuclear import nuclear_max_margin, nuclear_max_margins
from .tolerances import BATCHED_SIZE, DIRECT_SIZE

__all__ = [
    "BATCHED_SIZE",
    "DIRECT_SIZE",
    "Generalised",
    "LowRank",
    "dual_multipliers",
    "frobenius_max_margin",
    "frobenius_max_margins",
    "generalised_max_margin",
    "generalised_max_margins",
    "low_rank_max_margin",
    "lp_max_margin",
    "many_dual_multipliers",
    "nuclear_max_margin",
    "nuclear_max_margins",
    "official_rank",
    "spectral_max_margin",
]
