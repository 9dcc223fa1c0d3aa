"""A map over inputs, tokens and dimension: how often the best tokens are feasible, are selected, and what is selected instead."""

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
from ..dynamics import normalised_descent, start
from ..figures import probability_map
from ..problem import Instance, cross_attention
from ..solvers import frobenius_max_margins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
AT_ONCE = 100  # trials: a batch that stays in the processor's cache
ACTIVE = 1e-6  # a margin up to one and this much makes a token a neighbour of the selected one


@dataclass(frozen=True)
class Counts:
    """Of ``trials`` problems of one size: those whose best tokens are feasible, and in which descent selects the best token of every
    input; those in which it has settled on one token an input at all, and of these, those whose selection is locally optimal."""

    trials: int
    feasible: int
    best: int
    settled: int
    locally_optimal: int


def count(inputs: int, tokens: int, dim: int, trials: int, steps: int, rate: float, threshold: float, seed: int) -> Counts:
    """Draws the problems, descends from W = 0 and counts. A token is selected with all but ``threshold`` of the attention."""
    generator, totals = torch.Generator().manual_seed(seed), np.zeros(4, dtype=int)
    for first in range(0, trials, AT_ONCE):
        size = min(AT_ONCE, trials - first)
        instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=size)
        best = instance.optimal()
        feasible = frobenius_max_margins(constraints(instance.tokens, instance.query, best)).solved
        end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
        attention, select = instance.attention(end.W).max(-1)
        settled = (attention > 1 - threshold).all(-1)
        right = settled & (select == best).all(-1)
        totals += [int(feasible.sum()), int(right.sum()), int(settled.sum()), _locally_optimal(instance, select, settled)]
    return Counts(trials, *(int(total) for total in totals))


def _locally_optimal(instance: Instance, select: torch.Tensor, settled: torch.Tensor) -> int:
    """Settled trials whose selected tokens all score higher than their neighbours."""
    if not settled.any():
        return 0
    instance, select = instance[settled], select[settled]
    pairs = constraints(instance.tokens, instance.query, select)
    solutions = frobenius_max_margins(pairs)
    others = instance.scores.flatten(1).gather(1, pairs.input * instance.tokens.shape[-2] + pairs.token)
    chosen = instance.scores.gather(-1, select[..., None]).squeeze(-1).gather(1, pairs.input)
    broken = (solutions.margins <= 1 + ACTIVE) & (others >= chosen)
    return int((solutions.solved & ~broken.any(-1)).sum())


@dataclass(frozen=True)
class ProbabilityMap(RandomExperiment):
    """Shares of random problems over (n, T, d), with 95 % bands: best tokens feasible; best tokens selected by normalised descent from
    W = 0; and, of the runs that settled on one token an input, those whose selection is locally optimal.

    The theory says: feasible wherever d >= max(T - 1, n); best tokens selected ever more often as d grows; whatever is selected in the
    end is locally optimal. A thousand steps are not yet the end for many inputs and tokens, where runs pass saddles: at n = T = 15 and
    d = 10 the share was .73 after 1,000 steps, .94 after 4,000 and .99 after 16,000 (100 problems). All 80 sizes with 1,000 problems each
    take about five minutes of one core.
    """

    inputs: tuple[int, ...] = setting((2, 5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((2, 5, 10, 15), ge=2, help="numbers T of tokens of an input")
    dims: tuple[int, ...] = setting((2, 5, 10, 20, 50), ge=1, help="dimensions d of the tokens")
    trials: int = setting(1000, ge=1, help="random problems for each size")
    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    threshold: float = setting(1e-3, gt=0, lt=1, help="attention that a selected token may leave to the others")

    name = "attention_svm.probability_map"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Three rows for each size; arrays [n, T, d] with the shares and the ends of their bands."""
        kept = {"trials": self.trials, "steps": self.steps, "rate": self.rate, "threshold": self.threshold}
        sizes = list(product(self.inputs, self.tokens, self.dims))
        settings = [{"inputs": n, "tokens": T, "dim": d, **kept, "seed": self.seed * len(sizes) + at} for at, (n, T, d) in enumerate(sizes)]
        counted = sweep(count, settings)
        shape = (len(self.inputs), len(self.tokens), len(self.dims))
        shares = {
            "feasible": ([c.feasible for c in counted], [c.trials for c in counted]),
            "best": ([c.best for c in counted], [c.trials for c in counted]),
            "locally_optimal": ([c.locally_optimal for c in counted], [c.settled for c in counted]),
        }
        yield Arrays({f"{NAME}/{name}": np.array(getattr(self, name)) for name in ("inputs", "tokens", "dims")})
        words = {
            "feasible": "share whose best tokens are feasible",
            "best": "share that selects every best token",
            "locally_optimal": "share of settled runs whose selection is locally optimal",
        }
        for name, (successes, trials) in shares.items():
            low, high = clopper_pearson(successes, trials)
            share = np.array(successes) / np.maximum(trials, 1)
            share[np.array(trials) == 0] = np.nan
            for at, (n, T, d) in enumerate(sizes):
                limit = f"; the prediction is for the limit, this is step {self.steps}" if name == "locally_optimal" else ""
                row = Row(
                    theory=NAME,
                    quantity=f"{words[name]}, n={n} T={T} d={d}",
                    value=float(share[at]) if trials[at] else None,
                    step=0 if name == "feasible" else self.steps,
                    source=str(SOURCE),
                    note=f"95 % interval {low[at]:.3f} to {high[at]:.3f}, {trials[at]} problems{limit}",
                )
                if name == "locally_optimal":
                    row["predicted"], row["basis"] = 1.0, "limit"
                elif name == "feasible" and d >= max(T - 1, n):
                    row["predicted"], row["basis"] = 1.0, "theory"
                yield row
            ends = {name: share, f"{name}_low": low, f"{name}_high": high}
            yield Arrays({f"{NAME}/{key}": value.reshape(shape) for key, value in ends.items()})

    def draw(self, result: Result) -> "Figure":
        """One column a dimension, one row a share; inputs against tokens."""
        return probability_map(result)

    @classmethod
    def quick(cls) -> "ProbabilityMap":
        """Twenty problems of eight sizes: a second."""
        return cls(inputs=(2, 5), tokens=(3, 5), dims=(3, 10), trials=20, steps=400)
