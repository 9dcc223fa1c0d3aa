"""Depth: the collapse without skip connections by the size of the scores, and the cosine of the tokens with
skip connections.

Source: :cite:t:`dong2021attention`, :cite:t:`noci2022signal`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ....metrics.geometry import rank_collapse_residual
from ..initialisation import depth_cosine, mean_cosine, stream

DONG, NOCI = Source("dong2021attention", status="own"), Source("noci2022signal", status="own")
RESIDUAL, COSINE = "relative residual without skip connection", "mean cosine with skip connections"
DEVIATIONS, SMALLEST = (0.3, 1.0, 3.0, 9.0), 1e-12  # residuals below are rounding errors
FULL, SCALED = "alpha = 1", "alpha = 1 / root L"
DOTS = {"linestyle": ""}
RESIDUALS = {"yscale": "log", "xlabel": "layer without skip connection", "ylabel": "relative residual"}
COSINES = {"xscale": "log", "xlabel": "layers with skip connections", "ylabel": "mean cosine"}


@figure(
    "collapse.depth",
    source=(DONG, NOCI),
    view=curves(
        "layer",
        panels=(
            Panel("", RESIDUAL, lines="score deviation", axes=RESIDUALS),
            Panel(
                "",
                COSINE,
                lines=("branch", {FULL: DOTS, SCALED: DOTS}),
                predicted="closed form",
                axes=COSINES,
                x="layers",
            ),
        ),
        caption="{tokens} orthogonal tokens of {width} dimensions, random weights, means of {runs} runs. "
        "Left: small scores collapse in a few layers, large ones within about ten.",
        size=(7.6, 3.2),
    ),
    quick={"tokens": 8, "width": 16, "layers": 4, "runs": 1},
)
def depth(
    *,
    tokens: int = setting(64, ge=2, le=1024, help="number of tokens, orthogonal at the start"),
    width: int = setting(256, ge=2, le=4096, help="dimension of the tokens, at least their number"),
    layers: int = setting(32, ge=1, le=512, help="largest number of layers"),
    runs: int = setting(3, ge=1, le=100, help="runs of each setting"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Random weights over the layers: the residual after up to ten layers without skip connection, and the
    cosine after L layers with them, for powers of 2 and the largest L.
    """
    generator, sizes = torch.Generator().manual_seed(seed), (tokens, width)
    for deviation in DEVIATIONS:
        for layer in range(min(layers, 10)):
            options = {"deviation": deviation, "skip": 0.0}
            ends = [stream(*sizes, layer + 1, 1.0, generator, **options) for _ in range(runs)]
            value = float(np.mean([float(rank_collapse_residual(end)) for end in ends]))
            known = value > SMALLEST
            place = {"at": {"score deviation": deviation}, "layer": layer, "n": runs}
            place |= {"reason": "" if known else f"below {SMALLEST:g}, which is rounding"}
            yield reading(RESIDUAL, value if known else None, **place)
    for branch in (FULL, SCALED):
        for L in sorted({2**k for k in range(layers.bit_length())} | {layers}):
            alpha = L**-0.5 if branch == SCALED else 1.0
            ends = [stream(*sizes, L, alpha, generator, deviation=0.3) for _ in range(runs)]
            value = float(np.mean([float(mean_cosine(end)) for end in ends]))
            columns = {"predicted": depth_cosine(alpha, L, tokens), "n": runs, "source": NOCI}
            yield reading(COSINE, value, at={"branch": branch, "layers": L}, **columns)
