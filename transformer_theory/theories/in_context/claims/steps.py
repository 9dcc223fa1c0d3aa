"""Claims about the best preconditioned step, its risk, and the best step of plain descent."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from ....core.claims import BY_CHANCE, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import cosine
from ..preconditioned import fourth_moment, optimal_step, preconditioner, risk
from ..prompts import gaussian_inputs
from ..references import recursive_least_squares, ridge
from .layers import SPECTRUM, _prompts, relative

ZHANG = "zhang2024trained"
N, FEW, NOISE, CONTEXTS = 20, 5, 0.5, 40_000
COVARIANCE = torch.diag(SPECTRUM)
FEW_EXAMPLES = "Gaussian inputs with eigenvalues 2, 1, .5, .25 and .1, weights from N(0, I), N = 5"
SETTING = "Gaussian inputs with eigenvalues 2, 1, .5, .25 and .1, weights from N(0, I), N = 20"


def _moments(x: Tensor, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Computes S = X^T X / N of contexts ``[n, N, d]``, and E[b b^T | X] = S^2 + noise S / N, ``[n, d, d]``
    each.
    """
    S = x.mT @ x / x.shape[1]
    return S, S @ S + noise / x.shape[1] * S


def _against(x: Tensor, G: Tensor, noise: float = 0.0) -> Measured:
    """Compares G with the least-squares matrix of contexts, over weights in closed form, in the worst
    direction.
    """
    S, B = _moments(x, noise)
    # minimises E |G b - w|^2, whose metric does not matter
    found = torch.linalg.solve(B.mean(0), S.mean(0)).mT
    eye = torch.eye(len(G), dtype=torch.float64)
    detail = {"cosine": float(cosine(found, G)), "cosine of plain descent": float(cosine(found, eye))}
    return Measured(float(torch.linalg.matrix_norm(G @ torch.linalg.inv(found) - eye, 2)), detail)


@claim(
    "in_context/preconditioner",
    measures="relative error of the closed form in the worst direction, against the least-squares "
    "matrix of 40,000 contexts",
    at_most=0.04,
    source=Source(
        "zhang2024trained",
        "Theorem 4.1, Assumption 3.3 of arXiv v3; in the journal Theorem 4, Assumption 3",
        "confirmed",
    ),
    assumptions=(FEW_EXAMPLES, "noise of variance .5: the term in the noise is the library's own"),
    control=but(r"$\Lambda^{-1}$ instead", inverse=True),
)
def best(generator: Generator, *, inverse: bool = False) -> Measured:
    r"""The best matrix of one layer, whose answers are $x^\top G \frac1N \sum_j y_j x_j$, is $G =
    \Gamma^{-1}$ with $\Gamma = (1 + \frac1N) \Lambda + \frac{\operatorname{tr} \Lambda + \sigma^2}{N} I$.
    """
    G = torch.linalg.inv(COVARIANCE) if inverse else preconditioner(COVARIANCE, FEW, noise=NOISE)
    return _against(gaussian_inputs(SPECTRUM)((CONTEXTS, FEW), generator), G, NOISE)


@claim(
    "in_context/risk",
    measures="largest distance to the mean over 40,000 contexts, in standard errors, for three matrices",
    at_most=5.0,
    margin=BY_CHANCE,
    source=Source(ZHANG, status="own"),
    assumptions=(SETTING, "noise of variance .5", r"G is $\Gamma^{-1}$, the best plain step, or I"),
    control=but("a formula without the noise", noise=0.0),
)
def risk_formula(generator: Generator, *, noise: float = NOISE) -> float:
    r"""The risk of any G is $\operatorname{tr} \Lambda (G B G^\top - G \Lambda - \Lambda G^\top + I)$ with $B
    = \Lambda \Gamma$.
    """
    S, B = _moments(gaussian_inputs(SPECTRUM)((CONTEXTS, N), generator), NOISE)
    eye, deviations = torch.eye(len(SPECTRUM), dtype=torch.float64), []
    for G in (
        preconditioner(COVARIANCE, N, noise=NOISE),
        optimal_step(COVARIANCE, N, noise=NOISE) * eye,
        eye,
    ):
        inner = G @ B @ G.mT - G @ S - S @ G.mT + eye
        sampled = (COVARIANCE * inner).sum((1, 2))
        error = float(sampled.std()) / CONTEXTS**0.5
        deviations.append(abs(float(sampled.mean()) - risk(G, COVARIANCE, N, noise=noise)) / error)
    return max(deviations)


