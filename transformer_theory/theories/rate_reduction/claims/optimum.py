"""Claims on the optimum of MCR² and on the landscape of the regularised problem.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`.
"""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....metrics.coding import rate_reduction
from ..ascent import ascend, polish
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point
from ..optimum import disorder, flat_reduction, maximise, optimum
from ..problem import LANDSCAPE, MCR2

EPS = 0.5**0.5  # ε² = 1/2, the distortion of the MCR² experiments
SIZES, RANKS, DIM = (20, 20, 20), (4, 4, 4), 12  # sizes of the constrained problem
SMALL_SIZES, SMALL_DIM = (3, 3, 4), 3  # sizes of the regularised problem
CONSTRUCTED = 5  # number of constructed critical points, which _saddles() yields first
GRADIENT_RTOL = 1e-9  # largest gradient of a critical point, in units of the penalty
LEVEL_ATOL = 1e-6  # a smaller disorder or entry of X counts as zero


def _best_of_ascents(generator: Generator, target: float, *, min_starts: int = 3, max_starts: int = 10) -> float:
    """Returns the largest ΔR of ``min_starts`` ascents under rank <= 4; up to ``max_starts`` are made if the target is missed."""
    best, starts = 0.0, 0
    while starts < min_starts or (best < target - 1e-9 and starts < max_starts):
        features, labels, _ = maximise(SIZES, RANKS, DIM, eps=EPS, generator=generator)
        best, starts = max(best, float(rate_reduction(features, labels, eps=EPS))), starts + 1
    return best


def _optimum(generator: Generator) -> Evidence:
    target = optimum(SIZES, DIM, eps=EPS, budget=RANKS).value
    best = _best_of_ascents(generator, target)
    attained = best >= target - 1e-9  # otherwise the search failed, which does not count against the statement
    return Evidence(best - target, 1e-9, "<=", converged=attained, detail={"reached": best, "closed form": target})


def _optimum_control(generator: Generator) -> Evidence:
    collapsed = flat_reduction(SIZES, (1, 1, 1), DIM, eps=EPS)
    return Evidence(_best_of_ascents(generator, collapsed, min_starts=1) - collapsed, 1e-9, "<=")


def _geometry(generator: Generator) -> Evidence:
    features, labels, gradient = maximise(SIZES, RANKS, DIM, eps=EPS, generator=generator)
    return Evidence(disorder(features, labels), 1e-5, "<=", converged=gradient < 1e-6, detail={"gradient": gradient})


def _geometry_control(generator: Generator) -> Evidence:
    features, labels, gradient = maximise((10,) * 5, (2,) * 5, 3, eps=EPS, generator=generator, steps=30)
    return Evidence(disorder(features, labels), 1e-5, "<=", detail={"gradient": gradient})


def _problem() -> Regularised:
    return Regularised(SMALL_SIZES, SMALL_DIM, EPS, 0.5 * largest_penalty(SMALL_SIZES, SMALL_DIM, eps=EPS))


def _start(problem: Regularised, generator: Generator) -> Tensor:
    """Draws Gaussian entries with a standard deviation that is log-uniform between 0.1 and 3.2."""
    scale = 10 ** (1.5 * float(torch.rand((), generator=generator)) - 1)
    return scale * torch.randn(sum(problem.sizes), problem.dim, dtype=torch.float64, generator=generator)


def _ends(problem: Regularised, generator: Generator, count: int) -> list[Tensor]:
    """Returns the end points of ascents from random starts."""
    return [ascend(problem, _start(problem, generator)) for _ in range(count)]


def _saddles(problem: Regularised, generator: Generator, *, searches: int) -> Iterator[Tensor]:
    """Yields critical points that are not maximisers.

    The first five are constructed: four have singular values at the smaller root, and one has two classes on a line. With another seed they
    are only rotated. The other points are zeros of the gradient, from searches that begin at random starts.
    """
    # Numbers of singular values at the smaller and at the larger root, per class.
    for smaller, larger in (((1, 0, 0), (0, 0, 0)), ((1, 1, 1), (0, 0, 0)), ((0, 1, 0), (1, 0, 1)), ((2, 0, 0), (0, 0, 1))):
        yield orthogonal_critical_point(problem, smaller, larger, generator=generator)
    # The first two classes have rank one on the same line, and the third class is zero. The singular value is near its critical value, and
    # the search for zeros of the gradient finds the critical point.
    first, second, _ = orthogonal_critical_point(problem, (0, 0, 0), (1, 1, 1), generator=generator).split(problem.sizes)
    left = torch.linalg.svd(second, full_matrices=False).U[:, :1]
    line = torch.linalg.svd(first, full_matrices=False).Vh[:1]
    shared = polish(problem, torch.cat([first, first.norm() * left @ line, torch.zeros(problem.sizes[2], problem.dim, dtype=first.dtype)]))
    candidates = [shared, *(polish(problem, _start(problem, generator)) for _ in range(searches))]
    yield from (X for X in candidates if _critical(problem, X) and problem.disorder(X) > LEVEL_ATOL)


