"""What must hold of the solvers whatever the problem: independent methods find the same solution.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`, which is strictly convex.
"""

import numpy as np
import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..builders import constraints
from ..constraint_set import Constraints
from ..problem import cross_attention
from ..solvers import frobenius_max_margin, frobenius_max_margins

AGREE = 1e-7  # relative distance; the general-purpose solvers reach 1e-9 here
INTERIOR_POINT = {"solver": "CLARABEL", "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
SPLITTING = {"solver": "OSQP", "eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 50_000}
LOOSE = {"solver": "SCS", "eps_abs": 1e-2, "eps_rel": 1e-2}


def _drawn(generator: torch.Generator) -> Constraints:
    instance = cross_attention(inputs=5, tokens=5, dim=6, generator=generator)
    return constraints(instance.tokens, instance.query, instance.optimal())


def _general_purpose(pairs: Constraints, options: dict) -> Tensor:
    """The solution by cvxpy, written down as the problem is stated."""
    import cvxpy as cp

    W = cp.Variable((pairs.difference.shape[1], pairs.query.shape[1]))
    margins = cp.sum(cp.multiply(pairs.difference.numpy() @ W, pairs.query.numpy()), axis=1)
    cp.Problem(cp.Minimize(cp.sum_squares(W)), [margins >= 1]).solve(**options)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy(np.array(W.value, dtype=float))


def _apart(pairs: Constraints, others: list[Tensor]) -> Evidence:
    ours = frobenius_max_margin(pairs)
    apart = [float((other - ours.W).norm()) / ours.norm for other in others]
    return Evidence(max(apart), AGREE, "<=", detail={"constraints": len(pairs), "KKT residual of ours": ours.kkt})


def _three_agree(generator: torch.Generator) -> Evidence:
    pairs = _drawn(generator)
    batch = frobenius_max_margins(pairs.problem(None))
    return _apart(pairs, [batch.W[0], _general_purpose(pairs, INTERIOR_POINT), _general_purpose(pairs, SPLITTING)])


def _loose(generator: torch.Generator) -> Evidence:
    pairs = _drawn(generator)
    return _apart(pairs, [_general_purpose(pairs, LOOSE)])


CLAIMS = (
    Claim(
        id="attention_svm/solvers-agree",
        statement=r"$\min \|W\|_F$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$ has one solution: active sets, one problem at a "
        "time and in a batch, an interior-point method (Clarabel) and operator splitting (OSQP) find the same. "
        "Value: the largest relative distance to the first.",
        source=Source("tarzanagh2023transformers"),
        assumptions=("the problem is feasible", "tight tolerances"),
        check=_three_agree,
        control=_loose,
        control_description="The others are replaced by a first-order method (SCS) that stops at a tolerance of 0.01.",
    ),
)
