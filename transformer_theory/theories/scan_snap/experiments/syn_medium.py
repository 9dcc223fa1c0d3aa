"""The paper's Syn-Medium: how sparse attention over the distinct tokens becomes, by learning rates and number of classes.

Every setting is one seed of one data set with all learning rates as runs beside each other; they see the same sequences from the same
start, so that the rates are compared and not the luck.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import HeavyBall, Weights, gradient_descent, sampled
from ..figures import syn_medium
from ..problem import SequenceClasses, synthetic
from ..published import ENTROPY, ETA_Z, LAST, RATIOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
PER_QUERY = 2  # classes that share a query


@dataclass(frozen=True)
class SynMedium(RandomExperiment):
    """Entropy of attention over each class's distinct tokens after training from random weights, beside the released table."""

    last: tuple[int, ...] = setting(LAST, ge=1, le=100, help="query tokens, two classes each")
    eta_z: tuple[float, ...] = setting(ETA_Z, gt=0, le=100, help="learning rates of attention")
    ratios: tuple[float, ...] = setting(RATIOS, gt=0, le=1000, help="learning rate of the decoder over that of attention")
    seeds: int = setting(20, ge=1, help="runs of each cell; the paper has ten")
    steps: int = setting(100, ge=1, help="steps of training")
    batch: int = setting(128, ge=1, help="sequences a step")
    length: int = setting(128, ge=2, help="tokens of a sequence, with the query")
    momentum: float = setting(0.9, ge=0, lt=1, help="of gradient descent")

    name: ClassVar[str] = "scan_snap.syn_medium"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 6"),)

    @classmethod
    def quick(cls) -> "SynMedium":
        return cls(last=(1, 3), eta_z=(1.0, 3.0), ratios=(1.0, 5.0), seeds=2, steps=30)

    def measure(self) -> Iterator[Row | Arrays]:
        """A row a cell: mean over the seeds."""
        shared = {"eta_z": self.eta_z, "ratios": self.ratios, "steps": self.steps, "batch": self.batch}
        shared |= {"length": self.length, "momentum": self.momentum}
        starts = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        found = sweep(entropies, [{"last": last, "seed": seed, **shared} for last in self.last for seed in starts])
        # [last, seeds, eta_z, ratios]
        entropy = np.array(found).reshape(len(self.last), self.seeds, len(self.eta_z), len(self.ratios))
        mean, spread = entropy.mean(1), entropy.std(1)
        published = self._published()
        for i, last in enumerate(self.last):
            start = float(distinct_entropy(synthetic(PER_QUERY * last, per_query=PER_QUERY)))
            for j, eta_z in enumerate(self.eta_z):
                for k, ratio in enumerate(self.ratios):
                    row = Row(
                        theory=NAME,
                        quantity=f"entropy over distinct tokens, K = {PER_QUERY * last}, eta_Z = {eta_z:g}, eta_Y = {ratio * eta_z:g}",
                        value=float(mean[i, j, k]),
                        null=start,
                        source=str(Source(PAPER, "Fig. 6")),
                        note=f"nats; {self.seeds} seeds, standard deviation {spread[i, j, k]:.3f}; null: uniform attention",
                    )
                    if np.isfinite(published[i, j, k]):
                        row |= Row(
                            theory=NAME,
                            quantity=row["quantity"],
                            value=row["value"],
                            predicted=float(published[i, j, k]),
                            basis="printed",
                        )
                    yield row
        yield Arrays(
            {
                f"{NAME}/entropy": mean,
                f"{NAME}/entropy_sd": spread,
                f"{NAME}/published": published,
                f"{NAME}/classes": PER_QUERY * np.array(self.last),
                f"{NAME}/eta_z": np.array(self.eta_z),
                f"{NAME}/ratios": np.array(self.ratios),
            }
        )

    def _published(self) -> np.ndarray:
        """The released cells at these settings, NaN where there is none."""
        held = np.full((len(self.last), len(self.eta_z), len(self.ratios)), np.nan)
        if self.at_defaults("steps", "batch", "length", "momentum"):
            for at in np.ndindex(held.shape):
                cell = [list(known).index(v[i]) if v[i] in known else None for known, v, i in zip(_KNOWN, self._axes(), at)]
                if None not in cell:
                    held[at] = ENTROPY[tuple(cell)]
        return held

    def _axes(self) -> tuple[tuple, ...]:
        return self.last, self.eta_z, self.ratios

    def draw(self, result: Result) -> "Figure":
        """Three rows of small maps: theirs, ours, and the difference."""
        return syn_medium(result)


_KNOWN = (LAST, ETA_Z, RATIOS)


def trained(
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
    """The classes, and attention after training with each pair of learning rates, from random weights and on sequences of this seed."""
    classes = synthetic(PER_QUERY * last, per_query=PER_QUERY)
    z = torch.tensor(eta_z, dtype=torch.float64)[:, None].expand(-1, len(ratios)).ravel()
    y = z * torch.tensor(ratios, dtype=torch.float64).repeat(len(eta_z))
    seeds = [seed] * len(z)
    batches = sampled(classes, batch, context=length - 1, seeds=seeds)
    path = gradient_descent(Weights.random(classes, seeds=seeds), batches, steps=steps, eta_y=y, eta_z=z, optimiser=HeavyBall(momentum))
    return classes, classes.attended(path.attention[-1]).unflatten(0, (len(eta_z), len(ratios)))


def distinct_entropy(classes: SequenceClasses, attended: Float[Tensor, "*runs K S"] | None = None) -> Float[Tensor, "*runs"]:
    """Entropy of attention over each class's distinct tokens, renormalised, mean over the classes; uniform attention if none is given."""
    c = classes.conditional if attended is None else attended
    own = torch.where(classes.distinct(), c, torch.zeros_like(c))
    share = own / own.sum(-1, keepdim=True)
    return -torch.special.xlogy(share, share).sum(-1).mean(-1)


def entropies(**setting) -> np.ndarray:
    """:func:`distinct_entropy` after :func:`trained`, ``[eta_z, ratios]``."""
    return distinct_entropy(*trained(**setting)).numpy()
