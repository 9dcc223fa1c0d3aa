"""The first error of a run against the precision of the arithmetic and against the inverse temperature of
softmax.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, distinct, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..claims.instances import Run
from ..claims.precision import sufficient_inverse_temperature
from ..machines import random_walk, repeated_counter, zigzag
from ..retrieval import first_wrong_retrieval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST, RETRIEVAL = "step of the first error", "step of the first wrong retrieval"
TYPES = {"bfloat16": 8, "float32": 24, "float64": 53}  # binary digits, with the leading one


@dataclass(frozen=True)
class Precision(RandomExperiment):
    """The first wrong state, symbol or head of machines that rewrite cells, in three number types and for
    softmax in float64.

    Beside the number types stands the first wrong retrieval of the third layer alone, with its scores rounded
    to any number of digits.
    """

    steps: int = setting(1000, ge=10, le=4000, help="steps of each run")
    widths: tuple[int, ...] = setting((5, 20), ge=1, le=200, help="widths of zigzags")
    counter: int = setting(12, ge=1, le=60, help="digits of the repeated counter")
    period: int = setting(60, ge=2, le=400, multiple_of=2, help="period of the closed random walk")
    digits: tuple[int, ...] = setting(
        tuple(range(6, 33, 2)), ge=3, le=50, help="binary digits of the rounded scores"
    )
    powers: tuple[int, ...] = setting(
        tuple(range(2, 15)), ge=0, le=30, help="powers of ten of the inverse temperature"
    )

    name = "turing.precision"
    sources = (Source("perez2021attention", status="own"),)

    @classmethod
    def quick(cls) -> "Precision":
        """Three hundred steps and fewer points."""
        return cls(steps=300, digits=(8, 16, 24), powers=(3, 6, 9, 12))

    def runs(self) -> list[Run]:
        """The machines, in normal form."""
        machines = {f"zigzag of width {width}": (zigzag(width), "") for width in self.widths}
        machines[f"counter of {self.counter} digits"] = (repeated_counter(), "0" * self.counter)
        machines["random walk"] = (random_walk(self.period, self.generator()), "")
        return [
            Run(name, machine.normalise(), word, self.steps) for name, (machine, word) in machines.items()
        ]

    def measure(self) -> Iterator[Measurement]:
        """Yields the first errors by machine and arithmetic; a run without error has no value."""
        softmax = {"arithmetic": "float64", "score": "softmax"}
        for run in self.runs():
            for kind, digits in TYPES.items():
                step = run.trace(arithmetic=kind).first_difference(run.reference)
                yield self._row(FIRST, step, {"machine": run.name, "arithmetic": kind, "digits": digits})
            for power in self.powers:
                trace = run.trace(**softmax, inverse_temperature=10.0**power)
                step = trace.first_difference(run.reference)
                yield self._row(FIRST, step, {"machine": run.name, "power": power})
            for digits in self.digits:
                step = first_wrong_retrieval(run.reference, digits)
                yield self._row(RETRIEVAL, step, {"machine": run.name, "digits": digits})

    def _row(self, quantity: str, step: int | None, at: dict[str, int | str]) -> Measurement:
        reason = "" if step is not None else f"no error in {self.steps} steps"
        return self.row(quantity, step, unit="steps", reason=reason, at=at)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the first error against the binary digits, with the law of the cube root, and against the
        inverse temperature.
        """
        from matplotlib.ticker import ScalarFormatter

        figure, (left, right) = axes(1, 2, height=3.3)
        names = distinct(result.table, "machine")
        lines = {name: {"color": tint, "linewidth": 1.3} for name, tint in zip(names, shades(len(names)))}
        quiet = {name: look | {"label": "_"} for name, look in lines.items()}
        dots = {name: look | {"linestyle": "", "markersize": 4.5} for name, look in quiet.items()}
        bare = {name: look | {"marker": ""} for name, look in lines.items()}
        digits, scale = (min(self.digits) - 1, max(self.digits) + 1), {"yscale": "log", "ylabel": FIRST}
        panels = (
            Panel(
                "Finite precision, hard-max",
                RETRIEVAL,
                lines=("machine", bare),
                legend="",
                axes=scale | {"xlabel": "binary digits", "xlim": digits},
            ),
            Panel("", FIRST, lines=("machine", dots)),
        )
        draw_curves(left, result, *panels, x="digits")
        left.set_xticks(self.digits, map(str, self.digits))
        scale |= {"xlabel": "$\\log_{10}$ inverse temperature"}
        softmax = Panel("Softmax, float64", FIRST, lines=("machine", quiet), legend="", axes=scale)
        draw_curves(right, result, softmax, x="power")
        law = np.array([min(self.digits), max(self.digits)], dtype=float)
        dashed = {"color": COLOURS["null"], "linestyle": DASHED, "linewidth": 1.0}
        left.plot(law, (4 / 3 * 2.0**law / 10) ** (1 / 3), label="cube-root law", **dashed)
        steps = np.geomspace(10, self.steps, 100)
        bound = np.log10([sufficient_inverse_temperature(count) for count in steps])
        keep = bound <= max(self.powers)
        right.plot(bound[keep], steps[keep], label="sufficient (turing/softmax)", **dashed)
        for ax in (left, right):
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.legend(loc="upper left")
        caption(
            figure,
            "Left: curves, the third layer alone with scores rounded to so many digits; dots, whole runs "
            f"in bfloat16 (8 digits) and float32 (24). Runs without error in {self.steps} steps are left "
            "out, such as all in float64. Dashed: the cube-root law for the cell 10, from about 20 digits "
            "on. Right: the same machines; dashed, the steps for which the bound of turing/softmax "
            "suffices.",
        )
        return figure
