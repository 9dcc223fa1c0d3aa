r"""The common timeline: every theory's headline over the same training steps, and how these curves correlate.

A series consists of the values :math:`v_t` of one quantity of one network at the steps :math:`t_1 < \dots < t_n`, averaged over layers and
heads, and of the median :math:`v^0_t` of its null distribution at each step. Three results are computed from series:

* *scaled*: :math:`u_t / \max_s |u_s|` with the excess :math:`u_t = v_t - v^0_t`, so that 0 is the null and :math:`\pm 1` the largest
  distance from it. A series without a null uses its smallest value as :math:`v^0`.
* *crossing*: the first step at which the excess has completed at least half of its total change :math:`u_{t_n} - u_{t_1}`.
* *rank correlations*: Spearman's coefficient of the values :math:`v_t` of two series, with a percentile interval from a moving-block
  bootstrap over the checkpoints. Neighbouring checkpoints depend on one another, so blocks of :math:`\lceil n^{1/3} \rceil` are drawn. Any
  two increasing series have rank correlation 1; the report therefore also correlates their :func:`changes` between checkpoints.

If there are few checkpoints, the interval is somewhat too narrow. Undefined numbers (constant series, too few checkpoints) are None.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ..core.measurement import Measurement, Unit
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from .aggregate import IN_NETWORKS, NETWORK
from .format import NOTHING

DRAWS = 1000  # bootstrap samples behind the intervals of a correlation table
GEOMETRY = ("rank-collapse residual", "stable rank of the features")  # quantities of networks that the timeline compares with theories


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity of one network over training.

    Attributes:
        theory, quantity, model: the same columns of the rows.
        steps: training steps, increasing, ``[n]``.
        values: mean over layers and heads, in ``unit``, ``[n]``, finite.
        nulls: median of the null distribution at each step, ``[n]``; None if the rows have no null.
        split, unit: the same columns of the rows; split is empty for quantities of layers.
    """

    theory: str
    quantity: str
    model: str
    steps: np.ndarray
    values: np.ndarray
    nulls: np.ndarray | None = None
    split: str = ""
    unit: Unit = ""

    @property
    def label(self) -> str:
        """The quantity; for a quantity of the whole network, preceded by the split: ``"validation accuracy"``."""
        return f"{self.split} {self.quantity}" if self.split else self.quantity

    @property
    def excess(self) -> np.ndarray:
        """The value minus its null at each step, or minus the smallest value if there is no null, ``[n]``; the figure plots it."""
        return self.values - (self.values.min(initial=np.inf) if self.nulls is None else self.nulls)

    @property
    def scale(self) -> float | None:
        """The largest distance from the null, in the unit of the quantity; None if the excess is constant."""
        return None if self.still else float(np.abs(self.excess).max())

    @property
    def scaled(self) -> np.ndarray | None:
        """The excess divided by :attr:`scale`; None if it is constant."""
        return None if self.scale is None else self.excess / self.scale

    @property
    def still(self) -> bool:
        """Whether the excess is constant, up to the rounding of values and nulls."""
        return _still(self.excess, self.values if self.nulls is None else np.concatenate([self.values, self.nulls]))

    @property
    def constant(self) -> bool:
        """Whether the value is constant, up to rounding; its null may change."""
        return _still(self.values, self.values)

    @property
    def crossing(self) -> int | None:
        """The first step at which the excess has made half of its total change.

        None if the excess is constant, or if its total change is less than a quarter of its range: a curve that returns almost to its start
        has no meaningful half.
        """
        if self.still:
            return None
        excess = self.excess
        total = excess[-1] - excess[0]
        if abs(total) < 0.25 * np.ptp(excess):
            return None
        return int(self.steps[np.argmax((excess - excess[0]) / total >= 0.5)])


def _still(curve: np.ndarray, parts: np.ndarray) -> bool:
    """Returns whether the range of a curve is within the rounding errors of the numbers ``parts`` from which it was computed."""
    # 1e-300 keeps the bound above zero if all parts are zero.
    return len(curve) == 0 or float(np.ptp(curve)) <= 1e-12 * max(1e-300, float(np.abs(parts).max()))


@dataclass(frozen=True)
class Correlations:
    """Spearman's rank correlations of the series of one network; entries are None where undefined.

    Attributes:
        names: names of the quantities, ``[k]``.
        values, low, high: coefficients and ends of their bootstrap intervals, ``[k][k]``.
        checkpoints: number of steps that enter the coefficients.
        level: nominal coverage of the intervals.
    """

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low: tuple[tuple[float | None, ...], ...]
    high: tuple[tuple[float | None, ...], ...]
    checkpoints: int
    level: float


