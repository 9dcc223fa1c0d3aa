"""Where ascents of the rate reduction end, and the critical points of the rate reduction.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, judge
from ....core.plotting import COLOURS, TINTS, axes, colour, line, null_band, style
from ....core.result import Result
from ....core.table import Arrays
from ....metrics.coding import rate_reduction
from ..ascent import ascend, polish
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point
from ..optimum import maximise, optimum
from ..problem import LANDSCAPE, MCR2, NAME, OPTIMUM_THEOREM
from ..spheres import OnSpheres, on_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES, RANKS, DIM = (20, 20, 20), (4, 4, 4), 12  # sizes of the constrained problem
SMALL_SIZES, SMALL_DIM = (3, 4, 4), 4  # sizes of the other two problems: X has 44 entries
GRADIENT_RTOL = 1e-9  # largest gradient of a critical point, in units of the problem
# a larger Hessian eigenvalue, in the same units, is a direction of ascent; also the largest accepted disorder
LEVEL_ATOL = 1e-6
CONSTRAINED, PENALTY, SPHERES = "constrained scale and rank", "penalty", "spheres"
# label, marker and colour of each kind of critical point, in the order of their numbers in the arrays
KINDS = (
    ("end of an ascent", "o", "rate_reduction"),
    ("zero of the gradient, searched", "x", TINTS[1]),
    ("constructed", "s", "null"),
)
OPTIMUM = "optimum of the rate reduction"
DISORDER = "largest disorder of a critical point without direction of ascent"
STEEPNESS = "smallest of the largest Hessian eigenvalues at all other critical points"


@dataclass(frozen=True)
class Landscape(RandomExperiment):
    """End points of random starts: every maximiser has orthogonal classes with flat spectra, but only the
    best ones keep all dimensions.

    The first problem has the constraint on the scale: three classes of 20 samples with rank at most 4 in 12
    dimensions. The second replaces the constraint by a penalty and has 11 samples in 4 dimensions, few enough
    to classify every critical point by all eigenvalues of its Hessian. Its points are the ends of ascents,
    constructed saddles, and zeros of the gradient from a search that may also converge to saddles. The third
    problem is as small as the second but has the constraint; its Hessian is taken along the spheres.
    """

    starts: int = setting(
        100, ge=1, help="random starts: ascents of the first problem; ascents and searches of the others"
    )
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    share: float = setting(
        0.5,
        gt=0,
        lt=1,
        help="penalty, as a share of the bound below which every class has non-zero maximisers",
    )

    name = "rate_reduction.landscape"
    sources = (MCR2, LANDSCAPE)

    @classmethod
    def quick(cls) -> "Landscape":
        """Returns a small version: two starts."""
        return cls(starts=2)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with shares and extremes; arrays with the values reached, and value, disorder and
        eigenvalue of critical points.
        """
        generator = self.generator()
        yield from self._constrained(generator)
        yield from self._regularised(generator)
        yield from self._on_spheres(generator)

    def _constrained(self, generator: torch.Generator) -> Iterator[Measurement | Arrays]:
        """Yields the values that ascents reach under the constraint."""
        best = optimum(SIZES, DIM, eps=self.eps, budget=RANKS).value
        reached = []
        for _ in range(self.starts):
            features, labels, _ = maximise(SIZES, RANKS, DIM, eps=self.eps, generator=generator)
            reached.append(float(rate_reduction(features, labels, eps=self.eps)))
        values, excess = torch.tensor(reached, dtype=torch.float64), max(reached) - best
        judged = {
            "predicted": 1e-9,
            "op": "<=",
            "threshold": 1e-9,
            "verdict": judge(excess, "<=", 1e-9),
            "unit": "nats",
        }
        yield _row(
            "excess of the best start over the closed form",
            excess,
            CONSTRAINED,
            source=OPTIMUM_THEOREM,
            **judged,
        )
        share = float((values > best - 1e-9).double().mean())
        yield _row(
            "share of starts that reach the optimum",
            share,
            CONSTRAINED,
            unit="share",
            n=len(reached),
            source=OPTIMUM_THEOREM,
        )
        yield _row(OPTIMUM, best, CONSTRAINED, unit="nats", source=OPTIMUM_THEOREM)
        yield Arrays({f"{NAME}/reached": values.sort().values.numpy()})

    def _regularised(self, generator: torch.Generator) -> Iterator[Measurement | Arrays]:
        """Yields the numbers and the shape of the critical points of the problem with a penalty."""
        problem = Regularised(
            SMALL_SIZES,
            SMALL_DIM,
            self.eps,
            self.share * largest_penalty(SMALL_SIZES, SMALL_DIM, eps=self.eps),
        )
        ascents, searches, constructed = [], [], []
        # entries of X at which αS is about d² I; starts vary around it by a factor of 10
        typical = (SMALL_DIM * self.eps**2) ** 0.5
        for _ in range(self.starts):
            size = typical * 10 ** float(torch.rand((), generator=generator) - 0.5)
            start = size * torch.randn(sum(SMALL_SIZES), SMALL_DIM, dtype=torch.float64, generator=generator)
            ascents.append(ascend(problem, start))
            searches.append(polish(problem, start))
        # Numbers of singular values at the smaller and at the larger root, per class; one at the smaller root
        # makes a saddle.
        for smaller, larger in (
            ((1, 0, 0), (0, 0, 0)),
            ((1, 1, 1), (0, 0, 0)),
            ((0, 1, 0), (1, 0, 1)),
            ((2, 0, 0), (0, 1, 1)),
        ):
            constructed.append(orthogonal_critical_point(problem, smaller, larger, generator=generator))
        classified = []  # kind, value, disorder and largest Hessian eigenvalue of each critical point
        for number, (kind, points) in enumerate(zip(KINDS, (ascents, searches, constructed))):
            critical = [
                X for X in points if float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.penalty
            ]
            classified += [
                (number, problem.value(X), problem.disorder(X), problem.steepest(X)) for X in critical
            ]
            quantity, note = (
                f"share of critical points, {kind[0]}",
                f"gradient below {GRADIENT_RTOL:g} of the penalty",
            )
            yield _row(
                quantity,
                len(critical) / len(points),
                PENALTY,
                unit="share",
                n=len(points),
                source=LANDSCAPE,
                note=note,
            )
        table = torch.tensor(classified, dtype=torch.float64).reshape(-1, 4)
        yield Arrays({f"{NAME}/critical": table.numpy()})
        no_ascent = table[:, 3] <= LEVEL_ATOL
        note = "0: orthogonal classes with singular values 0 or one common number"
        yield _extreme(
            DISORDER,
            table[no_ascent, 2],
            "<=",
            LEVEL_ATOL,
            PENALTY,
            predicted=0.0,
            source=LANDSCAPE,
            note=note,
        )
        note = "in units of the penalty"
        yield _extreme(
            STEEPNESS, table[~no_ascent, 3], ">=", 1e-3, PENALTY, predicted=1e-3, source=LANDSCAPE, note=note
        )
        ends = table[(table[:, 0] == 0) & no_ascent, 1]
        if len(ends):
            share = float((ends > ends.max() - 1e-9).double().mean())
            note = f"values {float(ends.min()):.4f} to {float(ends.max()):.4f} nats"
            yield _row(
                "share of ascents that end at the best value",
                share,
                PENALTY,
                unit="share",
                n=len(ends),
                source=LANDSCAPE,
                note=note,
            )

    def _on_spheres(self, generator: torch.Generator) -> Iterator[Measurement]:
        """Yields disorder and steepness under the constraint on the scale, without source and prediction: no
        paper states them.
        """
        problem = OnSpheres(SMALL_SIZES, SMALL_DIM, self.eps)
        shape = (sum(SMALL_SIZES), SMALL_DIM)
        starts = [
            problem.project(torch.randn(shape, dtype=torch.float64, generator=generator))
            for _ in range(self.starts)
        ]
        points = [search(problem, start) for search in (ascend, polish) for start in starts]
        points += [
            on_lines(problem, lines, generator=generator) for lines in ((0, 1, 2), (0, 0, 1), (0, 0, 0))
        ]
        critical = [X for X in points if float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.unit]
        classified = torch.tensor(
            [(problem.disorder(X), problem.steepest(X)) for X in critical], dtype=torch.float64
        ).reshape(-1, 2)
        no_ascent, note = classified[:, 1] <= LEVEL_ATOL, "observed; no source states it"
        yield _extreme(DISORDER, classified[no_ascent, 0], "<=", None, SPHERES, note=note)
        yield _extreme(
            STEEPNESS, classified[~no_ascent, 1], ">=", None, SPHERES, note=f"in units of α; {note}"
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the sorted rate reductions of the starts with the optimum, and the critical points of the
        problem with a penalty.

        The right panel shows value and largest Hessian eigenvalue: zero at maximisers, positive at saddles,
        and negative at X = 0.
        """
        figure, (left, right) = axes(1, 2, width=7.4, height=2.8)
        values = result.arrays[f"{NAME}/reached"]
        line(left, range(1, len(values) + 1), values, name=NAME, marker=".", linestyle="none")
        null_band(left, *result.table.select(quantity=OPTIMUM).column("value"), label="optimum, closed form")
        left.set_xlabel("start, sorted by value reached")
        left.set_ylabel("ΔR reached, nats")
        left.set_title("Ascents under the constraint")
        left.locator_params(axis="x", integer=True)
        left.margins(y=0.15)
        points = result.arrays[f"{NAME}/critical"]
        right.axhline(0, color=COLOURS["null"], linewidth=0.9)
        for number, (label, marker, name) in enumerate(KINDS):
            tint = colour(name)
            members = points[points[:, 0] == number]
            hollow = {"facecolors": "none", "edgecolors": tint} if marker == "s" else {"color": tint}
            right.scatter(
                members[:, 1], members[:, 3], s=22, marker=marker, linewidths=1.0, label=label, **hollow
            )
        right.set_title("Critical points, with a penalty")
        right.set_ylabel("largest Hessian eigenvalue / λ")
        right.set_xlabel("ΔR - λ‖X‖²/2, nats")
        figure.legend(
            *right.get_legend_handles_labels(), loc="outside lower right", ncols=3, fontsize=7, frameon=False
        )
        return figure


def _extreme(
    quantity: str,
    values: torch.Tensor,
    op: Literal["<=", ">="],
    threshold: float | None,
    problem: str,
    *,
    predicted: float | None = None,
    **columns,
) -> Measurement:
    """Returns the row of the largest (<=) or smallest (>=) of the values, with a verdict if there is a
    threshold and any value.
    """
    if not len(values):
        return _row(quantity, None, problem, n=0, reason="the searches found no such point", **columns)
    value = float(values.max() if op == "<=" else values.min())
    if threshold is not None:
        columns |= {
            "predicted": predicted,
            "op": op,
            "threshold": threshold,
            "verdict": judge(value, op, threshold),
        }
    return _row(quantity, value, problem, n=len(values), **columns)


def _row(quantity: str, value: float | None, problem: str, **columns) -> Measurement:
    return Measurement(NAME, "figure", quantity, value, at={"problem": problem}, **columns)
