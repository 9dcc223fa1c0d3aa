r"""The common timeline: every theory's order parameter over the same training steps, and which of them move together.

A series is one quantity of one network, averaged over its layers and heads, at the steps :math:`t_1 < \dots < t_n`, beside its null
(what the quantity reads where the theory says nothing). Three things are computed from it:

* *scaled*: :math:`u_t / \max_s |u_s|` with the excess :math:`u_t = v_t - v^0_t` over the null :math:`v^0`, so that 0 is the null and
  :math:`\pm 1` the largest distance from it; without a null, the smallest value takes its place;
* *crossing*: the first step at which half of the total change :math:`u_{t_n} - u_{t_1}` of that curve is done;
* *rank correlations*: Spearman's coefficient of the values :math:`v_t` of two series, with a percentile interval of a moving-block
  bootstrap over the checkpoints (neighbouring checkpoints depend on one another, so blocks of :math:`\lceil n^{1/3} \rceil` are drawn).
  Two series that merely both grow have rank correlation 1, so :func:`changes` offers the same for the differences between checkpoints.

With 14 checkpoints the interval is somewhat narrow: of 2000 pairs of independent series it excluded 0 in 10 % (white noise) and 18 %
(random walks), and for their changes in 15 % and 11 %, not in 5 %. What is undefined (a constant series, too few checkpoints) is None.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..core.measurement import Row
from ..core.result import Result


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity of one network over training.

    Attributes:
        theory, quantity, model: the columns of its rows.
        steps: training steps, increasing, ``[n]``.
        values: mean over layers and heads, in the quantity's own unit, ``[n]``, finite.
        nulls: the null at each step, ``[n]``; None if the rows state none.
    """

    theory: str
    quantity: str
    model: str
    steps: np.ndarray
    values: np.ndarray
    nulls: np.ndarray | None = None

    @property
    def excess(self) -> np.ndarray:
        """What is drawn: the value minus its null at each step; without a null, minus the smallest value, ``[n]``."""
        return self.values - (self.values.min(initial=np.inf) if self.nulls is None else self.nulls)

    @property
    def scale(self) -> float | None:
        """The largest distance from the null, in the quantity's own unit: what 1 stands for in ``scaled``. None if the excess is still."""
        return None if self.still else float(np.abs(self.excess).max())

    @property
    def scaled(self) -> np.ndarray | None:
        """The excess in units of its largest distance from 0; None if it is still."""
        return None if self.scale is None else self.excess / self.scale

    @property
    def still(self) -> bool:
        """Whether the excess never moves (up to the rounding of values and nulls)."""
        return _still(self.excess, self.values if self.nulls is None else np.concatenate([self.values, self.nulls]))

    @property
    def constant(self) -> bool:
        """Whether the value itself never moves (up to rounding), whatever its null does."""
        return _still(self.values, self.values)

    @property
    def crossing(self) -> int | None:
        """First step at which half of the excess's total change is done; None if it is still or ends within a quarter of its range of its
        start."""
        if self.still:
            return None
        excess = self.excess
        total = excess[-1] - excess[0]
        if abs(total) < 0.25 * np.ptp(excess):
            return None
        return int(self.steps[np.argmax((excess - excess[0]) / total >= 0.5)])


def _still(curve: np.ndarray, parts: np.ndarray) -> bool:
    """Whether the curve, made of these numbers, moves by no more than their rounding."""
    return len(curve) == 0 or float(np.ptp(curve)) <= 1e-12 * max(1e-300, float(np.abs(parts).max()))


@dataclass(frozen=True)
class Correlations:
    """Spearman's rank correlations of the series of one network; entries are None where undefined.

    Attributes:
        names: of the quantities, ``[k]``.
        values, low, high: coefficient and ends of its bootstrap interval, ``[k][k]``.
        checkpoints: number of readings behind them.
        level: of the interval.
    """

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low: tuple[tuple[float | None, ...], ...]
    high: tuple[tuple[float | None, ...], ...]
    checkpoints: int
    level: float


