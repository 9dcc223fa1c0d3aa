r"""Sparse coding by ISTA and FISTA: the sparsification half of a CRATE layer.

For tokens Y (rows) and a dictionary D (d x m, atoms are columns) the non-negative LASSO of a code Z (n x m) is

    F(Z) = 1/2 ||Y - Z D^T||_F^2 + lambda sum(Z)      subject to  Z >= 0.

One proximal gradient step from Z is ISTA,

    Z+ = relu(Z + eta (Y - Z D^T) D - eta lambda);

for eta <= 1/L with L = ||D||_2^2 it lowers F by at least L/2 ||Z+ - Z||^2 (at eta = 1/L). FISTA adds Nesterov's momentum:
F - F* <= 2 L ||Z_0 - Z*||^2 / (k+1)^2 after k steps.
CRATE's layer is one ISTA step from Z = Y with a square D, :func:`from_tokens`; CRATE-alpha's two from zero with more atoms than
dimensions, :func:`overcomplete_code`.

Sources: :cite:t:`beck2009fast` (descent and rate), :cite:t:`yu2023white`, :cite:t:`yang2024scaling` (the layers).
Notation: docs/notation.md.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ...core.errors import NotConverged
from .checks import positive, same_kind

MANY = 4  # tokens a dimension from which one product with A is faster than two with D
ROUNDING = 1e-6  # of 1/L, so that a step computed as 1/L elsewhere passes


def lasso(
    code: Float[Tensor, "*batch n m"], tokens: Float[Tensor, "*batch n d"], dictionary: Float[Tensor, "d m"], *, lam: float
) -> Float[Tensor, "*batch"]:
    r"""F(Z) = ½‖Y − Z Dᵀ‖² + λ ΣZ of a non-negative code, per batch element.

    Raises:
        ValueError: shapes do not fit. Source: :cite:t:`yu2023white`.
    """
    _check(tokens, dictionary)
    return 0.5 * (tokens - code @ dictionary.mT).square().sum((-2, -1)) + lam * code.sum((-2, -1))


def ista_step(
    code: Float[Tensor, "*batch n m"], tokens: Float[Tensor, "*batch n d"], dictionary: Float[Tensor, "d m"], *, eta: float, lam: float
) -> Float[Tensor, "*batch n m"]:
    r"""relu(Z + η (Y − Z Dᵀ) D − ηλ): one proximal gradient step on :func:`lasso`.

    >>> from transformer_theory import crate
    >>> token = torch.tensor([[1.0, 0.05, -1.0]])
    >>> crate.ista_step(torch.zeros(1, 3), token, torch.eye(3), eta=1.0, lam=0.1)  # small and negative entries become zero
    tensor([[0.9000, 0.0000, 0.0000]])

    Args:
        code: Z, where the step starts.
        tokens: Y, what is coded.
        dictionary: D, atoms as columns.
        eta: step size; F falls for eta <= 1/L, L = ||D||_2^2.
        lam: weight of the l1 norm.
    Raises:
        ValueError: shapes do not fit. Source: :cite:t:`beck2009fast`.
    """
    _check(tokens, dictionary)
    return functional.relu(code + eta * (tokens - code @ dictionary.mT) @ dictionary - eta * lam)


def from_tokens(
    tokens: Float[Tensor, "*batch n d"], dictionary: Float[Tensor, "d d"], *, eta: float, lam: float
) -> Float[Tensor, "*batch n d"]:
    r"""The sparsification of a CRATE layer, one ISTA step from Z = Y with a square dictionary: relu(Y + η (Y − Y Dᵀ) D − ηλ).

    As Y − η (Y Dᵀ − Y) D is linear in Y, many tokens take one product with A = I + η Dᵀ (I − D), which is formed in the precision of D,
    also under autocast; few tokens take two with D.

    Args:
        tokens: Y, the start and what is coded, ``[*batch, n, d]``.
        dictionary: D, [d, d].
        eta: step size.
        lam: weight of the l1 norm.
    Raises:
        ValueError: shapes or dtypes do not fit. Source: :cite:t:`yu2023white`.
    """
    d = len(dictionary)
    if tokens.numel() < MANY * d * d:
        return ista_step(tokens, tokens, dictionary, eta=eta, lam=lam)
    _check(tokens, dictionary)
    with torch.autocast(tokens.device.type, enabled=False):
        eye = torch.eye(d, dtype=dictionary.dtype, device=dictionary.device)
        A = torch.addmm(eye, dictionary.mT, eye - dictionary, alpha=eta)
    return functional.linear(tokens, A, A.new_full((d,), -eta * lam)).relu_()


def ista(
    tokens: Float[Tensor, "*batch n d"],
    dictionary: Float[Tensor, "d m"],
    *,
    lam: float,
    steps: int,
    eta: float | None = None,
    start: Float[Tensor, "*batch n m"] | None = None,
) -> Float[Tensor, "*batch n m"]:
    r"""``steps`` proximal gradient steps from ``start`` (zero if not given) with step size ``eta`` (1/L if not given).

    Raises:
        ValueError: shapes or dtypes do not fit, or ``eta`` exceeds 1/L, up to which the objective is sure to fall
            (:func:`largest_step`). Source: :cite:t:`beck2009fast`.
    """
    eta = _check_step(eta, dictionary)
    code = _start(tokens, dictionary, start)
    for _ in range(steps):
        code = ista_step(code, tokens, dictionary, eta=eta, lam=lam)
    return code


def fista_steps(
    start: Float[Tensor, "*batch n m"],
    tokens: Float[Tensor, "*batch n d"],
    dictionary: Float[Tensor, "d m"],
    *,
    eta: float,
    lam: float,
    steps: int,
) -> Float[Tensor, "*batch n m"]:
    r"""A fixed number of FISTA steps from ``start``: ISTA steps from a point that runs ahead by Nesterov's momentum, no restarts.

    After k steps with eta = 1/L, :math:`F - F^* \le 2 L \|Z_0 - Z^*\|^2 / (k+1)^2`. Arguments as in :func:`ista_step`.

    Raises:
        ValueError: shapes or dtypes do not fit. Source: :cite:t:`beck2009fast`.
    """
    code, point, momentum = start, start, 1.0
    for _ in range(steps):
        new = ista_step(point, tokens, dictionary, eta=eta, lam=lam)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = new + (momentum - 1) / faster * (new - code)
        code, momentum = new, faster
    return code


def overcomplete_code(
    tokens: Float[Tensor, "*batch n d"], dictionary: Float[Tensor, "d m"], *, eta: float, lam: float
) -> Float[Tensor, "*batch n m"]:
    r"""Two ISTA steps from zero, the first without a product: Z₁ = relu(η Y D − ηλ), Z₂ = relu(Z₁ + η (Y − Z₁ Dᵀ) D − ηλ).

    Raises:
        ValueError: shapes or dtypes do not fit. Source: :cite:t:`yang2024scaling`.
    """
    _check(tokens, dictionary)
    first = functional.relu(eta * (tokens @ dictionary) - eta * lam)
    return ista_step(first, tokens, dictionary, eta=eta, lam=lam)


@dataclass(frozen=True)
class LassoSolution:
    r"""A code that was verified to be near the minimiser of :func:`lasso`.

    Attributes:
        code: Z >= 0, ``[*batch, n, m]``.
        objective: F of every token, ``[*batch, n]``; :func:`lasso` is its sum over tokens.
        gap: at least F - F* of every token, ``[*batch, n]``; see :func:`duality_gap`.
        residual: largest :math:`|\min(z, g/L)|` of a token, over the largest entry of its :math:`|D^\top y| / L` (no unit).
        steps: how many were taken.
    """

    code: Float[Tensor, "*batch n m"]
    objective: Float[Tensor, "*batch n"]
    gap: Float[Tensor, "*batch n"]
    residual: float
    steps: int


def fista(
    tokens: Float[Tensor, "*batch n d"],
    dictionary: Float[Tensor, "d m"],
    *,
    lam: float,
    tol: float = 1e-10,
    max_steps: int = 20_000,
    start: Float[Tensor, "*batch n m"] | None = None,
) -> LassoSolution:
    r"""The minimiser of the non-negative LASSO, by FISTA; a token whose momentum points uphill starts anew (tokens do not interact).

    Two things are verified of every token, neither of which depends on units. The optimality conditions: with
    :math:`g = (Dz - y)^\top D + \lambda`, at the optimum :math:`\min(z, g/L) = 0` in every entry; held against the first step from zero,
    the largest entry of :math:`|D^\top y| / L`. And the objective: :func:`duality_gap` bounds F - F*, held against F*.

    Args:
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        lam: weight of the l1 norm, > 0.
        tol: largest residual and largest gap accepted, relative as above.
        max_steps: before giving up.
        start: a code to start from; zero if not given.
    Returns:
        :class:`LassoSolution`.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``lam`` is not positive and finite.
        NotConverged: a condition is not met after ``max_steps``; carries the last :class:`LassoSolution` and its residual.
            Source: :cite:t:`beck2009fast`.
    """
    positive(lam=lam)
    L = curvature(dictionary)
    code = point = _start(tokens, dictionary, start)
    unit = (tokens @ dictionary).abs().amax(-1) / L
    momentum = torch.ones_like(unit).unsqueeze(-1)
    found = _judge(code, tokens, dictionary, lam=lam, L=L, unit=unit, steps=0)
    for step in range(1, max_steps + 1):
        new = ista_step(point, tokens, dictionary, eta=1 / L, lam=lam)
        uphill = ((point - new) * (new - code)).sum(-1, keepdim=True) > 0
        momentum = torch.where(uphill, 1.0, momentum)
        faster = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        point = new + (momentum - 1) / faster * (new - code)
        code, momentum = new, faster
        found = _judge(code, tokens, dictionary, lam=lam, L=L, unit=unit, steps=step)
        if found.residual <= tol and bool((found.gap <= tol * (found.objective - found.gap)).all()):
            return found
    gap = float((found.gap / found.objective).nan_to_num(0.0).max())
    raise NotConverged(
        f"fista: residual and gap must fall to {tol:.1e}, got {found.residual:.1e} and {gap:.1e} after {max_steps} steps; "
        "raise max_steps or tol",
        found,
        found.residual,
    )


def duality_gap(
    code: Float[Tensor, "*batch n m"], tokens: Float[Tensor, "*batch n d"], dictionary: Float[Tensor, "d m"], *, lam: float
) -> Float[Tensor, "*batch n"]:
    r"""How far F of each token can be above its minimum: the distance to a value of the dual problem, ``[*batch, n]``, >= 0.

    The dual of :math:`\min_{z \ge 0} \tfrac12\|y - Dz\|^2 + \lambda 1^\top z` is to maximise
    :math:`\tfrac12\|y\|^2 - \tfrac12\|y - \theta\|^2` subject to :math:`D^\top\theta \le \lambda`. With r = y - D z the scaled residual
    :math:`\theta = s r`, :math:`s = \min(1, \lambda / \max_j (D^\top r)_j)`, is feasible, and the distance is a sum of terms >= 0,

    .. math:: \tfrac12 (1 - s)^2 \|r\|^2 + \sum_j z_j (\lambda - s (D^\top r)_j),

    which loses nothing to cancellation and is zero at the minimiser.

    Args:
        code: Z >= 0, ``[*batch, n, m]``.
        tokens: Y, ``[*batch, n, d]``.
        dictionary: D, [d, m].
        lam: weight of the l1 norm, > 0.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``lam`` is not positive and finite. Source: textbook (Fenchel duality).
    """
    positive(lam=lam)
    _check(tokens, dictionary)
    left = tokens - code @ dictionary.mT
    return _gap(code, left, left @ dictionary, lam)


def _gap(code: Tensor, left: Tensor, along: Tensor, lam: float) -> Tensor:
    """The duality gap of a code whose residuals are r = ``left`` and D^T r = ``along``."""
    scale = lam / along.amax(-1, keepdim=True).clamp(min=lam)
    slack = (lam - scale * along).clamp(min=0)  # the largest entry may round to just above lambda
    return 0.5 * (1 - scale.squeeze(-1)).square() * left.square().sum(-1) + (code * slack).sum(-1)


def _judge(code: Tensor, tokens: Tensor, dictionary: Tensor, *, lam: float, L: float, unit: Tensor, steps: int) -> LassoSolution:
    """A code with what is known of its distance to the minimiser."""
    left = tokens - code @ dictionary.mT
    along = left @ dictionary
    objective = 0.5 * left.square().sum(-1) + lam * code.sum(-1)
    off = torch.minimum(code, (lam - along) / L).abs().amax(-1)
    residual = float(torch.where(off > 0, off / unit, 0.0).max())  # a token of zeros has the code zero and no unit
    return LassoSolution(code, objective, _gap(code, left, along, lam), residual, steps)


def curvature(dictionary: Float[Tensor, "d m"]) -> float:
    r"""L = ‖D‖₂², the Lipschitz constant of the LASSO's gradient; ISTA descends for η ≤ 1/L.

    Raises:
        ValueError: the dictionary is zero. Source: :cite:t:`beck2009fast`.
    """
    L = float(torch.linalg.matrix_norm(dictionary, 2)) ** 2
    if not L > 0:
        raise ValueError("dictionary must not be zero: it has no atom to code with")
    return L


def largest_step(dictionary: Float[Tensor, "d m"]) -> float:
    r"""1/L = 1/‖D‖₂², the longest step with which ISTA is sure to descend.

    By singular values: power iteration meets the norm from below, so it would allow steps that are too long.

    Raises:
        ValueError: the dictionary is zero. Source: :cite:t:`beck2009fast`.
    """
    return 1 / curvature(dictionary)


def _check_step(eta: float | None, dictionary: Tensor) -> float:
    longest = largest_step(dictionary)
    if eta is None:
        return longest
    positive(eta=eta)
    if eta > longest * (1 + ROUNDING):
        raise ValueError(f"eta must be at most 1/||D||^2 = {longest:.6g}, beyond which ISTA need not descend, got {eta}; leave it out")
    return eta


def _start(tokens: Tensor, dictionary: Tensor, start: Tensor | None) -> Tensor:
    _check(tokens, dictionary)
    return tokens.new_zeros(*tokens.shape[:-1], dictionary.shape[1]) if start is None else start


def _check(tokens: Tensor, dictionary: Tensor) -> None:
    same_kind(tokens=tokens, dictionary=dictionary)
    if tokens.shape[-1] != dictionary.shape[0]:
        raise ValueError(f"tokens [..., n, d] and dictionary [d, m] must share d, got {list(tokens.shape)} and {list(dictionary.shape)}")
