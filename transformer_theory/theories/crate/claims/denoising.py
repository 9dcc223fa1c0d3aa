"""Denoising tokens of a mixture of subspaces: the best estimate is a softmax over subspaces, and follows the score."""

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....models.crate.subspace_attention import coordinates
from ..denoising import denoise, log_density
from ..problem import random_subspaces
from .instance import ROUNDING

D, P, K, N, SIGMA = 48, 4, 6, 240, 0.3


def _instance(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clean tokens of a mixture of K subspaces, the same with noise, and the bases."""
    bases = random_subspaces(K, D, P, generator=generator)
    owner = torch.arange(N) % K
    clean = torch.einsum("np,ndp->nd", torch.randn(N, P, generator=generator, dtype=torch.float64), bases[owner])
    return clean, clean + SIGMA * torch.randn(N, D, generator=generator, dtype=torch.float64), bases


def _over_tokens(tokens: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
    """The same formula with the softmax over tokens in place of subspaces, scaled to fit."""
    coords = coordinates(tokens, bases)
    share = (coords.square().sum(-1) / (2 * SIGMA**2 * (1 + SIGMA**2))).softmax(-1)
    estimate = (share.unsqueeze(-1) * coords @ bases.mT).sum(-3)
    return estimate * (estimate * tokens).sum() / estimate.square().sum()


def _tweedie(generator: torch.Generator, *, over_tokens: bool) -> Evidence:
    """Relative distance of the formula to z + sigma^2 grad log p(z), the gradient by automatic differentiation."""
    clean, noisy, bases = _instance(generator)
    given = noisy.clone().requires_grad_()
    (score,) = torch.autograd.grad(log_density(given, bases, sigma=SIGMA).sum(), given)
    best = noisy + SIGMA**2 * score
    estimate = _over_tokens(noisy, bases) if over_tokens else denoise(noisy, bases, sigma=SIGMA)
    left = {"noise left": _relative(estimate, clean), "noise": _relative(noisy, clean)}
    return Evidence(_relative(estimate, best), ROUNDING, "<=", detail=left)


def _best(generator: torch.Generator, *, over_tokens: bool) -> Evidence:
    """The mean squared error of the estimate over that of an oracle that knows the subspace of every token and projects on it."""
    clean, noisy, bases = _instance(generator)
    estimate = _over_tokens(noisy, bases) if over_tokens else denoise(noisy, bases, sigma=SIGMA)
    own = bases[torch.arange(N) % K]
    oracle = torch.einsum("nd,ndp,nep->ne", noisy, own, own) / (1 + SIGMA**2)
    ratio = float((estimate - clean).square().sum() / (oracle - clean).square().sum())
    return Evidence(ratio, 2.0, "<=", detail={"noise left": _relative(estimate, clean), "oracle": _relative(oracle, clean)})


def _relative(found: torch.Tensor, target: torch.Tensor) -> float:
    return float((found - target).norm() / target.norm())


CLAIMS = (
    Claim(
        id="crate/tweedie",
        statement=r"For $z = z_0 + \sigma w$, $z_0$ from an equal mixture of $\mathcal N(0, U_k U_k^\top)$, the estimate "
        r"$\frac{1}{1+\sigma^2} \sum_k a_k U_k U_k^\top z$ with $a = \mathrm{softmax}_k(\|U_k^\top z\|^2 / (2\sigma^2(1+\sigma^2)))$ "
        r"is Tweedie's $z + \sigma^2 \nabla \log p(z)$.",
        source=Source("yu2023white"),
        assumptions=("U_k orthonormal, equal weights, known noise",),
        check=lambda generator: _tweedie(generator, over_tokens=False),
        control=lambda generator: _tweedie(generator, over_tokens=True),
        control_description="the softmax runs over tokens, as in attention, and the result is scaled to fit",
        corrects="Attention is said to denoise: the softmax of the best denoiser runs over subspaces, that of attention over tokens.",
    ),
    Claim(
        id="crate/denoiser",
        statement=r"With $d = 48$, six orthogonal subspaces of dimension 4 and $\sigma = .3$ that estimate leaves at most twice the "
        r"squared error of a projection on the true subspace of every token, though nobody tells it which.",
        source=Source("yu2023white"),
        assumptions=("U_k orthonormal, mutually orthogonal, equal weights, known noise",),
        check=lambda generator: _best(generator, over_tokens=False),
        control=lambda generator: _best(generator, over_tokens=True),
        control_description="the softmax runs over tokens, as in attention, and the result is scaled to fit",
        corrects="Attention is said to denoise: the softmax of the best denoiser runs over subspaces, that of attention over tokens, and "
        "it is far off.",
    ),
)
