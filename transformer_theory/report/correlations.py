r"""Rank correlations of the quantities of one network over training.

Spearman's coefficient of the values :math:`v_t` of two series, with a percentile interval from a moving-block
bootstrap over the checkpoints. Neighbouring checkpoints depend on one another, so blocks of :math:`\lceil
n^{1/3} \rceil` are drawn. Any two increasing series have rank correlation 1; the report therefore also
correlates their :func:`changes` between checkpoints. If there are few checkpoints, the interval is somewhat
too narrow. Undefined numbers (constant series, too few checkpoints) are None.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..core.format import NOTHING
from .curves import Series

DRAWS = 1000  # bootstrap samples behind the intervals of a correlation table


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


def changes(group: Iterable[Series]) -> list[Series]:
    """Returns the first differences of each series; a difference belongs to the later of its two steps and
    has no null.
    """
    without_null: dict[str, Any] = dict.fromkeys(("nulls", "null_low", "null_high", "low", "high"))
    return [replace(s, steps=s.steps[1:], values=np.diff(s.values), draws=0, **without_null) for s in group]


def rank_correlations(
    group: Sequence[Series],
    *,
    generator: torch.Generator,
    draws: int = 1000,
    level: float = 0.95,
    block: int | None = None,
) -> Correlations:
    """Computes Spearman's rank correlation of every pair of series of one network, with a moving-block
    bootstrap interval.

    Args:
        group: series of one network; only the steps that all of them share are used.
        generator: random generator of the blocks.
        draws: number of bootstrap samples.
        level: nominal coverage of the percentile interval.
        block: checkpoints per block; if None, the cube root of the number of checkpoints, rounded up.
    Returns:
        Coefficients and intervals. A coefficient is None if a series of the pair is constant or fewer than 3
        checkpoints are shared. An interval is None if fewer than 5 checkpoints are shared or the coefficient
        is undefined in more than half of the samples.
    Raises:
        ValueError: there is no series, the series belong to several networks, or ``draws`` or ``level`` is
            out of range.
    """
    if len({s.model for s in group}) != 1:
        raise ValueError(
            f"series must be of one network, got {sorted({s.model for s in group}) or 'none'}; select one "
            "model"
        )
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
    # [draws, blocks]
    starts = torch.randint(0, n - block + 1, (draws, math.ceil(n / block)), generator=generator).numpy()
    # Each sample joins blocks of consecutive checkpoints, which preserves the dependence of neighbours, and
    # is cut to n checkpoints.
    index = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :n]  # [draws, n]
    sampled = _spearman(np.moveaxis(table[:, index], 0, 1))  # [draws, k, k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pairs that are undefined in every sample
        low, high = np.nanpercentile(sampled, [50 * (1 - level), 50 * (1 + level)], axis=0)
    mostly_undefined = np.isnan(sampled).mean(axis=0) > 0.5
    low[mostly_undefined | np.isnan(rho)] = high[mostly_undefined | np.isnan(rho)] = np.nan
    return Correlations(names, _entries(rho), _entries(low), _entries(high), n, level)


def correlation_table(group: Sequence[Series]) -> dict[str, Any] | None:
    """Returns a matrix of rank correlations: of the values below the diagonal, of their changes above it.
    None for fewer than two series.

    The values are means over ``seeds`` seeds.
    """
    if len(group) < 2:
        return None
    levels = rank_correlations(group, generator=torch.Generator().manual_seed(0), draws=DRAWS)
    differences = rank_correlations(changes(group), generator=torch.Generator().manual_seed(0), draws=DRAWS)
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
