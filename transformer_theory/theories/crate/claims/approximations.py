"""Two derivations of attention: the error of the truncated Neumann series, and the best denoiser of a mixture
of subspaces.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....models.crate.compression import coordinates
from ..approximations import denoise, gradient_error, log_density, neumann_error, neumann_sum
from ..problem import SERIES, random_subspaces
from .compression import ROUNDING, complete_instance

SIZE = 20  # rows of the matrices that the series inverts
RADII, TERMS = (0.0017, 0.17, 0.9, 1.5, 16.5), (1, 2, 5)
MEASURABLE = 1e-8  # smaller predicted errors are lost to rounding
# dimensions, dimensions per subspace, subspaces, tokens, standard deviation of the noise
D, P, K, N, SIGMA = 48, 4, 6, 240, 0.3


@claim(
    "crate/neumann-error",
    measures="largest relative difference of the measured error to its closed form",
    at_most=1e-6,
    source=SERIES,
    assumptions=(
        "A symmetric positive semidefinite",
        "predicted errors above 1e-8; smaller ones are lost to rounding",
    ),
    control=but("the series has one term more than the prediction counts", more=1),
)
def error(generator: torch.Generator, *, more: int = 0) -> Measured:
    r"""The terms of the Neumann series up to order $M$, $\sum_{j \le M} (-A)^j$ in place of $(I + A)^{-1}$,
    are off by exactly $\rho^{M+1} / (1 + \rho)$ in the spectral norm, $\rho$ the spectral radius of $A$. In
    CRATE $A = \beta W_k W_k^\top$, $W_k = Z U_k$, $\beta = p / (n \varepsilon^2)$, and $M = 1$.
    """
    # The measured series has ``more`` terms in addition to those that the closed form counts.
    axes = orthonormalise(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
    spectrum = torch.rand(SIZE, generator=generator, dtype=torch.float64)
    detail = {}
    for radius in RADII:
        A = (radius * spectrum / spectrum.max() * axes) @ axes.mT
        inverse = torch.linalg.inv(torch.eye(SIZE, dtype=A.dtype) + A)
        for terms in TERMS:
            measured = float(torch.linalg.matrix_norm(inverse - neumann_sum(A, terms=terms + more), 2))
            predicted = neumann_error(radius, terms=terms)
            if predicted > MEASURABLE:
                detail[f"rho {radius}, {terms} terms"] = abs(measured / predicted - 1)
    return Measured(max(detail.values()), detail)


@claim(
    "crate/neumann-gradient",
    measures="error of the gradient over rho^(M+1), less 1, or its distance to 1 at equal singular values",
    at_most=ROUNDING,
    source=SERIES,
    assumptions=(
        "U_k orthonormal, mutually orthogonal, K p = d; random tokens of norm one, and tokens of equal "
        "singular values from .5 to .9",
        "the paper replaces the inverse by the series and states no error",
    ),
    control=but("the power counts one term more than the series has", more=1),
)
def neumann_gradient(generator: torch.Generator, *, more: int = 0) -> Measured:
    r"""With the terms up to order $M$, $\sum_{j \le M} (-A)^j$ with $A = \beta W_k W_k^\top$, in place of the
    inverse, the gradient $\beta \sum_k (I + \beta W_k W_k^\top)^{-1} W_k U_k^\top$ of the rate $R^c(Z;
    U_{[K]})$, $W_k = Z U_k$, is off by at most the share $\rho^{M+1}$ of its norm, $\rho = \max_k \beta
    \|W_k\|_2^2$, and by exactly this share where all singular values of all $W_k$ are equal.
    """
    # The error of random tokens must not exceed it; that of tokens whose coordinates have equal singular
    # values must equal it. The value is the larger of two numbers: the first ratio less 1, and the absolute
    # difference of the second ratio to 1. The bound counts ``more`` terms in addition to M.
    tokens, bases = complete_instance(generator)
    p = bases.shape[-1]
    sigma = 0.5 + 0.4 * float(torch.rand((), generator=generator, dtype=torch.float64))
    axes = torch.stack(
        [orthonormalise(torch.randn(p, p, generator=generator, dtype=torch.float64)) for _ in bases]
    )
    flat = sigma * (axes @ bases.mT).sum(0)  # [p, d], with W_k = sigma times an orthogonal matrix
    excess = {}
    for terms in TERMS:
        errors = {
            name: gradient_error(each, bases, eps=1.0, terms=terms)
            for name, each in (("random", tokens), ("flat", flat))
        }
        ratios = {
            name: float(error / radius ** (terms + more + 1)) for name, (error, radius) in errors.items()
        }
        excess |= {
            f"random, {terms} terms": ratios["random"] - 1,
            f"flat, {terms} terms": abs(ratios["flat"] - 1),
        }
    return Measured(max(excess.values()), {**excess, "sigma": sigma})


@claim(
    "crate/neumann-converges",
    measures="largest relative distance to rho of the factor by which one more term changes the "
    "spectral norm of the error",
    at_most=1e-6,
    source=SERIES,
    assumptions=(
        "A symmetric positive semidefinite; rho drawn between .2 and .99, and between 1.01 and 3; terms "
        "up to order 1 to 6",
    ),
    control=but("the mean eigenvalue stands for the spectral radius", mean=True),
    corrects=r"Softmax attention is derived from this series with $A = \beta W_k W_k^\top$, without a "
    r"condition. On layer-normalised tokens it diverges, $\rho$ is 188 to 229 (three heads, torch's "
    r"initial weights, $d = 192$, 65 tokens, $\varepsilon^2 = 0.5$, 20 seeds) and 456 to 539 for "
    "orthonormal $U_k$: the paper's step is motivated by the gradient and does not approximate it.",
    corrected=Source("yu2023white", "Eqs. (67) and (68), App. A.2", "confirmed"),
)
def neumann_converges(generator: torch.Generator, *, mean: bool = False) -> Measured:
    r"""One more term of the Neumann series $\sum_j (-A)^j$ multiplies its error by the spectral radius $\rho$
    of $A$, so the series converges to the inverse $(I + A)^{-1}$ if and only if $\rho < 1$.
    """
    # One rho is drawn below 1 and one above. If ``mean``, the mean eigenvalue stands for rho.
    detail, worst = {}, 0.0
    for name, low, high in (("below", 0.2, 0.99), ("above", 1.01, 3.0)):
        radius = low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))
        axes = orthonormalise(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
        spectrum = torch.rand(SIZE, generator=generator, dtype=torch.float64)
        eigenvalues = radius * spectrum / spectrum.max()
        A = (eigenvalues * axes) @ axes.mT
        inverse = torch.linalg.inv(torch.eye(SIZE, dtype=A.dtype) + A)
        errors = [
            float(torch.linalg.matrix_norm(inverse - neumann_sum(A, terms=terms), 2)) for terms in range(1, 7)
        ]
        factors = [after / before for before, after in pairwise(errors)]
        predicted = float(eigenvalues.mean()) if mean else radius
        worst = max(worst, *(abs(factor / predicted - 1) for factor in factors))
        detail |= {f"rho {name} 1": radius, f"largest factor, rho {name} 1": max(factors)}
    return Measured(worst, detail)


def _mixture(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draws clean tokens of a mixture of K subspaces, the same with noise, and the bases; token i lies in
    subspace i mod K.
    """
    bases = random_subspaces(K, D, P, generator=generator)
    subspace = torch.arange(N) % K
    clean = torch.einsum(
        "np,ndp->nd", torch.randn(N, P, generator=generator, dtype=torch.float64), bases[subspace]
    )
    return clean, clean + SIGMA * torch.randn(N, D, generator=generator, dtype=torch.float64), bases


