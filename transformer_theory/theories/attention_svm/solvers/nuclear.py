r"""Maximum-margin token selection in the nuclear norm, the bias of descent on the factors of :math:`W = K
Q^\top`.

.. math:: \min \|W\|_* \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c \lambda_c d_c z_c^\top\Big\|_2 \le
    1,\ \lambda \ge 0,

problem (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`. The Frobenius problem decides
feasibility and provides the starting point of an interior-point method (:mod:`.interior_point`), whose answer
has at least five digits. Newton's method then refines it up to rounding errors (:mod:`.newton_polish`). Both
answers are verified, and the one with the smaller KKT residual is returned. If the queries, or the
differences, span a single dimension, W has rank one, and the Frobenius solution also solves this problem.

The solution is :math:`W = M QQ^\top` with :math:`M = \sum_c \lambda_c d_c z_c^\top`. So only the queries need
a basis: all matrices of the method have the dimension of their span. If the differences span a smaller space,
the roles of the two are swapped.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ....core.errors import NotConverged
from ....core.threads import single_threaded
from ..constraint_set import Constraints
from ..solution import RANK_RTOL, MaxMargin, MaxMargins, kkt_residual
from .dense import dot, transposed
from .frobenius import check_batch, check_single, frobenius_max_margin
from .frobenius_batched import frobenius_max_margins
from .interior_point import Cone, inside, interior_point
from .newton_polish import newton_polish, square_root
from .tolerances import GRAM_RANK_RTOL, NUCLEAR_CACHE, NUCLEAR_KKT_TOL, START_KKT_TOL

# accuracies of the interior-point method; polishing is tried after each, until it succeeds
STAGES = (1e-5, 1e-7, 1e-9)


@single_threaded
def nuclear_max_margin(constraints: Constraints, *, tol: float = NUCLEAR_KKT_TOL) -> MaxMargin:
    r"""Finds the smallest matrix, in nuclear norm (sum of singular values), that scores each selected token
    above the others by one.

    On generic data the solution is unique. If it is not (the norm is not strictly convex), one of several
    solutions is returned, and descent may converge to another. In the KKT residual, :math:`\lambda` is scaled
    such that :math:`\|M\|_2 \le 1` with :math:`M = \sum_c \lambda_c d_c z_c^\top`, and the norm is bounded
    from above by half the sum of the squared norms of two factors.

    Args:
        constraints: m constraints of a single problem, as for :func:`frobenius_max_margin`.
        tol: largest accepted KKT residual.
    Returns:
        The solution W ``[d_x, d_z]`` with its multipliers, residual, and rank by complementarity; W = 0 if it
        meets the constraints.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; ``state`` is the best iterate with its residual.
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: ``constraints`` is a batch (use :func:`nuclear_max_margins`), or ``tol`` is not positive.
    """
    check_single(constraints, tol, hint="use nuclear_max_margins")
    near = frobenius_start(constraints)
    answer = _solve(Data.of(constraints)[None], near.W.numpy()[None], near.dual.numpy()[None], tol)
    solution = _solution(answer, 0, constraints.rhs, tol)
    if solution.status != "optimal":
        raise _not_converged(solution, tol)
    return solution


@single_threaded
def nuclear_max_margins(constraints: Constraints, *, tol: float = NUCLEAR_KKT_TOL) -> MaxMargins:
    """Solves a batch of B problems like :func:`nuclear_max_margin`, but raises nothing for a problem without
    a solution.

    Args:
        constraints: a batch with one leading dimension, ``[B, m]``; :func:`~..constraint_set.stack` combines
            problems of different lengths.
        tol: largest accepted KKT residual.
    Returns:
        One solution per problem. ``status`` shows which problems have none; indexing such a problem raises
        its failure.
    Raises:
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: ``constraints`` does not have exactly one leading dimension, or ``tol`` is not positive.
    """
    check_batch(constraints, tol, single="nuclear_max_margin")
    # This is frobenius_start for a batch. The nuclear answer is verified, so the Frobenius solution that it
    # starts from need not be exact.
    near = frobenius_max_margins(constraints)
    W, dual, failures = near.W, near.dual, list(near.failures)
    for b, failure in enumerate(failures):
        state = failure.state if isinstance(failure, NotConverged) else None
        if isinstance(state, MaxMargin) and state.kkt <= START_KKT_TOL:
            W[b], dual[b], failures[b] = state.W, state.dual, None
    B, m = constraints.rhs.shape
    data, start, multipliers, answer = (
        Data.of(constraints),
        W.numpy(),
        dual.numpy(),
        Answer.none(B, m, *W.shape[1:]),
    )
    started = np.array([b for b, failure in enumerate(failures) if failure is None], dtype=int)
    number = math.ceil(len(started) * m**2 / NUCLEAR_CACHE)
    for part in np.array_split(started, number) if number else ():
        answer.put(part, _solve(data[part], start[part], multipliers[part], tol))
    failed = started[~(answer.kkt[started] <= tol)]
    for b in failed.tolist():
        failures[b] = _not_converged(_solution(answer, b, constraints.rhs[b], tol), tol)
    answer.put(failed, Answer.none(len(failed), m, *W.shape[1:]))
    W, dual, margins, norm, kkt, gap, rank = (
        torch.from_numpy(getattr(answer, field.name)) for field in fields(answer)
    )
    return MaxMargins(W, dual, margins, norm, kkt, gap, constraints.rhs, tuple(failures), rank)


def frobenius_start(constraints: Constraints) -> MaxMargin:
    """Returns a start for the solvers in other norms: the Frobenius solution, or the last iterate if W is too
    long to be verified.

    Raises:
        Infeasible, NotConverged: as for :func:`frobenius_max_margin`, if no iterate is near a solution.
    """
    try:
        return frobenius_max_margin(constraints)
    except NotConverged as failure:
        if isinstance(failure.state, MaxMargin) and failure.state.kkt <= START_KKT_TOL:
            return failure.state
        raise


def _solution(answer: "Answer", problem: int, rhs: Tensor, tol: float) -> MaxMargin:
    """Returns the solution of one problem of a batch; ``rhs`` ``[m]`` belongs to this problem alone."""
    W, dual, margins = (torch.from_numpy(v[problem].copy()) for v in (answer.W, answer.dual, answer.margins))
    norm, kkt, gap = (float(v[problem]) for v in (answer.norm, answer.kkt, answer.gap))
    status = "optimal" if kkt <= tol else "not converged"
    return MaxMargin(
        W, dual, margins, norm, kkt, gap, rhs, status=status, complementary_rank=int(answer.rank[problem])
    )


def _not_converged(solution: MaxMargin, tol: float) -> NotConverged:
    return NotConverged(
        f"the KKT residual must be at most {tol:.0e}, got {solution.kkt:.1e}: constraints nearly cancel one "
        "another, or the solution is nearly not unique; pass a larger tol, or choose other tokens or fewer "
        "inputs",
        state=solution,
        residuals=solution.kkt,
    )


def _solve(data: "Data", W: np.ndarray, dual: np.ndarray, tol: float) -> "Answer":
    """Returns the best answers to a batch of feasible problems, starting from their Frobenius solutions ``W``
    and multipliers ``dual``.
    """
    answer, size = Answer.none(*dual.shape, *W.shape[1:]), np.linalg.norm(W, axis=(-2, -1))
    answer.kkt[size == 0] = answer.gap[size == 0] = 0.0  # W = 0 meets the constraints
    unsolved = (size > 0).nonzero()[0]
    if not len(unsolved):
        return answer
    # W is measured in units of the Frobenius norm of the Frobenius solution, so that the tolerances below
    # have no unit.
    problems = Reduced.of(data[unsolved], size[unsolved])
    multipliers = dual[unsolved] / size[unsolved, None]
    if problems.cone.query.shape[-1] == 1:  # a W of rank one has the same length in all norms
        answer.improve(unsolved, problems.whole(W[unsolved], multipliers))
    point = inside(problems.cone, multipliers)
    # Polishing needs the right rank and active set. The interior point usually shows them at the first and
    # cheapest accuracy; if the polished answer fails its verification, the interior-point method continues
    # from where it stopped.
    for stage in STAGES:
        again = ~(answer.kkt[unsolved] <= tol)  # NaN counts as a failure
        if not again.any():
            break
        if not again.all():
            unsolved, point, problems = unsolved[again], point[again], problems[again]
        point = interior_point(problems.cone, point, tol=stage)
        answer.improve(unsolved, problems.factored(*newton_polish(problems.cone, point)))
        # If the solution is not unique, Newton's system is singular, and the interior point itself may be the
        # better answer.
        if not (answer.kkt[unsolved] <= tol).all():
            answer.improve(unsolved, problems.factored(point.multipliers, square_root(point.weight)))
    return answer


@dataclass(frozen=True)
class Answer:
    """The fields of :class:`~..solution.MaxMargins` that have a value for each problem, as arrays; they are
    improved in place.
    """

    W: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    norm: np.ndarray
    kkt: np.ndarray
    gap: np.ndarray
    rank: np.ndarray

    @classmethod
    def none(cls, B: int, m: int, d_x: int, d_z: int) -> "Answer":
        """Returns zeros with infinite residuals."""
        dual, margins = np.zeros((2, B, m))
        kkt, gap = np.full((2, B), np.inf)
        return cls(np.zeros((B, d_x, d_z)), dual, margins, np.zeros(B), kkt, gap, np.zeros(B, dtype=int))

    def put(self, index: np.ndarray, other: "Answer") -> None:
        """Replaces the problems that ``index`` selects by those of ``other``."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)

    def improve(self, index: np.ndarray, other: "Answer") -> None:
        """Replaces, among the problems ``index``, those for which ``other`` has a smaller residual."""
        better = other.kkt < self.kkt[index]
        self.put(index[better], Answer(*(getattr(other, field.name)[better] for field in fields(self))))


