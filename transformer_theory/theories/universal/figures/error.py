r"""The error of the construction against the width of the cubes, and against the number of layers.

Source: :cite:t:`yun2020transformers`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import axes, caption, line, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "universal", Source("yun2020transformers", "Theorem 3", "second-hand")
ERROR, SUPREMUM, EXPONENT = "L1 error", "largest error at random points", "exponent of the L1 error"
CASES: dict[str, tuple[bool, AttentionLayers]] = {  # equivariant target and network; with attention layers
    "positions": (False, "all"),
    "no positions": (True, "all"),
    "positions, no attention": (False, "none"),
    "no positions, no attention": (True, "none"),
}


@dataclass(frozen=True)
class Error(RandomExperiment):
    """The errors of the step functions of three tokens for random smooth targets, with and without attention
    layers.

    Raises:
        ValueError: ``values`` are not strictly increasing.
    """

    values: tuple[int, ...] = setting(
        (2, 4, 8, 16, 32), ge=2, le=64, help="numbers k of values of an entry, 1/delta"
    )
    targets: int = setting(3, ge=1, le=20, help="number of random targets; errors are means over them")
    samples: int = setting(10_000, ge=100, help="points of a Monte Carlo error")

    def __post_init__(self):
        super().__post_init__()
        if any(after <= before for before, after in itertools.pairwise(self.values)):
            raise ValueError(
                f"values must be strictly increasing, got {self.values}; sort them and leave out repetitions"
            )

    name: ClassVar[str] = "universal.error"
    sources: ClassVar[tuple[Source, ...]] = (PAPER,)

    @classmethod
    def quick(cls) -> "Error":
        """Three widths, one target."""
        return cls(values=(2, 4, 8), targets=1, samples=2000)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the errors per width and case, and the exponent between the two finest widths."""
        errors, layers = np.zeros((len(CASES), len(self.values), 2)), np.zeros((2, len(self.values)))
        for case, (equivariant, attention) in enumerate(CASES.values()):
            for target in range(self.targets):
                # The same target for all widths, and for both networks with the same symmetry.
                f = random_function(
                    torch.Generator().manual_seed(self.seed + 1000 * target), n=3, equivariant=equivariant
                )
                for index, k in enumerate(self.values):
                    network = UniversalApproximator(f, 3, 1, Fraction(1, k), equivariant, attention).fit()
                    if attention == "all":
                        layers[case, index] = sum(network.layer_counts().values())
                    for norm, p in enumerate((1, math.inf)):
                        errors[case, index, norm] += network.error(p, samples=self.samples) / self.targets
        for case, text in enumerate(CASES):
            for index, k in enumerate(self.values):
                for norm, quantity in enumerate((ERROR, SUPREMUM)):
                    where = {"at": {"network": text, "k": k}, "n": self.targets, "source": PAPER}
                    yield Measurement(NAME, "figure", quantity, errors[case, index, norm], **where)
            if len(self.values) > 1:
                ratio = errors[case, -2, 0] / errors[case, -1, 0]
                slope = math.log(ratio) / math.log(self.values[-1] / self.values[-2])
                predicted = 1.0 if CASES[text][1] == "all" else None
                yield Measurement(
                    NAME,
                    "figure",
                    EXPONENT,
                    slope,
                    predicted=predicted,
                    basis="limit",
                    at={"network": text},
                    source=PAPER,
                )
        yield Arrays(
            {f"{NAME}/errors": errors, f"{NAME}/values": np.array(self.values), f"{NAME}/layers": layers}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the errors over the width of the cubes, and over the number of layers."""
        if f"{NAME}/errors" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        errors, k, layers = (result.arrays[f"{NAME}/{name}"] for name in ("errors", "values", "layers"))
        figure, (left, middle, right) = axes(1, 3, height=2.8)
        looks = (("#6A51A3", "-"), ("#3F4751", "-"), ("#6A51A3", ":"), ("#3F4751", ":"))
        for curve, (tint, dashes), text in zip(errors, looks, CASES):
            for ax, norm in ((left, 0), (middle, 1)):
                line(ax, 1 / k, curve[:, norm], color=tint, linestyle=dashes, marker="o", label=text)
        # A line of slope one below the curves.
        left.plot(
            1 / k,
            0.6 * errors[0, -1, 0] * k[-1] / k,
            color="#8A939E",
            linewidth=0.9,
            linestyle=(0, (4, 3)),
            label="_",
        )
        middle_point = (1 / k[len(k) // 2], 0.6 * errors[0, -1, 0] * k[-1] / k[len(k) // 2])
        left.annotate("slope 1", middle_point, color="#8A939E", fontsize=7, va="top", ha="right")
        for ax, title in ((left, "$L^1$ error"), (middle, "Largest error")):
            ax.set(title=title, xlabel=r"width $\delta$ of a cube", xscale="log", yscale="log")
            ax.set_xticks(1 / k, [f"1/{value}" for value in k])
            ax.xaxis.minorticks_off()
            ax.invert_xaxis()
        for case, text in ((0, "positions"), (1, "no positions")):
            line(right, layers[case], errors[case, :, 0], color=looks[case][0], marker="o", label=text)
        right.set(title="$L^1$ error and depth", xlabel="layers of the network", xscale="log", yscale="log")
        for ax in (left, middle, right):
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
        caption(
            figure,
            "Random smooth functions of three tokens, d = 1. The L1 error falls like the width of the "
            "cubes; the largest error does so with positions only, since grids that repeat a token share "
            "codes. Without attention layers a network knows only the token, and with positions its place, "
            "and both errors stay. The price is depth: nearly all layers are those of the values. The two "
            "curves of the right panel belong to different targets.",
        )
        return figure
