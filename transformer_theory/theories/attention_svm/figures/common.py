"""Helpers that several figures share: measurement rows, the arrays of a result, and markers for reference
numbers.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.measurement import Basis, Measurement, Table
from ....core.result import Result
from ....core.sources import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "attention_svm"
# settings that several figures share
INPUTS: dict[str, Any] = {"setting": "inputs", "ge": 1, "help": "numbers n of inputs"}
TOKENS: dict[str, Any] = {"setting": "tokens", "ge": 2, "help": "numbers T of tokens per input"}
DIMS: dict[str, Any] = {"setting": "dims", "ge": 1, "help": "dimensions d of the tokens"}
SIZE_NAMES = {"n": "inputs n", "T": "tokens T"}
RATE = setting(0.1, gt=0, le=1e6, help="length of a step")
THRESHOLD = setting(
    1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
)
REFERENCES: dict[str, tuple[str, str]] = {  # basis of a reference number -> its marker and its legend entry
    "figure": ("x", "read off the paper's figure"),
    "printed": ("x", "released code's output"),
    "recomputed": ("+", "recomputed independently"),
}
Reference = tuple[float, Basis]


def figure_row(
    quantity: str,
    value: float | None,
    source: Source | None,
    *,
    reference: Reference | None = None,
    **columns,
) -> Measurement:
    """Returns a measurement of kind "figure"; the reference number, if any, becomes its prediction."""
    predicted: dict = {} if reference is None else {"predicted": reference[0], "basis": reference[1]}
    return Measurement(NAME, "figure", quantity, value, source=source, **predicted, **columns)


def size(n: int, T: int, d: int) -> str:
    """Returns the text of the column ``setting`` for problems of one size."""
    return f"n={n}, T={T}, d={d}"


def arrays_of(result: Result) -> dict[str, np.ndarray]:
    """Returns the arrays of a result, without the prefix of the theory in their names."""
    return {name.partition("/")[2]: value for name, value in result.arrays.items()}


def references(table: Table) -> Table:
    """Returns the rows with a reference number: printed by the released code, read off a figure, or
    recomputed independently.
    """
    return table.where(lambda row: row.predicted is not None and row.basis in REFERENCES)


def mark(ax: "Axes", points: Iterable[tuple[float | int, float | None, Basis]]) -> None:
    """Plots points (x, y, basis of y), with one legend entry per basis."""
    points = list(points)
    for basis, (marker, label) in REFERENCES.items():
        positions = [(x, y) for x, y, point_basis in points if point_basis == basis]
        if positions:
            appearance = {
                "linestyle": "",
                "marker": marker,
                "markersize": 5 if marker == "x" else 7,
                "markeredgewidth": 1.2,
                "zorder": 6,
            }
            ax.plot(*zip(*positions), color="black", label=label, **appearance)


def mark_steps(ax: "Axes", table: Table) -> None:
    """Plots the reference numbers of the rows against their steps."""
    mark(ax, [(row.step or 0, row.predicted, row.basis) for row in references(table)])


def mean_interval(values: np.ndarray, reason: str) -> tuple[float | None, dict[str, Any]]:
    """Returns the mean and the columns of its row: the 95 % interval by the normal approximation, of no width
    for a single value; without values, the reason.
    """
    if not len(values):
        return None, {"n": 0, "reason": reason}
    average = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return average, {
        "n": len(values),
        "interval": (average - half, average + half),
        "interval_kind": "over samples",
    }


EXTREMES = ("smallest", "largest")  # the band of a curve of medians


def median_and_range(
    experiment: Experiment,
    quantity: str,
    values: Tensor,
    reason: str = "no selection has a solution",
    **columns: Any,
) -> Iterator[Measurement]:
    """Yields the median over the trials, without missing ones, and the quantities of its band."""
    known = values[values.isfinite()]
    columns["n"] = len(known)
    if not len(known):
        yield experiment.row(quantity, None, reason=reason, **columns)
        return
    note = f"median over the problems; range {float(known.min()):.3g} to {float(known.max()):.3g}"
    yield experiment.row(quantity, float(known.median()), **{"note": note, **columns})
    place = {name: columns[name] for name in ("at", "step", "n") if name in columns}
    for name, value in zip(EXTREMES, (known.min(), known.max())):
        yield experiment.row(f"{name} of {quantity}", float(value), **place)
