"""Token statistics: the bound on the rate, and the step that lowers it."""

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....models.crate.subspace_attention import coordinates, lipschitz
from ....models.crate.token_statistics import membership_rate, memberships, tssa_gradient, variational_rate
from .instance import ROUNDING, N, complete_instance

EPS, SHARPNESS = 0.5, 20.0  # memberships far from equal: a token belongs to one subspace more than to others


def _bound(generator: torch.Generator, *, normalised: bool) -> Evidence:
    """What the bound leaves over the rate, in units of the rate: as drawn it must not be negative, and in bases that diagonalise the
    second moments it must be zero, so of these minus the distance to zero counts; the smaller of both."""
    tokens, bases = complete_instance(generator)
    pi = memberships(coordinates(tokens, bases), temperature=SHARPNESS)
    detail = {}
    for name in ("as drawn", "diagonalised"):
        if name == "diagonalised":
            coords = coordinates(tokens, bases)
            bases = bases @ torch.linalg.eigh((pi.unsqueeze(-1) * coords).mT @ coords)[1]
        rate = membership_rate(tokens, bases, pi, eps=EPS)
        bound = variational_rate(tokens, bases, pi, eps=EPS) if normalised else _unnormalised(tokens, bases, pi)
        detail[name] = float(bound / rate - 1)
    return Evidence(min(detail["as drawn"], -abs(detail["diagonalised"])), -ROUNDING, ">=", detail=detail)


def _unnormalised(tokens: torch.Tensor, bases: torch.Tensor, pi: torch.Tensor) -> torch.Tensor:
    """The bound with second moments over all n tokens in place of the n_k of the subspace."""
    moments = (pi.unsqueeze(-1) * coordinates(tokens, bases).square()).sum(-2) / N
    logs = torch.log1p(bases.shape[-1] / EPS**2 * moments).sum(-1)
    return 0.5 * (pi.sum(-1) / N * logs).sum(-1)


def _step(generator: torch.Generator, *, sign: float) -> Evidence:
    """The worst change of the bound over step sizes, in units of the decrease that is guaranteed: at most -1."""
    tokens, bases = complete_instance(generator)
    bases = bases + 0.3 * torch.randn(bases.shape, generator=generator, dtype=bases.dtype)  # the claim needs no orthonormality
    pi = memberships(coordinates(tokens, bases), temperature=SHARPNESS)
    L = lipschitz(bases, n=N, eps=EPS)
    before, gradient = variational_rate(tokens, bases, pi, eps=EPS), tssa_gradient(tokens, bases, pi, eps=EPS)
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        after = variational_rate(tokens - sign * share / L * gradient, bases, pi, eps=EPS)
        changes[f"kappa L = {share}"] = float((after - before) / (share / L * (1 - share / 2) * gradient.square().sum()))
    return Evidence(max(changes.values()), -1 + ROUNDING, "<=", detail=changes)


CLAIMS = (
    Claim(
        id="crate/tssa-bound",
        statement=r"The rate of tokens in their subspaces is at most $\frac12 \sum_k \frac{n_k}{n} \sum_c \log(1 + \frac{p}{\varepsilon^2} "
        r"m_{kc})$, $m_{kc} = \frac{1}{n_k} \sum_i \pi_{ik} (z_i^\top U_k)_c^2$, with equality where $U_k$ diagonalises the second moment.",
        source=Source("wu2024token"),
        assumptions=("memberships are non-negative; the bases may be any matrices",),
        check=lambda generator: _bound(generator, normalised=True),
        control=lambda generator: _bound(generator, normalised=False),
        control_description=r"the second moments are taken over $n$ tokens, not over the $n_k$ of the subspace",
    ),
    Claim(
        id="crate/tssa-step",
        statement=r"At fixed memberships a step $Z - \kappa \nabla B(Z; U, \Pi)$ lowers that bound by at least "
        r"$\kappa (1 - \kappa L / 2) \|\nabla B\|_F^2$ for every $0 < \kappa < 2/L$, $L = \beta \|\sum_k U_k U_k^\top\|_2$.",
        source=Source("wu2024token"),
        assumptions=("the subspaces may be any matrices U_k, memberships between 0 and 1",),
        check=lambda generator: _step(generator, sign=1.0),
        control=lambda generator: _step(generator, sign=-1.0),
        control_description="the step goes up the gradient",
    ),
)