@claim(
    "in_context/optimal-step",
    measures="relative distance to the minimum over 40,000 contexts",
    at_most=0.004,
    source=Source("vonoswald2023transformers", status="own"),
    assumptions=("uniform inputs on (-1, 1), d = N = 10, no noise",),
    control=but("the fourth moment of Gaussian inputs", gaussian=True),
)
def step(generator: Generator, *, gaussian: bool = False) -> Measured:
    r"""The best step of plain descent is $\eta = \operatorname{tr} \Lambda^2 / \operatorname{tr} \Lambda B$:
    for independent coordinates of variance s and fourth moment $m_4$, $\eta = s / m_2$ with $m_2 = \frac1N
    (m_4 + (d - 1) s^2) + (1 - \frac1N) s^2$.
    """
    d, examples = 10, 10
    x = 2 * torch.rand(CONTEXTS, examples, d, generator=generator, dtype=torch.float64) - 1
    S, squares = _moments(x)
    sampled = float(S.mean(0).trace() / squares.mean(0).trace())
    covariance = torch.eye(d, dtype=torch.float64) / 3
    # E |x|^2 x x^T is (m4 + (d - 1) s^2) I for independent coordinates; uniform ones have s = 1/3 and m4 =
    # 1/5.
    fourth = (1 / 5 + (d - 1) / 9) * torch.eye(d, dtype=torch.float64)
    step = optimal_step(covariance, examples, fourth=None if gaussian else fourth)
    return Measured(abs(step / sampled - 1), {"step": step, "sampled": sampled})


@claim(
    "in_context/moments",
    measures="relative error of the closed form in the worst direction, against the least-squares "
    "matrix of 40,000 contexts",
    at_most=0.05,
    source=Source(ZHANG, status="own"),
    assumptions=("inputs drawn with replacement from 30 points with heavy tails, N = 5, no noise",),
    control=but("the fourth moment of Gaussian inputs", gaussian=True),
)
def moments(generator: Generator, *, gaussian: bool = False) -> Measured:
    r"""For inputs of any distribution the best matrix is $G = \Lambda B^{-1}$ with $Q = E[\|x\|^2 x x^\top]$
    in B.
    """
    points = torch.randn(30, 3, generator=generator, dtype=torch.float64) ** 3  # heavy tails
    points -= points.mean(0)
    covariance, fourth = points.mT @ points / len(points), fourth_moment(points)
    x = points[torch.randint(30, (CONTEXTS, FEW), generator=generator)]
    return _against(x, preconditioner(covariance, FEW, fourth=None if gaussian else fourth))


@claim(
    "in_context/recursive",
    measures="largest relative difference of the answers after each example",
    at_most=1e-11,
    source=Source("akyurek2023learning", "Section 3.3, Eq. (13), Theorem 2", "confirmed"),
    assumptions=("N = 10 examples in 5 dimensions, noise of variance .5",),
    control=but("compares with ridge on one example fewer", shift=1),
)
def recursive(generator: Generator, *, shift: int = 0) -> float:
    r"""Recursive least squares by the formula of Sherman and Morrison, $P \leftarrow P - P x x^\top P / (1 +
    x^\top P x)$, is ridge on every prefix of the prompt.
    """
    prompts, strength = _prompts(generator, noise=NOISE), 0.7
    found = recursive_least_squares(prompts, strength)
    lengths = range(1, prompts.x.shape[1] + 1 - shift)
    exact = [ridge(replace(prompts, x=prompts.x[:, :k], y=prompts.y[:, :k]), strength / k) for k in lengths]
    return relative(found[:, shift:], torch.stack(exact, dim=1))


CLAIMS = (best, risk_formula, step, moments, recursive)
