r"""Quantities of networks over the training steps, as means over seeds, with the bands of their nulls.

A quantity is measured at steps :math:`t_1 < \dots < t_n` in layers, heads and seeds. :class:`Curves` has one
curve per layer, averaged over heads and seeds; :class:`Series` is their mean over layers. The null of such a
mean is the distribution of the same mean of null draws: draw i is averaged over heads, seeds and layers.
Untrained networks are averaged over heads and layers only, because all seeds are compared with the same
untrained networks. Of a null that is drawn anew at each step, the first :data:`~..core.statistics.BAND_DRAWS`
draws are used at every step, also at the last step, which has more; the range of more draws would be wider.

The *band* of a null ranges from its smallest to its largest draw. By chance alone, a value lies outside the
band of B draws with probability 2 / (B + 1) at a single step. A curve therefore :attr:`leaves
<Series.departure>` its band only if it stays outside at the last :data:`MIN_OUTSIDE` checkpoints or longer,
and :attr:`stays within it <Series.within>` unless it is outside that often in a row.

The timeline sets every theory's headline over the same steps, and correlates them.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ..comparison.pooling import IN_NETWORKS, NETWORK
from ..core.format import NOTHING
from ..core.measurement import Measurement, Null, Side, Unit
from ..core.result import Result
from ..core.sources import Source
from ..core.statistics import BAND_DRAWS, UNTRAINED
from ..core.table import grouped
from ..core.theory import Theory

MIN_OUTSIDE = 3  # number of last checkpoints outside the band without which a curve has not left it
MIN_DRAWS = 5  # draws of a null without which the report does not say whether a curve leaves the band
DRAWS = 1000  # bootstrap samples behind the intervals of a correlation table
COVERAGE = 0.95  # of these intervals, nominal
# quantities of networks that the timeline compares with theories
GEOMETRY = ("rank-collapse residual", "stable rank of the features")


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity of one network over training, averaged over layers, heads and seeds.

    Attributes:
        theory, quantity, model: the same columns of the rows.
        steps: training steps, increasing, ``[n]``.
        values: the mean, in ``unit``, ``[n]``, finite.
        nulls: median of the null distribution of the mean at each step, ``[n]``; None if the rows have no
            null.
        split, unit: the same columns of the rows; split is empty for quantities of layers.
        null_low, null_high: smallest and largest draw of the null at each step, ``[n]``; None without null.
        draws: number of draws of the null.
        low, high: smallest and largest value of the seeds at each step, ``[n]``; None for a single seed.
        seeds: number of seeds.
        side: side of the null on which the theory predicts the value; None for quantities of no theory.
        title: title of the theory; empty for quantities of no theory.
    """

    theory: str
    quantity: str
    model: str
    steps: np.ndarray
    values: np.ndarray
    nulls: np.ndarray | None = None
    split: str = ""
    unit: Unit = ""
    null_low: np.ndarray | None = None
    null_high: np.ndarray | None = None
    draws: int = 0
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    seeds: int = 1
    side: Side | None = None
    title: str = ""

    @property
    def label(self) -> str:
        """The quantity; for a quantity of the whole network, preceded by the split: ``"validation
        accuracy"``.
        """
        return f"{self.split} {self.quantity}" if self.split else self.quantity

    @property
    def excess(self) -> np.ndarray:
        """The value minus its null at each step, or minus the smallest value if there is no null, ``[n]``."""
        return self.values - (self.values.min(initial=np.inf) if self.nulls is None else self.nulls)

    @property
    def still(self) -> bool:
        """Whether the excess is constant, up to the rounding of values and nulls."""
        return _still(
            self.excess, self.values if self.nulls is None else np.concatenate([self.values, self.nulls])
        )

    @property
    def constant(self) -> bool:
        """Whether the value is constant, up to rounding; its null may change."""
        return _still(self.values, self.values)

    @property
    def crossing(self) -> int | None:
        """The first step at which the excess has made half of its total change.

        None if the excess is constant, or if its total change is less than a quarter of its range: a curve
        that returns almost to its start has no meaningful half.
        """
        if self.still:
            return None
        excess = self.excess
        total = excess[-1] - excess[0]
        if abs(total) < 0.25 * np.ptp(excess):
            return None
        return int(self.steps[np.argmax((excess - excess[0]) / total >= 0.5)])

    @property
    def judged(self) -> bool:
        """Whether the null has enough draws to decide whether the curve leaves its band."""
        return self.null_low is not None and self.draws >= MIN_DRAWS

    @property
    def outside(self) -> np.ndarray:
        """Where the value lies relative to the band of the null, ``[n]``: 1 above, -1 below, 0 inside or
        without a null.
        """
        if self.null_low is None or self.null_high is None:
            return np.zeros(len(self.steps), dtype=int)
        margin = 1e-12 * np.abs(self.values)  # values that differ by rounding are equal
        return (self.values > self.null_high + margin).astype(int) - (self.values < self.null_low - margin)

    @property
    def within(self) -> bool:
        """Whether the value is never outside on one side at :data:`MIN_OUTSIDE` checkpoints in a row (all of
        them, if there are fewer).
        """
        sides, starts = self.outside, np.flatnonzero(np.diff(self.outside, prepend=np.inf))
        runs = np.diff(np.append(starts, len(sides)))
        return not any(
            length >= min(MIN_OUTSIDE, len(sides)) for start, length in zip(starts, runs) if sides[start]
        )

    @property
    def departure(self) -> int | None:
        """The first step from which on the value stays on one side outside the band; None if it is not
        outside for long enough at the end.
        """
        outside = self.outside
        if not len(outside) or not outside[-1]:
            return None
        before = np.flatnonzero(outside != outside[-1])
        first = int(before[-1]) + 1 if len(before) else 0
        return int(self.steps[first]) if len(outside) - first >= min(MIN_OUTSIDE, len(outside)) else None

    @property
    def as_predicted(self) -> bool:
        """Whether the last value lies outside the band on the side that the theory predicts."""
        return len(self.steps) > 0 and int(self.outside[-1]) == {">=": 1, "<=": -1}.get(self.side or "")


