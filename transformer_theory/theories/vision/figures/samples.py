"""Label-relevant tokens: accuracy over the number of samples, and the number of samples that are needed, by
the share of such tokens.

Source: :cite:t:`li2023theoretical`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..tokens import LabelRelevantTokens, needed_samples, train_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "vision", Source("li2023theoretical", status="own")
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

    name: ClassVar[str] = "vision.samples"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Samples":
        """One group, two steps, up to 16 samples."""
        return cls(groups=1, steps=2, largest=16)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields accuracy and mass of each share and size, the needed samples, and the exponent with its
        interval over groups.
        """
        generator, sizes = self.generator(), [n for n in SIZES if n <= self.largest]
        curves, masses = np.zeros((2, self.groups, len(SHARES), len(sizes)))
        for (row, alpha), (column, n) in ((a, b) for a in enumerate(SHARES) for b in enumerate(sizes)):
            data = LabelRelevantTokens(alpha, self.noise)
            found = train_tokens(data, n, networks=4 * self.groups, generator=generator, steps=self.steps)
            curves[:, row, column] = found.accuracy.reshape(self.groups, 4).mean(1)
            masses[:, row, column] = found.mass.reshape(self.groups, 4).mean(1) / alpha
            for quantity, values in ((ACCURACY, curves), (MASS, masses)):
                ends = student_interval(values[:, row, column].tolist())
                kind = {} if ends is None else {"interval": ends, "interval_kind": "over groups"}
                yield Measurement(
                    NAME,
                    "figure",
                    quantity,
                    float(values[:, row, column].mean()),
                    at={"share": alpha, "samples": n},
                    n=self.groups,
                    source=SOURCE,
                    **kind,
                )
        exponents = []
        for curve in curves:
            points = [
                (math.log(alpha), needed_samples(sizes, each.tolist(), TARGET))
                for alpha, each in zip(SHARES, curve)
            ]
            known = [(x, math.log(n)) for x, n in points if n is not None]
            if len(known) >= 3:
                exponents.append(float(np.polyfit(np.array(known)[:, 0], np.array(known)[:, 1], 1)[0]))
        for row, alpha in enumerate(SHARES):
            value = needed_samples(sizes, curves[:, row].mean(0).tolist(), TARGET)
            reason = "" if value is not None else "the accuracy is above or below the target at all sizes"
            yield Measurement(
                NAME,
                "figure",
                NEEDED,
                value,
                at={"share": alpha},
                reason=reason,
                n=self.groups,
                source=SOURCE,
            )
        ends = student_interval(exponents)
        columns = {} if ends is None else {"interval": ends, "interval_kind": "over groups"}
        value, reason = (
            (float(np.mean(exponents)), "")
            if exponents
            else (None, "fewer than three shares reach the target")
        )
        yield Measurement(
            NAME,
            "figure",
            EXPONENT,
            value,
            predicted=-2.0,
            reason=reason,
            n=len(exponents),
            source=SOURCE,
            **columns,
        )
        yield Arrays({"sizes": np.array(sizes), "accuracy": curves, "mass": masses})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws accuracy, needed samples and mass."""
        if "accuracy" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, middle, right) = axes(1, 3, width=8.4, height=3.0)
        sizes = result.arrays["sizes"]
        for row, (alpha, tint) in enumerate(zip(SHARES, shades(len(SHARES)))):
            left.plot(
                sizes,
                result.arrays["accuracy"][:, row].mean(0),
                color=tint,
                marker="o",
                markersize=3,
                label=f"{alpha:g}",
            )
            right.plot(sizes, result.arrays["mass"][:, row].mean(0), color=tint, marker="o", markersize=3)
        left.axhline(TARGET, color=COLOURS["null"], linestyle=":")
        left.set(xscale="log", xlabel="samples", ylabel="accuracy")
        left.legend(title="share", loc="lower right")
        middle.set_xscale("log")
        known = [
            (alpha, row.value)
            for alpha, row in zip(SHARES, result.select(quantity=NEEDED))
            if row.value is not None
        ]
        if known:
            x, y = map(np.array, zip(*known))
            middle.plot(x, y, "o-", color=COLOURS[NAME], label="needed")
            middle.plot(x, y[-1] * (x / x[-1]) ** -2.0, "--", color=COLOURS["null"], label="share to the -2")
            middle.set(xscale="log", yscale="log", xticks=SHARES, xticklabels=[f"{a:g}" for a in SHARES])
            middle.minorticks_off()
            middle.legend()
        middle.set(xlabel="share of relevant tokens", ylabel=f"samples for {TARGET:g}")
        right.axhline(1, color=COLOURS["null"], linestyle=":")
        right.set(xscale="log", xlabel="samples", ylabel="mass on relevant / share")
        caption(
            figure,
            f"40 tokens, noise {self.noise:g}, {self.steps} steps; means of {4 * self.groups} models. The "
            "number of samples falls faster than the share to the -2. Right: attention moves to the "
            "relevant tokens only if there are enough samples.",
        )
        return figure
