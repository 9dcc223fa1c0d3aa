"""The Neumann series behind attention: how far it is from the inverse, and when it converges at all."""

from itertools import pairwise

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ..neumann import neumann_error, neumann_sum
from .instance import ROUNDING, N

RADII, TERMS = (0.0017, 0.17, 0.9, 1.5, 16.5), (1, 2, 5)


def _error(generator: torch.Generator, *, more: int) -> Evidence:
    """The worst relative difference between the measured error of the series and its closed form."""
    axes = orthonormalise(torch.randn(N, N, generator=generator, dtype=torch.float64))
    spectrum = torch.rand(N, generator=generator, dtype=torch.float64)
    detail = {}
    for radius in RADII:
        A = (radius * spectrum / spectrum.max() * axes) @ axes.mT
        inverse = torch.linalg.inv(torch.eye(N, dtype=A.dtype) + A)
        for terms in TERMS:
            measured = float(torch.linalg.matrix_norm(inverse - neumann_sum(A, terms=terms + more), 2))
            predicted = neumann_error(radius, terms=terms)
            if predicted > 1e-8:  # below, the difference of the two matrices is rounding
                detail[f"rho {radius}, {terms} terms"] = abs(measured / predicted - 1)
    return Evidence(max(detail.values()), 1e-6, "<=", detail=detail)


def _more_terms(generator: torch.Generator, *, least: float, most: float) -> Evidence:
    """The largest factor by which one more term changes the error, at a spectral radius drawn between two numbers."""
    radius = least + (most - least) * float(torch.rand((), generator=generator, dtype=torch.float64))
    axes = orthonormalise(torch.randn(N, N, generator=generator, dtype=torch.float64))
    spectrum = torch.rand(N, generator=generator, dtype=torch.float64)
    A = (radius * spectrum / spectrum.max() * axes) @ axes.mT
    inverse = torch.linalg.inv(torch.eye(N, dtype=A.dtype) + A)
    errors = [float(torch.linalg.matrix_norm(inverse - neumann_sum(A, terms=terms), 2)) for terms in range(1, 7)]
    factors = {f"{terms} to {terms + 1} terms": after / before for terms, (before, after) in enumerate(pairwise(errors), start=1)}
    return Evidence(max(factors.values()), 1 - ROUNDING, "<=", detail={**factors, "rho": radius})


CLAIMS = (
    Claim(
        id="crate/neumann-error",
        statement=r"The first terms of the Neumann series, $\sum_{j \le M} (-A)^j$ in place of $(I + A)^{-1}$, "
        r"$A = \beta W_k W_k^\top$, are off by exactly $\rho^{M+1} / (1 + \rho)$ in the spectral norm, $\rho$ the spectral radius of $A$.",
        source=Source("yu2023white"),
        assumptions=("A symmetric positive semidefinite",),
        check=lambda generator: _error(generator, more=0),
        control=lambda generator: _error(generator, more=1),
        control_description="the series has one term more than the prediction counts",
    ),
    Claim(
        id="crate/neumann-converges",
        statement=r"One more term of the series brings it closer to the inverse if $\rho < 1$: attention in the papers' form approximates "
        r"the gradient only there.",
        source=Source("yu2023white"),
        assumptions=(r"spectral radius of $\beta W_k W_k^\top$ below 1; here drawn between .2 and .99",),
        check=lambda generator: _more_terms(generator, least=0.2, most=0.99),
        control=lambda generator: _more_terms(generator, least=1.01, most=3.0),
        control_description=r"the spectral radius is drawn between 1.01 and 3",
        corrects=r"Softmax attention is derived from this series. On layer-normalised tokens it diverges, $\rho$ is 188 to 230 ($d = 192$, "
        r"65 tokens, $\varepsilon^2 = 0.5$, 20 seeds): the paper's step is motivated by the gradient, and no approximation of it.",
    ),
)
