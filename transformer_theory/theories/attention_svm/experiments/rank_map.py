"""A map over inputs, tokens and dimension: how large the ranks of the max-margin solutions are, and how often there is a solution."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..figures import rank_map
from ..problem import cross_attention
from ..solvers import frobenius_max_margins, nuclear_max_margins
from .rank import half_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
AT_ONCE = 100  # problems


def feasible_ranks(inputs: int, tokens: int, dim: int, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks in the Frobenius norm of the feasible ones of ``trials`` random problems, and in the nuclear norm of those verified there."""
    generator = torch.Generator().manual_seed(seed)
    frobenius, nuclear = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
    for first in range(0, trials, AT_ONCE):
        drawn = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=min(AT_ONCE, trials - first))
        pairs = constraints(drawn.tokens, drawn.query, drawn.optimal())
        solved = frobenius_max_margins(pairs)
        frobenius.append(solved.rank[solved.solved].numpy())
        smallest = nuclear_max_margins(pairs.problem(solved.solved))
        nuclear.append(smallest.rank[smallest.solved].numpy())
    return np.concatenate(frobenius), np.concatenate(nuclear)


@dataclass(frozen=True)
class RankMap(RandomExperiment):
    """Mean rank of the max-margin solutions over (n, T, d) in both norms, with 95 % intervals, and the share of feasible problems.

    The theory says: rank at most min(n, d), and feasible wherever d >= max(T - 1, n). How much lower the nuclear norm makes the rank is a
    finding. All 80 sizes with 1,000 problems each take four minutes of one core.
    """

    inputs: tuple[int, ...] = setting((2, 5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((2, 5, 10, 15), ge=2, help="numbers T of tokens of an input")
    dims: tuple[int, ...] = setting((2, 5, 10, 20, 50), ge=1, help="dimensions d of the tokens")
    trials: int = setting(1000, ge=1, help="random problems for each size")

    name = "attention_svm.rank_map"
    sources = (SOURCE, Source("pataki1998rank"))

    def measure(self) -> Iterator[Row | Arrays]:
        """Three rows for each size; arrays [n, T, d] with means, half the width of their intervals, and shares with the ends of theirs."""
        sizes = list(product(self.inputs, self.tokens, self.dims))
        settings = [
            {"inputs": n, "tokens": T, "dim": d, "trials": self.trials, "seed": self.seed * len(sizes) + at}
            for at, (n, T, d) in enumerate(sizes)
        ]
        found = sweep(feasible_ranks, settings)
        counts = np.array([len(frobenius) for frobenius, _ in found])
        low, high = clopper_pearson(counts, self.trials)
        for at, ((n, T, d), both) in enumerate(zip(sizes, found)):
            size, share = f"n={n} T={T} d={d}", counts[at] / self.trials
            note = f"95 % interval {low[at]:.4f} to {high[at]:.4f}, {self.trials} problems"
            row = Row(theory=NAME, quantity=f"feasible share, {size}", value=share, source=str(SOURCE), note=note)
            if d >= max(T - 1, n):
                row["predicted"], row["basis"] = 1.0, "theory"
            yield row
            for norm, ranks in zip(("frobenius", "nuclear"), both):
                note = "no feasible problem"
                if len(ranks):
                    note = f"+-{half_width(ranks):.3f}, {len(ranks)} problems, from {ranks.min()} to {ranks.max()}"
                if norm == "nuclear" and len(ranks) < counts[at]:
                    note += f"; {counts[at] - len(ranks)} more could not be verified"
                value = float(ranks.mean()) if len(ranks) else None
                yield Row(theory=NAME, quantity=f"mean rank, {norm}, {size}", value=value, source=str(SOURCE), note=note)
        shape = (len(self.inputs), len(self.tokens), len(self.dims))
        arrays = {"feasible": counts / self.trials, "feasible_low": low, "feasible_high": high}
        for norm, columns in zip(("frobenius", "nuclear"), zip(*found)):
            arrays[norm] = np.array([ranks.mean() if len(ranks) else np.nan for ranks in columns])
            arrays[f"{norm}_half"] = np.array([half_width(ranks) for ranks in columns])
        yield Arrays({f"{NAME}/{name}": np.array(getattr(self, name)) for name in ("inputs", "tokens", "dims")})
        yield Arrays({f"{NAME}/{name}": value.reshape(shape) for name, value in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        """One column a dimension; inputs against tokens."""
        return rank_map(result)

    @classmethod
    def quick(cls) -> "RankMap":
        """Twenty problems of eight sizes: a second."""
        return cls(inputs=(2, 5), tokens=(3, 5), dims=(3, 10), trials=20)
