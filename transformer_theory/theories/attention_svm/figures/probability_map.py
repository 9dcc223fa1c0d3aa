"""Maps over inputs, tokens and dimension: how often the best tokens are feasible, are selected, or a
selection is locally optimal.
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
from ..dynamics import normalised_descent, start
from ..problem import Instance, cross_attention
from ..selection import locally_optimal
from ..solvers import frobenius_max_margins
from .common import NAME, Reference, arrays_of, figure_row, size
from .size_map import MapRow, size_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
BATCH = 100  # trials per batch, few enough to stay in the processor's cache
QUANTITIES = {
    "feasible": "share of problems whose best tokens are feasible",
    "best": "share of problems that select every best token",
    "locally_optimal": "share of settled runs whose selection is locally optimal",
}
LABELS = {"feasible": "feasible", "best": "all best selected", "locally_optimal": "locally optimal"}


@dataclass(frozen=True)
class Counts:
    """Counts of problems of one size.

    Attributes:
        trials: number of problems.
        feasible: number of problems whose best tokens are feasible.
        best: number of problems in which descent selects the best token of every input.
        settled: number of problems in which descent has settled on one token per input.
        locally_optimal: number of settled problems whose selection is locally optimal.
    """

    trials: int
    feasible: int
    best: int
    settled: int
    locally_optimal: int


def count(
    inputs: int, tokens: int, dim: int, trials: int, steps: int, rate: float, threshold: float, seed: int
) -> Counts:
    """Draws problems of one size, descends from W = 0 and counts the outcomes.

    A run has settled if one token of every input has more than ``1 - threshold`` of the attention.
    """
    generator, totals = torch.Generator().manual_seed(seed), np.zeros(4, dtype=int)
    for first in range(0, trials, BATCH):
        number = min(BATCH, trials - first)
        instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=number)
        best = instance.optimal()
        feasible = frobenius_max_margins(constraints(instance.tokens, instance.query, best)).solved
        end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
        attention, select = instance.attention(end.W).max(-1)
        settled = (attention > 1 - threshold).all(-1)
        best_selected = settled & (select == best).all(-1)
        totals += [
            int(feasible.sum()),
            int(best_selected.sum()),
            int(settled.sum()),
            _locally_optimal(instance, select, settled),
        ]
    return Counts(trials, *(int(total) for total in totals))


def _locally_optimal(instance: Instance, select: torch.Tensor, settled: torch.Tensor) -> int:
    """Counts the settled trials whose selected tokens all score higher than their neighbours."""
    if not settled.any():
        return 0
    instance, select = instance[settled], select[settled]
    pairs = constraints(instance.tokens, instance.query, select)
    solutions = frobenius_max_margins(pairs)
    return int(locally_optimal(instance.scores, select, pairs, solutions).all(-1).sum())


@dataclass(frozen=True)
class ProbabilityMap(RandomExperiment):
    """Shares of random problems over (n, T, d), with 95 % intervals.

    There are three shares: the problems whose best tokens are feasible; the problems in which normalised
    descent from W = 0 selects the best tokens; and, among the runs that settled on one token per input, those
    whose selection is locally optimal. The theory predicts that the first share is one wherever d >= max(T -
    1, n), that the second grows with d, and that the third is one in the limit. With many inputs and tokens,
    a thousand steps are far from the limit, because descent passes saddle points.
    """

    inputs: tuple[int, ...] = setting((2, 5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((2, 5, 10, 15), ge=2, help="numbers T of tokens per input")
    dims: tuple[int, ...] = setting((2, 5, 10, 20, 50), ge=1, help="dimensions d of the tokens")
    trials: int = setting(1000, ge=1, help="random problems per size")
    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    threshold: float = setting(
        1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
    )

    name = "attention_svm.probability_map"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields three rows per size, and arrays [n, T, d] with the shares and the ends of their intervals."""
        fixed = {"trials": self.trials, "steps": self.steps, "rate": self.rate, "threshold": self.threshold}
        sizes = list(product(self.inputs, self.tokens, self.dims))
        first_seed = self.seed * len(sizes)
        settings = [
            {"inputs": n, "tokens": T, "dim": d, **fixed, "seed": first_seed + k}
            for k, (n, T, d) in enumerate(sizes)
        ]
        counts = sweep(count, settings)
        shape = (len(self.inputs), len(self.tokens), len(self.dims))
        shares = {
            "feasible": ([c.feasible for c in counts], [c.trials for c in counts]),
            "best": ([c.best for c in counts], [c.trials for c in counts]),
            "locally_optimal": ([c.locally_optimal for c in counts], [c.settled for c in counts]),
        }
        yield Arrays(
            {f"{NAME}/{name}": np.array(getattr(self, name)) for name in ("inputs", "tokens", "dims")}
        )
        for name, (successes, trials) in shares.items():
            low, high = clopper_pearson(successes, trials)
            share = np.array(successes) / np.maximum(trials, 1)
            share[np.array(trials) == 0] = np.nan  # a gap in the map
            for number, (n, T, d) in enumerate(sizes):
                reference: Reference | None = None
                if name == "locally_optimal":
                    reference = (1.0, "limit")
                elif name == "feasible" and d >= max(T - 1, n):
                    reference = (1.0, "theory")
                yield figure_row(
                    QUANTITIES[name],
                    float(share[number]) if trials[number] else None,
                    SOURCE,
                    reference=reference,
                    unit="share",
                    at={"setting": size(n, T, d)},
                    step=0 if name == "feasible" else self.steps,
                    n=trials[number],
                    interval=(float(low[number]), float(high[number])),
                    interval_kind="over samples",
                    reason="" if trials[number] else "no run has settled",
                )
            ends = {name: share, f"{name}_low": low, f"{name}_high": high}
            yield Arrays({f"{NAME}/{key}": value.reshape(shape) for key, value in ends.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the shares and the distances to the farther ends of their intervals: inputs against tokens,
        one column per dimension.
        """
        a = arrays_of(result)
        rows = [
            MapRow(label, a[name], np.maximum(a[f"{name}_high"] - a[name], a[name] - a[f"{name}_low"]), 1.0)
            for name, label in LABELS.items()
        ]
        text = (
            f"Shares of {self.trials} random problems per size; ±: distance to the farther end of the 95 % "
            "interval (Clopper-Pearson). Feasible: some W selects every best token. All best selected: "
            "descent from zero selects every best token. Locally optimal: share of the settled runs whose "
            "selection is locally optimal. A run has settled if one token of every input has all but "
            f"{self.threshold:g} of the attention; –: no run has settled."
        )
        return size_map(a["inputs"], a["tokens"], a["dims"], rows, text=text)

    @classmethod
    def quick(cls) -> "ProbabilityMap":
        """Returns a small version: twenty problems of eight sizes, about a second."""
        return cls(inputs=(2, 5), tokens=(3, 5), dims=(3, 10), trials=20, steps=400)
