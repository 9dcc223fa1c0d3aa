r"""Sparse coding by ISTA and FISTA: the sparsification half of a CRATE layer.

For tokens Y (rows) and a dictionary D (d x m, atoms are columns) the non-negative LASSO of a code Z (n x m) is

    F(Z) = 1/2 ||Y - Z D^T||_F^2 + lambda sum(Z)      subject to  Z >= 0.

One proximal gradient step from Z is ISTA,

    Z+ = relu(Z + eta (Y - Z D^T) D - eta lambda);

for eta <= 1/L with L = ||D||_2^2 it lowers F by at least L/2 ||Z+ - Z||^2 (at eta = 1/L). FISTA adds Nesterov's momentum:
F - F* <= 2 L ||Z_0 - Z*||^2 / (k+1)^2 after k steps.
CRATE's layer is one ISTA step from Z = Y with a square D: relu(Y + eta (Y - Y D^T) D - eta lambda).

Sources: :cite:t:`beck2009fast` (descent and rate), :cite:t:`yu2023white` (the layer). Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ...errors import NotConverged


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
        ValueError: shapes do not fit. Source: :cite:t:`beck2009fast`.
    """
    eta = 1 / curvature(dictionary) if eta is None else eta
    code = _start(tokens, dictionary, start)
    for _ in range(steps):
        code = ista_step(code, tokens, dictionary, eta=eta, lam=lam)
    return code


def fista(
    tokens: Float[Tensor, "*batch n d"],
    dictionary: Float[Tensor, "d m"],
    *,
    lam: float,
    tol: float = 1e-10,
    max_steps: int = 20_000,
    start: Float[Tensor, "*batch n m"] | None = None,
) -> Float[Tensor, "*batch n m"]:
    r"""The minimiser of the non-negative LASSO, by FISTA with restarts whenever the momentum points uphill.

    The optimality conditions are verified: with G = (Z Dᵀ − Y) D + λ, at the optimum min(Z, G/L) = 0 in every entry.

    Args:
        tokens: Y, [*batch, n, d].
        dictionary: D, [d, m].
        lam: weight of the l1 norm, >= 0.
        tol: largest |min(Z, G/L)| accepted, relative to max(1, largest |Y|).
        max_steps: before giving up.
    Returns:
        Z, [*batch, n, m].
    Raises:
        ValueError: shapes do not fit.
        NotConverged: the conditions are not met after ``max_steps``; carries the last code and the residual.
            Source: :cite:t:`beck2009fast`.
    """
    L = curvature(dictionary)
    code = point = _start(tokens, dictionary, start)
    momentum, residual = 1.0, torch.inf
    limit = tol * max(1.0, float(tokens.abs().max()))
    for _ in range(max_steps):
        new = ista_step(point, tokens, dictionary, eta=1 / L, lam=lam)
        if ((point - new) * (new - code)).sum() > 0:
            momentum = 1.0
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = new + (momentum - 1) / faster * (new - code)
        code, momentum = new, faster
        slack = ((code @ dictionary.mT - tokens) @ dictionary + lam) / L
        residual = float(torch.minimum(code, slack).abs().max())
        if residual <= limit:
            return code
    raise NotConverged(f"fista: optimality residual must fall to {limit:.1e}, got {residual:.1e} after {max_steps} steps", code, residual)


def curvature(dictionary: Float[Tensor, "d m"]) -> float:
    r"""L = ‖D‖₂², the Lipschitz constant of the LASSO's gradient; ISTA descends for η ≤ 1/L.

    Raises:
        ValueError: the dictionary is zero. Source: :cite:t:`beck2009fast`.
    """
    L = float(torch.linalg.matrix_norm(dictionary, 2)) ** 2
    if not L > 0:
        raise ValueError("dictionary must not be zero: it has no atom to code with")
    return L


def _start(tokens: Tensor, dictionary: Tensor, start: Tensor | None) -> Tensor:
    _check(tokens, dictionary)
    return tokens.new_zeros(*tokens.shape[:-1], dictionary.shape[1]) if start is None else start


def _check(tokens: Tensor, dictionary: Tensor) -> None:
    if tokens.shape[-1] != dictionary.shape[0]:
        raise ValueError(f"tokens [..., n, d] and dictionary [d, m] must share d, got {list(tokens.shape)} and {list(dictionary.shape)}")
