r"""Statistics of claims and measurements: intervals, permutation p-values, false discovery rate, agreement.

* Shares: the interval of Clopper and Pearson, from quantiles of the beta distribution :cite:p:`clopper1934use`.
* Means over seeds: Student's t interval.
* Permutation p-value of a value against B null draws: :math:`(1 + \#\{\text{draws at least as extreme}\}) / (1 + B)`, never zero.
* Agreement: :math:`(v - m) / (\hat v - m)` with the prediction :math:`\hat v` and the median m of the null: 0 is chance, 1 the prediction.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .measurement import Measurement, Null


def clopper_pearson(successes, trials, *, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Computes the lower and upper ends of the Clopper-Pearson interval of a share; they are 0 and 1 if there are no trials.

    >>> low, high = clopper_pearson(5, 5)  # even five successes in five trials leave a wide interval
    >>> f"{low:.2f} to {high:.2f}"
    '0.48 to 1.00'

    Args:
        successes, trials: integers, or arrays of integers of equal shape.
        confidence: coverage probability.
    """
    from scipy.stats import beta

    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    tail = (1 - confidence) / 2
    # np.where evaluates both branches, so np.maximum keeps the parameters of the beta distribution positive.
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high


def share_interval(share: float, n: int) -> tuple[float, float] | None:
    """Computes the lower and upper ends of the 95 % interval for a share of n samples; None if share * n is not an integer.

    >>> low, high = share_interval(0.65, 540)
    >>> f"{low:.2%} to {high:.2%}"
    '60.81% to 69.02%'
    """
    successes = round(share * n)
    # The share may be a float32 number, whose rounding error is about 1e-7.
    if n < 1 or not 0 <= successes <= n or abs(successes - share * n) > 1e-6 * n:
        return None
    low, high = clopper_pearson(successes, n)
    return float(low), float(high)


def with_interval(row: "Measurement") -> "Measurement":
    """Returns the row with the Clopper-Pearson interval; unchanged if it has an interval or its value is not a share of ``n`` samples."""
    if row.interval is not None or row.unit != "share" or row.value is None or not row.n:
        return row
    ends = share_interval(row.value, row.n)
    return row if ends is None else dataclasses.replace(row, interval=ends, interval_kind="over samples")


def student_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Computes Student's t interval of the mean of independent values; None for fewer than two values.

    >>> low, high = student_interval([1.0, 2.0, 3.0])
    >>> f"{low:.2f} to {high:.2f}"
    '-0.48 to 4.48'
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(values))
    return mean - half, mean + half


def permutation_p(value: float, draws: Sequence[float], side: str, *, predicted: float | None = None) -> float:
    """Computes the p-value ``(1 + number of draws at least as extreme) / (1 + number of draws)``.

    >>> permutation_p(3.0, [0.0, 1.0, 2.0], ">=")
    0.25

    Args:
        value: measured value.
        draws: null distribution.
        side: ">=" counts draws >= value, "<=" draws <= value, "==" draws at least as close to ``predicted`` as the value is.
        predicted: the theory's prediction; needed for "==".
    Raises:
        ValueError: there are no draws, the side is unknown, or ``predicted`` is missing for "==".
    """
    if not len(draws):
        raise ValueError("a p-value needs at least one draw of the null, got none")
    if side == "==":
        if predicted is None:
            raise ValueError('side "==" needs a predicted value, got none')
        extreme = sum(abs(draw - predicted) <= abs(value - predicted) for draw in draws)
    elif side in ("<=", ">="):
        extreme = sum(draw >= value if side == ">=" else draw <= value for draw in draws)
    else:
        raise ValueError(f"side must be '<=', '>=' or '==', got {side!r}")
    return (1 + extreme) / (1 + len(draws))


def false_discoveries(p: Sequence[float]) -> list[float]:
    """Adjusts p-values for the false discovery rate by the method of Benjamini and Hochberg; keeps their order."""
    from scipy.stats import false_discovery_control

    return [float(adjusted) for adjusted in false_discovery_control(p)] if len(p) else []


def agreement(value: float | None, predicted: float | None, null: float | None) -> float | None:
    """Computes (value - null) / (predicted - null); None if a number is missing or the prediction equals the null.

    >>> agreement(0.9, 1.0, 0.5)
    0.8
    """
    if value is None or predicted is None or null is None or not math.isfinite(null) or predicted == null:
        return None
    return (value - null) / (predicted - null)


def over_heads(rows: "Sequence[Measurement]") -> "Measurement":
    """Averages the rows of one quantity at one step over heads, or over layers and heads: the mean value, and the null whose draw i is
    the mean of draws i of the rows.

    Rows without a value are ignored. The other columns are those of the first row, except for ``head`` and the columns that describe the
    value of a single head (interval, p-value, agreement, verdict), which become empty.
    """
    from .measurement import Null

    measured = [row for row in rows if row.value is not None] or list(rows[:1])
    values = [row.value for row in measured if row.value is not None]
    return dataclasses.replace(
        measured[0],
        value=sum(values) / len(values) if values else None,
        null=Null.mean_of([row.null for row in measured]),
        **dict.fromkeys(("head", "interval", "p", "agreement", "verdict")),
        interval_kind="",
    )


def place_of(row: "Measurement") -> tuple[str, str, str, int | None, int | None]:
    """Returns the columns that identify a row within a network, without its step."""
    return row.theory, row.quantity, row.setting, row.layer, row.head


def nulls_of(measurements: "Sequence[Sequence[Measurement]]", kind: str) -> "dict[tuple, Null]":
    """Returns one null per :func:`place_of` from repeated measurements; each measurement adds the value of the row, if any, as a draw."""
    from .measurement import Null

    values: dict[tuple, list[float]] = {}
    for row in (row for rows in measurements for row in rows):
        if row.value is not None:
            values.setdefault(place_of(row), []).append(row.value)
    return {place: Null(kind, tuple(draws)) for place, draws in values.items()}


def over_seeds(rows: "Sequence[Measurement]") -> "Measurement":
    """Averages the rows of one quantity over seeds: the mean, its interval over seeds, the null of the mean, and the p-value of the mean.

    Draw i of the null is averaged over the seeds, which gives the null of the mean; it is None if seeds differ in their number of draws.
    A verdict is kept only if all seeds agree. ``n`` is the number of seeds.
    """
    from .measurement import Null

    first = rows[0]
    values = [row.value for row in rows if row.value is not None]
    mean = float(np.mean(values)) if values else None

    def common(name: str) -> Any:
        """Returns the value of a column if all rows share it, otherwise None."""
        return getattr(first, name) if len({getattr(row, name) for row in rows}) == 1 else None

    null = Null.mean_of([row.null for row in rows])
    predictions = [row.predicted for row in rows if row.predicted is not None]
    predicted = float(np.mean(predictions)) if len(predictions) == len(rows) else None
    p = None
    if (
        mean is not None
        and null is not None
        and len(null.draws) > 1
        and first.side is not None
        and (first.side != "==" or predicted is not None)
    ):
        p = null.p(mean, first.side, predicted=predicted)
    return dataclasses.replace(
        first,
        value=mean,
        interval=student_interval(values),
        interval_kind="over seeds" if len(values) > 1 else "",
        predicted=predicted,
        threshold=common("threshold"),
        verdict=common("verdict"),
        null=null,
        p=p,
        agreement=agreement(mean, predicted, None if null is None else null.median),
        reason=first.reason if mean is None else "",
        n=len(values),
        note=common("note") or "",
        seed=None,
    )