def _over_tokens(tokens: Tensor, bases: Tensor) -> Tensor:
    """Returns the formula of the denoiser with the softmax over tokens instead of subspaces, scaled to fit
    the tokens.
    """
    coords = coordinates(tokens, bases)
    weights = (coords.square().sum(-1) / (2 * SIGMA**2 * (1 + SIGMA**2))).softmax(-1)
    estimate = (weights.unsqueeze(-1) * coords @ bases.mT).sum(-3)
    return estimate * (estimate * tokens).sum() / estimate.square().sum()


def _relative(estimate: Tensor, target: Tensor) -> float:
    """Returns the relative distance of the estimate to the target."""
    return float((estimate - target).norm() / target.norm())


@claim(
    "crate/tweedie",
    measures="relative distance of the formula to z + sigma^2 grad log p(z) by automatic differentiation",
    at_most=ROUNDING,
    source=Source("yu2023white", "Eq. (5); Proposition 1, Eq. (21), App. A.1", "confirmed"),
    assumptions=(
        "U_k orthonormal, equal weights, known noise; so the paper's condition holds, equal products of "
        "weight and determinant",
    ),
    control=but(
        "the softmax runs over tokens, as in attention, and the result is scaled to fit", over_tokens=True
    ),
)
def tweedie(generator: torch.Generator, *, over_tokens: bool = False) -> Measured:
    r"""For $z = z_0 + \sigma w$, $z_0$ from an equal mixture of $\mathcal N(0, U_k U_k^\top)$, the estimate
    $\frac{1}{1+\sigma^2} \sum_k a_k U_k U_k^\top z$ with $a = \mathrm{softmax}_k(\|U_k^\top z\|^2 /
    (2\sigma^2(1+\sigma^2)))$ is Tweedie's $z + \sigma^2 \nabla \log p(z)$.
    """
    clean, noisy, bases = _mixture(generator)
    tokens = noisy.clone().requires_grad_()
    (score,) = torch.autograd.grad(log_density(tokens, bases, sigma=SIGMA).sum(), tokens)
    best = noisy + SIGMA**2 * score
    estimate = _over_tokens(noisy, bases) if over_tokens else denoise(noisy, bases, sigma=SIGMA)
    detail = {"remaining noise": _relative(estimate, clean), "noise": _relative(noisy, clean)}
    return Measured(_relative(estimate, best), detail)