def series(result: Result, quantities: Iterable[tuple[str, str]] | None = None) -> list[Series]:
    """The series of a result: rows with ``step`` and ``model``, averaged over layers and heads.

    If some layer or head lacks a value at some step, the mean is over those that have one at every step (if there are any), so that a
    series does not jump because its members change.

    Args:
        quantities: pairs (theory, quantity) to keep, in this order; all in order of appearance if None.
    Returns:
        One series for each network and quantity that has finite values, networks in order of appearance.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in result.table:
        model = row.get("model")
        if row.get("step") is not None and model is not None and _number(row["value"]) is not None:
            groups.setdefault((model, row["theory"], row["quantity"]), []).append(row)
    models = list(dict.fromkeys(key[0] for key in groups))
    wanted = list(dict.fromkeys(key[1:] for key in groups) if quantities is None else quantities)
    return [_one(model, *pair, groups[(model, *pair)]) for model in models for pair in wanted if (model, *pair) in groups]


def _one(model: str, theory: str, quantity: str, rows: list[Row]) -> Series:
    places: dict[tuple, dict[int, Row]] = {}
    for row in rows:
        places.setdefault((row.get("layer"), row.get("head"), row.get("seed")), {})[int(row.get("step", 0))] = row
    steps = sorted({step for place in places.values() for step in place})
    chosen = [place for place in places.values() if len(place) == len(steps)] or list(places.values())
    at = [[place[step] for place in chosen if step in place] for step in steps]
    values = np.array([np.mean([float(row["value"] or 0.0) for row in here]) for here in at])
    nulls = [[null for row in here if (null := _number(row.get("null"))) is not None] for here in at]
    means = np.array([np.mean(here) for here in nulls]) if all(nulls) else None
    return Series(theory, quantity, model, np.array(steps), values, means)


def _number(value) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def changes(group: Iterable[Series]) -> list[Series]:
    """First differences: how much each series moved between one checkpoint and the next (at the later step; no null)."""
    return [replace(s, steps=s.steps[1:], values=np.diff(s.values), nulls=None) for s in group]


def rank_correlations(
    group: Sequence[Series], *, generator: torch.Generator, draws: int = 1000, level: float = 0.95, block: int | None = None
) -> Correlations:
    """Spearman's rank correlation of every pair of series of one network, with a moving-block bootstrap interval.

    Args:
        group: series of one model; the steps that all of them have are compared.
        generator: draws the blocks.
        draws: bootstrap samples.
        level: of the percentile interval.
        block: checkpoints a block; the cube root of their number, rounded up, if None.
    Returns:
        Coefficients and intervals. A pair is None where a series is constant or fewer than 3 checkpoints are shared; an interval is None
        where fewer than 5 checkpoints are shared or more than half of the samples are undefined.
    Raises:
        ValueError: no series, series of several networks, or ``draws`` or ``level`` out of range.
    """
    if len({s.model for s in group}) != 1:
        raise ValueError(f"series must be of one network, got {sorted({s.model for s in group}) or 'none'}; select one model")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"draws must be at least 1 and level in (0, 1), got {draws} and {level}")
    shared = sorted(set.intersection(*(set(s.steps.tolist()) for s in group)))
    n, k = len(shared), len(group)
    table = np.array([s.values[np.isin(s.steps, shared)] for s in group]).reshape(k, n)
    names = tuple(s.quantity for s in group)
    undefined = tuple((None,) * k for _ in range(k))
    if n < 3:
        return Correlations(names, undefined, undefined, undefined, n, level)
    rho = _spearman(table)
    for i, s in enumerate(group):
        if s.constant or replace(s, values=table[i]).constant:
            rho[i] = rho[:, i] = np.nan
    if n < 5:
        return Correlations(names, _entries(rho), undefined, undefined, n, level)
    block = min(n, block or math.ceil(n ** (1 / 3)))
    starts = torch.randint(0, n - block + 1, (draws, math.ceil(n / block)), generator=generator).numpy()
    index = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :n]
    sampled = _spearman(np.moveaxis(table[:, index], 0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pairs that are undefined in every sample
        low, high = np.nanpercentile(sampled, [50 * (1 - level), 50 * (1 + level)], axis=0)
    rare = np.isnan(sampled).mean(axis=0) > 0.5
    low[rare | np.isnan(rho)] = high[rare | np.isnan(rho)] = np.nan
    return Correlations(names, _entries(rho), _entries(low), _entries(high), n, level)


def _spearman(table: np.ndarray) -> np.ndarray:
    """Correlations of the ranks (ties averaged): ``[*batch, k, n] -> [*batch, k, k]``, NaN where a row is constant."""
    if table.shape[-1] <= 64:  # ranks by comparing all pairs: faster than sorting for the few checkpoints of a run
        below = (table[..., :, None] > table[..., None, :]).sum(-1, dtype=np.float64)
        ranks = below + (table[..., :, None] == table[..., None, :]).sum(-1, dtype=np.float64) / 2
    else:
        from scipy.stats import rankdata

        ranks = rankdata(table, axis=-1)
    centred = ranks - ranks.mean(axis=-1, keepdims=True)
    norms = np.sqrt((centred**2).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.einsum("...in,...jn->...ij", centred, centred) / (norms[..., :, None] * norms[..., None, :])
    return np.clip(rho, -1, 1)


def _entries(matrix: np.ndarray) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if np.isnan(x) else float(x) for x in row) for row in matrix)


def sentences(group: Iterable[Series]) -> list[str]:
    """One sentence a network: in which order its quantities, measured from their nulls, cross half of their change, and which never do."""
    group, texts = list(group), []
    for model in dict.fromkeys(s.model for s in group):
        own = [s for s in group if s.model == model]
        crossed = sorted((s for s in own if s.crossing is not None), key=lambda s: s.crossing or 0)
        still = [s.quantity for s in own if s.still]
        back = [s.quantity for s in own if s.crossing is None and not s.still]
        parts = []
        if crossed:
            first, *later = (f"{s.quantity} {{}}at step {s.crossing}" for s in crossed)
            parts.append(", ".join([first.format("crosses half of its change "), *(text.format("") for text in later)]))
        if back:
            parts.append(f"{_listed(back)} {'end' if len(back) > 1 else 'ends'} near where {'they' if len(back) > 1 else 'it'} began")
        if still:
            parts.append(f"{_listed(still)} {'do' if len(still) > 1 else 'does'} not move")
        if parts:
            texts.append(f"In {model}, {'; '.join(parts)}.")
    return texts


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
