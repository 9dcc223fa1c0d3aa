r"""The error of the construction against the width of the cubes, and against the number of layers.

Source: :cite:t:`yun2020transformers`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR, SUPREMUM, EXPONENT = "L1 error", "largest error at random points", "exponent of the L1 error"
POSITIONS, FREE = "positions", "no positions"
ATTENTIVE = (POSITIONS, FREE)
CASES: dict[str, tuple[bool, AttentionLayers]] = {  # equivariant target and network; with attention layers
    POSITIONS: (False, "all"),
    FREE: (True, "all"),
    f"{POSITIONS}, no attention": (False, "none"),
    f"{FREE}, no attention": (True, "none"),
}
LOOKS = {
    name: {
        "color": "raw" if equivariant else "universal",
        "linestyle": "-" if attention == "all" else ":",
    }
    for name, (equivariant, attention) in CASES.items()
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

    name = "universal.error"
    sources = (Source("yun2020transformers", "Theorem 3", "second-hand"),)

    view = curves(
        "k",
        panels=(
            Panel("$L^1$ error", ERROR, lines=("network", LOOKS), legend=""),
            Panel("Largest error", SUPREMUM, lines=("network", LOOKS), legend=""),
            Panel(
                "$L^1$ error and depth",
                ERROR,
                lines=("network", {network: LOOKS[network] for network in ATTENTIVE}),
                legend="",
                axes={"xlabel": "layers of the network"},
                x="layers",
            ),
        ),
        xlabel=r"width $\delta$ of a cube",
        log="xy",
        caption="Random smooth functions of three tokens, d = 1. The L1 error falls like the width of the "
        "cubes; "
        "the largest error does so with positions only, since grids that repeat a token share codes. Without "
        "attention layers a network knows only the token, and with positions its place, and both errors "
        "stay. The "
        "price is depth: nearly all layers are those of the values. The two curves of the right panel "
        "belong to "
        "different targets.",
        size=(7.0, 2.8),
    )

    @classmethod
    def quick(cls) -> "Error":
        """Three widths, one target."""
        return cls(values=(2, 4, 8), targets=1, samples=2000)

    def measure(self) -> Iterator[Measurement]:
        """Yields the errors per width and case, and the exponent between the two finest widths."""
        for case, (equivariant, attention) in CASES.items():
            errors, layers = np.zeros((len(self.values), 2)), {}
            for target in range(self.targets):
                # The same target for all widths, and for both networks with the same symmetry.
                f = random_function(
                    torch.Generator().manual_seed(self.seed + 1000 * target), n=3, equivariant=equivariant
                )
                for index, k in enumerate(self.values):
                    network = UniversalApproximator(f, 3, 1, Fraction(1, k), equivariant, attention).fit()
                    if case in ATTENTIVE:
                        layers[k] = sum(network.layer_counts().values())
                    for norm, p in enumerate((1, math.inf)):
                        errors[index, norm] += network.error(p, samples=self.samples) / self.targets
            for k, (mean, largest) in zip(self.values, errors):
                depth = {"layers": layers[k]} if case in ATTENTIVE else {}
                place = {"at": {"network": case, "k": k} | depth, "n": self.targets}
                yield self.row(ERROR, mean, **place)
                yield self.row(SUPREMUM, largest, **place)
            if len(self.values) > 1:
                slope = math.log(errors[-2, 0] / errors[-1, 0]) / math.log(self.values[-1] / self.values[-2])
                predicted = 1.0 if case in ATTENTIVE else None
                yield self.row(EXPONENT, slope, predicted=predicted, basis="limit", at={"network": case})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds a line of slope one below the curves, and names the widths."""
        figure = super().plot(result)
        left, middle, _ = figure.axes
        k = np.array(self.values)
        last = result.select(quantity=ERROR, at={"network": POSITIONS}).column("value")[-1]
        line = 0.6 * last * k[-1] / k
        grey: dict[str, Any] = {"color": COLOURS["null"]}
        left.plot(k, line, linewidth=0.9, linestyle=DASHED, label="_", **grey)
        place = (k[len(k) // 2], line[len(k) // 2])
        left.annotate("slope 1", place, fontsize=7, va="top", ha="right", **grey)
        for ax in (left, middle):
            ax.set_xticks(self.values, [f"1/{value}" for value in self.values])
        for ax in figure.axes:
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
        return figure
