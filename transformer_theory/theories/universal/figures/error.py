r"""The error of the construction against the width of the cubes, and against the number of layers.

Source: :cite:t:`yun2020transformers`.
"""

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function

ERROR, SUPREMUM, EXPONENT = "L1 error", "largest error at random points", "exponent of the L1 error"
POSITIONS, FREE = "positions", "no positions"
ATTENTIVE = (POSITIONS, FREE)
CASES: dict[str, tuple[bool, AttentionLayers]] = {  # equivariant target and network; with attention layers
    POSITIONS: (False, "all"),
    FREE: (True, "all"),
    f"{POSITIONS}, no attention": (False, "none"),
    f"{FREE}, no attention": (True, "none"),
}


def check(values: tuple[int, ...]) -> None:
    """Checks that the values increase.

    Raises:
        ValueError: they do not.
    """
    if any(after <= before for before, after in itertools.pairwise(values)):
        raise ValueError(
            f"values must be strictly increasing, got {values}; sort them and leave out repetitions"
        )


@figure(
    "universal.error",
    source=Source("yun2020transformers", "Theorem 3", "second-hand"),
    view=curves(
        "k",
        panels=(
            Panel("$L^1$ error", ERROR, lines="network"),
            Panel("Largest error", SUPREMUM, lines="network", legend=""),
            Panel(
                "$L^1$ error and depth",
                ERROR,
                lines="network",
                legend="",
                axes={"xlabel": "layers"},
                x="layers",
            ),
        ),
        xlabel=r"values of an entry, $1/\delta$",
        log="xy",
        caption="Random smooth functions of three tokens, d = 1. The L1 error falls like the width of the "
        "cubes; the largest error does so with positions only, since grids that repeat a token share codes. "
        "Without attention layers a network knows only the token, and with positions its place, and both "
        "errors stay. The price is depth: nearly all layers are those of the values. The two curves of the "
        "right panel belong to different targets.",
    ),
    check=check,
    quick={"values": (2, 4, 8), "targets": 1, "samples": 2000},
)
def error(
    *,
    values: tuple[int, ...] = setting(
        (2, 4, 8, 16, 32), ge=2, le=64, help="numbers k of values of an entry, 1/delta"
    ),
    targets: int = setting(3, ge=1, le=20, help="number of random targets; errors are means over them"),
    samples: int = setting(10_000, ge=100, help="points of a Monte Carlo error"),
    seed: int = 0,
) -> Iterator[Reading]:
    """The errors of the step functions of three tokens for random smooth targets, with and without attention
    layers, and the exponent between the two finest widths.

    Raises:
        ValueError: ``values`` are not strictly increasing.
    """
    for case, (equivariant, attention) in CASES.items():
        errors, layers = np.zeros((len(values), 2)), {}
        for target in range(targets):
            # The same target for all widths, and for both networks with the same symmetry.
            generator = torch.Generator().manual_seed(seed + 1000 * target)
            f = random_function(generator, n=3, equivariant=equivariant)
            for index, k in enumerate(values):
                network = UniversalApproximator(f, 3, 1, Fraction(1, k), equivariant, attention).fit()
                if case in ATTENTIVE:
                    layers[k] = {"layers": sum(network.layer_counts().values())}
                for norm, p in enumerate((1, math.inf)):
                    errors[index, norm] += network.error(p, samples=samples) / targets
        for k, (mean, largest) in zip(values, errors):
            at = {"network": case, "k": k} | layers.get(k, {})
            yield reading(ERROR, mean, at=at, n=targets)
            yield reading(SUPREMUM, largest, at=at, n=targets)
        if len(values) > 1:
            slope = math.log(errors[-2, 0] / errors[-1, 0]) / math.log(values[-1] / values[-2])
            predicted = 1.0 if case in ATTENTIVE else None
            yield reading(EXPONENT, slope, predicted=predicted, basis="limit", at={"network": case})
