"""The rank of the max-margin solutions against the dimension, compared with the rank that the released
notebook prints.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..constraint_set import Constraints
from ..published import published_instances
from ..solvers import frobenius_max_margins, nuclear_max_margins, official_rank
from .common import NAME, Reference, arrays_of, figure_row, references, size
from .size_map import half_width, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
FEASIBLE_SHARE = "share of feasible problems"
MEAN_RANK = {  # name of the array -> quantity
    "frobenius": "mean rank, Frobenius norm",
    "nuclear": "mean rank, nuclear norm",
    "official_frobenius": "mean rank by the released recipe, Frobenius norm",
    "official_nuclear": "mean rank by the released recipe, nuclear norm",
}
DIMS = (1, 2, 3, 4, 5, 10, 15, 20)
BATCH = 100  # seeds per batch
# fewest seeds for which the mean of the recipe is compared with the published mean over 100 seeds
MIN_OFFICIAL = 10
NO_NUMBERS = (None, None)
# read off the published figure at T = 5, n -> d -> (Frobenius, nuclear); infeasible problems count as rank 1
# there
PAPER = {
    5: dict(
        zip(DIMS, zip((1, 1.3, 2.3, 3.9, 4.95, 5, 5, 5), (None, None, None, None, 4.5, 4.9, None, None)))
    ),
    10: dict(zip(DIMS, zip((1, 1, 1.2, 3.6, 5, 10, 10, 10), (None, None, None, None, None, 9.1, 10, None)))),
    15: dict(
        zip(DIMS, zip((1, 1, 1, 1.4, 4.8, 10, 15, 15), (None, None, None, None, None, 9.6, 13.9, 14.9)))
    ),
}
KNOWN = {  # (n, T) -> d -> true means (Frobenius, nuclear) over 100 feasible seeds, computed independently
    (5, 5): {4: (3.98, 2.57), 5: (4.90, 2.57), 10: (5, 2.50), 15: (5, 2.53), 20: (5, 2.55)},
    (10, 5): {3: (3, 2.85), 4: (4, 3.43), 5: (5, 3.65), 10: (9.99, 3.77), 15: (10, 3.76), 20: (10, 3.83)},
    (15, 5): {4: (4, 3.75), 5: (5, 4.43), 10: (10, 4.67), 15: (14.99, 4.73), 20: (15, 4.61)},
    (5, 10): {10: (5, 3.07)},
    (5, 15): {10: (5, 3.28), 20: (5, 3.17)},
}


@dataclass(frozen=True)
class Ranks:
    """Ranks of the solutions for problems of one size.

    Attributes:
        tried: number of seeds tried.
        frobenius: ranks of the Frobenius solutions of the feasible problems.
        nuclear: ranks of the verified nuclear solutions.
        unverified: number of feasible problems without a verified nuclear solution.
        official_frobenius, official_nuclear: ranks by the recipe of the released notebook, for the first few
            seeds.
    """

    tried: int
    frobenius: np.ndarray
    nuclear: np.ndarray
    unverified: int
    official_frobenius: np.ndarray
    official_nuclear: np.ndarray


def published_constraints(seeds: range, inputs: int, tokens: int, dim: int) -> Constraints:
    """Returns the constraints of the best tokens in the published problems."""
    instance = published_instances(seeds, inputs=inputs, tokens=tokens, dim=dim)
    return constraints(instance.tokens, instance.query, instance.optimal())


def ranks(inputs: int, tokens: int, dim: int, feasible: int, max_seeds: int, official: int) -> Ranks:
    """Returns ranks for the first ``feasible`` feasible problems of ``max_seeds`` seeds, and by the recipe
    for ``official`` seeds.
    """
    frobenius, nuclear, tried, unverified = [], [], 0, 0
    for first in range(0, max_seeds, BATCH):
        seeds = range(first, min(first + BATCH, max_seeds))
        pairs = published_constraints(seeds, inputs, tokens, dim)
        solutions = frobenius_max_margins(pairs)
        solved = solutions.solved.nonzero().squeeze(-1)[: feasible - len(frobenius)]
        tried = seeds[-1] + 1
        if len(solved):
            frobenius += solutions.rank[solved].tolist()
            smallest = nuclear_max_margins(pairs.problem(solved))
            nuclear += smallest.rank[smallest.solved].tolist()
            unverified += int((~smallest.solved).sum())
        if len(frobenius) == feasible:
            tried = first + int(solved[-1]) + 1  # the search stops at the last success
            break
    recipe_ranks = [  # at least one seed, because an empty batch is not an instance
        [official_rank(pairs.problem(trial), norm=norm) for trial in range(official)]
        for pairs in [published_constraints(range(max(1, official)), inputs, tokens, dim)]
        for norm in ("frobenius", "nuclear")
    ]
    return Ranks(
        tried,
        np.array(frobenius),
        np.array(nuclear),
        unverified,
        *(np.array(column) for column in recipe_ranks),
    )


@dataclass(frozen=True)
class Rank(Experiment):
    """Mean rank of the max-margin solutions in the Frobenius and in the nuclear norm against the dimension,
    with the published numbers.

    The theory predicts a rank of at most min(n, d) in both norms. The rank r of a unique nuclear solution
    satisfies Pataki's bound: r (r + 1) / 2 is at most the number of active constraints. The published curves
    break this bound: they count the error of an inexact solver as rank, and infeasible problems as rank one.
    The true means are over the first ``feasible`` feasible problems among the first ``max_seeds`` seeds. The
    released notebook's recipe runs here on the first ``official`` seeds; the notebook uses 100.
    """

    inputs: tuple[int, ...] = setting((5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((5, 10, 15), ge=2, help="numbers T of tokens per input")
    common: int = setting(5, ge=2, help="value of n while T varies, and of T while n varies")
    dims: tuple[int, ...] = setting(DIMS, ge=1, help="dimensions d of the tokens")
    feasible: int = setting(100, ge=1, help="feasible problems per size")
    max_seeds: int = setting(400, ge=1, help="largest number of seeds to try per size")
    official: int = setting(10, ge=0, help="seeds for the released recipe; 0 skips it")

    name = "attention_svm.rank"
    sources = (SOURCE, Source("pataki1998rank"))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields up to five rows per (n, T, d); arrays [pair, d] with the means, their half-widths, and the
        feasible share.
        """
        pairs = list(
            dict.fromkeys(
                [*((n, self.common) for n in self.inputs), *((self.common, T) for T in self.tokens)]
            )
        )
        fixed = {"feasible": self.feasible, "max_seeds": self.max_seeds, "official": self.official}
        sizes = [(n, T, d) for n, T in pairs for d in self.dims]
        results = sweep(ranks, [{"inputs": n, "tokens": T, "dim": d, **fixed} for n, T, d in sizes])
        for (n, T, d), result in zip(sizes, results):
            yield from self._rows(n, T, d, result)
        shape = (len(pairs), len(self.dims))
        arrays = {
            "feasible": np.array([len(result.frobenius) / result.tried for result in results]).reshape(shape)
        }
        for name in MEAN_RANK:
            arrays[name] = np.array([mean(getattr(result, name)) for result in results]).reshape(shape)
            arrays[f"{name}_half"] = np.array(
                [half_width(getattr(result, name)) for result in results]
            ).reshape(shape)
        yield Arrays({f"{NAME}/pairs": np.array(pairs), f"{NAME}/dims": np.array(self.dims)})
        yield Arrays({f"{NAME}/{name}": value for name, value in arrays.items()})

    def _rows(self, n: int, T: int, d: int, result: Ranks) -> Iterator[Measurement]:
        """Yields the feasible share and the mean ranks of one size."""
        count = len(result.frobenius)
        yield figure_row(
            FEASIBLE_SHARE,
            count / result.tried,
            SOURCE,
            unit="share",
            at={"setting": size(n, T, d)},
            n=result.tried,
            interval=feasible_interval(count, result.tried, self.feasible),
            interval_kind="over samples",
        )
        true_means = (
            KNOWN.get((n, T), {}).get(d, NO_NUMBERS)
            if self.at_defaults("feasible", "max_seeds")
            else NO_NUMBERS
        )
        paper = (
            PAPER.get(n, {}).get(d, NO_NUMBERS) if T == 5 and self.official >= MIN_OFFICIAL else NO_NUMBERS
        )
        numbers: dict[str, tuple[float | None, str]] = {
            "frobenius": (true_means[0], "recomputed"),
            "nuclear": (true_means[1], "recomputed"),
            "official_frobenius": (paper[0], "figure"),
            "official_nuclear": (paper[1], "figure"),
        }
        for name, (number, basis) in numbers.items():
            values = getattr(result, name)
            if not len(values):
                continue
            average, half = float(values.mean()), half_width(values)
            note = f"at most {values.max()}"
            if name == "nuclear" and result.unverified:
                note += f"; {result.unverified} more problems could not be verified"
            reference: Reference | None = None if number is None else (float(number), basis)  # pyright: ignore[reportAssignmentType]
            yield figure_row(
                MEAN_RANK[name],
                average,
                SOURCE,
                reference=reference,
                at={"setting": size(n, T, d)},
                n=len(values),
                interval=(average - half, average + half),
                interval_kind="over samples",
                note=note,
            )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the mean rank against the dimension, one panel per pair (n, T).

        A panel shows the true ranks with their 95 % intervals, the released recipe, the paper's numbers, and
        the largest rank that Pataki's bound allows in the nuclear norm.
        """
        a, paper = arrays_of(result), references(result.table).select(basis="figure")
        norms = (
            ("frobenius", "Frobenius", COLOURS["attention_svm"]),
            ("nuclear", "nuclear", COLOURS["scan_snap"]),
        )
        count, columns = len(a["pairs"]) + 1, 3
        # ceil(count / columns); the panel after the last pair holds the legend
        rows_of_panels = -(-count // columns)
        figure, panels = axes(rows_of_panels, columns, width=7.0, height=0.4 + 2.3 * rows_of_panels)
        place = np.arange(len(a["dims"]))
        for pair, (sizes, ax) in enumerate(zip(a["pairs"], panels)):
            n, T = (int(v) for v in sizes)
            for norm, label, tint in norms:
                centre, half = a[norm][pair], a[f"{norm}_half"][pair]
                ax.fill_between(place, centre - half, centre + half, color=tint, alpha=0.2, linewidth=0)
                ax.plot(place, centre, color=tint, marker="o", markersize=3, label=f"{label}, true")
                recipe = a[f"official_{norm}"][pair]
                if np.isfinite(recipe).any():
                    ax.plot(
                        place,
                        recipe,
                        color=tint,
                        linewidth=1.0,
                        linestyle=(0, (3, 2)),
                        label=f"{label}, released recipe",
                    )
                rows = paper.select(quantity=MEAN_RANK[f"official_{norm}"])
                settings = [rows.select(at={"setting": size(n, T, int(d))}) for d in a["dims"]]
                marks = [entry.one().predicted if len(entry) else np.nan for entry in settings]
                if len(paper) and np.isfinite(np.array(marks, dtype=float)).any():
                    ax.plot(
                        place,
                        marks,
                        "x",
                        color=tint,
                        markersize=5,
                        markeredgewidth=1.2,
                        label=f"{label}, paper's figure",
                    )
            # The largest r with r (r + 1) / 2 <= n (T - 1), the number of all constraints.
            bound = np.floor((np.sqrt(1 + 8 * n * (T - 1)) - 1) / 2)
            ax.axhline(
                bound, color=COLOURS["null"], linewidth=1.0, linestyle=":", label="nuclear: Pataki's bound"
            )
            ax.set(title=f"n = {n}, T = {T}", ylim=(0, max(n, bound) * 1.08))
            ax.set_xticks(place, [str(d) for d in a["dims"]])
            ax.locator_params("y", integer=True)
            ax.set_xlabel("dimension d")
            if pair % columns == 0:
                ax.set_ylabel("mean rank")
        for ax in panels[count - 1 :]:
            ax.axis("off")
        entries = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels())}
        panels[count - 1].legend(entries.values(), entries.keys(), loc="center left")
        crosses = "Crosses: read off the paper's figure, 100 seeds. " if len(paper) else ""
        caption(
            figure,
            f"True: mean over up to {self.feasible} feasible problems of {self.max_seeds} seeds, bands: 95 "
            "% interval of the mean; no mark where none is feasible. Released recipe: the notebook's "
            f"computation on {self.official} seeds, which counts infeasible problems as rank one. "
            f"{crosses}Pataki's bound: rank r with r(r + 1)/2 at most the number of constraints.",
        )
        return figure

    @classmethod
    def quick(cls) -> "Rank":
        """Returns a small version: ten feasible problems of few sizes and the recipe on two, about a second."""
        return cls(inputs=(3, 5), tokens=(5,), dims=(2, 4, 8), feasible=10, max_seeds=30, official=2)


def feasible_interval(count: int, tried: int, target: int) -> tuple[float, float]:
    r"""Returns the 95 % interval for the share of feasible problems if the search stops at ``target``
    feasible seeds or after all seeds.

    Let k of the n seeds be feasible. The lower end p solves :math:`P(\mathrm{Bin}(n, p) \ge k) = 1/40` under
    either stopping rule. The upper end depends on the rule. If all seeds were tried, it solves
    :math:`P(\mathrm{Bin}(n, p) \le k) = 1/40`. If the search stopped at the k-th success, it took n or more
    trials exactly if the first n - 1 had fewer than k successes, so the upper end solves
    :math:`P(\mathrm{Bin}(n - 1, p) \le k - 1) = 1/40` (:cite:t:`clopper1934use`, for inverse binomial
    sampling).

    Args:
        count: k, the number of feasible problems.
        tried: n, the number of seeds tried.
        target: number of feasible problems at which the search stops.
    """
    low, high = clopper_pearson(count, tried)
    if count == target:
        high = clopper_pearson(count - 1, tried - 1)[1] if tried > count else 1.0
    return float(low), float(high)
