"""The first error of a run against the precision of the arithmetic and against the inverse temperature of
softmax.
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
from ..claims.instances import Run
from ..claims.precision import sufficient_inverse_temperature
from ..machines import random_walk, repeated_counter, zigzag
from ..retrieval import first_wrong_retrieval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST, RETRIEVAL = "step of the first error", "step of the first wrong retrieval"
TYPES = {"bfloat16": 8, "float32": 24, "float64": 53}  # binary digits, with the leading one
BOTH = (FIRST, RETRIEVAL)
DIGITS = {"xlabel": "binary digits"}
VIEW = curves(
    "power",
    panels=(
        Panel("Hard-max", BOTH, lines=("machine", "quantity"), legend="", axes=DIGITS, x="digits"),
        Panel("Softmax, float64", FIRST, lines="machine", legend="upper left"),
    ),
    xlabel="$\\log_{10}$ inverse temperature",
    ylabel="step of the first error",
    log="y",
    caption="Left: solid, whole runs in bfloat16 (8 digits) and float32 (24); dotted, the third layer alone "
    "with scores rounded to so many digits; dashed, the cube-root law for the cell 10, from about 20 digits "
    "on. Runs without error in {steps} steps are left out, such as all in float64. Right: the same machines; "
    "dashed, the steps for which the bound of turing/softmax suffices.",
    size=(7.0, 3.3),
)


@style()
def draw(result: Result) -> "Figure":
    """Draws the curves with the law of the cube root, and the steps for which an inverse temperature
    suffices.
    """
    drawn, settings = VIEW(result), result.settings
    left, right = drawn.axes
    look = {"color": COLOURS["null"], "linestyle": DASHED, "linewidth": 1.0}
    digits = np.array([min(settings["digits"]), max(settings["digits"])], dtype=float)
    left.plot(digits, (4 / 3 * 2.0**digits / 10) ** (1 / 3), **look)
    steps = np.geomspace(10, settings["steps"], 100)
    bound = np.log10([sufficient_inverse_temperature(count) for count in steps])
    enough = bound <= max(settings["powers"])
    right.plot(bound[enough], steps[enough], **look)
    return drawn


@figure(
    "turing.precision",
    source=Source("perez2021attention", status="own"),
    view=draw,
    quick={"steps": 300, "digits": (8, 16, 24), "powers": (3, 6, 9, 12)},
)
def precision(
    *,
    steps: int = setting(1000, ge=10, le=4000, help="steps of each run"),
    widths: tuple[int, ...] = setting((5, 20), ge=1, le=200, help="widths of zigzags"),
    counter: int = setting(12, ge=1, le=60, help="digits of the repeated counter"),
    period: int = setting(60, ge=2, le=400, multiple_of=2, help="period of the closed random walk"),
    digits: tuple[int, ...] = setting(
        tuple(range(6, 33, 2)), ge=3, le=50, help="binary digits of the rounded scores"
    ),
    powers: tuple[int, ...] = setting(
        tuple(range(2, 15)), ge=0, le=30, help="powers of ten of the inverse temperature"
    ),
    seed: int = 0,
) -> Iterator[Reading]:
    """The first wrong state, symbol or head of machines that rewrite cells, in three number types and for
    softmax in float64. A run without error has no value.

    Beside the number types stands the first wrong retrieval of the third layer alone, with its scores rounded
    to any number of digits.
    """
    generator = torch.Generator().manual_seed(seed)
    machines = {f"zigzag of width {width}": (zigzag(width), "") for width in widths}
    machines[f"counter of {counter} digits"] = (repeated_counter(), "0" * counter)
    machines["random walk"] = (random_walk(period, generator), "")

    def first(quantity: str, step: int | None, **at: int | str) -> Reading:
        reason = "" if step is not None else f"no error in {steps} steps"
        return reading(quantity, step, unit="steps", reason=reason, at=at)

    for name, (machine, word) in machines.items():
        run = Run(name, machine.normalise(), word, steps)
        for kind, count in TYPES.items():
            step = run.trace(arithmetic=kind).first_difference(run.reference)
            yield first(FIRST, step, machine=name, arithmetic=kind, digits=count)
        for power in powers:
            soft = run.trace(arithmetic="float64", score="softmax", inverse_temperature=10.0**power)
            yield first(FIRST, soft.first_difference(run.reference), machine=name, power=power)
        for count in digits:
            step = first_wrong_retrieval(run.reference, count)
            yield first(RETRIEVAL, step, machine=name, digits=count)