@dataclass(frozen=True)
class Data:
    """Constraints of B problems as arrays: difference ``[B, m, d_x]``, query ``[B, m, d_z]``, rhs and mask of
    the equations ``[B, m]``.
    """

    difference: np.ndarray
    query: np.ndarray
    rhs: np.ndarray
    equality: np.ndarray

    @classmethod
    def of(cls, c: Constraints) -> "Data":
        """Returns arrays that share the memory of the constraints."""
        return cls(c.difference.numpy(), c.query.numpy(), c.rhs.numpy(), c.equality.numpy())

    def __getitem__(self, index) -> "Data":
        return Data(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class Reduced:
    """B problems in the coordinates of the interior-point method: the span of the queries, or of the
    differences if that is smaller.

    Attributes:
        data: the problems in their original form.
        difference: the differences ``[B, m, p]``, or the queries if the two are swapped; they need no basis.
        basis: orthonormal columns that span the queries, or the differences if the two are swapped, ``[B, p',
            q]``.
        cone: the problems in these coordinates.
        size: Frobenius norms of the Frobenius solutions, ``[B]``, the unit of W.
        swapped: whether the roles of queries and differences are swapped.
    """

    data: Data
    difference: np.ndarray
    basis: np.ndarray
    cone: Cone
    size: np.ndarray
    swapped: bool

    @classmethod
    def of(cls, data: Data, size: np.ndarray) -> "Reduced":
        """Returns the problems reduced to the smaller of the two spans; ``size`` is the unit of
        W, ``[B]``.
        """
        coordinates, basis = _span(data.query)
        swapped = min(data.difference.shape[1:]) < basis.shape[-1]
        if swapped:
            coordinates, basis = _span(data.difference)
        difference = data.query if swapped else data.difference
        narrow = difference if difference.shape[-1] <= difference.shape[-2] else None
        cone = Cone(
            np.matmul(difference, transposed(difference)),
            coordinates,
            data.rhs / size[:, None],
            data.equality,
            narrow,
        )
        return cls(data, difference, basis, cone, size, swapped)

    def __getitem__(self, index) -> "Reduced":
        parts = (
            self.data[index],
            self.difference[index],
            self.basis[index],
            self.cone[index],
            self.size[index],
        )
        return Reduced(*parts, self.swapped)

    def factored(self, multipliers: np.ndarray, Q: np.ndarray) -> Answer:
        r"""Returns the answer :math:`W = MQQ^\top` with the bound :math:`\tfrac12(\|MQ\|_F^2 + \|Q\|_F^2)` on
        its nuclear norm.
        """
        M, inner = self._combine(multipliers), np.matmul(transposed(Q), Q)
        # Newton's method may have overflowed. Eigenvalues of a matrix with NaN raise an error for the whole
        # batch, so such an iterate is replaced by zeros, which are never the best answer: they violate a
        # constraint.
        finite = np.isfinite(M).all((-2, -1)) & np.isfinite(inner).all((-2, -1))
        if not finite.all():
            multipliers = np.where(finite[:, None], multipliers, 0.0)
            Q, M, inner = (np.where(finite[:, None, None], v, 0.0) for v in (Q, M, inner))
        # W = (M Q) Q^T. Half the sum of the squared norms of the factors bounds the nuclear norm from above
        # and needs no singular values. At the solution M Q and Q have the same singular values. Then the
        # bound is attained, and Q^T Q has the singular values of W.
        left = np.matmul(M, Q)
        norm = 0.5 * (np.square(left).sum((-2, -1)) + np.square(Q).sum((-2, -1)))
        W = np.matmul(left, transposed(np.matmul(self.basis, Q)))
        return self._checked(W, multipliers, norm, np.linalg.eigvalsh(inner)[:, ::-1], M)

    def whole(self, W: np.ndarray, multipliers: np.ndarray) -> Answer:
        """Returns the answer for a W ``[B, d_x, d_z]`` such as a Frobenius solution of rank one."""
        # The rows of W lie in the span of the basis, so the coordinates of W there have the same singular
        # values. They are padded with zeros to q values, one for each direction of the dual.
        W = (transposed(W) if self.swapped else W) / self.size[:, None, None]
        within = np.matmul(W, self.basis)
        sigma = np.zeros((len(W), within.shape[-1]))
        sigma[:, : min(within.shape[1:])] = np.linalg.svd(within, compute_uv=False)
        return self._checked(W, multipliers, sigma.sum(-1), sigma, self._combine(multipliers))

    def _combine(self, multipliers: np.ndarray) -> np.ndarray:
        """Returns M ``[B, p, q]``.

        The interior-point method forms M^T M from inner products of constraints. If constraints nearly
        cancel, this loses half of the digits, which the verification needs.
        """
        return np.matmul(transposed(self.difference), multipliers[..., None] * self.cone.query)

    def _checked(
        self, W: np.ndarray, multipliers: np.ndarray, norm: np.ndarray, sigma: np.ndarray, M: np.ndarray
    ) -> Answer:
        """Returns the answer with its residuals; ``norm`` and ``sigma`` (the singular values of W) are
        relative to ``size``.
        """
        data, cone = self.data, self.cone
        # ``bound`` holds the singular values of M. The multipliers are feasible for the dual if the largest
        # is at most one; otherwise they are divided by it. By weak duality b^T lambda then bounds the optimum
        # from below.
        bound = np.sqrt(np.maximum(np.linalg.eigvalsh(np.matmul(transposed(M), M))[:, ::-1], 0))
        dual = multipliers / np.maximum(bound[:, :1], 1)
        W = (transposed(W) if self.swapped else W) * self.size[:, None, None]
        margins = dot(np.matmul(data.difference, W), data.query)
        slack = (margins - data.rhs) / self.size[:, None]
        objective = np.maximum(norm, 1e-300)
        gap = np.abs(norm - dot(cone.rhs, dual)) / objective
        kkt = np.maximum(
            kkt_residual(slack, dual, cone.free, scale=np.abs(cone.rhs).max(-1), objective=objective), gap
        )
        kkt = np.where(np.isfinite(kkt), kkt, np.inf)
        # Complementarity: in each direction either the singular value of W or the slack 1 - bound of the dual
        # is zero at the solution. The direction belongs to W if its singular value, relative to the first, is
        # larger than the slack. Singular values and slacks are sorted in opposite order, so that the largest
        # singular value meets the smallest slack.
        rank = (sigma > np.maximum(1 - bound, RANK_RTOL) * sigma[:, :1]).sum(-1)
        return Answer(W, dual, margins, norm * self.size, kkt, gap, rank)


def _span(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates ``[B, m, q]`` and an orthonormal basis ``[B, d, q]`` of rows ``[B, m, d]``; q is
    the largest rank of all B.
    """
    # If there are more columns than rows, factorise by QR first, so that the eigenvalue problem has size
    # min(m, d).
    whole = None
    if rows.shape[-1] > rows.shape[-2]:
        whole, triangle = (v.numpy() for v in torch.linalg.qr(torch.from_numpy(rows).mT))
        rows = transposed(triangle)
    # Eigenvalues are in ascending order. The problems of a batch share one q, the largest rank; in problems
    # of lower rank some coordinates are zero up to rounding.
    values, vectors = np.linalg.eigh(np.matmul(transposed(rows), rows))
    rank = max(1, int((values > GRAM_RANK_RTOL * values[:, -1:]).sum(-1).max()))
    basis = vectors[..., -rank:]
    return np.matmul(rows, basis), basis if whole is None else np.matmul(whole, basis)
