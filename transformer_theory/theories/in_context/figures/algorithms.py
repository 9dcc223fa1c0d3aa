"""Ridge and lasso by attention against the number of layers, selection inside the prompt, and how affine
softmax attention is.

Source: :cite:t:`bai2023transformers`, :cite:t:`dai2023why`; the comparison of noise levels and of scores is
the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement, judge
from ....core.plotting import COLOURS, line, style
from ....core.result import Result
from ....core.sources import Source
from ....models.attention import attend
from ..dual import affine_residual
from ..prompts import gaussian_inputs, linear_prompts
from ..references import NAME, ridge, ridge_estimate
from ..statistics import extreme_eigenvalues, ridge_transformer, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAI, DAI = Source("bai2023transformers", "Theorem 4", "second-hand"), Source("dai2023why", status="own")
DISTANCE, RISK, REST = (
    "distance of the answers to ridge",
    "risk of 60 layers of ridge",
    "share of softmax attention outside affine maps",
)
STRENGTH, STRENGTHS, NOISES = 0.1, (0.003, 0.03, 0.3), (0.01, 0.1, 1.0, 4.0)
SELECTED = "selected"
SCALES = tuple(float(a) for a in np.geomspace(0.01, 3, 12))
LOOKS = {
    strength: {"color": tint, "label": f"λ = {strength:g}"}
    for strength, tint in zip(STRENGTHS, ("#A9B4C0", "#6F7C8A", "#3F4751"))
} | {SELECTED: {"color": NAME}}
LOGS = {"xscale": "log", "yscale": "log"}


@dataclass(frozen=True)
class Algorithms(RandomExperiment):
    """Ridge by three heads with its bound; selection of the strength inside the prompt; what softmax adds to
    an affine map.
    """

    layers: tuple[int, ...] = setting((1, 5, 10, 20, 30, 40, 50), ge=1, le=1000, help="numbers of layers")
    prompts: int = setting(200, ge=2, le=10_000, help="prompts per level of noise")

    name = "in_context.algorithms"
    sources = (BAI, DAI)

    view = curves(
        "layers",
        panels=(
            Panel(
                "Distance to ridge",
                DISTANCE,
                lines=("quantity", {DISTANCE: {"label": "three heads"}}),
                legend="",
                axes={"yscale": "log", "ylabel": "difference of the answers"},
            ),
            Panel(
                "Risk of ridge, 60 layers",
                RISK,
                lines=("strength", LOOKS),
                legend="upper left",
                axes={
                    **LOGS,
                    "xlabel": "noise variance",
                    "ylabel": "mean squared error",
                    "ylim": (0.1, 20),
                },
                x="noise",
            ),
            Panel(
                "Softmax beyond affine",
                REST,
                axes={**LOGS, "xlabel": "scale of the scores", "ylabel": "share of variance"},
                x="scale",
            ),
        ),
        caption="Left: one prompt, λ = .1. Middle: 12 examples to fit, 12 to select. Right: best affine map "
        "of "
        "256 queries.",
        size=(8.5, 2.9),
    )

    @classmethod
    def quick(cls) -> "Algorithms":
        """Three numbers of layers and 20 prompts."""
        return cls(layers=(1, 10, 30), prompts=20)

    def measure(self) -> Iterator[Measurement]:
        """Yields distances by layers, risks by noise, and residuals by the size of the scores."""
        generator = self.generator()
        one = linear_prompts(1, 20, gaussian_inputs(torch.ones(5)), noise=0.1, generator=generator)
        low, high = extreme_eigenvalues(one)
        kappa, exact = (high + STRENGTH) / (low + STRENGTH), ridge(one, STRENGTH)
        size = float(ridge_estimate(one, STRENGTH).norm() * one.query.norm())
        for layers in self.layers:
            value = float((ridge_transformer(one, STRENGTH, layers)[1] - exact).abs())
            bound = (1 - 1 / kappa) ** layers * size
            judged = {"op": "<=", "threshold": bound, "verdict": judge(value, "<=", bound)}
            yield self.row(DISTANCE, value, at={"layers": layers}, **judged)
        for noise in NOISES:
            inputs = gaussian_inputs(torch.ones(8))
            prompts = linear_prompts(self.prompts, 24, inputs, noise=noise, generator=generator)
            weights, _, answers = select(prompts, STRENGTHS, layers=60, held_out=12, temperature=0.02)
            chosen = (weights * answers).sum(1)
            off = torch.cat([answers, chosen[:, None]], dim=1) - prompts.target[:, None]
            for strength, value in zip((*STRENGTHS, SELECTED), off.square().mean(0).tolist()):
                yield self.row(RISK, value, at={"strength": strength, "noise": noise}, n=self.prompts)
        queries, keys, values = (
            torch.randn(m, 4, generator=generator, dtype=torch.float64) for m in (256, 16, 16)
        )
        for scale in SCALES:
            value = affine_residual(queries, attend(queries, keys, values, scale=scale))
            yield self.row(REST, value, unit="share", at={"scale": scale}, n=256, source=DAI)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the bound of the distance."""
        figure, bounds = super().plot(result), result.select(quantity=DISTANCE).column("threshold")
        line(figure.axes[0], self.layers, bounds, color=COLOURS["null"], label="bound")
        figure.axes[0].legend(loc="lower left")
        return figure
