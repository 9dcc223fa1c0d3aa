"""The paper's Syn-Medium (Figure 6): sparsity of attention over the distinct tokens, by learning rates and
number of classes.

Each setting of the sweep is one seed of one data set. All learning rates are trained together on the same
sequences from the same start, so that only the rates differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import HeavyBall, Weights, gradient_descent, sampled
from ..problem import SequenceClasses, synthetic
from ..published import ENTROPY, ETA_Z, LAST, RATIOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTINCT_ENTROPY = "entropy over distinct tokens"
SPREAD = f"standard deviation of {DISTINCT_ENTROPY}"
UNIFORM = "uniform attention"
PER_QUERY = 2  # classes that share a query
PUBLISHED_AXES = (LAST, ETA_Z, RATIOS)


@dataclass(frozen=True)
class SynMedium(RandomExperiment):
    """Entropy of attention over each class's distinct tokens after training from random weights, with the
    released table.
    """

    last: tuple[int, ...] = setting(LAST, ge=1, le=100, help="numbers of query tokens, with two classes each")
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention")
    ratios: tuple[float, ...] = setting(
        RATIOS, gt=0, le=1000, help="learning rate of the decoder over that of attention"
    )
    seeds: int = setting(20, ge=1, help="runs per cell; the paper has ten")
    steps: int = setting(100, ge=1, help="steps of training")
    batch: int = setting(128, ge=1, help="sequences per step")
    length: int = setting(128, ge=2, help="tokens per sequence, including the query")
    momentum: float = setting(0.9, ge=0, lt=1, help="momentum of gradient descent")

    name: ClassVar[str] = "scan_snap.syn_medium"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2023scan", "Fig. 6"),)

    @classmethod
    def quick(cls) -> "SynMedium":
        return cls(last=(1, 3), eta_z=(1.0, 3.0), ratios=(1.0, 5.0), seeds=2, steps=30)

    def measure(self) -> Iterator[Measurement]:
        """Yields one row per cell, the mean over the seeds."""
        shared = {"eta_z": self.eta_z, "ratios": self.ratios, "steps": self.steps, "batch": self.batch}
        shared |= {"length": self.length, "momentum": self.momentum}
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        results = sweep(
            entropies, [{"last": last, "seed": seed, **shared} for last in self.last for seed in seeds]
        )
        # [last, seeds, eta_z, ratios]
        entropy = np.array(results).reshape(len(self.last), self.seeds, len(self.eta_z), len(self.ratios))
        mean, spread = entropy.mean(1), entropy.std(1)
        published = self.published()
        for i, last in enumerate(self.last):
            start = float(distinct_entropy(synthetic(PER_QUERY * last, per_query=PER_QUERY)))
            for j, eta_z in enumerate(self.eta_z):
                for k, ratio in enumerate(self.ratios):
                    here = {"unit": "nats", "at": {"K": PER_QUERY * last, "eta_Z": eta_z, "ratio": ratio}}
                    here |= {"n": self.seeds}
                    known, note = published[i, j, k], f"standard deviation over seeds {spread[i, j, k]:.3f}"
                    yield self.row(
                        DISTINCT_ENTROPY,
                        float(mean[i, j, k]),
                        nulls=(Null(UNIFORM, (start,)),),
                        reference=(float(known), "printed") if np.isfinite(known) else None,
                        note=note,
                        **here,
                    )
                    yield self.row(SPREAD, float(spread[i, j, k]), **here)

    def published(self) -> Float[np.ndarray, "last eta_z ratios"]:
        """Returns the released cells at these settings; NaN where there is none."""
        values = np.full((len(self.last), len(self.eta_z), len(self.ratios)), np.nan)
        if self.at_defaults("steps", "batch", "length", "momentum"):
            for index in np.ndindex(values.shape):
                cell = (self.last[index[0]], self.eta_z[index[1]], self.ratios[index[2]])
                if all(entry in known for entry, known in zip(cell, PUBLISHED_AXES)):
                    values[index] = ENTROPY[
                        tuple(known.index(entry) for entry, known in zip(cell, PUBLISHED_AXES))
                    ]
        return values

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one column per number of classes, with rows for the released values, ours, its spread over
        seeds, and the difference.

        Where there is one seed the spread is omitted.
        """
        K, eta_z, ratios = [PER_QUERY * last for last in self.last], self.eta_z, self.ratios

        def cells(quantity: str, column: str = "value") -> np.ndarray:
            values = result.select(quantity=quantity).column(column)
            return np.array(values, dtype=float).reshape(len(K), len(eta_z), len(ratios))

        ours, released, spread = (
            cells(DISTINCT_ENTROPY),
            cells(DISTINCT_ENTROPY, "predicted"),
            cells(SPREAD),
        )
        both = np.concatenate([ours.ravel(), released[np.isfinite(released)]])
        gap = ours - released
        largest = max([0.05, *np.abs(gap[np.isfinite(gap)])])
        plain = {"vmin": both.min(), "vmax": both.max()}
        signed = {"vmin": -largest, "vmax": largest, "cmap": "RdBu_r"}
        seeds = {"vmin": 0.0, "vmax": max(1e-9, spread.max())}
        rows = [
            ("Released", released, plain),
            ("Ours", ours, plain),
            ("SD over seeds", spread, seeds),
            ("Difference", gap, signed),
        ]
        rows = [row for row in rows if np.isfinite(row[1]).any() and (row[1] is not spread or spread.any())]
        figure, panels = axes(len(rows), len(K), width=max(4.0, 1.9 * len(K)), height=0.3 + 1.9 * len(rows))
        for row, (label, values, limits) in enumerate(rows):
            columns = [column for column in range(len(K)) if np.isfinite(values[column]).any()]
            for column, k in enumerate(K):
                ax, of_classes = panels[row * len(K) + column], values[column]
                if column not in columns:
                    ax.axis("off")
                    continue
                heatmap(ax, of_classes, "nats", bar=column == columns[-1], **limits)
                for (i, j), value in np.ndenumerate(of_classes):
                    if np.isfinite(value):
                        dark = (
                            abs(value) < 0.5 * largest
                            if limits is signed
                            else value > 0.5 * (limits["vmin"] + limits["vmax"])
                        )
                        text = (
                            f"{value:+.2f}"
                            if limits is signed
                            else f"{value:.3f}"
                            if limits is seeds
                            else f"{value:.2f}"
                        )
                        ax.text(
                            j,
                            i,
                            text,
                            ha="center",
                            va="center",
                            fontsize=6.5,
                            color="black" if dark else "white",
                        )
                ax.set_title(f"{label}, $K$ = {k}")
                ax.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
                ax.set_yticks(range(len(eta_z)), [f"{rate:g}" for rate in eta_z])
                if row == len(rows) - 1:
                    ax.set_xlabel("$\\eta_Y / \\eta_Z$")
                if column == columns[0]:
                    ax.set_ylabel("$\\eta_Z$")
        caption(
            figure,
            "Entropy of attention over each class's distinct tokens, renormalised, mean over classes and "
            "seeds, after training, with its standard deviation over the seeds.",
        )
        return figure


