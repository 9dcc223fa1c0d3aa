"""The landscape of the regularised problem: critical points are maximisers of known shape or strict saddles."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..ascent import ascend, polish
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point

LANDSCAPE = Source("wang2024global")
SIZES, DIM, EPS = (3, 3, 4), 3, 0.5**0.5
CONSTRUCTED = 5  # critical points made by hand
CRITICAL = 1e-9  # the gradient's norm, in units of the penalty
LEVEL = 1e-6  # eigenvalues of the Hessian, in units of the penalty, and disorder below which nothing is seen


def _problem() -> Regularised:
    return Regularised(SIZES, DIM, EPS, 0.5 * largest_penalty(SIZES, DIM, eps=EPS))


def _start(problem: Regularised, generator: Generator) -> Tensor:
    """Gaussian entries, from a tenth to three times the size at which something is to be found."""
    scale = 10 ** (1.5 * float(torch.rand((), generator=generator)) - 1)
    return scale * torch.randn(sum(problem.sizes), problem.dim, dtype=torch.float64, generator=generator)


def _ends(problem: Regularised, generator: Generator, count: int) -> list[Tensor]:
    """Where ascents from random starts end."""
    return [ascend(problem, _start(problem, generator)) for _ in range(count)]


def _others(problem: Regularised, generator: Generator, *, searches: int) -> Iterator[Tensor]:
    """Critical points where no ascent ends: first five that are constructed (singular values at the smaller root, two classes on one line),
    which the seed only rotates, then what a search from random starts for a zero of the gradient has found."""
    for smaller, larger in (((1, 0, 0), (0, 0, 0)), ((1, 1, 1), (0, 0, 0)), ((0, 1, 0), (1, 0, 1)), ((2, 0, 0), (0, 0, 1))):
        yield orthogonal_critical_point(problem, smaller, larger, generator=generator)
    first, second, _ = orthogonal_critical_point(problem, (0, 0, 0), (1, 1, 1), generator=generator).split(problem.sizes)
    left = torch.linalg.svd(second, full_matrices=False).U[:, :1]
    line = torch.linalg.svd(first, full_matrices=False).Vh[:1]
    shared = polish(problem, torch.cat([first, first.norm() * left @ line, torch.zeros(problem.sizes[2], problem.dim, dtype=first.dtype)]))
    found = [shared, *(polish(problem, _start(problem, generator)) for _ in range(searches))]
    yield from (X for X in found if _critical(problem, X) and problem.disorder(X) > LEVEL)


def _critical(problem: Regularised, X: Tensor) -> bool:
    return float(problem.gradient(X).norm()) <= CRITICAL * problem.penalty


def _disorder(generator: Generator, *, of_saddles: bool) -> Evidence:
    problem = _problem()
    points = list(_others(problem, generator, searches=0)) if of_saddles else _ends(problem, generator, 2)
    steepest = max(map(problem.steepest, points))
    settled = all(_critical(problem, X) for X in points)
    detail = {"largest eigenvalue": steepest, "points": len(points), "of them zero, where disorder is 0 by definition": _zeros(points)}
    return Evidence(max(map(problem.disorder, points)), LEVEL, "<=", converged=settled, detail=detail)


def _steepness(generator: Generator, *, of_maximisers: bool) -> Evidence:
    problem = _problem()
    points = _ends(problem, generator, 1) if of_maximisers else list(_others(problem, generator, searches=4))
    steepness = [problem.steepest(X) for X in points]
    settled = all(_critical(problem, X) for X in points)
    detail: dict[str, float] = {"points": len(points)}
    if not of_maximisers:
        searched = steepness[CONSTRUCTED:]
        detail["of them constructed, the same up to rotation at every seed"] = CONSTRUCTED
        detail["least steep of the constructed"] = min(steepness[:CONSTRUCTED])
        detail["distinct values of F found by search"] = len({round(problem.value(X) / problem.penalty, 6) for X in points[CONSTRUCTED:]})
        if searched:
            detail["least steep of those found by search"] = min(searched)
    return Evidence(min(steepness), 1e-3, ">=", converged=settled, detail=detail)


def _zeros(points: list[Tensor]) -> int:
    return sum(float(X.abs().max()) < LEVEL for X in points)


ASSUMED = (
    "the problem has the penalty λ‖X‖²/2 in the place of the constraint on the scale",
    r"$0 < \lambda < \alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})$",
)
CLAIMS = (
    Claim(
        id="rate_reduction/maximisers",
        statement=r"Ascents of $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ end at critical points with orthogonal classes of "
        r"singular values $0$ or $\sqrt{\bar s_j}$, $\bar s_j$ the larger root of "
        r"$\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s} = \lambda$.",
        source=LANDSCAPE,
        assumptions=ASSUMED,
        check=lambda generator: _disorder(generator, of_saddles=False),
        control=lambda generator: _disorder(generator, of_saddles=True),
        control_description="looks at critical points where no ascent ends",
    ),
    Claim(
        id="rate_reduction/strict-saddles",
        statement=r"Every critical point of $F$ of another shape has a direction of ascent: the largest eigenvalue of $\nabla^2 F$ is "
        r"positive (here: above $\lambda / 1000$).",
        source=LANDSCAPE,
        assumptions=ASSUMED,
        check=lambda generator: _steepness(generator, of_maximisers=False),
        control=lambda generator: _steepness(generator, of_maximisers=True),
        control_description="asks the same of the maximisers",
    ),
)
