r"""Max-margin solutions of bounded rank: local solutions in factors, and a test whether the bound matters.

.. math:: \min_{K, Q} \tfrac12 (\|K\|_F^2 + \|Q\|_F^2) \quad \text{subject to} \quad d_c^\top K Q^\top z_c \ge
    b_c,

with m columns in K and Q. The minimum is that of :math:`\|W\|_\star` over W of rank at most m under the same
constraints, the problem (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`. If some nuclear
solution has rank at most m, the bound changes nothing. Below that rank the problem is not convex. A
stationary point has multipliers :math:`\lambda \ge 0` with

.. math:: M Q = K, \qquad M^\top K = Q, \qquad M = \sum_c \lambda_c d_c z_c^\top .

Then :math:`\|W\|_\star = \sum_c \lambda_c b_c`, and M maps right singular vectors of W to left ones. So the
multipliers solve the dual of the problem without the bound, and W is a nuclear solution, if and only if the
*price* :math:`\|M\|_2` is one. Where the bound matters it is larger: a further column of K and Q along the
first singular vectors of M would lower the norm. The test is this library's own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.errors import NotConverged
from ....core.threads import single_threaded
from ..constraint_set import HINT, Constraints
from ..validation import check_real, check_type

STATIONARY = 1e-5  # largest residual of an answer
MAX_ITERATIONS = 500


@dataclass(frozen=True)
class LowRank:
    r"""A stationary point of the problem in factors.

    Attributes:
        K, Q: the factors, ``[d_x, m]`` and ``[d_z, m]``.
        norm: :math:`(\|K\|_F^2 + \|Q\|_F^2)/2`, which is the nuclear norm of :math:`K Q^\top` at a stationary
            point.
        price: :math:`\|M\|_2`; one if W is a nuclear solution, more if the bound on the rank matters.
        residual: largest of the violation of a margin, and of the residual of stationarity relative to the
            factors.
    """

    K: Float[Tensor, "d_x m"]
    Q: Float[Tensor, "d_z m"]
    norm: float
    price: float
    residual: float

    @property
    def W(self) -> Float[Tensor, "d_x d_z"]:
        """The weights K Q^T."""
        return self.K @ self.Q.mT


@single_threaded
def low_rank_max_margin(
    constraints: Constraints, K: Float[Tensor, "d_x m"], Q: Float[Tensor, "d_z m"]
) -> LowRank:
    """Finds a stationary point near factors that meet all constraints up to a positive factor, by sequential
    quadratic programming.

    Args:
        constraints: one problem of inequalities with positive right-hand sides.
        K, Q: first factors, with positive margins.
    Returns:
        A stationary point: a local solution, which need not be the best.
    Raises:
        ValueError: there are equations or right-hand sides that are not positive, some margin of the first
            factors is not positive, or shapes do not fit.
        NotConverged: the result violates a constraint or is not stationary; from other factors it may be.
        TypeError: an argument has the wrong type.
    """
    from scipy.optimize import minimize, nnls

    check_type("constraints", constraints, Constraints, hint=HINT)
    if constraints.batch or bool(constraints.equality.any()) or not bool((constraints.rhs > 0).all()):
        raise ValueError(
            "constraints must be one problem of inequalities with positive right-hand sides, got others; "
            "constraints() makes it"
        )
    check_real("K", K, "[d_x, m]", 2)
    check_real("Q", Q, "[d_z, m]", 2)
    D, Z, b = constraints.difference.numpy(), constraints.query.numpy(), constraints.rhs.numpy()
    rows, width = D.shape[1], K.shape[1]
    first = np.concatenate([K.numpy(), Q.numpy()])
    least = float((constraints.margins(K @ Q.mT) / constraints.rhs).min())
    if not least > 0:
        raise ValueError(
            f"K Q^T must have positive margins, got {least:.3g}; start from factors that select the tokens"
        )

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = x.reshape(-1, width)
        return both[:rows], both[rows:]

    def margins(x: np.ndarray) -> np.ndarray:
        K, Q = halves(x)
        return ((D @ K) * (Z @ Q)).sum(1) - b

    def slopes(x: np.ndarray) -> np.ndarray:
        K, Q = halves(x)
        both = np.concatenate([D[:, :, None] * (Z @ Q)[:, None], Z[:, :, None] * (D @ K)[:, None]], 1)
        return both.reshape(len(D), -1)

    end = minimize(
        lambda x: (x @ x / 2, x),
        (first / least**0.5).ravel(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": margins, "jac": slopes},
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-13},
    ).x
    # The multipliers of the active constraints, by non-negative least squares.
    active = margins(end) < 1e-5
    weights, distance = nnls(slopes(end)[active].T, end) if active.any() else (np.zeros(0), np.inf)
    M = (D[active] * weights[:, None]).T @ Z[active]
    residual = max(float(-(margins(end) / b).min()), float(distance / np.linalg.norm(end)))
    K_end, Q_end = (torch.from_numpy(half.copy()) for half in halves(end))
    answer = LowRank(K_end, Q_end, float(end @ end / 2), float(np.linalg.norm(M, 2)), max(residual, 0.0))
    if not answer.residual < STATIONARY:
        raise NotConverged(
            f"sequential quadratic programming stopped at a residual of {residual:.1e}; try other factors"
        )
    return answer