@dataclass(frozen=True, eq=False)
class Curves:
    """One quantity of one network over training, per layer.

    Attributes:
        theory, quantity, split, setting, model, unit: the same columns of the rows.
        steps: training steps, increasing, ``[s]``.
        layers: indices of layers from 0, ``[l]``; ``(None,)`` for a quantity of the whole network.
        values, nulls: means over heads of the values and of the median nulls, ``[s, l]``; NaN for missing values.
        spread: standard deviation over heads, ``[s, l]``; NaN for fewer than two heads.
        note: note of the rows, if all rows with a value have the same note; otherwise empty.
        source: first source of the rows.
    """

    theory: str
    quantity: str
    split: str
    setting: str
    model: str
    unit: Unit
    steps: np.ndarray
    layers: tuple[int | None, ...]
    values: np.ndarray
    spread: np.ndarray
    nulls: np.ndarray
    note: str = ""
    source: Source | None = None

    @property
    def label(self) -> str:
        """The quantity with its setting; for a quantity of the whole network, preceded by the split: ``"validation accuracy"``."""
        name = f"{self.split} {self.quantity}" if self.split and self.of_network else self.quantity
        return f"{name} ({self.setting})" if self.setting else name

    @property
    def of_network(self) -> bool:
        """Whether this is a quantity of the whole network that belongs to no theory."""
        return self.theory == NETWORK and self.layers == (None,)

    @property
    def empty(self) -> bool:
        """Whether all values are missing."""
        return not np.isfinite(self.values).any()

    @property
    def several_heads(self) -> bool:
        """Whether at least one layer has several heads."""
        return bool(np.isfinite(self.spread).any())

    def at(self, step: int | None, what: str = "values") -> float | None:
        """Returns the mean over layers at a step; None if all numbers are missing there.

        Args:
            step: training step.
            what: ``"values"``, ``"nulls"`` or ``"spread"``.
        """
        numbers = getattr(self, what)[self.steps == step]
        finite = numbers[np.isfinite(numbers)]
        return float(finite.mean()) if finite.size else None

    def mean(self) -> "Series":
        """Returns the mean over the layers that have a value at every step; over all layers if there is no such layer.

        A mean over different layers at different steps would jump although no layer changes.
        """
        complete = np.isfinite(self.values).all(axis=0)
        included = complete if complete.any() else np.full(len(self.layers), True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # steps without any value
            values, nulls = (np.nanmean(table[:, included], axis=1) for table in (self.values, self.nulls))
        measured = np.isfinite(values)
        nulls = nulls[measured] if np.isfinite(nulls[measured]).all() else None  # a null that is missing at some step is dropped
        return Series(
            self.theory,
            self.quantity,
            self.model,
            self.steps[measured],
            values[measured],
            nulls,
            self.split if self.of_network else "",
            self.unit,
        )


def curves(result: Result) -> list[Curves]:
    """Returns the curves of a result in order of appearance: the rows of networks that have a step, averaged over heads and seeds."""
    rows: dict[tuple, list[Measurement]] = {}
    for row in result.table:
        if row.step is not None and row.kind in IN_NETWORKS:
            rows.setdefault((row.theory, row.quantity, row.split, row.setting, row.model), []).append(row)
    return [_curves(group) for group in rows.values()]


def _curves(rows: Sequence[Measurement]) -> Curves:
    """Returns the curves of the rows of one quantity of one network."""
    cells: dict[tuple[int, int], list[Measurement]] = {}  # the heads of each step and layer; layer -1 is the whole network
    for row in rows:
        cells.setdefault((row.step or 0, -1 if row.layer is None else row.layer), []).append(row)
    steps, layers = (sorted(set(column)) for column in zip(*cells))
    values, spread, nulls = np.full((3, len(steps), len(layers)), np.nan)
    for (step, layer), heads in cells.items():
        cell = steps.index(step), layers.index(layer)
        if numbers := [row.value for row in heads if row.value is not None]:
            values[cell] = fmean(numbers)  # unlike a sum of floats, fmean does not depend on the order of the heads
        if len(numbers) > 1:
            spread[cell] = np.std(numbers)
        if medians := [row.null.median for row in heads if row.null is not None and row.null.draws]:
            nulls[cell] = fmean(medians)
    first, notes = rows[0], {row.note for row in rows if row.value is not None}
    return Curves(
        *(first.theory, first.quantity, first.split, first.setting, first.model, first.unit),
        *(np.array(steps), tuple(None if layer < 0 else layer for layer in layers), values, spread, nulls),
        note=notes.pop() if len(notes) == 1 else "",
        source=next((row.source for row in rows if row.source is not None), None),
    )


def series(result: Result, quantities: Iterable[tuple[str, str]] | None = None) -> list[Series]:
    """Returns the curves of a result, averaged over layers. Curves without a network or without values, or with a setting, are omitted.

    Args:
        result: the result.
        quantities: pairs (theory, quantity) to select, in this order; if None, all in order of appearance.
    Returns:
        One series per network, quantity and split, sorted by network in order of appearance.
    """
    selection = [curve.mean() for curve in curves(result) if curve.model and not curve.empty and not curve.setting]
    if quantities is not None:
        selection = [s for pair in dict.fromkeys(quantities) for s in selection if (s.theory, s.quantity) == pair]
    models = list(dict.fromkeys(row.model for row in result.table if row.step is not None))
    return sorted(selection, key=lambda s: models.index(s.model))


def on_timeline(available: Sequence[Series], theories: Iterable[Theory]) -> list[Series]:
    """Selects for each network the theories' headlines, the network's quantities on validation data, and :data:`GEOMETRY`."""
    headlines = [(theory.name, theory.in_networks.headline) for theory in theories if theory.in_networks is not None]
    geometry = [(NETWORK, name) for name in GEOMETRY]
    selection = [s for pair in headlines for s in available if (s.theory, s.quantity) == pair]
    selection += [s for s in available if s.theory == NETWORK and s.split == "validation"]
    selection += [s for pair in geometry for s in available if (s.theory, s.quantity) == pair]
    return sorted(selection, key=lambda s: list(dict.fromkeys(other.model for other in available)).index(s.model))


def changes(group: Iterable[Series]) -> list[Series]:
    """Returns the first differences of each series; a difference belongs to the later of its two steps and has no null."""
    return [replace(s, steps=s.steps[1:], values=np.diff(s.values), nulls=None) for s in group]


def rank_correlations(
    group: Sequence[Series], *, generator: torch.Generator, draws: int = 1000, level: float = 0.95, block: int | None = None
) -> Correlations:
    """Computes Spearman's rank correlation of every pair of series of one network, with a moving-block bootstrap interval.

    Args:
        group: series of one network; only the steps that all of them share are used.
        generator: random generator of the blocks.
        draws: number of bootstrap samples.
        level: nominal coverage of the percentile interval.
        block: checkpoints per block; if None, the cube root of the number of checkpoints, rounded up.
    Returns:
        Coefficients and intervals. A coefficient is None if a series of the pair is constant or fewer than 3 checkpoints are shared. An
        interval is None if fewer than 5 checkpoints are shared or the coefficient is undefined in more than half of the samples.
    Raises:
        ValueError: there is no series, the series belong to several networks, or ``draws`` or ``level`` is out of range.
    """
    if len({s.model for s in group}) != 1:
        raise ValueError(f"series must be of one network, got {sorted({s.model for s in group}) or 'none'}; select one model")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"draws must be at least 1 and level in (0, 1), got {draws} and {level}")
    shared = sorted(set.intersection(*(set(s.steps.tolist()) for s in group)))
    n, k = len(shared), len(group)
    table = np.array([s.values[np.isin(s.steps, shared)] for s in group]).reshape(k, n)
    names = tuple(s.label for s in group)
    undefined = tuple((None,) * k for _ in range(k))
    if n < 3:
        return Correlations(names, undefined, undefined, undefined, n, level)
    rho = _spearman(table)
    # If a series is constant up to rounding, its ranks are those of the rounding errors.
    for i, s in enumerate(group):
        if s.constant or replace(s, values=table[i]).constant:
            rho[i] = rho[:, i] = np.nan
    if n < 5:
        return Correlations(names, _entries(rho), undefined, undefined, n, level)
    block = min(n, block or math.ceil(n ** (1 / 3)))
    starts = torch.randint(0, n - block + 1, (draws, math.ceil(n / block)), generator=generator).numpy()  # [draws, blocks]
    # Each sample joins blocks of consecutive checkpoints, which preserves the dependence of neighbours, and is cut to n checkpoints.
    index = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :n]  # [draws, n]
    sampled = _spearman(np.moveaxis(table[:, index], 0, 1))  # [draws, k, k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pairs that are undefined in every sample
        low, high = np.nanpercentile(sampled, [50 * (1 - level), 50 * (1 + level)], axis=0)
    mostly_undefined = np.isnan(sampled).mean(axis=0) > 0.5
    low[mostly_undefined | np.isnan(rho)] = high[mostly_undefined | np.isnan(rho)] = np.nan
    return Correlations(names, _entries(rho), _entries(low), _entries(high), n, level)