def _still(curve: np.ndarray, parts: np.ndarray) -> bool:
    """Returns whether the range of a curve is within the rounding errors of the numbers ``parts`` from which
    it was computed.
    """
    # 1e-300 keeps the bound above zero if all parts are zero.
    return len(curve) == 0 or float(np.ptp(curve)) <= 1e-12 * max(1e-300, float(np.abs(parts).max()))


@dataclass(frozen=True, eq=False)
class Curves:
    """One quantity of one network over training, per layer.

    Attributes:
        theory, quantity, split, setting, model, unit: the same columns of the rows.
        steps: training steps, increasing, ``[s]``.
        layers: indices of layers from 0, ``[l]``; ``(None,)`` for a quantity of the whole network.
        values, nulls: means over heads and seeds, and the medians of their nulls, ``[s, l]``; NaN for missing
            values.
        spread: standard deviation over heads, averaged over seeds, ``[s, l]``; NaN for fewer than two heads.
        note: note of the rows, if all rows with a value have the same note; otherwise empty.
        source: first source of the rows.
        by_seed: means over heads of each seed, ``[k, s, l]``; None for a single seed.
        draws: draws of the nulls, ``[s, l, d]``, padded with NaN; None if ``nulls`` is the only draw.
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
    by_seed: np.ndarray | None = None
    draws: np.ndarray | None = None

    @property
    def label(self) -> str:
        """The quantity with its setting; for a quantity of the whole network, preceded by the split:
        ``"validation accuracy"``.
        """
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

    @property
    def null_band(self) -> np.ndarray:
        """The smallest and the largest draw of the null, ``[2, s, l]``; NaN without null."""
        draws = self.nulls[..., None] if self.draws is None else self.draws
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # cells without a null
            return np.stack([np.nanmin(draws, axis=-1), np.nanmax(draws, axis=-1)])

    def at(self, step: int | None, what: str = "values") -> float | None:
        """Returns the mean over layers at a step; None if all numbers are missing there.

        Args:
            step: training step.
            what: ``"values"``, ``"nulls"`` or ``"spread"``.
        """
        numbers = getattr(self, what)[self.steps == step]
        finite = numbers[np.isfinite(numbers)]
        return float(finite.mean()) if finite.size else None

    def mean(self) -> Series:
        """Returns the mean over layers and seeds, with the null of this mean.

        Only seeds and layers that have a value at every step are averaged, if there are any: a mean over
        different layers at different steps would jump although no layer changes.
        """
        table = self.values[None] if self.by_seed is None else self.by_seed  # [k, s, l]
        whole = np.all(np.isfinite(table).any(axis=2), axis=1)  # seeds with a value at every step
        table = table[whole] if whole.any() else table
        complete = np.isfinite(table).all(axis=(0, 1))  # layers
        included = complete if complete.any() else np.full(len(self.layers), True)
        draws = (self.nulls[..., None] if self.draws is None else self.draws)[:, included]  # [s, l, d]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # steps without any value
            of_seeds = np.nanmean(table[:, :, included], axis=2)  # [k, s]
            values, draws = np.nanmean(of_seeds, axis=0), np.nanmean(draws, axis=1)  # [s], [s, d]
            low, high = np.nanmin(of_seeds, axis=0), np.nanmax(of_seeds, axis=0)
        measured = np.isfinite(values)
        draws = draws[measured]
        draws = draws[:, np.isfinite(draws).all(axis=0)]  # a null that is missing at some step is dropped
        nulls = (
            (np.median(draws, axis=1), draws.min(axis=1), draws.max(axis=1))
            if draws.size
            else (None, None, None)
        )
        several = len(of_seeds) > 1
        return Series(
            self.theory,
            self.quantity,
            self.model,
            self.steps[measured],
            values[measured],
            nulls[0],
            self.split if self.of_network else "",
            self.unit,
            *nulls[1:],
            draws=draws.shape[1],
            low=low[measured] if several else None,
            high=high[measured] if several else None,
            seeds=len(of_seeds),
        )


def curves(result: Result) -> list[Curves]:
    """Returns the curves of a result in order of appearance: the rows of networks that have a step, averaged
    over heads and seeds.
    """
    rows = [row for row in result.table if row.step is not None and row.kind in IN_NETWORKS]
    groups = grouped(rows, lambda row: (row.theory, row.quantity, row.split, row.setting, row.model))
    return [_curves(group) for group in groups.values()]


def _curves(rows: Sequence[Measurement]) -> Curves:
    """Returns the curves of the rows of one quantity of one network."""
    # heads by seed, for each step and layer; layer -1: the whole network
    cells: dict[tuple[int, int], dict[int, list[Measurement]]] = {}
    for row in rows:
        by_seed = cells.setdefault((row.step or 0, -1 if row.layer is None else row.layer), {})
        by_seed.setdefault(row.seed or 0, []).append(row)
    steps, layers = (sorted(set(column)) for column in zip(*cells))
    seeds = sorted({seed for by_seed in cells.values() for seed in by_seed})
    table = np.full((len(seeds), len(steps), len(layers)), np.nan)
    spread = np.full((len(steps), len(layers)), np.nan)
    draws_of: dict[tuple[int, int], tuple[float, ...]] = {}
    for (step, layer), by_seed in cells.items():
        cell, spreads = (steps.index(step), layers.index(layer)), []
        for seed, heads in by_seed.items():
            if numbers := [row.value for row in heads if row.value is not None]:
                # unlike a sum of floats, fmean does not depend on the order of the heads
                table[seeds.index(seed), *cell] = fmean(numbers)
            if len(numbers) > 1:
                spreads.append(float(np.std(numbers)))
        if spreads:
            spread[cell] = fmean(spreads)
        draws_of[cell] = _null_draws(list(by_seed.values()))
    draws = np.full((len(steps), len(layers), max(1, *map(len, draws_of.values()))), np.nan)
    for cell, numbers in draws_of.items():
        draws[cell][: len(numbers)] = numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # cells without value or null
        values, nulls = np.nanmean(table, axis=0), np.nanmedian(draws, axis=-1)
    first, notes = rows[0], {row.note for row in rows if row.value is not None}
    return Curves(
        *(first.theory, first.quantity, first.split, first.setting, first.model, first.unit),
        *(np.array(steps), tuple(None if layer < 0 else layer for layer in layers), values, spread, nulls),
        note=notes.pop() if len(notes) == 1 else "",
        source=next((row.source for row in rows if row.source is not None), None),
        by_seed=table if len(seeds) > 1 else None,
        draws=draws,
    )


def _null_draws(by_seed: Sequence[Sequence[Measurement]]) -> tuple[float, ...]:
    """Returns the null draws of the mean over the heads of each seed and over the seeds; empty without
    null.
    """
    of_seeds = [
        Null.mean_of([row.null for row in heads if row.value is not None or row.null is not None])
        for heads in by_seed
    ]
    known = [null for null in of_seeds if null is not None]
    if not known:
        return ()
    if known[0].kind == UNTRAINED:  # networks that all seeds share; if they differ, all of them are draws
        return tuple(draw for draws in dict.fromkeys(null.draws for null in known) for draw in draws)
    mean = Null.mean_of(known)
    return () if mean is None else mean.draws[:BAND_DRAWS]


def series(quantities: Iterable[Curves]) -> list[Series]:
    """Averages curves over layers. Curves without a network or without values, or with a setting, are
    omitted.

    Returns:
        One series per network, quantity and split, sorted by network in order of appearance.
    """
    selection = [curve for curve in quantities if curve.model and not curve.empty and not curve.setting]
    models = list(dict.fromkeys(curve.model for curve in selection))
    return [curve.mean() for curve in sorted(selection, key=lambda curve: models.index(curve.model))]


def positions(length: int, count: int) -> list[int]:
    """Returns at most ``count`` indices into a sequence of this length, evenly spaced, with the first and the
    last.
    """
    return sorted({round(float(x)) for x in np.linspace(0, length - 1, min(count, length))})


def split_headline(quantities: Sequence[Curves], theory: Theory | None) -> tuple[Curves | None, list[Curves]]:
    """Separates a theory's curves into its headline (None if it was not measured) and the others; empty
    curves are dropped.

    Args:
        quantities: curves of one network.
        theory: the theory; None for the network's own quantities, which have no headline.
    """
    owner = NETWORK if theory is None else theory.name
    selection = [curve for curve in quantities if curve.theory == owner and not curve.empty]
    name = "" if theory is None or theory.in_networks is None else theory.in_networks.headline
    headline = next((curve for curve in selection if curve.quantity == name), None)
    return headline, [curve for curve in selection if curve is not headline]


# ---- the timeline


def on_timeline(available: Sequence[Series], theories: Iterable[Theory]) -> list[Series]:
    """Selects for each network the theories' headlines, the network's quantities on validation data, and
    :data:`GEOMETRY`.

    The headlines get the side that their theory predicts, and its title.
    """
    selection = [
        replace(s, side=theory.in_networks.side, title=theory.title)
        for theory in theories
        if theory.in_networks is not None
        for s in available
        if (s.theory, s.quantity) == (theory.name, theory.in_networks.headline)
    ]
    selection += [s for s in available if s.theory == NETWORK and s.split == "validation"]
    selection += [s for name in GEOMETRY for s in available if (s.theory, s.quantity) == (NETWORK, name)]
    return sorted(
        selection, key=lambda s: list(dict.fromkeys(other.model for other in available)).index(s.model)
    )


def timeline_series(group: Sequence[Series]) -> list[Series]:
    """Selects the series that the timeline figure shows: theories' headlines and shares of the networks;
    empty without headlines.
    """
    if not any(s.theory != NETWORK for s in group):
        return []
    return [s for s in group if s.theory != NETWORK or s.unit == "share"]


# ---- rank correlations


@dataclass(frozen=True)
class Correlations:
    r"""Spearman's rank correlations of the series of one network; entries are None where undefined.

    The coefficient is that of the values :math:`v_t` of two series, with a percentile interval from a
    moving-block bootstrap over the checkpoints. Neighbouring checkpoints depend on one another, so blocks of
    :math:`\lceil n^{1/3} \rceil` are drawn. Any two increasing series have rank correlation 1; the report
    therefore also correlates their :func:`changes` between checkpoints. If there are few checkpoints, the
    interval is somewhat too narrow.

    Attributes:
        names: names of the quantities, ``[k]``.
        values, low, high: coefficients and ends of their bootstrap intervals, ``[k][k]``.
        checkpoints: number of steps that enter the coefficients.
    """

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low: tuple[tuple[float | None, ...], ...]
    high: tuple[tuple[float | None, ...], ...]
    checkpoints: int


def changes(group: Iterable[Series]) -> list[Series]:
    """Returns the first differences of each series; a difference belongs to the later of its two steps and
    has no null.
    """
    without_null: dict[str, Any] = dict.fromkeys(("nulls", "null_low", "null_high", "low", "high"))
    return [replace(s, steps=s.steps[1:], values=np.diff(s.values), draws=0, **without_null) for s in group]


def rank_correlations(
    group: Sequence[Series], *, generator: torch.Generator, draws: int = DRAWS
) -> Correlations:
    """Computes Spearman's rank correlation of every pair of series of one network, with a moving-block
    bootstrap interval.

    Args:
        group: series of one network; only the steps that all of them share are used.
        generator: random generator of the blocks.
        draws: number of bootstrap samples.
    Returns:
        Coefficients and intervals. A coefficient is None if a series of the pair is constant or fewer than 3
        checkpoints are shared. An interval is None if fewer than 5 checkpoints are shared or the coefficient
        is undefined in more than half of the samples.
    Raises:
        ValueError: there is no series, the series belong to several networks, or ``draws`` is less than 1.
    """
    if len({s.model for s in group}) != 1:
        raise ValueError(
            f"series must be of one network, got {sorted({s.model for s in group}) or 'none'}; select one "
            "model"
        )
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    shared = sorted(set.intersection(*(set(s.steps.tolist()) for s in group)))
    n, k = len(shared), len(group)
    table = np.array([s.values[np.isin(s.steps, shared)] for s in group]).reshape(k, n)
    names = tuple(s.label for s in group)
    undefined = tuple((None,) * k for _ in range(k))
    if n < 3:
        return Correlations(names, undefined, undefined, undefined, n)
    rho = _spearman(table)
    # If a series is constant up to rounding, its ranks are those of the rounding errors.
    for i, s in enumerate(group):
        if s.constant or replace(s, values=table[i]).constant:
            rho[i] = rho[:, i] = np.nan
    if n < 5:
        return Correlations(names, _entries(rho), undefined, undefined, n)
    block = math.ceil(n ** (1 / 3))
    # [draws, blocks]
    starts = torch.randint(0, n - block + 1, (draws, math.ceil(n / block)), generator=generator).numpy()
    # Each sample joins blocks of consecutive checkpoints, which preserves the dependence of neighbours, and
    # is cut to n checkpoints.
    index = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :n]  # [draws, n]
    sampled = _spearman(np.moveaxis(table[:, index], 0, 1))  # [draws, k, k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pairs that are undefined in every sample
        low, high = np.nanpercentile(sampled, [50 * (1 - COVERAGE), 50 * (1 + COVERAGE)], axis=0)
    mostly_undefined = np.isnan(sampled).mean(axis=0) > 0.5
    low[mostly_undefined | np.isnan(rho)] = high[mostly_undefined | np.isnan(rho)] = np.nan
    return Correlations(names, _entries(rho), _entries(low), _entries(high), n)


def correlation_table(group: Sequence[Series]) -> dict[str, Any] | None:
    """Returns a matrix of rank correlations: of the values below the diagonal, of their changes above it.
    None for fewer than two series.

    The values are means over ``seeds`` seeds.
    """
    if len(group) < 2:
        return None
    levels = rank_correlations(group, generator=torch.Generator().manual_seed(0))
    differences = rank_correlations(changes(group), generator=torch.Generator().manual_seed(0))
    size = range(len(group))
    cells = [
        [None if i == j else _correlation(levels if i > j else differences, i, j) for j in size] for i in size
    ]
    return {
        "names": levels.names,
        "cells": cells,
        "checkpoints": levels.checkpoints,
        "seeds": max(s.seeds for s in group),
    }


def _correlation(correlations: Correlations, i: int, j: int) -> dict[str, Any]:
    """Returns one cell of the matrix for the page: texts, sign, and the strength of its colour in per
    cent.
    """
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
    """Computes correlations of ranks (ties averaged): ``[*batch, k, n] -> [*batch, k, k]``; NaN if a row is
    constant.
    """
    # For few checkpoints, comparing all pairs is faster than sorting. The rank here is the number of smaller
    # values plus half the number of equal values, including the value itself. This is the average rank minus
    # one half; the shift does not change the correlation.
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
