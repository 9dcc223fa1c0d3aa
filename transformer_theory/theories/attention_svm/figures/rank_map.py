"""A map over inputs, tokens and dimension: the ranks of the max-margin solutions, and how often a solution
exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..problem import cross_attention
from ..solvers import frobenius_max_margins, nuclear_max_margins
from .common import NAME, arrays_of, figure_row, size
from .size_map import MapRow, half_width, mean, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
FEASIBLE_SHARE = "share of feasible problems"
MEAN_RANK = {"frobenius": "mean rank, Frobenius norm", "nuclear": "mean rank, nuclear norm"}
BATCH = 100  # problems per batch


def feasible_ranks(
    inputs: int, tokens: int, dim: int, trials: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for the feasible problems among ``trials``, the ranks of the Frobenius and of the verified
    nuclear solutions.
    """
    generator = torch.Generator().manual_seed(seed)
    frobenius, nuclear = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
    for first in range(0, trials, BATCH):
        instance = cross_attention(
            inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=min(BATCH, trials - first)
        )
        pairs = constraints(instance.tokens, instance.query, instance.optimal())
        solved = frobenius_max_margins(pairs)
        frobenius.append(solved.rank[solved.solved].numpy())
        smallest = nuclear_max_margins(pairs.problem(solved.solved))
        nuclear.append(smallest.rank[smallest.solved].numpy())
    return np.concatenate(frobenius), np.concatenate(nuclear)


@dataclass(frozen=True)
class RankMap(RandomExperiment):
    """Mean rank of the max-margin solutions over (n, T, d) in both norms, with 95 % intervals, and the share
    of feasible problems.

    The theory predicts rank at most min(n, d), and feasibility wherever d >= max(T - 1, n). It does not
    predict by how much the nuclear norm lowers the rank.
    """

    inputs: tuple[int, ...] = setting((2, 5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((2, 5, 10, 15), ge=2, help="numbers T of tokens per input")
    dims: tuple[int, ...] = setting((2, 5, 10, 20, 50), ge=1, help="dimensions d of the tokens")
    trials: int = setting(1000, ge=1, help="random problems per size")

    name = "attention_svm.rank_map"
    sources = (SOURCE, Source("pataki1998rank"))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields three rows per size; arrays [n, T, d] with the mean ranks, the feasible shares and their 95
        % intervals.
        """
        sizes = list(product(self.inputs, self.tokens, self.dims))
        first_seed = self.seed * len(sizes)
        settings = [
            {"inputs": n, "tokens": T, "dim": d, "trials": self.trials, "seed": first_seed + k}
            for k, (n, T, d) in enumerate(sizes)
        ]
        results = sweep(feasible_ranks, settings)
        counts = np.array([len(frobenius) for frobenius, _ in results])
        low, high = clopper_pearson(counts, self.trials)
        for number, ((n, T, d), ranks_by_norm) in enumerate(zip(sizes, results)):
            yield figure_row(
                FEASIBLE_SHARE,
                counts[number] / self.trials,
                SOURCE,
                reference=(1.0, "theory") if d >= max(T - 1, n) else None,
                unit="share",
                at={"setting": size(n, T, d)},
                n=self.trials,
                interval=(float(low[number]), float(high[number])),
                interval_kind="over samples",
            )
            for norm, ranks in zip(MEAN_RANK, ranks_by_norm):
                average, half, unverified = mean(ranks), half_width(ranks), counts[number] - len(ranks)
                notes = [f"from {ranks.min()} to {ranks.max()}"] if len(ranks) else []
                notes += [f"{unverified} more problems could not be verified"] if unverified else []
                yield figure_row(
                    MEAN_RANK[norm],
                    average if len(ranks) else None,
                    SOURCE,
                    at={"setting": size(n, T, d)},
                    n=len(ranks),
                    interval=(average - half, average + half) if len(ranks) else None,
                    interval_kind="over samples" if len(ranks) else "",
                    note="; ".join(notes),
                    reason="" if len(ranks) else "no feasible problem",
                )
        shape = (len(self.inputs), len(self.tokens), len(self.dims))
        arrays = {"feasible": counts / self.trials, "feasible_low": low, "feasible_high": high}
        for norm, columns in zip(MEAN_RANK, zip(*results)):
            arrays[norm] = np.array([mean(ranks) for ranks in columns])
            arrays[f"{norm}_half"] = np.array([half_width(ranks) for ranks in columns])
        yield Arrays(
            {f"{NAME}/{name}": np.array(getattr(self, name)) for name in ("inputs", "tokens", "dims")}
        )
        yield Arrays({f"{NAME}/{name}": value.reshape(shape) for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the feasible share and the mean ranks with their 95 % intervals, inputs against tokens, one
        column per dimension.
        """
        a = arrays_of(result)
        share_half = np.maximum(a["feasible_high"] - a["feasible"], a["feasible"] - a["feasible_low"])
        largest = float(a["inputs"].max())
        rows = [
            MapRow("feasible", a["feasible"], share_half, 1.0),
            MapRow("rank, Frobenius", a["frobenius"], a["frobenius_half"], largest),
            MapRow("rank, nuclear", a["nuclear"], a["nuclear_half"], largest),
        ]
        text = (
            f"Feasible: share of {self.trials} random problems per size; ±: distance to the farther end of "
            "its 95 % interval (Clopper-Pearson). Ranks: mean over the feasible problems; ±: half the 95 % "
            "interval of the mean (normal approximation); –: no problem was feasible."
        )
        return size_map(a["inputs"], a["tokens"], a["dims"], rows, text=text)

    @classmethod
    def quick(cls) -> "RankMap":
        """Returns a small version: twenty problems of eight sizes, about a second."""
        return cls(inputs=(2, 5), tokens=(3, 5), dims=(3, 10), trials=20)
