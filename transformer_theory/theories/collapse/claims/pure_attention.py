"""Claims about layers without skip connections: the bound, the cubic law, the gradients.

Source: :cite:t:`dong2021attention`, :cite:t:`noci2022signal`.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
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
from .common import DONG_OWN, NOCI_OWN, REM, decades, normal

SMALL = (
    "16 tokens of 8 dimensions: a Gaussian mean token and small Gaussian differences; W and V with entries "
    "of variance 1/8"
)


def _bound(generator: Generator, *, layers: int, heads: int, draws: int, skip: bool) -> Measured:
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
    return Measured(max(ratios), {"median": sorted(ratios)[draws // 2]})


@claim(
    "collapse/bound",
    measures="largest ratio of the two sides over 200 draws",
    at_most=1.0,
    source=Source("dong2021attention", "Theorem 2.2, first version", "second-hand"),
    assumptions=(
        "2 to 11 tokens of 1 to 7 dimensions",
        "scales of tokens and W over 3.5 decades each",
        "res subtracts the mean token",
    ),
    control=but("adds the skip connection", skip=True),
)
def bound(generator: Generator, *, skip: bool = False) -> Measured:
    r"""Without skip connection, one head has $|\mathrm{res}(Y)|_{1,\infty} \le 4 |W|_1 |V|_{1,\infty}
    |\mathrm{res}(X)|_{1,\infty}^3$. (The paper's first version, where the residual subtracts the best token
    and not the mean; its later version has a further factor $\gamma$ of the attention entries.)
    """
    return _bound(generator, layers=1, heads=1, draws=200, skip=skip)


@claim(
    "collapse/bound-depth",
    measures="largest ratio of the two sides over 100 draws of two layers of two heads",
    at_most=1.0,
    source=Source("dong2021attention", "Theorem 2.3, first version", "second-hand"),
    assumptions=(
        "2 to 11 tokens of 1 to 7 dimensions",
        "scales of tokens and W over 3.5 decades each",
        "residuals below 1e-13 of the tokens are rounding and count as 0",
    ),
    control=but("adds the skip connection", skip=True),
)
def bound_depth(generator: Generator, *, skip: bool = False) -> Measured:
    r"""L layers of H heads have $|\mathrm{res}(X_L)|_{1,\infty} \le (4 \beta H)^{(3^L - 1)/2}
    |\mathrm{res}(X_0)|_{1,\infty}^{3^L}$ if $|W|_1 |V|_{1,\infty} \le \beta$ for each head. (The paper's
    first version, where the residual subtracts the best token and not the mean; its later version has a
    further factor $\gamma$ of the attention entries.)
    """
    return _bound(generator, layers=2, heads=2, draws=100, skip=skip)


@claim(
    "collapse/slack",
    measures="distance of the ratio from 1/8",
    at_most=0.01,
    source=DONG_OWN,
    assumptions=("differences of 4e-4 to 2e-3", "Gaussian mean token, W and V"),
    control=but("a third token at the mean, for which the ratio tends to 1/12", tokens=3),
)
def slack(generator: Generator, *, tokens: int = 2) -> Measured:
    """For two tokens in one dimension the ratio of the two sides tends to $1/8$ as they approach each other:
    there the constant 4 of the bound could be $1/2$.
    """
    mean, r = normal(generator, 1), 1e-3 * decades(generator) ** 0.2
    x = mean + r * torch.tensor([[1.0], [-1.0], *[[0.0]] * (tokens - 2)], dtype=torch.float64)
    W, V = normal(generator, 1, 1, 1, 1), normal(generator, 1, 1, 1, 1)
    ratio = bound_ratio(x, pure_attention(x, W[0], V[0]), W, V)
    return Measured(abs(ratio - 1 / 8), {"ratio": ratio})


def _near(generator: Generator) -> tuple[Callable[[float], Tensor], Tensor, Tensor]:
    """Draws tokens as a function of the size of their differences, W and V."""
    state = generator.get_state()
    _, drawn = near_tokens(16, 8, 0.0, generator)

    def at(size: float) -> Tensor:
        return near_tokens(16, 8, size, torch.Generator().set_state(state), differences=drawn)[0]

    return at, normal(generator, 8, 8) / 8**0.5, normal(generator, 8, 8) / 8**0.5


@claim(
    "collapse/cubic-law",
    measures="relative error divided by the square of the size of the differences",
    at_most=10.0,
    source=DONG_OWN,
    assumptions=(SMALL, "differences of size .003"),
    control=but("uniform weights in the covariance", own_weights=False),
)
def cubic(generator: Generator, *, own_weights: bool = True) -> Measured:
    r"""As $R = \mathrm{res}(X) \to 0$, $\mathrm{res}(A X V) = R W C_a V (1 + O(|R|^2))$ with the covariance
    $C_a$ of the tokens under the weights $a$ of the mean token.
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
    return Measured(error / size**2, {"relative error": error})


