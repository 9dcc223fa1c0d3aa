"""Claims about the error of the approximation.

Source: :cite:t:`yun2020transformers`.
"""

import math
from fractions import Fraction
from itertools import permutations

import torch
from torch import Generator

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function
from .sources import OWN

SAMPLES = 3000


@claim(
    "universal/centres",
    measures=r"deviation of the $L^1$ error from $n \delta / 4$, relative to it",
    at_most=0.1,
    source=OWN,
    assumptions=(
        "(k, d, n) = (6, 1, 3), with positions",
        "a random permutation other than the identity, which needs no context",
        "3,000 uniform points",
    ),
    control=but("takes the values at the lower corners", centres=False),
)
def constant(generator: Generator, *, centres: bool = True) -> Measured:
    r"""With the values of f at the centres of the cubes, a permutation of the tokens, $f(x)_j = x_{\pi(j)}$
    with d = 1, has the $L^1$ error $n \delta / 4$.
    """
    k, n = 6, 3
    order = torch.tensor(list(permutations(range(n)))[1:])[int(torch.randint(5, (), generator=generator))]
    settings = UniversalApproximator(lambda x: x[..., order, :], n, 1, Fraction(1, k))
    network = (
        settings.fit() if centres else settings.fit_values(settings.mapping.grids()[:, order.numpy()] / k)
    )
    error = network.error(1, samples=SAMPLES, generator=generator)
    return Measured(abs(error / (n / (4 * k)) - 1), {"error": error})


def _slope(
    generator: Generator, cubes: tuple[int, int], *, equivariant: bool, attention: AttentionLayers
) -> Measured:
    """Measures how far the exponent of the L1 error in delta lies from 1."""
    f = random_function(generator, n=3, equivariant=equivariant)
    networks = [UniversalApproximator(f, 3, 1, Fraction(1, k), equivariant, attention).fit() for k in cubes]
    coarse, fine = (network.error(1, samples=SAMPLES, generator=generator) for network in networks)
    slope = math.log(coarse / fine) / math.log(cubes[1] / cubes[0])
    return Measured(abs(slope - 1), {"exponent": slope, "coarse error": coarse, "fine error": fine})


@claim(
    "universal/rate",
    measures=r"distance of the exponent of the $L^1$ error between $\delta = 1/4$ and $1/16$ from 1",
    at_most=0.1,
    source=Source("yun2020transformers", "Theorem 3 (existence)", "own"),
    assumptions=(
        "a smooth function of three tokens, d = 1",
        "the step function of width-0 ramps",
        "3,000 uniform points",
    ),
    control=but(
        "leaves out the attention layers, so that each token and position has its mean value",
        attention="none",
    ),
)
def rate(generator: Generator, *, attention: AttentionLayers = "all") -> Measured:
    r"""With positions the $L^1$ error of a smooth function falls like $\delta$: it halves when $\delta$
    halves. (The paper shows that some network comes within any $\varepsilon$; it states no rate.)
    """
    return _slope(generator, (4, 16), equivariant=False, attention=attention)


@claim(
    "universal/rate-equivariant",
    measures=r"distance of the exponent of the $L^1$ error between $\delta = 1/12$ and $1/48$ from 1",
    at_most=0.2,  # without positions the uncovered cubes make the exponent vary more
    margin=(
        "the threshold lies between the exponents of single draws and the control; the exponent tends"
        " to 1 only as the cubes shrink"
    ),
    source=Source("yun2020transformers", "Theorem 2 (existence)", "own"),
    assumptions=(
        "a smooth permutation-equivariant function of three tokens, d = 1",
        "the step function of width-0 ramps",
        "3,000 uniform points",
    ),
    control=but("leaves out the attention layers, so that each token has its mean value", attention="none"),
)
def rate_equivariant(generator: Generator, *, attention: AttentionLayers = "all") -> Measured:
    r"""Without positions, too, the $L^1$ error of a smooth permutation-equivariant function falls like
    $\delta$ in the limit of small $\delta$ if d = 1, although a share of up to $\binom n2 \delta^d$ of the
    cubes is not covered: that share is of order $\delta$ itself. (The paper shows that some network
    comes within any $\varepsilon$; it states no rate.)
    """
    return _slope(generator, (12, 48), equivariant=True, attention=attention)


CLAIMS = (constant, rate, rate_equivariant)
