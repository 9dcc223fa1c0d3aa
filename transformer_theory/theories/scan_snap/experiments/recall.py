"""The paper's Syn-Medium once more: how many of the distinct tokens still get attention.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..figures import recall
from ..problem import SequenceClasses, synthetic
from ..published import ETA_Z, LAST, THRESHOLDS
from .syn_medium import PER_QUERY, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
POINTS = 21  # thresholds of a curve


@dataclass(frozen=True)
class Recall(RandomExperiment):
    """Share of distinct tokens whose attention exceeds a threshold near 1/M, after training from random weights."""

    last: tuple[int, ...] = setting(LAST, ge=1, le=100, help="query tokens, two classes each")
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention")
    ratios: tuple[float, ...] = setting((1.0, 10.0), gt=0, le=1000, help="learning rate of the decoder over that of attention")
    seeds: int = setting(10, ge=1, help="runs of each cell")
    steps: int = setting(100, ge=1, help="steps of training")

    name: ClassVar[str] = "scan_snap.recall"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Figs. 11, 12"),)

    @classmethod
    def quick(cls) -> "Recall":
        return cls(last=(1, 3), eta_z=(1.0, 3.0), seeds=2, steps=30)

    def measure(self) -> Iterator[Row | Arrays]:
        """A row a cell, at the middle of its thresholds; curves over thresholds."""
        shared = {"eta_z": self.eta_z, "ratios": self.ratios, "steps": self.steps, "batch": 128, "length": 128, "momentum": 0.9}
        starts = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        thresholds = [_thresholds(last) for last in self.last]
        settings = [{"last": last, "seed": s, "thresholds": tuple(t), **shared} for last, t in zip(self.last, thresholds) for s in starts]
        # [last, seeds, eta_z, ratios, thresholds]
        found = np.array(sweep(recalls, settings)).reshape(len(self.last), self.seeds, len(self.eta_z), len(self.ratios), POINTS)
        mean, middle = found.mean(1), POINTS // 2
        for i, last in enumerate(self.last):
            start = share_above(*_uniform(last), thresholds[i])[middle]
            for j, eta_z in enumerate(self.eta_z):
                for k, ratio in enumerate(self.ratios):
                    yield Row(
                        theory=NAME,
                        quantity=f"recall of distinct tokens above {thresholds[i][middle]:.4g}, K = {PER_QUERY * last}, "
                        f"eta_Z = {eta_z:g}, eta_Y = {ratio * eta_z:g}",
                        value=float(mean[i, j, k, middle]),
                        null=float(start),
                        source=str(Source(PAPER, "Figs. 11, 12")),
                        note=f"mean of {self.seeds} seeds; null: uniform attention",
                    )
        yield Arrays(
            {
                f"{NAME}/recall": mean,
                f"{NAME}/thresholds": np.array(thresholds),
                f"{NAME}/start": np.array([share_above(*_uniform(last), t) for last, t in zip(self.last, thresholds)]),
                f"{NAME}/classes": PER_QUERY * np.array(self.last),
                f"{NAME}/eta_z": np.array(self.eta_z),
                f"{NAME}/ratios": np.array(self.ratios),
            }
        )

    def draw(self, result: Result) -> "Figure":
        """A panel a number of classes and ratio, a curve a learning rate."""
        return recall(result)


def _uniform(last: int) -> tuple[SequenceClasses, torch.Tensor]:
    classes = synthetic(PER_QUERY * last, per_query=PER_QUERY)
    return classes, classes.conditional


def _thresholds(last: int) -> list[float]:
    """The paper's for its own numbers of queries, elsewhere the same multiples of 1/M as for one query."""
    M = synthetic(PER_QUERY * last, per_query=PER_QUERY).vocab_size
    first = synthetic(PER_QUERY, per_query=PER_QUERY).vocab_size
    low, high = THRESHOLDS[LAST.index(last)] if last in LAST else (bound * first / M for bound in THRESHOLDS[0])
    return np.linspace(low, high, POINTS).tolist()


def share_above(classes: SequenceClasses, attended: torch.Tensor, thresholds: list[float] | tuple[float, ...]) -> np.ndarray:
    """Share of the pairs of class and distinct token with attention above each threshold, ``[*runs, K, S] -> [*runs, thresholds]``."""
    own = attended[..., classes.distinct()]
    return (own[..., None] > torch.tensor(thresholds, dtype=own.dtype)).double().mean(-2).numpy()


def recalls(*, thresholds: tuple[float, ...], **setting) -> np.ndarray:
    """:func:`share_above` after training, ``[eta_z, ratios, thresholds]``."""
    return share_above(*trained(**setting), thresholds)
