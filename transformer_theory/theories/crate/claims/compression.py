"""Compression: the exact step, the paper's step, and the sign of the released residual form."""

import torch
from torch import Tensor

from ....citations import Source
from ....claims import Claim, Evidence
from ....metrics.coding import subspace_coding_rate
from ..attention import coordinates, expansion, lipschitz, paper_step, rate_gradient, released_step
from .instance import ROUNDING, N, complete_instance


def _exact_step(generator: torch.Generator, *, sign: float) -> Evidence:
    """The worst change of R^c over step sizes, in units of the decrease that is guaranteed: at most -1."""
    tokens, bases = complete_instance(generator)
    bases = bases + 0.3 * torch.randn(bases.shape, generator=generator, dtype=bases.dtype)  # the claim needs no orthonormality
    eps = 0.5
    L = lipschitz(bases, n=N, eps=eps)
    before = subspace_coding_rate(tokens, bases, eps=eps)
    gradient = rate_gradient(tokens, bases, eps=eps)
    slope = gradient.square().sum()
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        after = subspace_coding_rate(tokens - sign * share / L * gradient, bases, eps=eps)
        changes[f"kappa L = {share}"] = float((after - before) / (share / L * (1 - share / 2) * slope))
    return Evidence(max(changes.values()), -1 + ROUNDING, "<=", detail=changes)


def _paper_step(generator: torch.Generator, *, tied_residual: bool) -> Evidence:
    """The worst relative change of R^c over step sizes."""
    tokens, bases = complete_instance(generator)
    eps = 1.0
    beta = expansion(bases, n=N, eps=eps)
    series = beta * float(torch.linalg.matrix_norm(coordinates(tokens, bases), 2).max()) ** 2
    changes = {}
    for share in (0.1, 0.25, 0.5, 1.0):
        after = paper_step(tokens, bases, kappa=share / beta, eps=eps)
        if tied_residual:
            after = after + share * tokens  # the shrink is left out: Z + kappa beta MSSA(Z)
        changes[f"kappa beta = {share}"] = _relative_change(tokens, after, bases, eps)
    return Evidence(max(changes.values()), 0.0, "<=", in_assumptions=series < 1, detail={**changes, "beta ||W_k||^2": series})


def _released_sign(generator: torch.Generator, *, sign: float) -> Evidence:
    """The smallest relative change of R^c over sizes of the tied output matrix."""
    tokens, bases = complete_instance(generator)
    eps = 0.5
    changes = {}
    for size in (0.25, 0.5, 1.0):
        after = released_step(tokens, bases, sign * size * bases.mT)
        changes[f"size {size}"] = _relative_change(tokens, after, bases, eps)
    return Evidence(min(changes.values()), 0.0, ">=", detail=changes)


def _relative_change(before: Tensor, after: Tensor, bases: Tensor, eps: float) -> float:
    rate = subspace_coding_rate(before, bases, eps=eps)
    return float(subspace_coding_rate(after, bases, eps=eps) / rate - 1)


CLAIMS = (
    Claim(
        id="crate/exact-step",
        statement=r"A gradient step $Z - \kappa \nabla R^c(Z; U_{[K]})$ lowers $R^c$ by at least "
        r"$\kappa (1 - \kappa L / 2) \|\nabla R^c\|_F^2$ for every $0 < \kappa < 2/L$, $L = \beta \|\sum_k U_k U_k^\top\|_2$.",
        source=Source("yu2023white"),
        assumptions=("the subspaces may be any matrices U_k; the bound on L is derived in attention.lipschitz",),
        check=lambda generator: _exact_step(generator, sign=1.0),
        control=lambda generator: _exact_step(generator, sign=-1.0),
        control_says="the step goes up the gradient",
    ),
    Claim(
        id="crate/paper-step",
        statement=r"With orthonormal, complete and incoherent $U_{[K]}$ the step $(1 - \kappa\beta) Z + \kappa\beta\, \mathrm{MSSA}(Z)$ "
        r"lowers $R^c(Z; U_{[K]})$, for $0 < \kappa\beta \le 1$.",
        source=Source("yu2023white"),
        assumptions=(
            "U_k orthonormal, mutually orthogonal, K p = d",
            r"tokens of norm one, $\beta \|W_k\|_2^2 < 1$: the Neumann series converges",
        ),
        check=lambda generator: _paper_step(generator, tied_residual=False),
        control=lambda generator: _paper_step(generator, tied_residual=True),
        control_says=r"the shrink $1 - \kappa\beta$ is left out, as in a residual connection",
    ),
    Claim(
        id="crate/released-sign",
        statement=r"The residual form $Z + \sum_k \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k$ raises $R^c(Z; U_{[K]})$ "
        r"if its output is tied, $V_k = c\, U_k^\top$ with $c > 0$: as released, the network must learn another $V$ to compress.",
        source=Source("hu2024indepth"),
        assumptions=("U_k orthonormal, mutually orthogonal, K p = d",),
        check=lambda generator: _released_sign(generator, sign=1.0),
        control=lambda generator: _released_sign(generator, sign=-1.0),
        control_says="the output is tied with a minus sign, V_k = -c U_k^T",
    ),
)
