"""The rank of the max-margin solutions against the dimension: the true one, and what the released notebook prints."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Arrays, Basis, Row
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..constraint_set import Constraints
from ..figures import rank
from ..published import published_instances
from ..solvers import frobenius_max_margins, nuclear_max_margins, official_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
DIMS = (1, 2, 3, 4, 5, 10, 15, 20)
AT_ONCE = 100  # seeds
ENOUGH = 10  # seeds of the recipe whose mean may stand beside the published mean, which is over 100
NOTHING = (None, None)
PAPER = {  # read off the published figure at T = 5, n -> d -> (Frobenius, nuclear); infeasible problems count as rank 1 there
    5: dict(zip(DIMS, zip((1, 1.3, 2.3, 3.9, 4.95, 5, 5, 5), (None, None, None, None, 4.5, 4.9, None, None)))),
    10: dict(zip(DIMS, zip((1, 1, 1.2, 3.6, 5, 10, 10, 10), (None, None, None, None, None, 9.1, 10, None)))),
    15: dict(zip(DIMS, zip((1, 1, 1, 1.4, 4.8, 10, 15, 15), (None, None, None, None, None, 9.6, 13.9, 14.9)))),
}
KNOWN = {  # (n, T) -> d -> true means (Frobenius, nuclear) over 100 feasible seeds, of an independent computation
    (5, 5): {4: (3.98, 2.57), 5: (4.90, 2.57), 10: (5, 2.50), 15: (5, 2.53), 20: (5, 2.55)},
    (10, 5): {3: (3, 2.85), 4: (4, 3.43), 5: (5, 3.65), 10: (9.99, 3.77), 15: (10, 3.77), 20: (10, 3.84)},
    (15, 5): {4: (4, 3.7), 5: (5, 4.4), 10: (10, 4.67), 15: (14.99, 4.73), 20: (15, 4.61)},
    (5, 10): {10: (5, 3.07)},
    (5, 15): {10: (5, 3.28), 20: (5, 3.17)},
}


@dataclass(frozen=True)
class Ranks:
    """Of one size: seeds tried, ranks of the feasible problems among them, how many of these could not be verified in the nuclear norm, and
    the numbers of the released notebook for the first few seeds."""

    tried: int
    frobenius: np.ndarray
    nuclear: np.ndarray
    unverified: int
    official_frobenius: np.ndarray
    official_nuclear: np.ndarray


def published_constraints(seeds: range, inputs: int, tokens: int, dim: int) -> Constraints:
    """Those of the best tokens in the published problems."""
    drawn = published_instances(seeds, inputs=inputs, tokens=tokens, dim=dim)
    return constraints(drawn.tokens, drawn.query, drawn.optimal())


def ranks(inputs: int, tokens: int, dim: int, feasible: int, most: int, official: int) -> Ranks:
    """Ranks of the first ``feasible`` feasible problems among the seeds below ``most``; the notebook's for the first ``official`` seeds."""
    frobenius, nuclear, tried, unverified = [], [], 0, 0
    for first in range(0, most, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, most))
        pairs = published_constraints(seeds, inputs, tokens, dim)
        found = frobenius_max_margins(pairs)
        where = found.solved.nonzero().squeeze(-1)[: feasible - len(frobenius)]
        tried = seeds[-1] + 1
        if len(where):
            frobenius += found.rank[where].tolist()
            solutions = nuclear_max_margins(pairs.problem(where))
            nuclear += solutions.rank[solutions.solved].tolist()
            unverified += int((~solutions.solved).sum())
        if len(frobenius) == feasible:
            tried = first + int(where[-1]) + 1
            break
    printed = [
        [official_rank(pairs.problem(at), norm=norm) for at in range(official)]
        for pairs in [published_constraints(range(max(1, official)), inputs, tokens, dim)]
        for norm in ("frobenius", "nuclear")
    ]
    return Ranks(tried, np.array(frobenius), np.array(nuclear), unverified, *(np.array(column) for column in printed))


