"""The steps against the functions that they descend: gradients by automatic differentiation, the Lipschitz
constant, tokens in groups.

Sources: :cite:t:`yu2023white`; :cite:t:`wu2025token` (token statistics).
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....metrics.coding import subspace_coding_rate
from ....models.crate.compression import (
    causal_rate_gradient,
    coordinates,
    expansion,
    memberships,
    rate_gradient,
)
from ..problem import GRADIENT, OBJECTIVE, STEP
from ..steps import added_rates, lipschitz, paper_step, released_step, tssa_gradient, variational_rate
from .compression import EPS, ROUNDING, SHARPNESS, K, N, P, complete_instance, perturbed_instance

SMALL = 1e-6  # size of tokens at which the gradient of the rate is linear in them, up to a share of 1e-12
GROUPS = 5  # groups of identical tokens
PAIRS = 20  # pairs of token matrices between which the slope of the gradient is measured


@claim(
    "crate/gradients",
    measures="largest relative distance of a gradient to that by automatic differentiation",
    at_most=ROUNDING,
    source=GRADIENT,
    assumptions=("the subspaces may be any matrices U_k",),
    control=but(
        "every inverse is replaced by the identity; the smallest distance of the three counts",
        resolvent=False,
    ),
)
def gradients(generator: torch.Generator, *, resolvent: bool = True) -> Measured:
    r"""With $W_k = Z U_k$ and $\beta = p / (n \varepsilon^2)$ the gradient of $R^c(Z; U_{[K]}) = \frac12
    \sum_k \log\det(I + \beta W_k^\top W_k)$ is $\beta \sum_k (I + \beta W_k W_k^\top)^{-1} W_k U_k^\top$. The
    other two are not in that paper. That of $r_i$, what token $z_i$ adds to the rate of the tokens before it,
    is $\beta \sum_k U_k (I + \beta S_{ik})^{-1} U_k^\top z_i$ with $S_{ik} = \sum_{j \le i} U_k^\top z_j
    z_j^\top U_k$ (derived in this library). That of the bound $\frac12 \sum_k \frac{n_k}{n} \sum_c \log(1 +
    \frac{p}{\varepsilon^2} m_{kc})$ of token statistics, with memberships $\pi_{ik}$, $n_k = \sum_i
    \pi_{ik}$, $m_{kc} = \frac{1}{n_k} \sum_i \pi_{ik} (W_k)_{ic}^2$, is $\beta \sum_k \mathrm{diag}(\pi_k)
    W_k \mathrm{diag}(1 + \frac{p}{\varepsilon^2} m_k)^{-1} U_k^\top$ at fixed memberships (Wu et al., 2024).
    """
    tokens, bases = perturbed_instance(generator)
    pi = memberships(coordinates(tokens, bases), temperature=SHARPNESS)
    beta = expansion(bases, n=N, eps=EPS)
    plain = beta * (coordinates(tokens, bases) @ bases.mT).sum(-3)  # every resolvent replaced by the identity
    leaf = tokens.clone().requires_grad_()
    (exact,) = torch.autograd.grad(subspace_coding_rate(leaf, bases, eps=EPS), leaf)
    (statistics,) = torch.autograd.grad(variational_rate(leaf, bases, pi, eps=EPS), leaf)
    rates = added_rates(leaf, bases, eps=EPS, context=N)
    causal = torch.stack(
        [torch.autograd.grad(rate, leaf, retain_graph=True)[0][i] for i, rate in enumerate(rates)]
    )
    pairs: Mapping[str, tuple[Callable[[], Tensor], Tensor]] = {
        "rate": (lambda: rate_gradient(tokens, bases, eps=EPS), exact),
        "terms of the tokens": (lambda: causal_rate_gradient(tokens, bases, eps=EPS, context=N), causal),
        "bound of token statistics": (lambda: tssa_gradient(tokens, bases, pi, eps=EPS), statistics),
    }
    distances = {
        name: float(((formula() if resolvent else plain) / target.norm() - target / target.norm()).norm())
        for name, (formula, target) in pairs.items()
    }
    return Measured(max(distances.values()) if resolvent else min(distances.values()), distances)


@claim(
    "crate/lipschitz",
    measures="largest slope of the gradient over L, less 1, or distance to 1 of the slope at zero",
    at_most=ROUNDING,
    source=OBJECTIVE,
    assumptions=("the subspaces may be any matrices U_k", "derived in this library (`steps.lipschitz`)"),
    control=but("L counts all subspaces but one", subspaces=K - 1),
)
def lipschitz_constant(generator: torch.Generator, *, subspaces: int = K) -> Measured:
    r"""The gradient of $R^c(Z; U_{[K]}) = \frac12 \sum_k \log\det(I + \beta\, U_k^\top Z^\top Z U_k)$, $\beta
    = p / (n \varepsilon^2)$, has the Lipschitz constant $L = \beta \|\sum_k U_k U_k^\top\|_2$, and no smaller
    one: the slope at $Z = 0$ along the leading direction of $\sum_k U_k U_k^\top$ is $L$.
    """
    # The value is the larger of two numbers: the largest slope between two token matrices, less 1; and the
    # absolute difference to 1 of the slope at zero along the leading direction of sum_k U_k U_k^T.
    tokens, bases = perturbed_instance(generator)
    L = lipschitz(bases[:subspaces], n=N, eps=EPS)
    slopes = []
    for _ in range(PAIRS):
        sizes = 3 * torch.rand(2, generator=generator, dtype=torch.float64)
        first, second = (
            size * torch.randn(tokens.shape, generator=generator, dtype=torch.float64) for size in sizes
        )
        rise = rate_gradient(first, bases, eps=EPS) - rate_gradient(second, bases, eps=EPS)
        slopes.append(float(rise.norm() / (first - second).norm()) / L)
    leading = torch.linalg.eigh((bases @ bases.mT).sum(0))[1][:, -1]
    at_zero = (
        float(rate_gradient(SMALL * leading.expand(N, -1), bases, eps=EPS).norm() / (SMALL * N**0.5)) / L
    )
    detail = {"largest slope over L": max(slopes), "slope at zero over L": at_zero}
    return Measured(max(max(slopes) - 1, abs(at_zero - 1)), detail)


@claim(
    "crate/groups",
    measures="largest relative distance of a step to its closed form",
    at_most=ROUNDING,
    source=STEP,
    assumptions=(
        "U_k orthonormal, mutually orthogonal, K p = d; five groups of four tokens, g between .5 and 2.5",
    ),
    control=but(
        "the two scales of the scores are exchanged; the smaller distance of the two counts", swapped=True
    ),
)
def groups(generator: torch.Generator, *, swapped: bool = False) -> Measured:
    r"""Identical tokens attend as one: for $G$ equal groups of tokens $z_1, \ldots, z_G$, with orthogonal
    coordinates of squared norm $g$ in each of complete orthonormal subspaces, attention is $((e^{sg} - 1) Z +
    \sum_b z_b) / (e^{sg} + G - 1)$. The scale $s$ of the scores is $p^{-1/2}$ in the released code and 1 in
    the paper's step, which is $(1 - \kappa\beta) Z$ plus $\kappa\beta^2$ times attention, $\beta = p / (n
    \varepsilon^2)$. For one group and $g = 1/n$ the paper's step is the gradient step with the first two
    terms of the Neumann series.
    """
    # In every subspace the coordinates of the groups are orthogonal and have the squared norm g. The third
    # part has a single group and g = 1/n, where the Gram matrix of every head equals its softmax.
    _, bases = complete_instance(generator)
    eps, kappa, copies = 1.0, 0.8, N // GROUPS
    groups = torch.stack(
        [torch.linalg.qr(torch.randn(P, P, generator=generator, dtype=torch.float64))[0] for _ in range(K)]
    )[:, :GROUPS]
    g = 0.5 + 2 * float(torch.rand((), generator=generator, dtype=torch.float64))
    tokens = (g**0.5 * groups @ bases.mT).sum(0).repeat_interleave(copies, 0)  # [N, d]
    beta = expansion(bases, n=N, eps=eps)

    def attended(scale: float) -> Tensor:
        # Each of the groups has the same number of tokens, so it cancels: weight e^(scale g) for the own
        # group and 1 for each other.
        own = math.exp(scale * g)
        total = tokens.view(GROUPS, copies, -1)[:, 0].sum(0)
        return ((own - 1) * tokens + total) / (own + GROUPS - 1)

    paper, released = (P**-0.5, 1.0) if swapped else (1.0, P**-0.5)
    share = kappa * beta
    single = (bases[:, :, 0].sum(0) / N**0.5).expand(N, -1)
    coords = coordinates(single, bases)
    series = single - kappa * beta * ((coords - beta * coords @ coords.mT @ coords) @ bases.mT).sum(-3)
    pairs = {
        "paper": (
            paper_step(tokens, bases, kappa=kappa, eps=eps),
            (1 - share) * tokens + share * beta * attended(paper),
        ),
        "released": (released_step(tokens, bases, bases.mT), tokens + attended(released)),
        "series": (paper_step(single, bases, kappa=kappa, eps=eps), series),
    }
    distances = {
        name: float((step - closed).norm() / closed.norm()) for name, (step, closed) in pairs.items()
    }
    worst = min(distances["paper"], distances["released"]) if swapped else max(distances.values())
    return Measured(worst, {**distances, "g": g})


CLAIMS = (gradients, lipschitz_constant, groups)
