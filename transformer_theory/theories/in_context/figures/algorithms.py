"""Ridge and lasso by attention against the number of layers, selection inside the prompt, and how affine
softmax attention is.

Source: :cite:t:`bai2023transformers`, :cite:t:`dai2023why`; the comparison of noise levels and of scores is
the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import COLOURS, axes, caption, line, style, text_figure
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
SCALES = tuple(float(a) for a in np.geomspace(0.01, 3, 12))


@dataclass(frozen=True)
class Algorithms(RandomExperiment):
    """Ridge by three heads with its bound; selection of the strength inside the prompt; what softmax adds to
    an affine map.
    """

    layers: tuple[int, ...] = setting((1, 5, 10, 20, 30, 40, 50), ge=1, le=1000, help="numbers of layers")
    prompts: int = setting(200, ge=2, le=10_000, help="prompts per level of noise")

    name: ClassVar[str] = "in_context.algorithms"
    sources: ClassVar[tuple[Source, ...]] = (BAI, DAI)

    @classmethod
    def quick(cls) -> "Algorithms":
        """Three numbers of layers and 20 prompts."""
        return cls(layers=(1, 10, 30), prompts=20)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields distances by layers, risks by noise, and residuals by the size of the scores."""
        generator = self.generator()
        one = linear_prompts(1, 20, gaussian_inputs(torch.ones(5)), noise=0.1, generator=generator)
        low, high = extreme_eigenvalues(one)
        kappa, exact = (high + STRENGTH) / (low + STRENGTH), ridge(one, STRENGTH)
        size = float(ridge_estimate(one, STRENGTH).norm() * one.query.norm())
        distances = []
        for layers in self.layers:
            value = float((ridge_transformer(one, STRENGTH, layers)[1] - exact).abs())
            bound = (1 - 1 / kappa) ** layers * size
            distances.append((value, bound))
            columns = {
                "op": "<=",
                "threshold": bound,
                "verdict": judge(value, "<=", bound),
                "at": {"layers": layers},
            }
            yield Measurement(NAME, "figure", DISTANCE, value, source=BAI, **columns)
        risks = []
        for noise in NOISES:
            prompts = linear_prompts(
                self.prompts, 24, gaussian_inputs(torch.ones(8)), noise=noise, generator=generator
            )
            weights, _, answers = select(prompts, STRENGTHS, layers=60, held_out=12, temperature=0.02)
            chosen = (weights * answers).sum(1)
            errors = (
                (torch.cat([answers, chosen[:, None]], dim=1) - prompts.target[:, None])
                .square()
                .mean(0)
                .tolist()
            )
            risks.append(errors)
            for strength, value in zip((*STRENGTHS, "selected"), errors):
                yield Measurement(
                    NAME,
                    "figure",
                    RISK,
                    value,
                    at={"strength": strength, "noise": noise},
                    n=self.prompts,
                    source=BAI,
                )
        queries, keys, values = (
            torch.randn(m, 4, generator=generator, dtype=torch.float64) for m in (256, 16, 16)
        )
        rest = [affine_residual(queries, attend(queries, keys, values, scale=scale)) for scale in SCALES]
        for scale, value in zip(SCALES, rest):
            yield Measurement(
                NAME,
                "figure",
                REST,
                value,
                unit="share",
                at={"scale": scale},
                n=256,
                source=DAI,
            )
        arrays = {"distances": distances, "risks": risks, "rest": rest}
        yield Arrays({f"{NAME}/{name}": np.array(each) for name, each in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the three parts side by side."""
        if f"{NAME}/rest" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, middle, right) = axes(1, 3, width=8.5, height=2.9)
        value, bound = result.arrays[f"{NAME}/distances"].T
        line(left, self.layers, bound, color=COLOURS["null"], label="bound")
        line(
            left, self.layers, np.maximum(value, 1e-16), color=COLOURS[NAME], label="three heads", marker="o"
        )
        left.set(title="Distance to ridge", xlabel="layers", ylabel="difference of the answers", yscale="log")
        left.legend(loc="lower left")
        tints = ("#A9B4C0", "#6F7C8A", "#3F4751", COLOURS[NAME])
        risks = result.arrays[f"{NAME}/risks"]
        for name, tint, errors in zip((*(f"λ = {s:g}" for s in STRENGTHS), "selected"), tints, risks.T):
            line(middle, NOISES, errors, color=tint, label=name)
        middle.set(
            title="Risk of ridge, 60 layers",
            xlabel="noise variance",
            ylabel="mean squared error",
            xscale="log",
            yscale="log",
        )
        middle.set_ylim(0.1, 20)
        middle.minorticks_off()
        middle.legend(loc="upper left")
        line(right, SCALES, result.arrays[f"{NAME}/rest"], color=COLOURS[NAME])
        right.set(
            title="Softmax beyond affine",
            xlabel="scale of the scores",
            ylabel="share of variance",
            xscale="log",
            yscale="log",
        )
        caption(
            figure,
            "Left: one prompt, λ = .1. Middle: 12 examples to fit, 12 to select. Right: best affine map of "
            "256 queries.",
        )
        return figure