def correlation_table(group: Sequence[Series]) -> dict[str, Any] | None:
    """Returns a matrix of rank correlations: of the values below the diagonal, of their changes above it. None for fewer than two
    series."""
    if len(group) < 2:
        return None
    levels = rank_correlations(group, generator=torch.Generator().manual_seed(0), draws=DRAWS)
    differences = rank_correlations(changes(group), generator=torch.Generator().manual_seed(0), draws=DRAWS)
    size = range(len(group))
    cells = [[None if i == j else _correlation(levels if i > j else differences, i, j) for j in size] for i in size]
    return {"names": levels.names, "cells": cells, "checkpoints": levels.checkpoints}


def _correlation(correlations: Correlations, i: int, j: int) -> dict[str, Any]:
    """Returns one cell of the matrix for the page: texts, sign, and the strength of its colour in per cent."""
    value, low, high = correlations.values[i][j], correlations.low[i][j], correlations.high[i][j]
    # Cells whose interval excludes zero are coloured about three times as strongly as the others.
    clear = low is not None and high is not None and (low > 0 or high < 0)
    short = lambda x: f"{x:+.2f}".replace("-", "−")  # noqa: E731
    return {
        "value": NOTHING if value is None else short(value),
        "interval": "" if low is None or high is None else f"{short(low)} … {short(high)}",
        "sign": "up" if (value or 0) > 0 else "down",
        "strength": 0 if value is None else round(abs(value) * (45 if clear else 16)),
        "clear": clear,
    }


