"""Ridge and lasso by attention against the number of layers, selection inside the prompt, and how affine
softmax attention is.

Source: :cite:t:`bai2023transformers`, :cite:t:`dai2023why`; the comparison of noise levels and of scores is
the library's own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ....models.attention import attend
from ..dual import affine_residual
from ..prompts import gaussian_inputs, linear_prompts
from ..references import ridge, ridge_estimate
from ..statistics import extreme_eigenvalues, ridge_transformer, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAI, DAI = Source("bai2023transformers", "Theorem 4", "second-hand"), Source("dai2023why", status="own")
DISTANCE, RISK = "distance of the answers to ridge", "risk of 60 layers of ridge"
REST = "share of softmax attention outside affine maps"
STRENGTH, STRENGTHS, NOISES = 0.1, (0.003, 0.03, 0.3), (0.01, 0.1, 1.0, 4.0)
SELECTED = "selected"
SCALES = tuple(float(a) for a in np.geomspace(0.01, 3, 12))
LOOKS = {strength: {"label": f"λ = {strength:g}"} for strength in STRENGTHS} | {SELECTED: {}}
LOGS = {"xscale": "log", "yscale": "log"}
NOISE = {**LOGS, "xlabel": "noise variance", "ylabel": "mean squared error", "ylim": (0.1, 20)}
SCALE = {**LOGS, "xlabel": "scale of the scores", "ylabel": "share of variance"}
VIEW = curves(
    "layers",
    panels=(
        Panel("Distance of the answers to ridge", DISTANCE, axes={"yscale": "log"}),
        Panel("Risk of ridge, 60 layers", RISK, lines=("strength", LOOKS), axes=NOISE, x="noise"),
        Panel("Softmax beyond affine", REST, axes=SCALE, x="scale"),
    ),
    caption="Left: one prompt, λ = .1; dashed: the bound. Middle: 12 examples to fit, 12 to select. Right: "
    "best affine map of 256 queries.",
    size=(8.5, 2.9),
)


@style()
def draw(result: Result) -> "Figure":
    """Draws the curves, and the bound of the distance."""
    drawn, rows = VIEW(result), result.select(quantity=DISTANCE)
    layers, bounds = [row.at["layers"] for row in rows], rows.column("threshold")
    drawn.axes[0].plot(layers, bounds, color=COLOURS["null"], linestyle=DASHED)
    return drawn


@figure("in_context.algorithms", source=(BAI, DAI), view=draw, quick={"layers": (1, 10, 30), "prompts": 20})
def algorithms(
    *,
    layers: tuple[int, ...] = setting((1, 5, 10, 20, 30, 40, 50), ge=1, le=1000, help="numbers of layers"),
    prompts: int = setting(200, ge=2, le=10_000, help="prompts per level of noise"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Ridge by three heads with its bound, by layers; selection of the strength inside the prompt, by noise;
    what softmax adds to an affine map, by the size of the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    one = linear_prompts(1, 20, gaussian_inputs(torch.ones(5)), noise=0.1, generator=generator)
    low, high = extreme_eigenvalues(one)
    kappa, exact = (high + STRENGTH) / (low + STRENGTH), ridge(one, STRENGTH)
    size = float(ridge_estimate(one, STRENGTH).norm() * one.query.norm())
    for count in layers:
        value = float((ridge_transformer(one, STRENGTH, count)[1] - exact).abs())
        bound = (1 - 1 / kappa) ** count * size
        yield reading(DISTANCE, value, at={"layers": count}, at_most=bound)
    inputs = gaussian_inputs(torch.ones(8))
    for noise in NOISES:
        drawn = linear_prompts(prompts, 24, inputs, noise=noise, generator=generator)
        weights, _, answers = select(drawn, STRENGTHS, layers=60, held_out=12, temperature=0.02)
        chosen = (weights * answers).sum(1)
        off = torch.cat([answers, chosen[:, None]], dim=1) - drawn.target[:, None]
        for strength, value in zip((*STRENGTHS, SELECTED), off.square().mean(0).tolist()):
            yield reading(RISK, value, at={"strength": strength, "noise": noise}, n=prompts)
    queries, keys, values = (
        torch.randn(m, 4, generator=generator, dtype=torch.float64) for m in (256, 16, 16)
    )
    for scale in SCALES:
        value = affine_residual(queries, attend(queries, keys, values, scale=scale))
        yield reading(REST, value, unit="share", at={"scale": scale}, n=256, source=DAI)