@claim(
    "crate/denoiser",
    measures="squared error over that of the best estimate that knows the subspace of every token",
    at_most=2.0,
    margin=NEAR,
    source=Source(
        "yu2023white", "Proposition 1, Eq. (21), App. A.1; Eq. (6) and Approximation 2, Eq. (38)", "own"
    ),
    assumptions=(
        "U_k orthonormal, mutually orthogonal, equal weights, known noise",
        r"Approximation 2 leaves out the factors $1/(1+\sigma^2)$ of the estimate",
    ),
    control=but(
        "the softmax runs over tokens, as in attention, and the result is scaled to fit", over_tokens=True
    ),
)
def denoiser(generator: torch.Generator, *, over_tokens: bool = False) -> Measured:
    r"""For tokens from six orthogonal subspaces of dimension 4 in 48 dimensions, under noise of standard
    deviation $\sigma = .3$, the exact estimate of Proposition 1, a softmax over subspaces, leaves at most
    twice the squared error of the best estimate that knows the subspace of every token.
    """
    clean, noisy, bases = _mixture(generator)
    estimate = _over_tokens(noisy, bases) if over_tokens else denoise(noisy, bases, sigma=SIGMA)
    true_bases = bases[torch.arange(N) % K]
    best = torch.einsum("nd,ndp,nep->ne", noisy, true_bases, true_bases) / (1 + SIGMA**2)
    ratio = float((estimate - clean).square().sum() / (best - clean).square().sum())
    return Measured(
        ratio, {"remaining noise": _relative(estimate, clean), "subspaces known": _relative(best, clean)}
    )


CLAIMS = (error, neumann_gradient, neumann_converges, tweedie, denoiser)
