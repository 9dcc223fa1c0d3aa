r"""Claims on critical points: the problem with a penalty, and the problem on spheres.

**The bound on the penalty.** Along one singular value of class j, squared s, the derivative
:math:`\frac{d\Delta R}{d(s/2)} = \frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s}` rises from 0 to its largest value
:math:`\alpha\frac{1 - \sqrt{\gamma_j}}{1 + \sqrt{\gamma_j}}`, at :math:`s = 1/\sqrt{\alpha\alpha_j}`, and falls to 0. A smaller λ is
attained twice, at :math:`s < \bar s_j`. At the largest value itself the two coincide, and F falls on both sides with growing s: an
inflection, not a maximiser.

**Global maximisers.** F of a maximiser is a sum of gains, one for each non-zero singular value of class j,

.. math::
    g_j = \tfrac12\big[\log(1 + \alpha\bar s_j) - \gamma_j\log(1 + \alpha_j\bar s_j) - \lambda\bar s_j\big].

The bracket falls as :math:`\gamma_j` grows, so smaller classes gain more. Near the bound on λ gains are negative, and then X = 0 is better.

Source: :cite:t:`wang2024global`; the problem on spheres is treated in :mod:`..spheres`.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....metrics.coding import rate_reduction, rate_reduction_gradient
from ..ascent import ascend, polish
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point, scales
from ..optimum import largest_rank
from ..problem import LANDSCAPE, MCR2, orthogonal_classes, sorted_labels, with_spectra
from ..spheres import OnSpheres, uneven

LANDSCAPE_THEOREM = Source("wang2024global", "", "not found")
EPS = 0.5**0.5  # ε² = 1/2, the distortion of the MCR² experiments
SMALL_SIZES, SMALL_DIM = (3, 3, 4), 3  # sizes of the problem with a penalty
GRADIENT_RTOL = 1e-9  # largest gradient of a critical point, in units of the penalty
LEVEL_ATOL = 1e-6  # a smaller disorder or entry of X counts as zero
ROUNDING = 1e-9


def _problem() -> Regularised:
    return Regularised(SMALL_SIZES, SMALL_DIM, EPS, 0.5 * largest_penalty(SMALL_SIZES, SMALL_DIM, eps=EPS))


def _start(problem: Regularised, generator: Generator) -> Tensor:
    """Draws Gaussian entries with a standard deviation that is log-uniform between 0.1 and 3.2."""
    scale = 10 ** (1.5 * float(torch.rand((), generator=generator)) - 1)
    return scale * torch.randn(sum(problem.sizes), problem.dim, dtype=torch.float64, generator=generator)


def _ends(problem: Regularised, generator: Generator, count: int) -> list[Tensor]:
    """Returns the end points of ascents from random starts."""
    return [ascend(problem, _start(problem, generator)) for _ in range(count)]


def _constructed(problem: Regularised, generator: Generator) -> list[Tensor]:
    """Returns five critical points that are not maximisers; with another seed they are only rotated.

    Four have singular values at the smaller root. The fifth has two classes on a line.
    """
    # Numbers of singular values at the smaller and at the larger root, per class.
    counts = (((1, 0, 0), (0, 0, 0)), ((1, 1, 1), (0, 0, 0)), ((0, 1, 0), (1, 0, 1)), ((2, 0, 0), (0, 0, 1)))
    points = [orthogonal_critical_point(problem, smaller, larger, generator=generator) for smaller, larger in counts]
    # The first two classes have rank one on the same line, and the third class is zero. The singular value is near its critical value, and
    # the search for zeros of the gradient finds the critical point.
    first, second, _ = orthogonal_critical_point(problem, (0, 0, 0), (1, 1, 1), generator=generator).split(problem.sizes)
    left = torch.linalg.svd(second, full_matrices=False).U[:, :1]
    line = torch.linalg.svd(first, full_matrices=False).Vh[:1]
    start = torch.cat([first, first.norm() * left @ line, torch.zeros(problem.sizes[2], problem.dim, dtype=first.dtype)])
    return [*points, polish(problem, start)]


def _searched(problem: Regularised, generator: Generator, count: int) -> list[Tensor]:
    """Returns those zeros of the gradient, from searches that begin at random starts, that do not have the shape of a maximiser."""
    ends = (polish(problem, _start(problem, generator)) for _ in range(count))
    return [X for X in ends if _critical(problem, X) and problem.disorder(X) > LEVEL_ATOL]


def _critical(problem: Regularised, X: Tensor) -> bool:
    """Returns whether the gradient at X is zero up to rounding."""
    return float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.penalty


def _disorder(generator: Generator, *, of_saddles: bool) -> Evidence:
    problem = _problem()
    points = _constructed(problem, generator) if of_saddles else _ends(problem, generator, 2)
    zeros = sum(float(X.abs().max()) < LEVEL_ATOL for X in points)
    detail = {
        "largest eigenvalue": max(map(problem.steepest, points)),
        "points": len(points),
        "of them zero, whose disorder is 0 by definition": zeros,
    }
    critical = all(_critical(problem, X) for X in points)
    return Evidence(max(map(problem.disorder, points)), LEVEL_ATOL, "<=", converged=critical, detail=detail)


def _steepness(generator: Generator, *, of_maximisers: bool) -> Evidence:
    problem = _problem()
    points = _ends(problem, generator, 1) if of_maximisers else _constructed(problem, generator)
    detail: dict[str, float] = {"points": len(points)}
    critical = all(_critical(problem, X) for X in points)
    steepness = [problem.steepest(X) for X in points]
    if not of_maximisers:
        searched = _searched(problem, generator, 4)
        detail = {"constructed points, equal up to rotation for every seed": len(points)}
        detail["smallest eigenvalue of the constructed"] = min(steepness)
        detail["searched points, of 4 searches"] = len(searched)
        if searched:
            steepness += [problem.steepest(X) for X in searched]
            detail["smallest eigenvalue of the searched"] = min(steepness[len(points) :])
            detail["distinct values of F of searched points"] = len({round(problem.value(X) / problem.penalty, 6) for X in searched})
    return Evidence(min(steepness), 1e-3, ">=", converged=critical, detail=detail)


def _unequal_sizes(generator: Generator) -> tuple[int, ...]:
    """Draws three different class sizes from 2 to 5, in a random order."""
    return tuple((torch.randperm(4, generator=generator)[:3] + 2).tolist())


def _bound_gap(generator: Generator, *, smallest_class: bool) -> Evidence:
    """Measures the relative error of the bound on λ against the largest slope of ΔR along one singular value, found numerically."""
    from scipy.optimize import minimize_scalar

    sizes, dim = _unequal_sizes(generator), 4
    labels = sorted_labels(sizes)
    shapes = [with_spectra(sizes, [[1.0] * (i == j) for i in range(3)], dim, generator=generator) for j in range(3)]

    def slope(shape: Tensor, log_s: float) -> float:
        root = math.exp(log_s / 2)
        return float((rate_reduction_gradient(root * shape, labels, eps=EPS) * shape).sum()) / root

    ends = [minimize_scalar(lambda u, X=X: -slope(X, u), bounds=(-10, 10), method="bounded") for X in shapes]
    slopes = [-end.fun for end in ends]  # pyright: ignore[reportAttributeAccessIssue]
    found = max(slopes) if smallest_class else min(slopes)
    bound = largest_penalty(sizes, dim, eps=EPS)
    # At the bound F falls on both sides of the double root of the largest class: an inflection.
    alpha, *alphas = scales(sizes, dim, eps=EPS)
    largest = max(range(3), key=lambda j: sizes[j])
    s = (alpha * alphas[largest]) ** -0.5

    def level(square: float) -> float:
        return float(rate_reduction(square**0.5 * shapes[largest], labels, eps=EPS)) - bound / 2 * square

    detail = {"bound": bound, "largest slope, found numerically": float(found), "F below the root": level(0.8 * s), "at it": level(s)}
    detail["F above the root"] = level(1.25 * s)
    inflection = detail["F below the root"] > detail["at it"] > detail["F above the root"]
    return Evidence(abs(bound / found - 1) + (not inflection), 1e-6, "<=", detail=detail)


def _gains(problem: Regularised) -> list[float]:
    """Returns F per non-zero singular value of each class at a maximiser."""
    alpha, *alphas = scales(problem.sizes, problem.dim, eps=problem.eps)
    shares = [size / sum(problem.sizes) for size in problem.sizes]
    return [
        0.5 * (math.log1p(alpha * s) - share * math.log1p(a * s) - problem.penalty * s)
        for (_, s), a, share in zip(problem.squares(), alphas, shares)
    ]


def _filled(problem: Regularised, order: Sequence[int], gains: Sequence[float]) -> float:
    """Returns F with the dimensions given to the classes in this order, each as many as it gains from."""
    total, free = 0.0, problem.dim
    for j in order:
        rank = min(free, problem.sizes[j]) if gains[j] > 0 else 0
        total, free = total + rank * gains[j], free - rank
    return total


def _global_excess(generator: Generator, *, smaller_first: bool) -> Evidence:
    """Measures the largest distance of the best maximiser, over all ranks, from the closed form; ascents must not exceed it."""
    gaps, detail = [], {}
    sizes, dim = _unequal_sizes(generator), 3
    bound = largest_penalty(sizes, dim, eps=EPS)
    shares = (0.2 + 0.4 * float(torch.rand((), generator=generator)), 0.9 + 0.09 * float(torch.rand((), generator=generator)))
    for share in shares if smaller_first else shares[:1]:
        problem = Regularised(sizes, dim, EPS, share * bound)
        gains = _gains(problem)
        order = sorted(range(3), key=lambda j: sizes[j], reverse=not smaller_first)
        closed = _filled(problem, order, gains)
        ranks = [r for r in itertools.product(*(range(min(size, dim) + 1) for size in sizes)) if sum(r) <= dim]
        best = max(problem.value(orthogonal_critical_point(problem, (0, 0, 0), each, generator=generator)) for each in ranks)
        reached = max(problem.value(X) for X in _ends(problem, generator, 1))
        gaps += [abs(best - closed), reached - closed]
        detail[f"largest F of {len(ranks)} maximisers, share {share:.2f} of the bound"] = best
        detail[f"F of an ascent, share {share:.2f} of the bound"] = reached
        detail[f"smallest gain of a dimension, share {share:.2f} of the bound"] = min(gains)
    return Evidence(max(gaps), ROUNDING, "<=", detail=detail)


def _on_spheres(generator: Generator, *, flat: bool) -> Evidence:
    """Measures the largest error of gradient and second derivatives at orthogonal classes along the spheres, in units of α."""
    errors, sizes, dim = [], (6, 6, 8), 7
    for eps, ranks in itertools.product((1.0, 2.0**0.5), ((2, 2, 2), (1, 2, 3))):
        problem = OnSpheres(sizes, dim, eps)
        X, _ = orthogonal_classes(sizes, ranks, dim, generator=generator)
        if not flat:
            spectra = [[size / 4, *[0.75 * size / max(rank - 1, 1)] * max(rank - 1, 1)] for size, rank in zip(sizes, (2, 2, 2))]
            X = with_spectra(sizes, spectra, dim, generator=generator)
        hessian, free = problem.hessian(X), torch.linalg.svd(X).Vh[-1]  # a direction that no class uses
        errors.append(float(problem.gradient(X).norm()) / problem.unit)
        for part, (size, rank) in enumerate(zip(sizes, ranks)):
            first = sum(sizes[:part])
            left, _, right = torch.linalg.svd(X[first : first + size])
            alpha, share, s = problem.unit, size / sum(sizes), size / rank
            a = alpha / share

            def along(direction: Tensor, first=first, size=size, hessian=hessian) -> float:
                full = torch.zeros(sum(sizes), dim, dtype=torch.float64)
                full[first : first + size] = direction
                return float(full.flatten() @ hessian @ full.flatten())

            multiplier = alpha / (1 + alpha * s) - alpha / (1 + a * s)
            curvature = -0.5 * alpha**2 / (1 + alpha * s) ** 2 + 0.5 * alpha * a / (1 + a * s) ** 2  # f''(s)
            if rank > 1:
                grown = (torch.outer(left[:, 0], right[0]) - torch.outer(left[:, 1], right[1])) / 2**0.5
                errors.append(abs(along(grown) - 4 * s * curvature) / alpha)
            errors.append(abs(along(torch.outer(left[:, -1], free)) + multiplier) / alpha)
        below = all(rank < largest_rank(size, sum(sizes), dim, eps=eps) for rank, size in zip(ranks, sizes) if rank > 1)
        errors.append(float((problem.steepest(X) < LEVEL_ATOL) != below))
        if eps == 1.0:
            saddle = uneven(problem, (2, 2, 2), generator=generator)
            errors += [float(problem.gradient(saddle).norm()) / problem.unit, float(problem.steepest(saddle) < LEVEL_ATOL)]
    return Evidence(max(errors), ROUNDING, "<=")


PENALTY = "the problem has the penalty λ‖X‖²/2 instead of the constraint on the scale"
ASSUMED = (PENALTY, r"$0 < \lambda < \alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})$")
CLAIMS = (
    Claim(
        id="rate_reduction/maximisers",
        statement=r"Ascents of $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ end at critical points with orthogonal classes of "
        r"singular values $0$ or $\sqrt{\bar s_j}$, $\bar s_j$ the larger root of "
        r"$\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s} = \lambda$. The numbers of non-zero ones may differ: these are the "
        "local maximisers.",
        measures="largest distance from the shape of a maximiser",
        source=LANDSCAPE_THEOREM,
        assumptions=ASSUMED,
        check=lambda generator: _disorder(generator, of_saddles=False),
        control=lambda generator: _disorder(generator, of_saddles=True),
        control_description="takes critical points that are no maximisers",
    ),
    Claim(
        id="rate_reduction/strict-saddles",
        statement=r"Every critical point of $F$ of another shape, local minimisers included, has a direction of ascent: the largest "
        r"eigenvalue of $\nabla^2 F$ is positive (here: above $\lambda / 1000$).",
        measures="smallest of the largest eigenvalues of the Hessian, in units of λ",
        source=LANDSCAPE_THEOREM,
        assumptions=(
            *ASSUMED,
            "searched points are kept if the gradient is below 1e-9 λ and their shape is not that of a maximiser, with a tolerance of 1e-6",
        ),
        check=lambda generator: _steepness(generator, of_maximisers=False),
        control=lambda generator: _steepness(generator, of_maximisers=True),
        control_description="takes the maximisers instead",
    ),
    Claim(
        id="rate_reduction/penalty-bound",
        statement=r"Class $j$ has non-zero maximisers if and only if $0 < \lambda < \alpha \frac{1 - \sqrt{\gamma_j}}{1 + "
        r"\sqrt{\gamma_j}}$, the largest slope of $2 \Delta R$ along a squared singular value; for all classes the largest class decides. "
        r"At the bound itself the point is an inflection of $F$.",
        measures="relative error of the bound against the largest slope",
        source=LANDSCAPE_THEOREM,
        assumptions=(PENALTY, "other classes are zero"),
        check=lambda generator: _bound_gap(generator, smallest_class=False),
        control=lambda generator: _bound_gap(generator, smallest_class=True),
        control_description="lets the smallest class decide",
        corrects=r"The interval of $\lambda$ is restated with a closed right end. There the two roots coincide, and $F$ falls on both "
        "sides: no maximiser of the largest class is left.",
    ),
    Claim(
        id="rate_reduction/global-maximisers",
        statement=r"At the largest $F$ the smaller classes are filled first, each up to $\min(n_j, d)$ dimensions, "
        r"with $\frac12[\log(1 + \alpha \bar s_j) - \gamma_j \log(1 + \alpha_j \bar s_j) - \lambda \bar s_j]$ per dimension if "
        "this is positive.",
        measures="distance of the best of all maximisers, and excess of an ascent, from the closed form, nats",
        source=LANDSCAPE,
        assumptions=(*ASSUMED, "the classes differ in size"),
        check=lambda generator: _global_excess(generator, smaller_first=True),
        control=lambda generator: _global_excess(generator, smaller_first=False),
        control_description="fills the larger classes first",
        corrects=r"Global maximisers are restated to have $\sum_j r_j = \min(n, d)$ for every $\lambda$ of the interval. Near its right "
        "end a dimension of the largest class, or of any class, gains less than nothing, and lower ranks or $X = 0$ are better.",
    ),
    Claim(
        id="rate_reduction/spheres",
        statement=r"Under $\|X_j\|_F^2 = n_j$ orthogonal classes with $r_j$ equal squared singular values $s = n_j / r_j$ are critical. "
        r"The second derivative is $4 s f_j''(s)$ if one of them grows at the expense of another and $-2 f_j'(s)$ if a new one appears. "
        r"They are maximisers if $r_j < \sqrt{n_j/n}\, d / \epsilon^2$ wherever $r_j > 1$, and saddles otherwise. So are spectra "
        r"$(a, b, \dots, b)$ with $ab = \frac{n_j}{n} / \alpha^2$.",
        measures="largest error of gradient and second derivatives, in units of α",
        source=MCR2,
        assumptions=("the sum of the ranks is below d",),
        check=lambda generator: _on_spheres(generator, flat=True),
        control=lambda generator: _on_spheres(generator, flat=False),
        control_description="takes spectra that are not flat",
    ),
)