def _slope(function: Callable[[float], Tensor], first: float, second: float) -> float:
    """Returns the slope of log|function(size)| in log(size) between two sizes."""
    return math.log(float(function(first).norm() / function(second).norm())) / math.log(first / second)


def _power(generator: Generator, *, layers: int, skip: bool) -> Measured:
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
    return Measured(abs(slope - 3**layers), {"slope": slope})


@claim(
    "collapse/cubic-power",
    measures="distance of the slope of log residual after on log residual before from 3",
    at_most=0.05,
    source=DONG_OWN,
    assumptions=(SMALL, "differences of size .01 and .005"),
    control=but("adds the skip connection: slope 1", skip=True),
)
def cubic_power(generator: Generator, *, skip: bool = False) -> Measured:
    r"""One layer without skip connection raises the size of small differences to the power 3:
    $|\mathrm{res}(Y)| \sim |\mathrm{res}(X)|^3$.
    """
    return _power(generator, layers=1, skip=skip)


@claim(
    "collapse/ninth-power",
    measures="distance of the slope from 9",
    at_most=0.15,
    source=DONG_OWN,
    assumptions=(SMALL, "differences of size .01 and .005"),
    control=but("adds the skip connection: slope 1", skip=True),
)
def ninth_power(generator: Generator, *, skip: bool = False) -> Measured:
    """Two layers without skip connection raise it to the power $3^2$."""
    return _power(generator, layers=2, skip=skip)


@claim(
    "collapse/score-gradient",
    measures="distance of the slope of log gradient on log residual from 2",
    at_most=0.1,
    source=NOCI_OWN,
    assumptions=(SMALL, "differences of size .01 and .003"),
    control=but("values of tokens that have not collapsed: slope 1", collapsed=False),
)
def score_gradient_vanishes(generator: Generator, *, collapsed: bool = True) -> Measured:
    r"""With a fixed gradient of the loss by the output, $|\partial L / \partial W|$ vanishes like
    $|\mathrm{res}(X)|^2$.
    """
    at, W, V = _near(generator)
    gradient, other = normal(generator, 16, 8), normal(generator, 16, 8)
    slope = _slope(
        lambda size: score_gradient(at(size), W, V, gradient, values=None if collapsed else other),
        0.01,
        0.003,
    )
    return Measured(abs(slope - 2), {"slope": slope})


@claim(
    "collapse/value-gradient",
    measures="absolute slope of log gradient on log residual",
    at_most=0.001,
    source=NOCI_OWN,
    assumptions=(SMALL, "differences of size .01 and .003"),
    control=but("a loss of the differences between outputs only: slope 3", any_loss=False),
)
def value_gradient_remains(generator: Generator, *, any_loss: bool = True) -> Measured:
    r"""With a fixed gradient of the loss by the output, $|\partial L / \partial V|$ does not vanish."""
    at, W, _ = _near(generator)
    gradient = normal(generator, 16, 8)
    gradient = gradient if any_loss else residual(gradient)
    slope = _slope(lambda size: value_gradient(at(size), W, gradient), 0.01, 0.003)
    return Measured(abs(slope), {"slope": slope})


@claim(
    "collapse/large-scores",
    measures="relative residual after five layers",
    at_least=0.5,
    margin=NEAR,
    source=REM,
    assumptions=(
        "64 orthogonal tokens of 256 dimensions",
        "scores of normalised tokens, new Gaussian W and V in each layer",
    ),
    control=but("scores with a standard deviation of .3", deviation=0.3),
)
def large_scores(generator: Generator, *, deviation: float = 9.0) -> float:
    r"""Large scores delay the collapse: with a standard deviation of 9 five layers without skip connection
    keep the relative residual $|\mathrm{res}(X)|_F / |X|_F$ of 64 tokens above one half.
    """
    x = stream(64, 256, 5, 1.0, generator, deviation=deviation, skip=0.0)
    return float(rank_collapse_residual(x))


CLAIMS = (
    bound,
    bound_depth,
    slack,
    cubic,
    cubic_power,
    ninth_power,
    score_gradient_vanishes,
    value_gradient_remains,
    large_scores,
)
