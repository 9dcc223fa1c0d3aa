"""What several figures share: axes and settings, steps, medians with their ranges, and means with normal
intervals.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Axis, Reading, reading, with_range
from ....core.measurement import Basis
from ....core.result import Result
from ....core.table import Arrays

n_axis = partial(Axis, setting="inputs", ge=1, help="numbers n of inputs")
T_axis = partial(Axis, setting="tokens", ge=2, help="numbers T of tokens per input")
d_axis = partial(Axis, setting="dims", ge=1, help="dimensions d of the tokens")
SIZE_NAMES = {"n": "inputs n", "T": "tokens T"}
# in the published runs the weight of the squared norms of K and Q, and the summand of the gradient's norm
ROUNDING_UNIT = torch.finfo(torch.float64).eps
RATE = setting(0.1, gt=0, le=1e6, help="length of a step")
THRESHOLD = setting(
    1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
)

Reference = tuple[float, Basis]


def logarithmic_steps(steps: int) -> list[int]:
    """Returns about twelve steps per decade, including 1, 3, 10, 30, ... and the last step."""
    decades = range(math.ceil(math.log10(max(steps, 10))))
    round_steps = {f * 10**k for k in decades for f in (1, 3)}
    between = {round(10 ** (k / 12)) for k in range(12 * len(decades))}
    return sorted({step for step in round_steps | between if step <= steps} | {steps})


def normal_mean(quantity: str, values: np.ndarray, reason: str = "", **columns: Any) -> Reading:
    """Returns the mean with its 95 % interval by the normal approximation, of no width for a single value;
    without values, the reason.
    """
    if not len(values):
        return reading(quantity, None, n=0, reason=reason, **columns)
    average = float(values.mean())
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    columns |= {"interval": (average - half, average + half), "interval_kind": "over samples"}
    return reading(quantity, average, n=len(values), **columns)


def median_and_range(
    quantity: str,
    values: Float[Tensor, " trials"],
    reason: str = "no selection has a solution",
    **columns: Any,
) -> list[Reading]:
    """Returns the median over the trials, without missing ones, and the ends of its band."""
    known = values[values.isfinite()]
    if not len(known):
        return [reading(quantity, None, n=0, reason=reason, **columns)]
    note = f"median over the problems; range {float(known.min()):.3g} to {float(known.max()):.3g}"
    one = reading(quantity, float(known.median()), n=len(known), **{"note": note, **columns})
    return with_range(one, known.tolist())


def arrays(named: Mapping[str, Any]) -> Arrays:
    """Returns the arrays of a picture, with the name of the theory before theirs."""
    return Arrays({f"attention_svm/{name}": value for name, value in named.items()})


def arrays_of(result: Result) -> dict[str, np.ndarray]:
    """Returns the arrays of :func:`arrays` of a result."""
    return {name.partition("/")[2]: value for name, value in result.arrays.items()}
