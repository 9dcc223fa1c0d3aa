"""The paper's Syn-Medium (Figures 11 and 12): the share of distinct tokens that still get attention."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement, Null
from ....core.plotting import axes, colour, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..problem import SequenceClasses, synthetic
from ..published import ETA_Z, LAST, THRESHOLDS
from .syn_medium import PER_QUERY, UNIFORM, trained_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "scan_snap", Source("tian2023scan", "Figs. 11, 12")
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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields one row per cell, at the middle threshold, and curves over all thresholds."""
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
        mean, middle = shares.mean(1), POINTS // 2
        for i, last in enumerate(self.last):
            uniform = Null(UNIFORM, (float(share_above(*_uniform(last), thresholds[i])[middle]),))
            for j, eta_z in enumerate(self.eta_z):
                for k, ratio in enumerate(self.ratios):
                    yield Measurement(
                        NAME,
                        "figure",
                        RECALL,
                        float(mean[i, j, k, middle]),
                        unit="share",
                        nulls=(uniform,),
                        source=SOURCE,
                        at={
                            "setting": f"K = {PER_QUERY * last}, eta_Z = {eta_z:g}, eta_Y = {ratio * eta_z:g}"
                        },
                        n=self.seeds,
                        note=f"attention above {thresholds[i][middle]:.4g}",
                    )
        yield Arrays(
            {
                f"{NAME}/recall": mean,
                f"{NAME}/thresholds": np.array(thresholds),
                f"{NAME}/start": np.array(
                    [share_above(*_uniform(last), t) for last, t in zip(self.last, thresholds)]
                ),
                f"{NAME}/classes": PER_QUERY * np.array(self.last),
                f"{NAME}/eta_z": np.array(self.eta_z),
                f"{NAME}/ratios": np.array(self.ratios),
            }
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the share of distinct tokens above a threshold: rows are ratios, columns numbers of classes,
        curves learning rates.
        """
        K, eta_z, ratios = (result.arrays[f"{NAME}/{name}"] for name in ("classes", "eta_z", "ratios"))
        thresholds, share = result.arrays[f"{NAME}/thresholds"], result.arrays[f"{NAME}/recall"]
        figure, panels = axes(
            len(ratios), len(K), width=max(4.0, 2.0 * len(K)), height=0.9 + 1.9 * len(ratios)
        )
        for i, k in enumerate(K):
            for j, ratio in enumerate(ratios):
                ax = panels[j * len(K) + i]
                ax.plot(
                    thresholds[i],
                    result.arrays[f"{NAME}/start"][i],
                    "--",
                    color=colour("null"),
                    label=UNIFORM,
                )
                for rate, curve, tint in zip(eta_z, share[i, :, j], shades(len(eta_z))):
                    ax.plot(thresholds[i], curve, color=tint, label=f"$\\eta_Z$ = {rate:g}")
                ax.set_ylim(-0.03, 1.03)
                ax.locator_params(axis="x", nbins=3)
                ax.set_title(f"$K$ = {k}, $\\eta_Y$ = {ratio:g} $\\eta_Z$")
                if j == len(ratios) - 1:
                    ax.set_xlabel("threshold on attention")
                if i == 0:
                    ax.set_ylabel("share above it")
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
