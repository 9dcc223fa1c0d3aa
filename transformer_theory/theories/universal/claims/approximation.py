"""Claims about the error of the approximation.

Source: :cite:t:`yun2020transformers`.
"""

import math
from fractions import Fraction
from itertools import permutations

import torch
from torch import Generator

from ....core.claims import Claim, Evidence
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function
from .sources import OWN, THEOREM_2, THEOREM_3

SAMPLES = 3000
# by symmetry; without positions the uncovered cubes make the exponent vary more
TOLERANCE = {False: 0.1, True: 0.25}


def _slope(
    generator: Generator, cubes: tuple[int, int], *, equivariant: bool, attention: AttentionLayers
) -> Evidence:
    """Measures how far the exponent of the L1 error in delta lies from 1."""
    f = random_function(generator, n=3, equivariant=equivariant)
    networks = [UniversalApproximator(f, 3, 1, Fraction(1, k), equivariant, attention).fit() for k in cubes]
    coarse, fine = (network.error(1, samples=SAMPLES, generator=generator) for network in networks)
    slope = math.log(coarse / fine) / math.log(cubes[1] / cubes[0])
    return Evidence(
        abs(slope - 1),
        TOLERANCE[equivariant],
        "<=",
        detail={"exponent": slope, "coarse error": coarse, "fine error": fine},
    )


def _constant(generator: Generator, *, centres: bool) -> Evidence:
    """Measures the deviation of the L1 error of a permutation of the tokens from n delta/4."""
    k, n = 6, 3
    order = torch.tensor(list(permutations(range(n)))[1:])[int(torch.randint(5, (), generator=generator))]
    settings = UniversalApproximator(lambda x: x[..., order, :], n, 1, Fraction(1, k))
    network = (
        settings.fit() if centres else settings.fit_values(settings.mapping.grids()[:, order.numpy()] / k)
    )
    error = network.error(1, samples=SAMPLES, generator=generator)
    return Evidence(abs(error / (n / (4 * k)) - 1), 0.1, "<=", detail={"error": error})


CLAIMS = (
    Claim(
        id="universal/centres",
        statement="With the values of f at the centres of the cubes, a permutation of the tokens, $f(x)_j "
        r"= x_{\pi(j)}$ with d = 1, has the $L^1$ error $n \delta / 4$.",
        measures=r"deviation of the $L^1$ error from $n \delta / 4$, relative to it",
        source=OWN,
        assumptions=(
            "(k, d, n) = (6, 1, 3), with positions",
            "a random permutation other than the identity, which needs no context",
            "3,000 uniform points",
        ),
        check=lambda generator: _constant(generator, centres=True),
        control=lambda generator: _constant(generator, centres=False),
        control_description="takes the values at the lower corners",
    ),
    Claim(
        id="universal/rate",
        statement=r"With positions the $L^1$ error of a smooth function falls like $\delta$: it halves when "
        r"$\delta$ halves.",
        measures=r"distance of the exponent of the $L^1$ error between $\delta = 1/4$ and $1/16$ from 1",
        source=THEOREM_3,
        assumptions=(
            "a smooth function of three tokens, d = 1",
            "the step function of width-0 ramps",
            "3,000 uniform points",
        ),
        check=lambda generator: _slope(generator, (4, 16), equivariant=False, attention="all"),
        control=lambda generator: _slope(generator, (4, 16), equivariant=False, attention="none"),
        control_description="leaves out the attention layers, so that each token and position has its mean "
        "value",
    ),
    Claim(
        id="universal/rate-equivariant",
        statement="Without positions the $L^1$ error of a smooth permutation-equivariant function falls "
        r"like $\delta$ as well for d = 1, although a share of $\binom n2 \delta^d$ of the cubes is not "
        "covered.",
        measures=r"distance of the exponent of the $L^1$ error between $\delta = 1/8$ and $1/32$ from 1",
        source=THEOREM_2,
        assumptions=(
            "a smooth permutation-equivariant function of three tokens, d = 1",
            "the step function of width-0 ramps",
            "3,000 uniform points",
        ),
        check=lambda generator: _slope(generator, (8, 32), equivariant=True, attention="all"),
        control=lambda generator: _slope(generator, (8, 32), equivariant=True, attention="none"),
        control_description="leaves out the attention layers, so that each token has its mean value",
    ),
)
