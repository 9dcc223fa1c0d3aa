"""The paper's Syn-Medium (Figures 11 and 12): the share of distinct tokens that still get attention."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting, sweep
from ....core.figure import Panel, Reading, distinct, draw_curves, figure, reading
from ....core.measurement import Null
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..problem import SequenceClasses, synthetic
from ..published import ETA_Z, LAST, THRESHOLDS
from .syn_medium import PER_QUERY, UNIFORM, trained_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECALL = "recall of distinct tokens"
POINTS = 21  # thresholds per curve


@style()
def draw(result: Result) -> "Figure":
    """Draws one panel per ratio (down) and number of classes (across)."""
    ratios, sizes = distinct(result.table, "ratio"), distinct(result.table, "K")
    drawn, panels = axes(len(ratios), len(sizes), width=2.2 * len(sizes), height=0.6 + 1.9 * len(ratios))
    for ax, (ratio, K) in zip(panels, product(ratios, sizes)):
        legend = "lower left" if ax is panels[0] else ""
        title, look = f"$K$ = {K}, $\\eta_Y$ = {ratio:g} $\\eta_Z$", {"ylim": (-0.03, 1.03)}
        panel = Panel(title, RECALL, {"K": K, "ratio": ratio}, "eta_Z", legend=legend, axes=look)
        draw_curves(ax, result, panel, x="level")
        ax.locator_params(axis="x", nbins=3)
    caption(drawn, f"Share of distinct tokens with more attention than a threshold. Dashed: {UNIFORM}.")
    return drawn


@figure(
    "scan_snap.recall",
    source=Source("tian2023scan", "Figs. 11, 12"),
    view=draw,
    quick={"last": (1, 3), "eta_z": (1.0, 3.0), "seeds": 2, "steps": 30},
)
def recall(
    *,
    last: tuple[int, ...] = setting(
        LAST, ge=1, le=100, help="numbers of query tokens, with two classes each"
    ),
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention"),
    ratios: tuple[float, ...] = setting(
        (1.0, 10.0), gt=0, le=1000, help="learning rate of the decoder over that of attention"
    ),
    seeds: int = setting(10, ge=1, help="runs per cell"),
    steps: int = setting(100, ge=1, help="steps of training"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Share of distinct tokens whose attention exceeds a threshold near 1/M, after training from random
    weights: means over the seeds.
    """
    shared = {"eta_z": eta_z, "ratios": ratios, "steps": steps, "batch": 128, "length": 128, "momentum": 0.9}
    runs = torch.randint(2**31, (seeds,), generator=torch.Generator().manual_seed(seed)).tolist()
    levels = {queries: levels_of(queries) for queries in last}
    settings = [
        {"last": queries, "seed": run, "thresholds": tuple(levels[queries]), **shared}
        for queries in last
        for run in runs
    ]
    shape = len(last), seeds, len(eta_z), len(ratios), POINTS
    shares = np.array(sweep(recalls, settings)).reshape(shape).mean(1)
    for i, queries in enumerate(last):
        classes = synthetic(PER_QUERY * queries, per_query=PER_QUERY)
        uniform = share_above(classes, classes.conditional, levels[queries])
        for (j, rate), (k, ratio) in product(enumerate(eta_z), enumerate(ratios)):
            for level, value, null in zip(levels[queries], shares[i, j, k], uniform):
                at = {"K": PER_QUERY * queries, "eta_Z": rate, "ratio": ratio, "level": level}
                columns = {"nulls": (Null(UNIFORM, (float(null),)),), "note": f"attention above {level:.4g}"}
                yield reading(RECALL, float(value), unit="share", at=at, n=seeds, **columns)


def levels_of(last: int) -> list[float]:
    """Returns the paper's thresholds for its own numbers of queries; for others, the same multiples of 1/M as
    for one query.
    """
    if last in LAST:
        low, high = THRESHOLDS[LAST.index(last)]
    else:
        M, first = (synthetic(PER_QUERY * k, per_query=PER_QUERY).vocab_size for k in (last, 1))
        low, high = (bound * first / M for bound in THRESHOLDS[0])
    return np.linspace(low, high, POINTS).tolist()


def share_above(
    classes: SequenceClasses, attended: torch.Tensor, thresholds: list[float] | tuple[float, ...]
) -> np.ndarray:
    """Returns the share of pairs (class, distinct token) above each threshold, ``[*runs, K, S] -> [*runs,
    thresholds]``.
    """
    pairs = attended[..., classes.distinct()]  # [*runs, pairs]: the mask flattens classes and tokens
    return (pairs[..., None] > torch.tensor(thresholds, dtype=pairs.dtype)).double().mean(-2).numpy()


def recalls(*, thresholds: tuple[float, ...], **settings) -> np.ndarray:
    """Returns :func:`share_above` after training, ``[eta_z, ratios, thresholds]``."""
    return share_above(*trained_attention(**settings), thresholds)
