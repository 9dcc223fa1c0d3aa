"""Claims about the best preconditioned step, its risk, and the best step of plain descent."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
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


def _against(x: Tensor, G: Tensor, noise: float = 0.0) -> Evidence:
    """Compares G with the least-squares matrix of contexts, over weights in closed form, in the worst
    direction.
    """
    S, B = _moments(x, noise)
    # minimises E |G b - w|^2, whose metric does not matter
    found = torch.linalg.solve(B.mean(0), S.mean(0)).mT
    eye = torch.eye(len(G), dtype=torch.float64)
    detail = {"cosine": float(cosine(found, G)), "cosine of plain descent": float(cosine(found, eye))}
    return Evidence(
        float(torch.linalg.matrix_norm(G @ torch.linalg.inv(found) - eye, 2)), 0.1, "<=", detail=detail
    )


def _best(generator: Generator, *, inverse: bool) -> Evidence:
    """Compares the closed form, or the inverse covariance, with the least-squares matrix of many contexts."""
    G = torch.linalg.inv(COVARIANCE) if inverse else preconditioner(COVARIANCE, FEW, noise=NOISE)
    return _against(gaussian_inputs(SPECTRUM)((CONTEXTS, FEW), generator), G, NOISE)


def _risk(generator: Generator, *, noise: float) -> Evidence:
    """Compares risks of three matrices with means over contexts, in standard errors."""
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
    return Evidence(max(deviations), 5.0, "<=")


def _step(generator: Generator, *, gaussian: bool) -> Evidence:
    """Compares the best step for uniform inputs with the minimum of the mean risk over contexts."""
    d, examples = 10, 10
    x = 2 * torch.rand(CONTEXTS, examples, d, generator=generator, dtype=torch.float64) - 1
    S, squares = _moments(x)
    sampled = float(S.mean(0).trace() / squares.mean(0).trace())
    covariance = torch.eye(d, dtype=torch.float64) / 3
    # E |x|^2 x x^T is (m4 + (d - 1) s^2) I for independent coordinates; uniform ones have s = 1/3 and m4 =
    # 1/5.
    fourth = (1 / 5 + (d - 1) / 9) * torch.eye(d, dtype=torch.float64)
    step = optimal_step(covariance, examples, fourth=None if gaussian else fourth)
    return Evidence(abs(step / sampled - 1), 0.01, "<=", detail={"step": step, "sampled": sampled})


def _tokens(generator: Generator, *, gaussian: bool) -> Evidence:
    """Compares the best matrix for inputs from a finite set, by moments, with the least-squares matrix of
    many contexts.
    """
    points = torch.randn(30, 3, generator=generator, dtype=torch.float64) ** 3  # heavy tails
    points -= points.mean(0)
    covariance, fourth = points.mT @ points / len(points), fourth_moment(points)
    x = points[torch.randint(30, (CONTEXTS, FEW), generator=generator)]
    return _against(x, preconditioner(covariance, FEW, fourth=None if gaussian else fourth))


def _recursive(generator: Generator, *, shift: int) -> Evidence:
    """Compares recursive least squares after each example with ridge on the prefix."""
    prompts, strength = _prompts(generator, noise=NOISE), 0.7
    found = recursive_least_squares(prompts, strength)
    lengths = range(1, prompts.x.shape[1] + 1 - shift)
    exact = [ridge(replace(prompts, x=prompts.x[:, :k], y=prompts.y[:, :k]), strength / k) for k in lengths]
    return Evidence(relative(found[:, shift:], torch.stack(exact, dim=1)), 1e-11, "<=")


STEPS = (
    Claim(
        id="in_context/preconditioner",
        statement=r"The best matrix of one layer, whose answers are $x^\top G \frac1N \sum_j y_j x_j$, is "
        r"$G = \Gamma^{-1}$ with $\Gamma = (1 + \frac1N) \Lambda + \frac{\operatorname{tr} \Lambda + "
        r"\sigma^2}{N} I$.",
        measures="relative error of the closed form in the worst direction, against the least-squares "
        "matrix of 40,000 contexts",
        source=Source(ZHANG, "Theorem 4.1", "second-hand"),
        assumptions=(FEW_EXAMPLES, "noise of variance .5: the term in the noise is the library's own"),
        check=lambda generator: _best(generator, inverse=False),
        control=lambda generator: _best(generator, inverse=True),
        control_description=r"$\Lambda^{-1}$ instead",
        corrects="Summaries of the field say that a trained transformer takes *a step of gradient "
        r"descent*. For inputs that are not isotropic this is false: the best matrix is $\Gamma^{-1}$, and "
        r"plain descent, $G = \eta I$, has cosine .843 to it here (without noise).",
    ),
    Claim(
        id="in_context/risk",
        statement=r"The risk of any G is $\operatorname{tr} \Lambda (G B G^\top - G \Lambda - \Lambda "
        r"G^\top + I)$ with $B = \Lambda \Gamma$.",
        measures="largest distance to the mean over 40,000 contexts, in standard errors, for three matrices",
        source=Source(ZHANG, status="own"),
        assumptions=(SETTING, "noise of variance .5", r"G is $\Gamma^{-1}$, the best plain step, or I"),
        check=lambda generator: _risk(generator, noise=NOISE),
        control=lambda generator: _risk(generator, noise=0.0),
        control_description="a formula without the noise",
    ),
    Claim(
        id="in_context/optimal-step",
        statement=r"The best step of plain descent is $\eta = \operatorname{tr} \Lambda^2 / "
        r"\operatorname{tr} \Lambda B$: for independent coordinates of variance s and fourth moment $m_4$, "
        r"$\eta = s / m_2$ with $m_2 = \frac1N (m_4 + (d - 1) s^2) + (1 - \frac1N) s^2$.",
        measures="relative distance to the minimum over 40,000 contexts",
        source=Source("vonoswald2023transformers", status="own"),
        assumptions=("uniform inputs on (-1, 1), d = N = 10, no noise",),
        check=lambda generator: _step(generator, gaussian=False),
        control=lambda generator: _step(generator, gaussian=True),
        control_description="the fourth moment of Gaussian inputs",
    ),
    Claim(
        id="in_context/moments",
        statement=r"For inputs of any distribution the best matrix is $G = \Lambda B^{-1}$ with $Q = "
        r"E[\|x\|^2 x x^\top]$ in B.",
        measures="relative error of the closed form in the worst direction, against the least-squares "
        "matrix of 40,000 contexts",
        source=Source(ZHANG, status="own"),
        assumptions=("inputs drawn with replacement from 30 points with heavy tails, N = 5, no noise",),
        check=lambda generator: _tokens(generator, gaussian=False),
        control=lambda generator: _tokens(generator, gaussian=True),
        control_description="the fourth moment of Gaussian inputs",
    ),
    Claim(
        id="in_context/recursive",
        statement=r"Recursive least squares by the formula of Sherman and Morrison, $P \leftarrow P - P x "
        r"x^\top P / (1 + x^\top P x)$, is ridge on every prefix of the prompt.",
        measures="largest relative difference of the answers after each example",
        source=Source("akyurek2023learning", status="second-hand"),
        assumptions=("N = 10 examples in 5 dimensions, noise of variance .5",),
        check=lambda generator: _recursive(generator, shift=0),
        control=lambda generator: _recursive(generator, shift=1),
        control_description="compares with ridge on one example fewer",
    ),
)
