"""The paper's Syn-Medium (Figures 11 and 12): the share of distinct tokens that still get attention."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, colour, style
from ....core.result import Result
from ....core.sources import Source
from ..problem import SequenceClasses, synthetic
from ..published import ETA_Z, LAST, THRESHOLDS
from .syn_medium import PER_QUERY, UNIFORM, trained_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tian2023scan", "Figs. 11, 12")
RECALL = "recall of distinct tokens"
POINTS = 21  # thresholds per curve


@dataclass(frozen=True)
class Recall(RandomExperiment):
    """Share of distinct tokens whose attention exceeds a threshold near 1/M, after training from random
    weights.
    """

    last: tuple[int, ...] = setting(LAST, ge=1, le=100, help="numbers of query tokens, with two classes each")
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention")
    ratios: tuple[float, ...] = setting(
        (1.0, 10.0), gt=0, le=1000, help="learning rate of the decoder over that of attention"
    )
    seeds: int = setting(10, ge=1, help="runs per cell")
    steps: int = setting(100, ge=1, help="steps of training")

    name: ClassVar[str] = "scan_snap.recall"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Recall":
        return cls(last=(1, 3), eta_z=(1.0, 3.0), seeds=2, steps=30)

    def measure(self) -> Iterator[Measurement]:
        """Yields one row per cell and threshold, the mean over the seeds."""
        shared = {
            "eta_z": self.eta_z,
            "ratios": self.ratios,
            "steps": self.steps,
            "batch": 128,
            "length": 128,
            "momentum": 0.9,
        }
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        thresholds = [_thresholds(last) for last in self.last]
        settings = [
            {"last": last, "seed": s, "thresholds": tuple(t), **shared}
            for last, t in zip(self.last, thresholds)
            for s in seeds
        ]
        # [last, seeds, eta_z, ratios, thresholds]
        shares = np.array(sweep(recalls, settings)).reshape(
            len(self.last), self.seeds, len(self.eta_z), len(self.ratios), POINTS
        )
        for i, last in enumerate(self.last):
            uniform = share_above(*_uniform(last), thresholds[i])
            for j, eta_z in enumerate(self.eta_z):
                for k, ratio in enumerate(self.ratios):
                    at = {"K": PER_QUERY * last, "eta_Z": eta_z, "ratio": ratio}
                    for threshold, value, null in zip(thresholds[i], shares.mean(1)[i, j, k], uniform):
                        yield self.row(
                            RECALL,
                            float(value),
                            unit="share",
                            nulls=(Null(UNIFORM, (float(null),)),),
                            at=at | {"level": threshold},
                            n=self.seeds,
                            note=f"attention above {threshold:.4g}",
                        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the share of distinct tokens above a threshold: rows are ratios, columns numbers of classes,
        curves learning rates.
        """
        K = [PER_QUERY * last for last in self.last]
        figure, panels = axes(
            len(self.ratios), len(K), width=max(4.0, 2.0 * len(K)), height=0.9 + 1.9 * len(self.ratios)
        )
        looks = {rate: {"label": f"$\\eta_Z$ = {rate:g}", "marker": ""} for rate in self.eta_z}
        for number, (ax, (ratio, k)) in enumerate(zip(panels, product(self.ratios, K))):
            title = f"$K$ = {k}, $\\eta_Y$ = {ratio:g} $\\eta_Z$"
            panel = Panel(title, RECALL, {"K": k, "ratio": ratio}, ("eta_Z", looks), legend="")
            draw_curves(ax, result, panel, x="level")
            ax.set_ylim(-0.03, 1.03)
            ax.locator_params(axis="x", nbins=3)
            if number >= len(panels) - len(K):
                ax.set_xlabel("threshold on attention")
            if number % len(K) == 0:
                ax.set_ylabel("share above it")
        panels[0].plot([], [], linestyle=(0, (4, 3)), linewidth=1.0, color=colour("null"), label=UNIFORM)
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=int(figure.get_figwidth() / 1.3),
        )
        return figure


def _uniform(last: int) -> tuple[SequenceClasses, torch.Tensor]:
    classes = synthetic(PER_QUERY * last, per_query=PER_QUERY)
    return classes, classes.conditional


def _thresholds(last: int) -> list[float]:
    """Returns the paper's thresholds for its own numbers of queries; for others, the same multiples of 1/M as
    for one query.
    """
    M = synthetic(PER_QUERY * last, per_query=PER_QUERY).vocab_size
    first = synthetic(PER_QUERY, per_query=PER_QUERY).vocab_size
    low, high = (
        THRESHOLDS[LAST.index(last)] if last in LAST else (bound * first / M for bound in THRESHOLDS[0])
    )
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
