"""What several figures share: settings, means with their intervals, medians with their ranges, and the arrays
of a result.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import Experiment, range_rows, setting
from ....core.figure import Axis
from ....core.measurement import Basis, Measurement
from ....core.result import Result

NAME = "attention_svm"
# axes and settings that several figures share
n_axis = partial(Axis, setting="inputs", ge=1, help="numbers n of inputs")
T_axis = partial(Axis, setting="tokens", ge=2, help="numbers T of tokens per input")
d_axis = partial(Axis, setting="dims", ge=1, help="dimensions d of the tokens")
SIZE_NAMES = {"n": "inputs n", "T": "tokens T"}
RATE = setting(0.1, gt=0, le=1e6, help="length of a step")
THRESHOLD = setting(
    1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
)
Reference = tuple[float, Basis]


def arrays_of(result: Result) -> dict[str, np.ndarray]:
    """Returns the arrays of a result, without the prefix of the theory in their names."""
    return {name.partition("/")[2]: value for name, value in result.arrays.items()}


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


def median_and_range(
    experiment: Experiment,
    quantity: str,
    values: Float[Tensor, " trials"],
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
    row = experiment.row(quantity, float(known.median()), **{"note": note, **columns})
    yield from (row, *range_rows(row, known.tolist()))