@dataclass(frozen=True)
class Rank(Experiment):
    """Mean rank of the max-margin solutions in the Frobenius and in the nuclear norm against the dimension, beside the published numbers.

    The theory says: at most min(n, d) in both norms; a nuclear solution that is unique has r (r + 1) / 2 at most the number of active
    constraints. The published curves break that bound: they count the error of an inexact solver as rank, and infeasible problems as rank
    one. The true means are over the first ``feasible`` feasible seeds below ``most``; "as published" is the released notebook's recipe on
    the first ``official`` seeds (of 100 there). The true part takes 10 seconds of one core, the recipe 15 more with ten seeds.
    """

    inputs: tuple[int, ...] = setting((5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((5, 10, 15), ge=2, help="numbers T of tokens of an input")
    common: int = setting(5, ge=2, help="n where T varies, and T where n varies")
    dims: tuple[int, ...] = setting(DIMS, ge=1, help="dimensions d of the tokens")
    feasible: int = setting(100, ge=1, help="feasible problems to look for, for each size")
    most: int = setting(400, ge=1, help="seeds to look among")
    official: int = setting(10, ge=0, help="seeds for which the released recipe is run; 0 leaves it out")

    name = "attention_svm.rank"
    sources = (SOURCE, Source("pataki1998rank"))

    def measure(self) -> Iterator[Row | Arrays]:
        """Five rows for each (n, T, d); arrays [pair, d] with the means, half the width of their 95 % intervals, and the feasible share."""
        pairs = list(dict.fromkeys([*((n, self.common) for n in self.inputs), *((self.common, T) for T in self.tokens)]))
        kept = {"feasible": self.feasible, "most": self.most, "official": self.official}
        sizes = [(n, T, d) for n, T in pairs for d in self.dims]
        found = sweep(ranks, [{"inputs": n, "tokens": T, "dim": d, **kept} for n, T, d in sizes])
        for (n, T, d), one in zip(sizes, found):
            yield from self._rows(n, T, d, one)
        shape = (len(pairs), len(self.dims))
        arrays = {
            "pairs": np.array(pairs),
            "dims": np.array(self.dims),
            "feasible": np.array([len(one.frobenius) / one.tried for one in found]),
        }
        for name in ("frobenius", "nuclear", "official_frobenius", "official_nuclear"):
            arrays[name] = np.array([mean(getattr(one, name)) for one in found])
            arrays[f"{name}_half"] = np.array([half_width(getattr(one, name)) for one in found])
        yield Arrays({f"{NAME}/{name}": value if name in ("pairs", "dims") else value.reshape(shape) for name, value in arrays.items()})

    def _rows(self, n: int, T: int, d: int, one: Ranks) -> Iterator[Row]:
        size = f"n={n} T={T} d={d}"
        count = len(one.frobenius)
        low, high = feasible_interval(count, one.tried, self.feasible)
        note = f"{count} of {one.tried} seeds, 95 % interval {low:.3f} to {high:.3f}"
        yield Row(theory=NAME, quantity=f"feasible share, {size}", value=count / one.tried, source=str(SOURCE), note=note)
        known = KNOWN.get((n, T), {}).get(d, NOTHING) if self.at_defaults("feasible", "most") else NOTHING
        paper = PAPER.get(n, {}).get(d, NOTHING) if T == 5 and self.official >= ENOUGH else NOTHING
        beside: tuple[tuple[np.ndarray, str, str, float | None, Basis], ...] = (
            (one.frobenius, "frobenius", "true", known[0], "recomputed"),
            (one.nuclear, "nuclear", "true", known[1], "recomputed"),
            (one.official_frobenius, "frobenius", "as published", paper[0], "figure"),
            (one.official_nuclear, "nuclear", "as published", paper[1], "figure"),
        )
        for values, norm, words, predicted, basis in beside:
            if not len(values):
                continue
            note = f"{len(values)} problems, +-{half_width(values):.2f}, at most {values.max()}"
            if words == "true" and norm == "nuclear" and one.unverified:
                note += f"; {one.unverified} more could not be verified"
            row = Row(
                theory=NAME, quantity=f"mean rank, {norm}, {words}, {size}", value=float(values.mean()), source=str(SOURCE), note=note
            )
            if predicted is not None:
                row["predicted"], row["basis"] = float(predicted), basis
            yield row

    def draw(self, result: Result) -> "Figure":
        """Rank against dimension, one panel a pair (n, T)."""
        return rank(result)

    @classmethod
    def quick(cls) -> "Rank":
        """Ten feasible problems of few sizes, the recipe on two: a second."""
        return cls(inputs=(3, 5), tokens=(5,), dims=(2, 4, 8), feasible=10, most=30, official=2)


def feasible_interval(count: int, tried: int, wanted: int) -> tuple[float, float]:
    r"""The 95 % interval for the share of feasible problems, of seeds that are tried until ``wanted`` of them are, or all have been.

    With k of n: the lower end p solves :math:`P(\mathrm{Bin}(n, p) \ge k) = 1/40`, as for any n. The upper end solves
    :math:`P(\mathrm{Bin}(n, p) \le k) = 1/40` if all seeds were tried; if the last was the k-th success, it took n trials or more when
    there were less than k in n - 1, :math:`P(\mathrm{Bin}(n - 1, p) \le k - 1) = 1/40`.

    Args:
        count: k, how many were feasible.
        tried: n, how many were tried.
        wanted: at how many the search stops.
    Returns:
        The two ends; covers the share with probability at least 0.95.

    Source: :cite:t:`clopper1934use`, for inverse binomial sampling.
    """
    low, high = clopper_pearson(count, tried)
    if count == wanted:
        high = clopper_pearson(count - 1, tried - 1)[1] if tried > count else 1.0
    return float(low), float(high)


def mean(values: np.ndarray) -> float:
    """Of the ranks; NaN, which leaves a gap in the figure, if there are none."""
    return float(values.mean()) if len(values) else float("nan")


def half_width(values: np.ndarray) -> float:
    """Half the 95 % interval of a mean, by the normal approximation; 0 for fewer than two values."""
    return 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
