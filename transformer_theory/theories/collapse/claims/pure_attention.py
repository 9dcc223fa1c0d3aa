"""Claims about layers without skip connections: the bound, the cubic law, the gradients.

Source: :cite:t:`dong2021attention`, :cite:t:`noci2022signal`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....metrics.geometry import rank_collapse_residual
from ..initialisation import stream
from ..residuals import (
    bound_ratio,
    cubic_law,
    exact_differences,
    mean_weights,
    near_tokens,
    pure_attention,
    residual,
    score_gradient,
    value_gradient,
    weighted_covariance,
)
from .common import DONG, DONG_OWN, NOCI_OWN, REM, decades, normal


def _slope(function: Callable[[float], Tensor], first: float, second: float) -> float:
    """Returns the slope of log|function(size)| in log(size) between two sizes."""
    return math.log(float(function(first).norm() / function(second).norm())) / math.log(first / second)


def _bound(generator: Generator, *, layers: int, heads: int, draws: int, skip: bool) -> Evidence:
    """Measures the largest ratio of the residual to its bound over random tokens and weights."""
    ratios = []
    for _ in range(draws):
        n, d = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((2, 12), (1, 8)))
        x, W = (
            decades(generator) * normal(generator, n, d),
            decades(generator) * normal(generator, layers, heads, d, d),
        )
        V = normal(generator, layers, heads, d, d)
        y = x
        for w, v in zip(W, V):
            y = pure_attention(y, w, v) + (y if skip else 0.0)
        ratios.append(bound_ratio(x, y, W, V))
    return Evidence(max(ratios), 1.0, "<=", detail={"median": sorted(ratios)[draws // 2]})


def _slack(generator: Generator, *, tokens: int) -> Evidence:
    """Measures the distance of the ratio from 1/8 for tokens x + r, x - r and copies of x, in one dimension."""
    mean, r = normal(generator, 1), 1e-3 * decades(generator) ** 0.2
    x = mean + r * torch.tensor([[1.0], [-1.0], *[[0.0]] * (tokens - 2)], dtype=torch.float64)
    W, V = normal(generator, 1, 1, 1, 1), normal(generator, 1, 1, 1, 1)
    ratio = bound_ratio(x, pure_attention(x, W[0], V[0]), W, V)
    return Evidence(abs(ratio - 1 / 8), 0.01, "<=", detail={"ratio": ratio})


def _near(generator: Generator) -> tuple[Callable[[float], Tensor], Tensor, Tensor]:
    """Draws tokens as a function of the size of their differences, W and V."""
    state = generator.get_state()
    _, drawn = near_tokens(16, 8, 0.0, generator)

    def at(size: float) -> Tensor:
        return near_tokens(16, 8, size, torch.Generator().set_state(state), differences=drawn)[0]

    return at, normal(generator, 8, 8) / 8**0.5, normal(generator, 8, 8) / 8**0.5


def _cubic(generator: Generator, *, own_weights: bool) -> Evidence:
    """Measures the relative error of the cubic law for differences of size .003, divided by the square of the
    size.
    """
    at, W, V = _near(generator)
    x, size = at(0.003), 0.003
    exact = residual(pure_attention(x, W[None], V[None]))
    if own_weights:
        formula = cubic_law(x, W, V)
    else:
        uniform = torch.full_like(mean_weights(x, W), 1 / 16)
        formula = residual(x) @ W @ weighted_covariance(x, uniform) @ V
    error = float((exact - formula).norm() / exact.norm())
    return Evidence(error / size**2, 10.0, "<=", detail={"relative error": error})


def _power(generator: Generator, *, layers: int, skip: bool) -> Evidence:
    """Measures the distance of the slope from 3^layers."""
    at, W, V = _near(generator)

    def after(size: float) -> Tensor:
        x = at(size)
        mean, R = x.mean(0, keepdim=True), residual(x)
        for _ in range(layers):
            branch = exact_differences(mean, R, W, V)
            mean, R = (new + (old if skip else 0.0) for new, old in zip(branch, (mean, R)))
        return R

    slope = _slope(after, 0.01, 0.005)
    return Evidence(abs(slope - 3**layers), 0.05 * 3**layers, "<=", detail={"slope": slope})


def _score_gradient(generator: Generator, *, collapsed: bool) -> Evidence:
    """Measures the distance of the slope of |dL/dW| from 2."""
    at, W, V = _near(generator)
    gradient, other = normal(generator, 16, 8), normal(generator, 16, 8)
    slope = _slope(
        lambda size: score_gradient(at(size), W, V, gradient, values=None if collapsed else other),
        0.01,
        0.003,
    )
    return Evidence(abs(slope - 2), 0.1, "<=", detail={"slope": slope})


def _value_gradient(generator: Generator, *, any_loss: bool) -> Evidence:
    """Measures the absolute slope of |dL/dV|."""
    at, W, _ = _near(generator)
    gradient = normal(generator, 16, 8)
    gradient = gradient if any_loss else residual(gradient)
    slope = _slope(lambda size: value_gradient(at(size), W, gradient), 0.01, 0.003)
    return Evidence(abs(slope), 0.05, "<=", detail={"slope": slope})


def _large_scores(generator: Generator, deviation: float) -> Evidence:
    """Measures the relative residual after five layers without skip connection; 64 tokens."""
    x = stream(64, 256, 5, 1.0, generator, deviation=deviation, skip=0.0)
    return Evidence(float(rank_collapse_residual(x)), 0.5, ">=")


SMALL = (
    "16 tokens of 8 dimensions: a Gaussian mean token and small Gaussian differences; W and V with entries "
    "of variance 1/8"
)
CLAIMS = (
    Claim(
        id="collapse/bound",
        statement=r"Without skip connection, one head has $|\mathrm{res}(Y)|_{1,\infty} \le 4 |W|_1 "
        r"|V|_{1,\infty} |\mathrm{res}(X)|_{1,\infty}^3$.",
        measures="largest ratio of the two sides over 200 draws",
        source=DONG,
        assumptions=(
            "2 to 11 tokens of 1 to 7 dimensions",
            "scales of tokens and W over 3.5 decades each",
            "res subtracts the mean token",
        ),
        check=partial(_bound, layers=1, heads=1, draws=200, skip=False),
        control=partial(_bound, layers=1, heads=1, draws=200, skip=True),
        control_description="adds the skip connection",
    ),
    Claim(
        id="collapse/bound-depth",
        statement=r"L layers of H heads have $|\mathrm{res}(X_L)|_{1,\infty} \le (4 \beta H)^{(3^L - 1)/2} "
        r"|\mathrm{res}(X_0)|_{1,\infty}^{3^L}$ if $|W|_1 |V|_{1,\infty} \le \beta$ for each head.",
        measures="largest ratio of the two sides over 100 draws of two layers of two heads",
        source=DONG,
        assumptions=(
            "2 to 11 tokens of 1 to 7 dimensions",
            "scales of tokens and W over 3.5 decades each",
            "residuals below 1e-13 of the tokens are rounding and count as 0",
        ),
        check=partial(_bound, layers=2, heads=2, draws=100, skip=False),
        control=partial(_bound, layers=2, heads=2, draws=100, skip=True),
        control_description="adds the skip connection",
    ),
    Claim(
        id="collapse/slack",
        statement="For two tokens in one dimension the ratio of the two sides tends to $1/8$ as they "
        "approach each other: there the constant 4 of the bound could be $1/2$.",
        measures="distance of the ratio from 1/8",
        source=DONG_OWN,
        assumptions=("differences of 4e-4 to 2e-3", "Gaussian mean token, W and V"),
        check=partial(_slack, tokens=2),
        control=partial(_slack, tokens=3),
        control_description="a third token at the mean, for which the ratio tends to 1/12",
    ),
    Claim(
        id="collapse/cubic-law",
        statement=r"As $R = \mathrm{res}(X) \to 0$, $\mathrm{res}(A X V) = R W C_a V (1 + O(|R|^2))$ with "
        "the covariance $C_a$ of the tokens under the weights $a$ of the mean token.",
        measures="relative error divided by the square of the size of the differences",
        source=DONG_OWN,
        assumptions=(SMALL, "differences of size .003"),
        check=partial(_cubic, own_weights=True),
        control=partial(_cubic, own_weights=False),
        control_description="uniform weights in the covariance",
    ),
    Claim(
        id="collapse/cubic-power",
        statement="One layer without skip connection raises the size of small differences to the power 3: "
        r"$|\mathrm{res}(Y)| \sim |\mathrm{res}(X)|^3$.",
        measures="distance of the slope of log residual after on log residual before from 3",
        source=DONG_OWN,
        assumptions=(SMALL, "differences of size .01 and .005"),
        check=partial(_power, layers=1, skip=False),
        control=partial(_power, layers=1, skip=True),
        control_description="adds the skip connection: slope 1",
    ),
    Claim(
        id="collapse/ninth-power",
        statement=r"Two layers without skip connection raise it to the power $3^2$.",
        measures="distance of the slope from 9",
        source=DONG_OWN,
        assumptions=(SMALL, "differences of size .01 and .005"),
        check=partial(_power, layers=2, skip=False),
        control=partial(_power, layers=2, skip=True),
        control_description="adds the skip connection: slope 1",
    ),
    Claim(
        id="collapse/score-gradient",
        statement=r"With a fixed gradient of the loss by the output, $|\partial L / \partial W|$ vanishes "
        r"like $|\mathrm{res}(X)|^2$.",
        measures="distance of the slope of log gradient on log residual from 2",
        source=NOCI_OWN,
        assumptions=(SMALL, "differences of size .01 and .003"),
        check=partial(_score_gradient, collapsed=True),
        control=partial(_score_gradient, collapsed=False),
        control_description="values of tokens that have not collapsed: slope 1",
    ),
    Claim(
        id="collapse/value-gradient",
        statement=r"With a fixed gradient of the loss by the output, $|\partial L / \partial V|$ does not "
        r"vanish.",
        measures="absolute slope of log gradient on log residual",
        source=NOCI_OWN,
        assumptions=(SMALL, "differences of size .01 and .003"),
        check=partial(_value_gradient, any_loss=True),
        control=partial(_value_gradient, any_loss=False),
        control_description="a loss of the differences between outputs only: slope 3",
    ),
    Claim(
        id="collapse/large-scores",
        statement="Large scores delay the collapse: with a standard deviation of 9 five layers without "
        r"skip connection keep the relative residual $|\mathrm{res}(X)|_F / |X|_F$ of 64 tokens above one "
        "half.",
        measures="relative residual after five layers",
        source=REM,
        assumptions=(
            "64 orthogonal tokens of 256 dimensions",
            "scores of normalised tokens, new Gaussian W and V in each layer",
        ),
        check=partial(_large_scores, deviation=9.0),
        control=partial(_large_scores, deviation=0.3),
        control_description="scores with a standard deviation of .3",
    ),
)
