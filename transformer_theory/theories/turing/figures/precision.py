"""The first error of a run against the precision of the arithmetic and against the inverse temperature of softmax."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..claims.instances import Run
from ..ladder import NAME
from ..machines import random_walk, repeated_counter, zigzag
from ..retrieval import first_wrong_retrieval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("perez2021attention", status="own")
FIRST, RETRIEVAL = "step of the first error", "step of the first wrong retrieval"
TYPES = {"bfloat16": 8, "float32": 24, "float64": 53}  # binary digits, with the leading one


@dataclass(frozen=True)
class Precision(RandomExperiment):
    """The first wrong state, symbol or head of machines that rewrite cells, in three number types and for softmax in float64.

    Beside the number types stands the first wrong retrieval of the third layer alone, with its scores rounded to any number of digits.
    """

    steps: int = setting(1000, ge=10, le=4000, help="steps of each run")
    widths: tuple[int, ...] = setting((5, 20), ge=1, le=200, help="widths of zigzags")
    counter: int = setting(12, ge=1, le=60, help="digits of the repeated counter")
    period: int = setting(60, ge=2, le=400, multiple_of=2, help="period of the closed random walk")
    digits: tuple[int, ...] = setting(tuple(range(6, 33, 2)), ge=3, le=50, help="binary digits of the rounded scores")
    powers: tuple[int, ...] = setting(tuple(range(2, 15)), ge=0, le=30, help="powers of ten of the inverse temperature")

    name: ClassVar[str] = "turing.precision"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Precision":
        """Three hundred steps and fewer points."""
        return cls(steps=300, digits=(8, 16, 24), powers=(3, 6, 9, 12))

    def runs(self) -> dict[str, Run]:
        """The machines by name."""
        walk = random_walk(self.period, self.generator())
        machines = {f"zigzag of width {width}": (zigzag(width), "") for width in self.widths}
        machines |= {f"counter of {self.counter} digits": (repeated_counter(), "0" * self.counter), "random walk": (walk, "")}
        return {name: Run(name, machine.normalise(), word, self.steps) for name, (machine, word) in machines.items()}

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the first errors by machine and arithmetic; a run without error has no value."""
        arrays: dict[str, list] = {"types": [], "retrieval": [], "soft": []}
        for name, run in self.runs().items():
            found = []
            for arithmetic in TYPES:
                trace = run.transformer.run(run.word, run.steps, arithmetic=arithmetic)  # pyright: ignore[reportArgumentType]
                found.append(trace.first_difference(run.reference))
                yield self._row(FIRST, found[-1], f"{name}, {arithmetic}")
            arrays["types"].append(found)
            found = [first_wrong_retrieval(run.reference, digits=digits) for digits in self.digits]
            yield from (self._row(RETRIEVAL, step, f"{name}, {digits} digits") for digits, step in zip(self.digits, found))
            arrays["retrieval"].append(found)
            found = []
            for power in self.powers:
                trace = run.transformer.run(run.word, run.steps, arithmetic="float64", score="softmax", inverse_temperature=10.0**power)
                found.append(trace.first_difference(run.reference))
                yield self._row(FIRST, found[-1], f"{name}, softmax at 1e{power}")
            arrays["soft"].append(found)
        yield Arrays({f"{NAME}/{key}": np.array(values, dtype=float) for key, values in arrays.items()})

    def _row(self, quantity: str, step: int | None, setting: str) -> Measurement:
        reason = "" if step is not None else f"no error in {self.steps} steps"
        return Measurement(NAME, "figure", quantity, step, unit="steps", reason=reason, setting=setting, source=SOURCE)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the first error against the binary digits, with the law of the cube root, and against the inverse temperature."""
        if f"{NAME}/types" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        types, retrieval, soft = (result.arrays[f"{NAME}/{key}"] for key in ("types", "retrieval", "soft"))
        from matplotlib.ticker import ScalarFormatter

        names = list(self.runs())
        figure, (left, right) = axes(1, 2, height=3.3)
        for k, (name, tint) in enumerate(zip(names, shades(len(names)))):
            left.plot(self.digits, retrieval[k], color=tint, linewidth=1.3, label=name)
            for digits, step in zip(TYPES.values(), types[k]):
                if np.isfinite(step):
                    left.plot(digits, step, "o", color=tint, markersize=4.5)
            right.plot(self.powers, soft[k], color=tint, marker="o", markersize=3, linewidth=1.3, label=name)
        law = np.array([min(self.digits), max(self.digits)], dtype=float)
        scale = (4 / 3 * 2.0**law / 10) ** (1 / 3)
        dashed = {"color": COLOURS["null"], "linestyle": (0, (4, 3)), "linewidth": 1.0}
        left.plot(law, scale, label="cube-root law", **dashed)
        steps = np.geomspace(10, self.steps, 100)
        bound = 0.75 * steps**5 * (steps * np.log(2) + 6 * np.log(steps))
        keep = np.log10(bound) <= max(self.powers)
        right.plot(np.log10(bound)[keep], steps[keep], label="sufficient", **dashed)
        left.set(title="Finite precision, hard-max", xlabel="binary digits", ylabel="step of the first error", yscale="log")
        right.set(title="Softmax, float64", xlabel="$\\log_{10}$ inverse temperature", ylabel="step of the first error", yscale="log")
        for ax in (left, right):
            ax.yaxis.set_major_formatter(ScalarFormatter())
        left.legend(loc="upper left")
        caption(
            figure,
            "Left: curves, the third layer alone with scores rounded to so many digits; dots, whole runs in bfloat16 (8 digits) and "
            f"float32 (24). Runs without error in {self.steps} steps are left out, such as all in float64. Dashed: left, the scale "
            "$(4/(3u|c|))^{1/3}$ with $|c| = 10$ and $u = 2^{-\\mathrm{digits}}$; right, the steps for which the bound of turing/softmax "
            "suffices.",
        )
        return figure
