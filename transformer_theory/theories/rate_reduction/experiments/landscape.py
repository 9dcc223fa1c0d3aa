"""Where ascents of the rate reduction end, and what its critical points look like.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ....metrics.coding import rate_reduction
from ..analysis import MCR2, NAME
from ..ascent import ascend, polish
from ..claims.instance import DIM, RANKS, SIZES
from ..figures import landscape
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point
from ..optimum import maximise, optimum
from ..spheres import OnSpheres, on_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLOBAL = Source("wang2024global")
SMALL, NARROW = (3, 4, 4), 4  # classes and dimension of the regularised problem, whose Hessian has 44 rows
CRITICAL, LEVEL = 1e-9, 1e-6
KINDS = ("ascent", "search", "constructed")


@dataclass(frozen=True)
class Landscape(RandomExperiment):
    """Where random starts end: every maximiser is orthogonal and flat, but only the best of them keeps all dimensions.

    First under the constraint on the scale, three classes of 20 samples with rank at most 4 in 12 dimensions. Then with a penalty in its
    place, 11 samples in 4 dimensions, where every critical point can be judged by all eigenvalues of its Hessian: ends of ascents,
    zeros of the gradient found by a search that does not care which way is up, and saddles constructed by hand. Last the same under the
    constraint, with the Hessian along the spheres.
    """

    starts: int = setting(100, ge=1, help="ascents of the constrained problem, and as many ascents and searches of the other")
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    share: float = setting(0.5, gt=0, lt=1, help="penalty, as a share of the largest that leaves maximisers other than zero")

    name = "rate_reduction.landscape"
    sources = (MCR2, GLOBAL)

    @classmethod
    def quick(cls) -> "Landscape":
        return cls(starts=3)

    def measure(self) -> Iterator[Row | Arrays]:
        """Values reached, and value, disorder and largest eigenvalue of every critical point found."""
        generator = self.generator()
        yield from self._constrained(generator)
        yield from self._regularised(generator)
        yield from self._on_spheres(generator)

    def _constrained(self, generator: torch.Generator) -> Iterator[Row | Arrays]:
        best = optimum(SIZES, DIM, eps=self.eps, budget=RANKS).value
        reached = []
        for _ in range(self.starts):
            features, labels, _ = maximise(SIZES, RANKS, DIM, eps=self.eps, generator=generator)
            reached.append(float(rate_reduction(features, labels, eps=self.eps)))
        values = torch.tensor(reached, dtype=torch.float64)
        yield finding(NAME, "excess of the best start over the closed form", Evidence(max(reached) - best, 1e-9, "<="), source=MCR2)
        share = float((values > best - 1e-9).double().mean())
        yield Row(theory=NAME, quantity="share of starts that reach the optimum", value=share, source=str(MCR2))
        yield Arrays({f"{NAME}/reached": values.sort().values.numpy(), f"{NAME}/closed_form": torch.tensor(best).numpy()})

    def _regularised(self, generator: torch.Generator) -> Iterator[Row | Arrays]:
        problem = Regularised(SMALL, NARROW, self.eps, self.share * largest_penalty(SMALL, NARROW, eps=self.eps))
        points = {kind: [] for kind in KINDS}
        typical = (NARROW * self.eps**2) ** 0.5  # the size of X at which αS is about 1
        for _ in range(self.starts):
            size = typical * 10 ** float(torch.rand((), generator=generator) - 0.5)
            start = size * torch.randn(sum(SMALL), NARROW, dtype=torch.float64, generator=generator)
            points["ascent"].append(ascend(problem, start))
            points["search"].append(polish(problem, start))
        for smaller, larger in (((1, 0, 0), (0, 0, 0)), ((1, 1, 1), (0, 0, 0)), ((0, 1, 0), (1, 0, 1)), ((2, 0, 0), (0, 1, 1))):
            points["constructed"].append(orthogonal_critical_point(problem, smaller, larger, generator=generator))
        judged = []
        for at, kind in enumerate(KINDS):
            critical = [X for X in points[kind] if float(problem.gradient(X).norm()) <= CRITICAL * problem.penalty]
            judged += [(at, problem.value(X), problem.disorder(X), problem.steepest(X)) for X in critical]
            note = f"Gradient below {CRITICAL:g} of the penalty"
            share = len(critical) / len(points[kind])
            yield Row(theory=NAME, quantity=f"share that settled, {kind}", value=share, source=str(GLOBAL), note=note)
        table = torch.tensor(judged, dtype=torch.float64)
        yield Arrays({f"{NAME}/critical": table.numpy()})
        level = table[:, 3] <= LEVEL
        ends = table[(table[:, 0] == 0) & level]
        worst = float(table[level, 2].max()) if bool(level.any()) else float("nan")
        yield finding(
            NAME,
            "largest disorder of a critical point without direction of ascent",
            Evidence(worst, LEVEL, "<="),
            source=GLOBAL,
            predicted=0.0,
            basis="theory",
            note=f"{int(level.sum())} points; 0: orthogonal classes with singular values 0 or one common number",
        )
        yield finding(
            NAME,
            "smallest of the largest Hessian eigenvalues at all other critical points",
            Evidence(float(table[~level, 3].min()), 1e-3, ">="),
            source=GLOBAL,
            note=f"In units of the penalty, {int((~level).sum())} points",
        )
        if len(ends):
            share = float((ends[:, 1] > ends[:, 1].max() - 1e-9).double().mean())
            note = f"{len(ends)} ascents, values {float(ends[:, 1].min()):.4f} to {float(ends[:, 1].max()):.4f} nats"
            yield Row(theory=NAME, quantity="share of ascents that end at the best value", value=share, source=str(GLOBAL), note=note)

    def _on_spheres(self, generator: torch.Generator) -> Iterator[Row]:
        """All eigenvalues again, under the constraint on the scale. No source says what they should be, so these rows name none."""
        problem = OnSpheres(SMALL, NARROW, self.eps)
        starts = [problem.project(torch.randn(sum(SMALL), NARROW, dtype=torch.float64, generator=generator)) for _ in range(self.starts)]
        points = [way(problem, start) for way in (ascend, polish) for start in starts]
        points += [on_lines(problem, lines, generator=generator) for lines in ((0, 1, 2), (0, 0, 1), (0, 0, 0))]
        critical = [X for X in points if float(problem.gradient(X).norm()) <= CRITICAL * problem.unit]
        judged = torch.tensor([(problem.disorder(X), problem.steepest(X)) for X in critical], dtype=torch.float64)
        level = judged[:, 1] <= LEVEL
        yield Row(
            theory=NAME,
            quantity="on the spheres: largest disorder of a critical point without direction of ascent",
            value=float(judged[level, 0].max()),
            note=f"{int(level.sum())} points, with constraint in the place of the penalty; observed, no source states it",
        )
        yield Row(
            theory=NAME,
            quantity="on the spheres: smallest of the largest Hessian eigenvalues at all other critical points",
            value=float(judged[~level, 1].min()),
            note=f"In units of α, {int((~level).sum())} points; observed, no source states it",
        )

    def draw(self, result: Result) -> "Figure":
        """Values reached under the constraint, and every critical point of the regularised problem by value and steepest direction."""
        return landscape(result)