def _spearman(table: np.ndarray) -> np.ndarray:
    """Computes correlations of ranks (ties averaged): ``[*batch, k, n] -> [*batch, k, k]``; NaN if a row is constant."""
    # For few checkpoints, comparing all pairs is faster than sorting. The rank here is the number of smaller values plus half the number of
    # equal values, including the value itself. This is the average rank minus one half; the shift does not change the correlation.
    if table.shape[-1] <= 64:
        below = (table[..., :, None] > table[..., None, :]).sum(-1, dtype=np.float64)
        ranks = below + (table[..., :, None] == table[..., None, :]).sum(-1, dtype=np.float64) / 2
    else:
        from scipy.stats import rankdata

        ranks = rankdata(table, axis=-1)
    centred = ranks - ranks.mean(axis=-1, keepdims=True)
    norms = np.sqrt((centred**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.einsum("...in,...jn->...ij", centred, centred) / (norms[..., :, None] * norms[..., None, :])
    return np.clip(rho, -1, 1)  # rounding may exceed the bounds


def _entries(matrix: np.ndarray) -> tuple[tuple[float | None, ...], ...]:
    """Converts a matrix to nested tuples, NaN to None."""
    return tuple(tuple(None if np.isnan(x) else float(x) for x in row) for row in matrix)


def sentences(group: Iterable[Series]) -> list[str]:
    """Returns one sentence per network: the steps at which its quantities cross half of their change, in order, and those that do not."""
    group, texts = list(group), []
    for model in dict.fromkeys(s.model for s in group):
        of_model = [s for s in group if s.model == model]
        crossed = sorted((s for s in of_model if s.crossing is not None), key=lambda s: s.crossing or 0)
        constant = [s.label for s in of_model if s.still]
        returning = [s.label for s in of_model if s.crossing is None and not s.still]
        parts = []
        if crossed:
            first, *later = crossed
            order = [f"{first.label} crosses half of its change at step {first.crossing}"]
            parts.append(", ".join([*order, *(f"{s.label} at step {s.crossing}" for s in later)]))
        if returning:
            parts.append(
                f"{_listed(returning)} {'end' if len(returning) > 1 else 'ends'} near where {'they' if len(returning) > 1 else 'it'} began"
            )
        if constant:
            parts.append(f"{_listed(constant)} {'do' if len(constant) > 1 else 'does'} not move")
        if parts:
            texts.append(f"In {model}, {'; '.join(parts)}.")
    return texts


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
