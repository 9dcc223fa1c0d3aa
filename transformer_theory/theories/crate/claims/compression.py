r"""Compression: the exact step, the paper's step, and the sign of the released residual form.

The last two are no theorems: what can be said is this. With orthonormal, complete U_k each head moves by itself, :math:`W_k^+ = M_k W_k`,
where M is :math:`I + c P` in the tied residual form and :math:`(1 - \kappa\beta) I + \kappa\beta^2 P` in the paper's, P the attention of
the head. :math:`P = D^{-1} E`, where E, the exponential of a Gram matrix entry by entry, is positive semidefinite (Schur), and D holds its
row sums. If they are all equal, P is symmetric with eigenvalues between 0 and 1; then :math:`M \succeq I` in the former, for every c > 0,
and :math:`0 \preceq M \preceq I` in the latter, for :math:`\beta \le 1` and :math:`0 < \kappa\beta \le 1`, and by
:math:`\log\det(I + \beta M W W^\top M) = \log\det(I + \beta W^\top M^2 W)` the rate rises and falls, whatever the tokens. If the row
sums differ, :math:`P + P^\top` may have negative eigenvalues: tokens of unequal length can make the residual form *lower* the rate (the
tests have an instance). And with n = 1 attention is 1, so that the paper's step multiplies the token by
:math:`1 + \kappa\beta (\beta - 1)`: it raises the rate as soon as :math:`\beta > 1`.
"""

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....metrics.coding import subspace_coding_rate
from ....models.crate.subspace_attention import coordinates, expansion, lipschitz, paper_step, rate_gradient, released_step
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
    holds = series < 1 and beta <= 1
    return Evidence(max(changes.values()), 0.0, "<=", covered=holds, detail={**changes, "beta ||W_k||^2": series, "beta": beta})


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
        control_description="the step goes up the gradient",
    ),
    Claim(
        id="crate/paper-step",
        statement=r"With orthonormal, complete and incoherent $U_{[K]}$ the step $(1 - \kappa\beta) Z + \kappa\beta\, \mathrm{MSSA}(Z)$ "
        r"lowers $R^c(Z; U_{[K]})$ for $0 < \kappa\beta \le 1$, in every instance tried.",
        source=Source("yu2023white"),
        assumptions=(
            "U_k orthonormal, mutually orthogonal, K p = d",
            r"tokens of norm one, $\beta \|W_k\|_2^2 < 1$: the Neumann series converges",
            r"$\beta \le 1$: beyond, the rate of a single token rises",
        ),
        check=lambda generator: _paper_step(generator, tied_residual=False),
        control=lambda generator: _paper_step(generator, tied_residual=True),
        control_description=r"the shrink $1 - \kappa\beta$ is left out, as in a residual connection",
    ),
    Claim(
        id="crate/released-sign",
        statement=r"For tokens of norm one the residual form $Z + \sum_k \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k$ raises "
        r"$R^c(Z; U_{[K]})$ if its output is tied, $V_k = c\, U_k^\top$ with $0 < c \le 1$, in every instance tried: as released, the "
        r"network must learn another $V$ to compress.",
        source=Source("hu2024indepth"),
        assumptions=(
            "U_k orthonormal, mutually orthogonal, K p = d",
            "tokens of norm one: long tokens of unequal length are counterexamples",
        ),
        check=lambda generator: _released_sign(generator, sign=1.0),
        control=lambda generator: _released_sign(generator, sign=-1.0),
        control_description=r"the output is tied with a minus sign, $V_k = -c\, U_k^\top$",
        corrects=r"The released layer adds attention to the residual stream, without the shrink $1 - \kappa\beta$ of the paper's step and "
        "with a free output matrix.",
    ),
)
