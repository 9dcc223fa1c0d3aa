r"""Maximum-margin token selection in the nuclear norm, the bias of descent on the factors of :math:`W = K Q^\top`.

Source: problem (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

import numpy as np
import torch
from torch import Tensor

from ....errors import NotConverged
from ..constraint_set import Constraints
from ..solution import MaxMargin
from .frobenius import frobenius_max_margin


def nuclear_max_margin(constraints: Constraints, *, tol: float = 1e-6) -> MaxMargin:
    r"""Smallest matrix, in nuclear norm (sum of singular values), that scores every selected token above the others by one.

    Solved by an interior-point method (Clarabel, through cvxpy) in the span of the queries and of the differences,
    in which a solution lies. It need not be unique. KKT conditions checked: margins at least one, :math:`\lambda \ge 0`, complementarity,
    :math:`\|\sum_c\lambda_c F_c\|_2 \le 1`, and the gap :math:`\|W\|_* - 1^\top\lambda` relative to the objective.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        tol: largest KKT residual accepted.
    Raises:
        Infeasible: no W separates the selection; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``.

    Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    scale = frobenius_max_margin(constraints)
    if len(constraints) == 0 or scale.norm == 0:
        return scale
    import cvxpy as cp

    left, right = _basis(constraints.difference), _basis(constraints.query)
    D, Z = (
        (constraints.difference @ left).numpy() * scale.norm,
        (constraints.query @ right).numpy(),
    )  # margins of W / ||W_fro||: well scaled
    small = cp.Variable((D.shape[1], Z.shape[1]))
    margin = cp.sum(cp.multiply(D @ small, Z), axis=1)
    problem = cp.Problem(cp.Minimize(cp.normNuc(small)), [margin >= 1])  # pyright: ignore[reportArgumentType]
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_ktratio"), 1e-10)
    try:
        problem.solve(solver="CLARABEL", **tight)
    except cp.SolverError as error:
        raise NotConverged(f"the interior-point method stopped ({error})", state=scale) from error
    if small.value is None:
        raise NotConverged(f"the interior-point method stopped with status {problem.status!r}", state=scale)
    W = scale.norm * left @ torch.from_numpy(np.ascontiguousarray(small.value)) @ right.T
    margins = constraints.margins(W)
    W, margins = W / margins.min(), margins / margins.min()  # on the boundary exactly; the objective pays for it and shows it in the gap
    multipliers = torch.from_numpy(np.ascontiguousarray(problem.constraints[0].dual_value)).clamp(min=0) * scale.norm
    dual = constraints.combine(multipliers)
    multipliers, dual = (v / max(1.0, float(torch.linalg.matrix_norm(dual, 2))) for v in (multipliers, dual))
    sigma = torch.linalg.svdvals(W)
    objective = float(sigma.sum())
    slack = 1 - torch.linalg.svdvals(dual)
    gap = abs(objective - float(multipliers.sum())) / max(1.0, objective)
    kkt = max(gap, float((1 - margins).clamp(min=0).max()), float((multipliers * (margins - 1)).abs().max()) / max(1.0, objective))
    solution = MaxMargin(W, multipliers, margins, objective, kkt, gap, int((sigma / sigma[0] > slack).sum()))
    if not kkt <= tol:
        raise NotConverged(f"KKT residual must be at most {tol:.0e}, got {kkt:.1e}; pass a larger tol", state=solution, residuals=kkt)
    return solution


def _basis(rows: Tensor) -> Tensor:
    """Orthonormal basis of the span of the rows, as columns."""
    _, sigma, vectors = torch.linalg.svd(rows, full_matrices=False)
    return vectors[sigma > 1e-12 * sigma[0]].mT.contiguous()
