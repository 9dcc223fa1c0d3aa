"""Claims about the network that is written down: its size, and that its layers compute what the theorem says.

Source: :cite:t:`yun2020transformers`.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Generator

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ..approximator import Approximation, UniversalApproximator, expected_layers
from ..functions import random_function
from ..layers import Attention, FeedForward, Layer, quantiser, run
from .sources import GRID, HARD, OWN, listed, one_of

SIZES = ((3, 1, 2), (2, 2, 2), (3, 1, 3), (4, 1, 3), (3, 2, 2))
POINTS = 100
RAMP = 2.0**-8  # in units of delta
# rounding of float64: coefficients and codes of up to 2^20 are multiplied, once per layer (1e-12 in exact
# fractions)
TOLERANCE = 0.02


def network(generator: Generator, *, equivariant: bool) -> Approximation:
    """Constructs the network of a random smooth function."""
    k, d, n = one_of(SIZES, generator)
    return UniversalApproximator(
        random_function(generator, n=n, d=d, equivariant=equivariant), n, d, Fraction(1, k), equivariant
    ).fit()


def inputs(approximation: Approximation, generator: Generator, *, ramp: float, inside: bool) -> torch.Tensor:
    """Draws points ``[points, n, d]`` off the ramps of the quantisers, or in the middle of a ramp in one
    entry (``inside``).
    """
    settings = approximation.settings
    grids = torch.randint(approximation.k, (POINTS, settings.n, settings.d), generator=generator)
    points = grids + (1 - ramp) * torch.rand(grids.shape, generator=generator, dtype=torch.float64)
    if inside:
        points[:, 0, 0] = grids[:, 0, 0] + 1 - ramp / 2
    return points / approximation.k


def through_layers(
    approximation: Approximation, layers: tuple[Layer, ...], points: torch.Tensor
) -> np.ndarray:
    """Runs layers in float64 on points [points, n, d] and returns the outputs in the units of f."""
    positions = 0 if approximation.settings.equivariant else np.arange(approximation.settings.n)[:, None]
    return run(layers, (points.numpy() + positions) * approximation.k) / approximation.k


@claim(
    "universal/layers",
    measures="largest difference between the network and the step function at random points off the ramps",
    at_most=TOLERANCE,
    source=Source(
        "yun2020transformers", "Theorem 2, through Proposition 4 and Lemmas 6, 7 and 9", "second-hand"
    ),
    assumptions=(
        HARD,
        "points off the ramps of the ReLUs",
        "float64",
        "random smooth functions",
        listed(SIZES),
    ),
    control=but("keeps only the first head of each attention layer", heads=1),
)
def layers(generator: Generator, *, heads: int = 2) -> Measured:
    r"""Run layer by layer, with hard-max attention of two heads of size one and feed-forward layers of width
    four, the network computes the step function $\bar f$ off its ramps.
    """
    approximation = network(generator, equivariant=bool(torch.randint(2, (), generator=generator)))
    points = inputs(approximation, generator, ramp=RAMP, inside=False)
    layers = tuple(
        Attention(layer.heads[:heads]) if isinstance(layer, Attention) else layer
        for layer in approximation.layers(ramp=RAMP)
    )
    gap = np.abs(through_layers(approximation, layers, points) - approximation(points).numpy()).max()
    return Measured(float(gap), {"layers": len(layers)})


def _width(layer: FeedForward) -> int:
    """Returns the number of hidden units that do something."""
    return int(((layer.inner != 0).any(1) & (layer.outer != 0).any(0)).sum())


@claim(
    "universal/size",
    measures="largest deviation of the counted heads, width and numbers of layers from the statement",
    at_most=0,
    source=Source("yun2020transformers", "Lemmas 6 and 7", "second-hand"),
    assumptions=(
        "layers of values are counted for grids that the theorem covers",
        "attention layers that move nothing are left out",
        "heads have size one by construction",
        listed(SIZES),
    ),
    control=but(
        r"counts $n k^{dn} / n!$ layers of values without positions, the leading order "
        r"for large k",
        quotient=True,
    ),
)
def size(generator: Generator, *, quotient: bool = False) -> Measured:
    r"""Two heads per layer and width four suffice. The layers number $dk$, $k^d + 1$ and $n \binom{k^d}{n}$
    (quantisers, attention, values) without positions, and $ndk$, $nk^d + 1$ and $nk^{dn}$ with positions. (A
    later text counts d quantisers more, for entries outside the cube, and quantises before it adds the
    positions.)
    """
    equivariant = bool(torch.randint(2, (), generator=generator)) or quotient
    approximation = network(generator, equivariant=equivariant)
    layers, counts = approximation.layers(), approximation.layer_counts()
    largest = {
        "heads": max(len(layer.heads) for layer in layers if isinstance(layer, Attention)) - 2,
        "width": max(_width(layer) for layer in layers if isinstance(layer, FeedForward)) - 4,
    }
    settings = approximation.settings
    formula = expected_layers(approximation.k, settings.d, settings.n, equivariant=equivariant)
    if quotient:
        formula["value"] = (
            settings.n * approximation.k ** (settings.d * settings.n) / np.prod(np.arange(1, settings.n + 1))
        )
    deviations = [*largest.values(), *(counts[name] - formula[name] for name in formula)]
    return Measured(
        float(max(abs(deviation) for deviation in deviations)), {name: counts[name] for name in counts}
    )


@claim(
    "universal/half-open",
    measures="largest error of the quantised tokens at points with entries on walls, in units of delta",
    at_most=1e-9,
    source=Source("yun2020transformers", status="second-hand"),
    assumptions=(GRID, "half of the entries lie on walls, the others off the ramps", listed(SIZES)),
    control=but(
        r"the formula of a sum over closed cubes, where a point on m walls lies in "
        r"$2^m$ cubes",
        closed=True,
    ),
    corrects=(
        r"It defines closed cubes, $L \le Y \le L + \delta$; then $\bar f$ adds up to $2^{dn}$ values on "
        r"the walls."
    ),
    corrected=Source("wong2023understanding", "App. C.2.3", "confirmed"),
)
def half_open(generator: Generator, *, closed: bool = False) -> float:
    r"""The cubes are half-open, $[L, L + \delta)$: the quantisers map a point on a wall to the cube above it,
    so that each point has one L.
    """
    k, d, n = one_of(SIZES, generator)
    cells = torch.randint(1, k, (POINTS, n, d), generator=generator).double()
    on_wall = torch.rand(cells.shape, generator=generator) < 0.5
    points = torch.where(
        on_wall, cells, cells + 0.9 * torch.rand(cells.shape, generator=generator, dtype=torch.float64)
    ).numpy()
    if closed:
        # The sum over closed cubes counts the corner of each cube that holds the point: t and t - 1 in an
        # entry on a wall.
        copies = np.where(on_wall.numpy(), 2, 1).prod((1, 2), keepdims=True)
        quantised = copies * np.where(on_wall.numpy(), cells - 0.5, cells)
    else:
        quantised = run([quantiser(i, t, d, ramp=2.0**-10) for i in range(d) for t in range(k)], points)
    return float(np.abs(quantised - cells.numpy()).max())


@claim(
    "universal/not-uniform",
    measures="largest error on the ramps, the smallest of three ramp widths",
    at_least=0.1,
    source=OWN,
    assumptions=(
        "hard-max attention, with positions",
        "ramps of 1/16, 1/256 and 1/4096 of a cube",
        "random smooth functions",
        listed(SIZES),
    ),
    control=but("takes points off the ramps", inside=False),
)
def not_uniform(generator: Generator, *, inside: bool = True) -> Measured:
    """This network does not approximate in the supremum norm: on the ramps of its ReLUs, of width $2^{-4}$ to
    $2^{-12}$ cubes, it stays far from the step function.
    """
    approximation = network(generator, equivariant=False)
    errors = []
    for ramp in (2.0**-4, 2.0**-8, 2.0**-12):
        points = inputs(approximation, generator, ramp=ramp, inside=inside)
        outputs = through_layers(approximation, approximation.layers(ramp=ramp), points)
        errors.append(np.abs(outputs - approximation(points).numpy()).max())
    return Measured(float(min(errors)), {"largest": float(max(errors))})


CLAIMS = (layers, size, half_open, not_uniform)
