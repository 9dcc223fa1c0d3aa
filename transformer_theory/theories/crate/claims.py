"""What the theory of CRATE states, each statement with a check that could refute it and a control that is refuted."""

import torch
from torch import Tensor

from ...citations import Source
from ...claims import Claim, Evidence
from ...metrics.coding import subspace_coding_rate, unit_norm
from .attention import coordinates, exact_step, expansion, lipschitz, paper_step, rate_gradient, released_step
from .problem import random_subspaces
from .sparse_coding import curvature, ista_step, lasso

N, D, K, P = 20, 24, 4, 6  # tokens, dimension, subspaces, their dimension; K P = D: complete
ROUNDING = 1e-9
LAM = 0.1


def _instance(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens of norm one, and complete orthonormal subspaces."""
    bases = random_subspaces(K, D, P, generator=generator)
    return unit_norm(torch.randn(N, D, generator=generator, dtype=torch.float64)), bases


def _exact_step(generator: torch.Generator, *, sign: float) -> Evidence:
    """The worst change of R^c over step sizes, in units of the decrease that is guaranteed: at most -1."""
    tokens, bases = _instance(generator)
    bases = bases + 0.3 * torch.randn(bases.shape, generator=generator, dtype=bases.dtype)  # the claim needs no orthonormality
    eps = 0.5
    L = lipschitz(bases, n=N, eps=eps)
    before = subspace_coding_rate(tokens, bases, eps=eps)
    slope = rate_gradient(tokens, bases, eps=eps).square().sum()
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        after = subspace_coding_rate(exact_step(tokens, bases, kappa=sign * share / L, eps=eps), bases, eps=eps)
        changes[f"kappa L = {share}"] = float((after - before) / (share / L * (1 - share / 2) * slope))
    return Evidence(max(changes.values()), -1 + ROUNDING, "<=", detail=changes)


def _paper_step(generator: torch.Generator, *, tied_residual: bool) -> Evidence:
    """The worst relative change of R^c over step sizes."""
    tokens, bases = _instance(generator)
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
    tokens, bases = _instance(generator)
    eps = 0.5
    changes = {}
    for size in (0.25, 0.5, 1.0):
        after = released_step(tokens, bases, sign * size * bases.mT)
        changes[f"size {size}"] = _relative_change(tokens, after, bases, eps)
    return Evidence(min(changes.values()), 0.0, ">=", detail=changes)


def _ista_descent(generator: torch.Generator, *, step: float) -> Evidence:
    """The worst change of the objective over ten ISTA steps from Z = Y, in units of L/2 ||Z+ - Z||^2: at most -1 for step 1/L."""
    tokens = torch.randn(N, D, generator=generator, dtype=torch.float64)
    dictionary = torch.randn(D, D, generator=generator, dtype=torch.float64) / D**0.5
    L = curvature(dictionary)
    code, worst = tokens.relu(), -torch.inf
    for _ in range(10):
        new = ista_step(code, tokens, dictionary, eta=step / L, lam=LAM)
        change = lasso(new, tokens, dictionary, lam=LAM) - lasso(code, tokens, dictionary, lam=LAM)
        worst = max(worst, float(change / (0.5 * L * (new - code).square().sum())))
        code = new
    return Evidence(worst, -1 + ROUNDING, "<=")


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
    Claim(
        id="crate/ista-descent",
        statement=r"An ISTA step with $\eta = 1/L$, $L = \|D\|_2^2$, lowers the non-negative LASSO "
        r"$\tfrac12 \|Y - Z D^\top\|_F^2 + \lambda \sum Z$ by at least $\tfrac L2 \|Z^+ - Z\|_F^2$.",
        source=Source("beck2009fast"),
        assumptions=("any dictionary, any tokens, a non-negative start",),
        check=lambda generator: _ista_descent(generator, step=1.0),
        control=lambda generator: _ista_descent(generator, step=3.0),
        control_says=r"three times the step, $\eta = 3/L$",
    ),
)
