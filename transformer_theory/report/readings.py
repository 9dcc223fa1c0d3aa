"""What was read of one network while it trained, as arrays over steps and layers.

``values[s, l]`` is the mean over the heads of layer l at step s, in the quantity's own unit; ``spread`` their standard deviation. Where
nothing finite was read there is NaN.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.measurement import Row
from ..core.notes import shared
from ..core.result import Result

OF_LAYER = re.compile(r"(.+), layer (\d+)")  # what objectives measure of a layer, counted from 0


@dataclass(frozen=True, eq=False)
class Readings:
    """One quantity of one network over training.

    Attributes:
        theory, quantity: the columns of its rows.
        steps: at which something was read, increasing, ``[s]``.
        layers: numbers from 0, ``[l]``; ``(None,)`` for a quantity of the whole network.
        values, spread, nulls: ``[s, l]``; spread is NaN where there are fewer than two heads.
        note: what the notes of all its rows with a value say.
        source: of the last row.
    """

    theory: str
    quantity: str
    steps: np.ndarray
    layers: tuple[int | None, ...]
    values: np.ndarray
    spread: np.ndarray
    nulls: np.ndarray
    note: str = ""
    source: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is no number at all."""
        return not np.isfinite(self.values).any()

    @property
    def several(self) -> bool:
        """Whether layers have several heads."""
        return bool(np.isfinite(self.spread).any())

    def at(self, step: int, what: str = "values") -> float | None:
        """The mean over layers at a step of ``what``, values or nulls; None if there is none."""
        here = getattr(self, what)[self.steps == step]
        finite = here[np.isfinite(here)]
        return float(finite.mean()) if finite.size else None


def readings(result: Result) -> list[Readings]:
    """All that was read, in order of appearance. Of two rows of one place the first counts: the second is of the test images."""
    groups: dict[tuple[str, str], list[tuple[int | None, Row]]] = {}
    for row in result.table:
        if row.get("step") is None or row["quantity"] == "all":
            continue
        quantity, layer = row["quantity"], row.get("layer")
        if layer is None and row["theory"] == "network" and (found := OF_LAYER.fullmatch(quantity)):
            quantity, layer = found[1], int(found[2])
        groups.setdefault((row["theory"], quantity), []).append((layer, row))
    return [_one(*key, rows) for key, rows in groups.items()]


def _one(theory: str, quantity: str, rows: Sequence[tuple[int | None, Row]]) -> Readings:
    steps = sorted({row.get("step", 0) for _, row in rows})
    layers = sorted({layer for layer, _ in rows}, key=lambda layer: -1 if layer is None else layer)
    columns, lines = ({what: at for at, what in enumerate(names)} for names in (layers, steps))
    first = {(lines[row.get("step", 0)], columns[layer], row.get("head")): row for layer, row in reversed(rows)}
    cells = np.array([line * len(layers) + column for line, column, _ in first])
    read, null = (np.array([_number(row.get(name)) for row in first.values()]) for name in ("value", "null"))
    shape = len(steps), len(layers)
    means, counts = _means(cells, read, shape)
    variances, _ = _means(cells, (read - means.ravel()[cells]) ** 2, shape)
    spread = np.where(counts > 1, np.sqrt(variances), np.nan)
    note, source = shared(row.get("note") or "" for _, row in rows if row["value"] is not None), rows[-1][1].get("source") or ""
    return Readings(theory, quantity, np.array(steps), tuple(layers), means, spread, _means(cells, null, shape)[0], note, source)


def _means(cells: np.ndarray, numbers: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Means of the numbers of each cell and how many they are, both of that shape; NaN is no number, and the mean of none is NaN."""
    there = np.isfinite(numbers)
    sums = np.bincount(cells[there], numbers[there], minlength=shape[0] * shape[1])
    counts = np.bincount(cells[there], minlength=shape[0] * shape[1])
    with np.errstate(invalid="ignore"):
        return (sums / counts).reshape(shape), counts.reshape(shape)


def _number(value: float | int | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else math.nan