def _critical(problem: Regularised, X: Tensor) -> bool:
    """Returns whether the gradient at X is zero up to rounding."""
    return float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.penalty


def _disorder(generator: Generator, *, of_saddles: bool) -> Evidence:
    problem = _problem()
    points = list(_saddles(problem, generator, searches=0)) if of_saddles else _ends(problem, generator, 2)
    steepest = max(map(problem.steepest, points))
    critical = all(_critical(problem, X) for X in points)
    detail = {"largest eigenvalue": steepest, "points": len(points), "of them zero, whose disorder is 0 by definition": _zeros(points)}
    return Evidence(max(map(problem.disorder, points)), LEVEL_ATOL, "<=", converged=critical, detail=detail)


def _steepness(generator: Generator, *, of_maximisers: bool) -> Evidence:
    problem = _problem()
    points = _ends(problem, generator, 1) if of_maximisers else list(_saddles(problem, generator, searches=4))
    steepness = [problem.steepest(X) for X in points]
    critical = all(_critical(problem, X) for X in points)
    detail: dict[str, float] = {"points": len(points)}
    if not of_maximisers:
        searched = steepness[CONSTRUCTED:]
        detail["constructed points, equal up to rotation for every seed"] = CONSTRUCTED
        detail["smallest eigenvalue of the constructed"] = min(steepness[:CONSTRUCTED])
        detail["distinct values of F of searched points"] = len(
            {round(problem.value(X) / problem.penalty, 6) for X in points[CONSTRUCTED:]}
        )
        if searched:
            detail["smallest eigenvalue of the searched"] = min(searched)
    return Evidence(min(steepness), 1e-3, ">=", converged=critical, detail=detail)


def _zeros(points: list[Tensor]) -> int:
    """Returns the number of points that are zero up to rounding."""
    return sum(float(X.abs().max()) < LEVEL_ATOL for X in points)


ASSUMED = (
    "the problem has the penalty λ‖X‖²/2 instead of the constraint on the scale",
    r"$0 < \lambda < \alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})$",
)
CLAIMS = (
    Claim(
        id="rate_reduction/optimum",
        statement=r"Under $\|X_j\|_F^2 = n_j$ and $\mathrm{rank}\, X_j \le r_j$, $\sum_j r_j \le d$, the largest rate reduction is "
        r"$\sum_j \frac{s_j}{2}\left[\log(1 + \frac{\alpha n_j}{s_j}) - \frac{n_j}{n}\log(1 + \frac{\alpha_j n_j}{s_j})\right]$ "
        r"with the best $s_j \le r_j$.",
        measures="largest rate reduction of the ascents less the closed form, nats",
        source=MCR2,
        assumptions=("the ranks fit: their sum is at most d", "the best of at least 3 and at most 10 ascents is taken"),
        check=_optimum,
        control=_optimum_control,
        control_description="replaces the value of the optimum by that of collapsed classes, of rank one each",
        corrects=r"The printed condition on the distortion, $\varepsilon^4 < (n_j/n)\, d^2/r_j^2$, does not make every dimension pay: the "
        "best $s_j$ may be smaller than $r_j$.",
    ),
    Claim(
        id="rate_reduction/orthogonal-flat",
        statement=r"At a maximiser the classes are orthogonal, $X_i X_j^\top = 0$ for $i \ne j$, and the non-zero singular values of each "
        r"class are equal.",
        measures="distance from orthogonal classes with flat spectra",
        source=LANDSCAPE,
        assumptions=("the ranks fit: their sum is at most d", "the distortion is small"),
        check=_geometry,
        control=_geometry_control,
        control_description="takes five classes in three dimensions, where they cannot be orthogonal",
        corrects="Yu et al. (2020) allow each class one non-zero singular value that is smaller than its others; at a maximum there is "
        "none.",
    ),
    Claim(
        id="rate_reduction/maximisers",
        statement=r"Ascents of $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ end at critical points with orthogonal classes of "
        r"singular values $0$ or $\sqrt{\bar s_j}$, $\bar s_j$ the larger root of "
        r"$\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s} = \lambda$.",
        measures="largest distance from the shape of a maximiser",
        source=LANDSCAPE,
        assumptions=ASSUMED,
        check=lambda generator: _disorder(generator, of_saddles=False),
        control=lambda generator: _disorder(generator, of_saddles=True),
        control_description="takes critical points that are no maximisers",
    ),
    Claim(
        id="rate_reduction/strict-saddles",
        statement=r"Every critical point of $F$ of another shape has a direction of ascent: the largest eigenvalue of $\nabla^2 F$ is "
        r"positive (here: above $\lambda / 1000$).",
        measures="smallest of the largest eigenvalues of the Hessian, in units of λ",
        source=LANDSCAPE,
        assumptions=(*ASSUMED, "searched points are kept if the gradient is below 1e-9 λ and their shape is not that of a maximiser"),
        check=lambda generator: _steepness(generator, of_maximisers=False),
        control=lambda generator: _steepness(generator, of_maximisers=True),
        control_description="takes the maximisers instead",
    ),
)
