r"""Sparse coding by ISTA and FISTA: the optimisation problem behind the sparsification in a CRATE layer.

For tokens Y (rows) and a dictionary D (d x m, atoms are columns) the non-negative LASSO of a code Z (n x m)
is

    F(Z) = 1/2 ||Y - Z D^T||_F^2 + lambda sum(Z)      subject to  Z >= 0.

With L = ||D||_2^2 a step of ISTA (:func:`~transformer_theory.models.crate.sparsification.ista_step`) of size
eta <= 1/L descends, and lowers F by at least L/2 ||Z+ - Z||^2 if eta = 1/L. FISTA adds Nesterov's momentum: F
- F* <= 2 L ||Z_0 - Z*||^2 / (k+1)^2 after k steps.

Sources: :cite:t:`beck2009fast` (descent and rate); the duality gap is Fenchel's. Notation: docs/notation.md.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.errors import NotConverged
from ...core.threads import single_threaded
from ...core.validation import converted, finite, in_range, integers, number, positive
from ...maths.linalg import binary_scale
from ...models.crate.compression import Bases
from ...models.crate.sparsification import Code, Dictionary, Tokens, check_dictionary, curvature, ista_step

STEP_RTOL = 1e-6  # relative tolerance of the largest step: a caller's own 1/L may differ by rounding


@in_range
@converted(floats=("code", "tokens", "dictionary"))
def lasso(code: Code, tokens: Tokens, dictionary: Dictionary, *, lam: float) -> Float[Tensor, "*batch"]:
    r"""Returns :math:`F(Z) = \tfrac12\|Y - Z D^\top\|^2 + \lambda \sum Z` of a non-negative code, per batch
    element.

    Args:
        code: Z, ``[*batch, n, m]``.
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        lam: weight of the l1 norm.
    Raises:
        ValueError: shapes or dtypes do not fit, or a number is not finite or becomes so.
    """
    check_dictionary(tokens, dictionary)
    return 0.5 * (tokens - code @ dictionary.mT).square().sum((-2, -1)) + lam * code.sum((-2, -1))


def largest_step(dictionary: Dictionary) -> float:
    r"""Returns :math:`1/L = 1/\|D\|_2^2`, the longest step for which ISTA is proved to descend.

    Raises:
        ValueError: the dictionary is zero or not finite.
    """
    return 1 / curvature(dictionary)


@in_range
@single_threaded
@converted(floats=("tokens", "dictionary", "start"))
def ista(
    tokens: Tokens,
    dictionary: Dictionary,
    *,
    lam: float,
    steps: int,
    eta: float | None = None,
    start: Code | None = None,
) -> Code:
    r"""Returns the code after ``steps`` steps of ISTA, ``[*batch, n, m]``.

    ``start`` defaults to zero, the step size ``eta`` to 1/L.

    Raises:
        ValueError: shapes or dtypes do not fit, values are not finite, ``lam`` or ``steps`` is negative, or
            ``eta`` exceeds 1/L (:func:`largest_step`), so that F may rise.
    """
    integers(minimum=0, steps=steps)
    if not 0 <= number("lam", lam) < math.inf:
        raise ValueError(f"lam must be finite and at least 0, got {lam}")
    longest = largest_step(dictionary)
    if eta is not None:
        positive(eta=eta)
        if eta > longest * (1 + STEP_RTOL):
            raise ValueError(
                f"eta must be at most 1/||D||^2 = {longest:.6g}, since a longer step may raise F, got "
                f"{eta}; omit it"
            )
    code = _start(tokens, dictionary, start)
    for _ in range(steps):
        code = ista_step(code, tokens, dictionary, eta=longest if eta is None else eta, lam=lam)
    return code


@dataclass(frozen=True)
class LassoSolution:
    r"""A code that was verified to be close to the minimiser of :func:`lasso`.

    Attributes:
        code: Z >= 0, ``[*batch, n, m]``.
        objective: F of every token, ``[*batch, n]``; :func:`lasso` is its sum over tokens.
        gap: upper bound of F - F* of every token, ``[*batch, n]``; see :func:`duality_gap`.
        residual: largest :math:`|\min(z, g/L)|` of a token, relative to the largest entry of its
            :math:`|D^\top y| / L` (no unit).
        steps: number of steps taken.
    """

    code: Code
    objective: Float[Tensor, "*batch n"]
    gap: Float[Tensor, "*batch n"]
    residual: float
    steps: int


@in_range
@single_threaded
@converted(floats=("tokens", "dictionary", "start"))
def fista(
    tokens: Tokens,
    dictionary: Dictionary,
    *,
    lam: float,
    tol: float = 1e-10,
    max_steps: int = 20_000,
    start: Code | None = None,
) -> LassoSolution:
    r"""Computes the minimiser of the non-negative LASSO, by FISTA with restarts.

    Two scale-free conditions are verified for every token. The first is optimality: with the gradient
    :math:`g = D^\top(Dz - y) + \lambda` the minimiser has :math:`\min(z, g/L) = 0` in every entry. The
    largest absolute entry is compared with the length of the first step from zero, the largest entry of
    :math:`|D^\top y| / L`. The second condition concerns the objective: :func:`duality_gap` bounds F - F*,
    and this bound is compared with F*.

    Args:
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        lam: weight of the l1 norm, > 0.
        tol: largest accepted residual and gap, both relative as above.
        max_steps: largest number of steps.
        start: initial code, ``[*batch, n, m]``. None: zero.
    Raises:
        ValueError: shapes or dtypes do not fit, values are not finite, or ``lam``, ``tol`` or ``max_steps``
            is not positive.
        NotConverged: a condition fails after ``max_steps``; the error carries the last :class:`LassoSolution`
            and its residual.
    """
    positive(lam=lam, tol=tol)
    integers(max_steps=max_steps)
    L = curvature(dictionary)
    code = point = _start(tokens, dictionary, start)
    # The problem is homogeneous, and squares of scaled tokens are in range.
    c = float(binary_scale(tokens, tuple(range(tokens.ndim))))
    tokens, lam, code, point = tokens / c, lam / c, code / c, point / c
    unit = (tokens @ dictionary).abs().amax(-1) / L
    momentum = torch.ones_like(unit).unsqueeze(-1)
    solution = _solution(code, tokens, dictionary, lam=lam, L=L, unit=unit, steps=0)
    for step in range(1, max_steps + 1):
        new = ista_step(point, tokens, dictionary, eta=1 / L, lam=lam)
        # Gradient restart (O'Donoghue and Candes): point - new is a step size times the generalised gradient.
        # If it has a positive product with the last move, the momentum points uphill and is reset. Tokens do
        # not interact, so each has its own momentum.
        uphill = ((point - new) * (new - code)).sum(-1, keepdim=True) > 0
        momentum = torch.where(uphill, 1.0, momentum)
        next_momentum = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        point = new + (momentum - 1) / next_momentum * (new - code)
        code, momentum = new, next_momentum
        # F* is at least objective - gap, so the second condition below bounds the gap by a share of F*
        # without knowing it.
        solution = _solution(code, tokens, dictionary, lam=lam, L=L, unit=unit, steps=step)
        if solution.residual <= tol and bool(
            (solution.gap <= tol * (solution.objective - solution.gap)).all()
        ):
            return _rescaled(solution, c)
    # Only for the message; a token of zeros has gap and objective 0.
    gap = float((solution.gap / solution.objective).nan_to_num(0.0).max())
    raise NotConverged(
        f"fista: residual and gap must fall to {tol:.1e}, got {solution.residual:.1e} and {gap:.1e} after "
        f"{max_steps} steps; raise max_steps or tol",
        _rescaled(solution, c),
        solution.residual,
    )


@converted(floats=("code", "tokens", "dictionary"))
def duality_gap(
    code: Code, tokens: Tokens, dictionary: Dictionary, *, lam: float
) -> Float[Tensor, "*batch n"]:
    r"""Returns an upper bound of F - F* for each token, >= 0: F minus a value of the dual problem, ``[*batch,
    n]``.

    The dual of :math:`\min_{z \ge 0} \tfrac12\|y - Dz\|^2 + \lambda 1^\top z` is to maximise
    :math:`\tfrac12\|y\|^2 - \tfrac12\|y - \theta\|^2` subject to :math:`D^\top\theta \le \lambda`. With r = y
    - D z the scaled residual
    :math:`\theta = s r`, :math:`s = \lambda / \max(\lambda, \max_j (D^\top r)_j)`, is feasible. The gap is
    then a sum of terms >= 0,

    .. math:: \tfrac12 (1 - s)^2 \|r\|^2 + \sum_j z_j (\lambda - s (D^\top r)_j),

    which needs no cancellation and is zero at the minimiser.

    Args:
        code: Z >= 0, ``[*batch, n, m]``.
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        lam: weight of the l1 norm, > 0.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``lam`` is not positive and finite.
    """
    positive(lam=lam)
    check_dictionary(tokens, dictionary)
    residual = tokens - code @ dictionary.mT
    return _gap(code, residual, residual @ dictionary, lam)


def _gap(code: Tensor, residual: Tensor, correlations: Tensor, lam: float) -> Tensor:
    """Returns the duality gap of a code, given ``residual`` r and ``correlations`` D^T r."""
    scale = lam / correlations.amax(-1, keepdim=True).clamp(min=lam)
    # rounding may leave the largest correlation slightly above lambda
    slack = (lam - scale * correlations).clamp(min=0)
    return 0.5 * (1 - scale.squeeze(-1)).square() * residual.square().sum(-1) + (code * slack).sum(-1)


def _solution(
    code: Tensor, tokens: Tensor, dictionary: Tensor, *, lam: float, L: float, unit: Tensor, steps: int
) -> LassoSolution:
    """Returns a code with its objective, duality gap and residual; ``unit`` is the length of the first step
    from zero.
    """
    difference = tokens - code @ dictionary.mT
    correlations = difference @ dictionary
    objective = 0.5 * difference.square().sum(-1) + lam * code.sum(-1)
    violation = torch.minimum(code, (lam - correlations) / L).abs().amax(-1)
    # A token of zeros has violation 0 and unit 0; the residual is then 0, not 0/0.
    residual = float(torch.where(violation > 0, violation / unit, 0.0).max())
    return LassoSolution(code, objective, _gap(code, difference, correlations, lam), residual, steps)


def _rescaled(solution: LassoSolution, c: float) -> LassoSolution:
    """Returns the solution of the problem whose tokens and lambda are c times as large."""
    return replace(
        solution, code=c * solution.code, objective=c * (c * solution.objective), gap=c * (c * solution.gap)
    )


def _start(tokens: Tensor, dictionary: Tensor, start: Tensor | None) -> Tensor:
    """Checks shapes and values, and returns the initial code, zero by default."""
    check_dictionary(tokens, dictionary)
    finite(tokens=tokens)
    shape = (*tokens.shape[:-1], dictionary.shape[1])
    if start is None:
        return tokens.new_zeros(shape)
    if start.shape != shape:
        raise ValueError(
            f"start must have one entry per atom for each token, {list(shape)}, got {list(start.shape)}"
        )
    finite(start=start)
    return start


def signed_dictionary(bases: Bases) -> Dictionary:
    """Returns D = [U_1 ... U_K, -U_1 ... -U_K], [d, 2 K p]: a token of one subspace needs at most p of its
    atoms.
    """
    columns = bases.transpose(0, 1).flatten(1)
    return torch.cat([columns, -columns], dim=1)


def optimal_code(tokens: Float[Tensor, "n d"], bases: Bases, *, lam: float) -> Float[Tensor, "n m"]:
    r"""Returns the minimiser of the non-negative LASSO in D = [U, -U] for orthonormal columns U = [U_1 ...
    U_K], [n, 2 K p].

    With w = U^T z the objective is a sum over coordinates, so the minimiser is :math:`\mathrm{relu}(\pm w -
    \lambda)`.
    """
    coords = tokens @ bases.transpose(0, 1).flatten(1)
    return torch.cat([(coords - lam).relu(), (-coords - lam).relu()], dim=1)