def trained_attention(
    *,
    last: int,
    seed: int,
    eta_z: tuple[float, ...],
    ratios: tuple[float, ...],
    steps: int,
    batch: int,
    length: int,
    momentum: float,
) -> tuple[SequenceClasses, Float[Tensor, "eta_z ratios K S"]]:
    """Returns the classes, and attention after training with each pair of rates from the seed's random
    weights and sequences.
    """
    classes = synthetic(PER_QUERY * last, per_query=PER_QUERY)
    z = torch.tensor(eta_z, dtype=torch.float64)[:, None].expand(-1, len(ratios)).ravel()
    y = z * torch.tensor(ratios, dtype=torch.float64).repeat(len(eta_z))
    seeds = [seed] * len(z)
    batches = sampled(classes, batch, context=length - 1, seeds=seeds)
    path = gradient_descent(
        Weights.random(classes, seeds=seeds),
        batches,
        steps=steps,
        eta_y=y,
        eta_z=z,
        optimiser=HeavyBall(momentum),
    )
    return classes, classes.attended(path.attention[-1]).unflatten(0, (len(eta_z), len(ratios)))


def distinct_entropy(
    classes: SequenceClasses, attended: Float[Tensor, "*runs K S"] | None = None
) -> Float[Tensor, "*runs"]:
    """Returns the entropy of attention over each class's distinct tokens, renormalised, mean over the
    classes.

    ``attended`` is None for uniform attention.
    """
    c = classes.conditional if attended is None else attended
    distinct_attention = torch.where(classes.distinct(), c, torch.zeros_like(c))
    share = distinct_attention / distinct_attention.sum(-1, keepdim=True)
    return -torch.special.xlogy(share, share).sum(-1).mean(-1)


def entropies(**settings) -> np.ndarray:
    """Returns :func:`distinct_entropy` after :func:`trained_attention`, ``[eta_z, ratios]``."""
    return distinct_entropy(*trained_attention(**settings)).numpy()
