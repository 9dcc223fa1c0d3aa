"""The objective and its subspaces: what spreading lowers, what incoherence bounds, and whether subspaces are
found.

Source: :cite:t:`yu2023white` (the objective). The statements are derived or observed in this library.
"""

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....data.synthetic import subspace_mixture
from ....maths.linalg import orthonormalise
from ....metrics.coding import subspace_coding_rate
from ..problem import (
    OBJECTIVE,
    fit_subspaces,
    incoherence,
    incompleteness,
    random_subspaces,
    sparse_rate_objective,
)
from .compression import EPS, ROUNDING, D, K, P

LAM = 0.1
TOKENS = 8  # tokens of each subspace
# tokens of each subspace to which subspaces are fitted; about half of all starts end in a local optimum
FITTED, STARTS = 24, 20
# numbers and dimensions of subspaces; of six, a start seldom has a token of each, so bases need a refit
MIXTURES = ((K, P), (6, 4))
TILT = 0.05  # size of the perturbation of orthogonal subspaces, relative to a random matrix


def _spread(generator: torch.Generator, *, expansion: bool) -> Evidence:
    """Returns evidence about the objective of tokens in K subspaces, less that of the same coordinates in
    one, in units of the latter.

    In the bases of coordinate axes both have the same number of non-zeros. Without ``expansion`` the rate of
    all tokens is left out.
    """
    bases = torch.eye(D, dtype=torch.float64).unflatten(1, (K, P)).transpose(0, 1)
    coords = torch.randn(K, TOKENS, P, generator=generator, dtype=torch.float64)
    changes = {}
    for size in (0.01, 1.0, 100.0):
        spread = torch.cat([size * coords[k] @ bases[k].mT for k in range(K)])
        together = torch.cat([size * coords[k] @ bases[0].mT for k in range(K)])
        values = [_objective(tokens, bases, expansion) for tokens in (spread, together)]
        changes[f"size {size:g}"] = (values[0] - values[1]) / abs(values[1])
    return Evidence(max(changes.values()), 0.0, "<=", detail=changes)


def _objective(tokens: Tensor, bases: Tensor, expansion: bool) -> float:
    if expansion:
        return float(sparse_rate_objective(tokens, bases, eps=EPS, lam=LAM))
    return float(subspace_coding_rate(tokens, bases, eps=EPS) + LAM * (tokens != 0).sum())


def _incoherence(generator: torch.Generator, *, missing: int) -> Evidence:
    """Returns evidence about the incompleteness d of K - ``missing`` subspaces: the larger of mu - d and d -
    (K - 1) mu.
    """
    bases = random_subspaces(K, D, P, generator=generator)
    bases = orthonormalise(bases + TILT * torch.randn(bases.shape, generator=generator, dtype=bases.dtype))[
        missing:
    ]
    mu, deviation = incoherence(bases), incompleteness(bases)
    return Evidence(
        max(mu - deviation, deviation - (len(bases) - 1) * mu),
        ROUNDING,
        "<=",
        detail={"mu": mu, "incompleteness": deviation},
    )


def _fitted(generator: torch.Generator, *, missing: int) -> Evidence:
    """Returns evidence about the share of the energy of mixtures that fitted subspaces, K less ``missing`` of
    dimension p, leave out.
    """
    shares = {}
    for number, rank in MIXTURES:
        tokens = subspace_mixture(
            number * FITTED, seq=1, dim=D, classes=number, rank=rank, generator=generator
        ).data.tokens[:, 0]
        fitted, assigned = fit_subspaces(
            tokens, K=number - missing, p=rank, generator=generator, starts=STARTS
        )
        residual = tokens - torch.einsum("nd,ndp,nep->ne", tokens, fitted[assigned], fitted[assigned])
        shares[f"{number} subspaces"] = float(residual.square().sum() / tokens.square().sum())
    # the control must fail for both mixtures
    worst = min(shares.values()) if missing else max(shares.values())
    return Evidence(worst, 1e-6, "<=", detail=shares)


CLAIMS = (
    Claim(
        id="crate/objective-spreads",
        statement="Tokens that each lie in one of $K$ complete orthogonal subspaces have at most the "
        r"objective $R^c(Z; U_{[K]}) + \lambda \|Z\|_0 - R(Z)$, rate in the subspaces and non-zeros less "
        "rate in the whole space, of tokens with the same coordinates in a single one.",
        measures="objective of tokens in K subspaces less that in one, in units of the latter",
        source=OBJECTIVE,
        assumptions=(
            "U_k coordinate axes, so that the number of non-zeros is the same; equally many tokens, with "
            "Gaussian coordinates of three sizes",
            "the reason: log(1 + K x) - log(1 + x) is concave, so its trace is subadditive",
        ),
        check=lambda generator: _spread(generator, expansion=True),
        control=lambda generator: _spread(generator, expansion=False),
        control_description="the rate of all tokens is left out of the objective",
    ),
    Claim(
        id="crate/incoherence",
        statement=r"For orthonormal bases with $K p = d$ and $\mu = \max_{i \ne j} \|U_i^\top U_j\|_2$, "
        r"$\mu \le \|\sum_k U_k U_k^\top - I\|_2 \le (K - 1) \mu$, so incoherent subspaces (small $\mu$) "
        r"are nearly complete.",
        measures="largest violation of the two inequalities",
        source=OBJECTIVE,
        assumptions=(
            "U_k orthonormal, K p = d; drawn: tilted orthogonal subspaces",
            "the reason: the matrices share the spectrum of a block matrix with zero diagonal",
        ),
        check=lambda generator: _incoherence(generator, missing=0),
        control=lambda generator: _incoherence(generator, missing=1),
        control_description="one subspace is left out, so that K p < d",
    ),
    Claim(
        id="crate/subspaces-fitted",
        statement="Alternating assignment and refit, best of 20 starts, recovers $K$ orthogonal subspaces "
        "from a mixture of tokens without noise.",
        measures="share of the energy that the fitted subspaces leave out, the larger of two mixtures",
        source=OBJECTIVE,
        assumptions=(
            "24 tokens of each of four subspaces of dimension 6 and of six of dimension 4, in 24 "
            "dimensions; K and p known",
            "an observation: a single start often ends in a local optimum",
        ),
        check=lambda generator: _fitted(generator, missing=0),
        control=lambda generator: _fitted(generator, missing=1),
        control_description="one subspace less is fitted; the smaller share of the two counts",
    ),
)
