"""Label-relevant tokens: accuracy over the number of samples, and the number of samples that are needed, by
the share of such tokens.

Source: :cite:t:`li2023theoretical`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..tokens import LabelRelevantTokens, needed_samples, train_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCURACY, MASS = "accuracy", "mass on relevant tokens divided by their share"
NEEDED, EXPONENT = "samples for an accuracy of .9", "exponent of the needed samples in the share"
SHARES, SIZES, TARGET = (0.15, 0.2, 0.3, 0.4), (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), 0.9


@dataclass(frozen=True)
class Samples(RandomExperiment):
    """Small transformers trained on few sequences whose label is carried by a share of the tokens."""

    groups: int = setting(5, ge=1, le=100, help="groups of four models; the exponent is fitted in each")
    steps: int = setting(200, ge=1, le=10**5, help="steps of Adam")
    noise: float = setting(
        0.5, ge=0.0, le=10.0, help="standard deviation of the noise of a token in each coordinate"
    )
    largest: int = setting(2048, ge=8, le=10**6, help="largest number of samples")

    name = "vision.samples"
    sources = (Source("li2023theoretical", status="own"),)

    view = curves(
        "samples",
        panels=(
            Panel("", ACCURACY, lines="share", legend="lower right", axes={"ylabel": "accuracy"}),
            Panel(
                "",
                NEEDED,
                lines=("quantity", {NEEDED: {"label": "needed"}}),
                legend="",
                axes={
                    "yscale": "log",
                    "xlabel": "share of relevant tokens",
                    "ylabel": f"samples for {TARGET:g}",
                },
                x="share",
            ),
            Panel("", MASS, lines="share", legend="", axes={"ylabel": "mass on relevant / share"}),
        ),
        log="x",
        caption=lambda result: (
            "40 tokens, noise {noise:g}, {steps} steps; means of {models} models. The number of samples "
            "falls "
            "faster than the share to the -2. Right: attention moves to the relevant tokens only if there "
            "are "
            "enough samples."
        ).format(models=4 * result.settings["groups"], **result.settings),
        size=(8.4, 3.0),
    )

    @classmethod
    def quick(cls) -> "Samples":
        """One group, two steps, up to 16 samples."""
        return cls(groups=1, steps=2, largest=16)

    def measure(self) -> Iterator[Measurement]:
        """Yields accuracy and mass of each share and size, the needed samples, and the exponent with its
        interval over groups.
        """
        generator, sizes = self.generator(), [n for n in SIZES if n <= self.largest]
        accuracies = np.zeros((self.groups, len(SHARES), len(sizes)))
        for (row, alpha), (column, n) in product(enumerate(SHARES), enumerate(sizes)):
            data = LabelRelevantTokens(alpha, self.noise)
            found = train_tokens(data, n, networks=4 * self.groups, generator=generator, steps=self.steps)
            accuracies[:, row, column] = found.accuracy.reshape(self.groups, 4).mean(1)
            masses = (found.mass.reshape(self.groups, 4).mean(1) / alpha).double().numpy()
            at = {"share": alpha, "samples": n}
            for quantity, values in ((ACCURACY, accuracies[:, row, column]), (MASS, masses)):
                columns = {"at": at, "n": self.groups, **over_groups(values.tolist())}
                yield self.row(quantity, float(values.mean()), **columns)
        exponents = []
        for curve in accuracies:
            points = [
                (math.log(alpha), needed_samples(sizes, each.tolist(), TARGET))
                for alpha, each in zip(SHARES, curve)
            ]
            known = [(x, math.log(n)) for x, n in points if n is not None]
            if len(known) >= 3:
                exponents.append(float(np.polyfit(np.array(known)[:, 0], np.array(known)[:, 1], 1)[0]))
        for alpha, curve in zip(SHARES, accuracies.mean(0)):
            value = needed_samples(sizes, curve.tolist(), TARGET)
            reason = "" if value is not None else "the accuracy is above or below the target at all sizes"
            yield self.row(NEEDED, value, at={"share": alpha}, reason=reason, n=self.groups)
        value, reason = float(np.mean(exponents)) if exponents else None, ""
        if value is None:
            reason = "fewer than three shares reach the target"
        columns = {"predicted": -2.0, "reason": reason, "n": len(exponents)}
        yield self.row(EXPONENT, value, **columns, **over_groups(exponents))

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the target, the share without attention to it, and the law of the needed samples."""
        figure = super().plot(result)
        left, middle, right = figure.axes
        left.axhline(TARGET, color=COLOURS["null"], linestyle=":")
        right.axhline(1, color=COLOURS["null"], linestyle=":")
        known = [(row.at["share"], row.value) for row in result.select(quantity=NEEDED) if row.value]
        if known:
            x, y = np.array(known).T
            look: dict[str, Any] = {"color": COLOURS["null"], "label": "share to the -2"}
            middle.plot(x, y[-1] * (x / x[-1]) ** -2.0, "--", **look)
            middle.legend()
        return figure


def over_groups(values: Sequence[float]) -> dict[str, Any]:
    """Returns the columns of the interval of a mean over groups."""
    ends = student_interval(list(values))
    return {} if ends is None else {"interval": ends, "interval_kind": "over groups"}
