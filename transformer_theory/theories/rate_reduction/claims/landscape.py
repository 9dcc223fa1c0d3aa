r"""Claims on critical points: the problem with a penalty, and the problem on spheres.

**The bound on the penalty.** Along one singular value of class j, squared s, the derivative
:math:`\frac{d\Delta R}{d(s/2)} = \frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s}` rises from 0 to
its largest value
:math:`\alpha\frac{1 - \sqrt{\gamma_j}}{1 + \sqrt{\gamma_j}}`, at :math:`s = 1/\sqrt{\alpha\alpha_j}`, and
falls to 0. A smaller λ is attained twice, at :math:`s < \bar s_j`. At the largest value itself the two
coincide, and F falls on both sides with growing s: an inflection, not a maximiser.

**Global maximisers.** F of a maximiser is a sum of gains, one for each non-zero singular value of class j,

.. math::
    g_j = \tfrac12\big[\log(1 + \alpha\bar s_j) - \gamma_j\log(1 + \alpha_j\bar s_j) - \lambda\bar s_j\big].

The bracket falls as :math:`\gamma_j` grows, so smaller classes gain more. Near the bound on λ gains are
negative, and then X = 0 is better.

Source: :cite:t:`wang2024global`; the problem on spheres is treated in :mod:`..spheres`.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
from ....core.sources import Source
from ....metrics.coding import rate_reduction, rate_reduction_gradient
from ..ascent import ascend, polish
from ..landscape import Regularised, largest_penalty, orthogonal_critical_point, scales
from ..optimum import largest_rank
from ..problem import orthogonal_classes, sorted_labels, with_spectra
from ..spheres import OnSpheres, uneven

EPS = 0.5**0.5  # ε² = 1/2, the distortion of the MCR² experiments
SMALL_SIZES, SMALL_DIM = (3, 3, 4), 3  # sizes of the problem with a penalty
GRADIENT_RTOL = 1e-9  # largest gradient of a critical point, in units of the penalty
LEVEL_ATOL = 1e-6  # a smaller disorder or entry of X counts as zero
ROUNDING = 1e-9
PENALTY = "the problem has the penalty λ‖X‖²/2 instead of the constraint on the scale"
DRAWN = (
    "one instance: classes of 3, 3 and 4 samples, d = 3, ε² = 1/2, λ half of its bound; the starts are drawn"
)
ASSUMED = (PENALTY, r"$0 < \lambda < \alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})$")


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
    points = [
        orthogonal_critical_point(problem, smaller, larger, generator=generator) for smaller, larger in counts
    ]
    # The first two classes have rank one on the same line, and the third class is zero. The singular value is
    # near its critical value, and the search for zeros of the gradient finds the critical point.
    first, second, _ = orthogonal_critical_point(problem, (0, 0, 0), (1, 1, 1), generator=generator).split(
        problem.sizes
    )
    left = torch.linalg.svd(second, full_matrices=False).U[:, :1]
    line = torch.linalg.svd(first, full_matrices=False).Vh[:1]
    start = torch.cat(
        [first, first.norm() * left @ line, torch.zeros(problem.sizes[2], problem.dim, dtype=first.dtype)]
    )
    return [*points, polish(problem, start)]


def _critical(problem: Regularised, X: Tensor) -> bool:
    """Returns whether the gradient at X is zero up to rounding."""
    return float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.penalty


@claim(
    "rate_reduction/maximisers",
    measures="largest distance from the shape of a maximiser",
    at_most=LEVEL_ATOL,
    source=Source("wang2024global", "first theorem, part (i): local maximisers", "second-hand"),
    assumptions=(*ASSUMED, DRAWN),
    control=but("takes critical points that are not maximisers", of_saddles=True),
)
def maximisers(generator: Generator, *, of_saddles: bool = False) -> Measured:
    r"""Ascents of $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ end at critical points with orthogonal
    classes of singular values $0$ or $\sqrt{\bar s_j}$, $\bar s_j$ the larger root of $\frac{\alpha}{1 +
    \alpha s} - \frac{\alpha}{1 + \alpha_j s} = \lambda$. The numbers of non-zero ones may differ: these are
    the local maximisers.
    """
    problem = _problem()
    points = _constructed(problem, generator) if of_saddles else _ends(problem, generator, 2)
    zeros = sum(float(X.abs().max()) < LEVEL_ATOL for X in points)
    detail = {
        "largest eigenvalue": max(map(problem.steepest, points)),
        "points": len(points),
        "of them zero, whose disorder is 0 by definition": zeros,
    }
    critical = all(_critical(problem, X) for X in points)
    return Measured(max(map(problem.disorder, points)), converged=critical, detail=detail)


def _searched(problem: Regularised, generator: Generator, count: int) -> list[Tensor]:
    """Returns those zeros of the gradient, from searches that begin at random starts, that do not have the
    shape of a maximiser.
    """
    ends = (polish(problem, _start(problem, generator)) for _ in range(count))
    return [X for X in ends if _critical(problem, X) and problem.disorder(X) > LEVEL_ATOL]


@claim(
    "rate_reduction/strict-saddles",
    measures="smallest of the largest eigenvalues of the Hessian, in units of λ, over five constructed "
    "and up to four searched points",
    at_least=1e-3,
    source=Source(
        "wang2024global", "second theorem: every other critical point is a strict saddle", "second-hand"
    ),
    assumptions=(
        *ASSUMED,
        DRAWN,
        "searched points are kept if the gradient is below 1e-9 λ and their shape is not that of a "
        "maximiser, with a tolerance of 1e-6",
    ),
    control=but("takes the maximisers instead", of_maximisers=True),
)
def strict_saddles(generator: Generator, *, of_maximisers: bool = False) -> Measured:
    r"""Critical points of $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$, local minimisers included,
    have a direction of ascent unless the classes are orthogonal with singular values $0$ or $\sqrt{\bar
    s_j}$, $\bar s_j$ the larger root of $\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s} =
    \lambda$: the largest eigenvalue of $\nabla^2 F$ is positive (here: above $\lambda / 1000$).
    """
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
            detail["distinct values of F of searched points"] = len(
                {round(problem.value(X) / problem.penalty, 6) for X in searched}
            )
    return Measured(min(steepness), converged=critical, detail=detail)


def _unequal_sizes(generator: Generator) -> tuple[int, ...]:
    """Draws three different class sizes from 2 to 5, in a random order."""
    return tuple((torch.randperm(4, generator=generator)[:3] + 2).tolist())


@claim(
    "rate_reduction/penalty-bound",
    measures="relative error of the bound against the largest slope; plus 1 if F does not fall on both sides "
    "of the double root, or the slope is largest elsewhere",
    at_most=1e-6,
    source=Source("wang2024global", "first theorem, condition on λ", "second-hand"),
    assumptions=(PENALTY, "other classes are zero"),
    control=but("lets the smallest class decide", smallest_class=True),
    corrects=(
        r"The book closes the interval of $\lambda$ at its right end. There the two roots coincide, and "
        r"$F$ falls with the singular value on both sides: no maximiser of the largest class is left."
    ),
    corrected=Source(
        "buchanan2025learning", 'Chapter 3, theorem "Local and Global Optima", condition on λ', "confirmed"
    ),
)
def penalty_bound(generator: Generator, *, smallest_class: bool = False) -> Measured:
    r"""$F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ has maximisers with non-zero class $j$ if and only
    if $0 < \lambda < \alpha \frac{1 - \sqrt{\gamma_j}}{1 + \sqrt{\gamma_j}}$, the largest slope of $2 \Delta
    R$ along a squared singular value. All classes have them if and only if $\lambda$ is below the bound of
    the largest class. At the bound the two roots of $\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j
    s} = \lambda$ coincide in an inflection. (The source has the bound as a sufficient condition; that it is
    necessary is derived here.)
    """
    from scipy.optimize import minimize_scalar

    sizes, dim = _unequal_sizes(generator), 4
    labels = sorted_labels(sizes)
    shapes = [
        with_spectra(sizes, [[1.0] * (i == j) for i in range(3)], dim, generator=generator) for j in range(3)
    ]

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

    detail = {
        "bound": bound,
        "largest slope, found numerically": float(found),
        "F below the root": level(0.8 * s),
        "at it": level(s),
    }
    detail["F above the root"] = level(1.25 * s)
    falls = detail["F below the root"] > detail["at it"] > detail["F above the root"]
    steepest = float(ends[largest].x)  # pyright: ignore[reportAttributeAccessIssue]
    inflection = falls and abs(steepest - math.log(s)) < 1e-4
    return Measured(abs(bound / found - 1) + (not inflection), detail)


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


@claim(
    "rate_reduction/global-maximisers",
    measures="larger of: distance of the best maximiser from the closed form; excess of an ascent over "
    "it; nats",
    at_most=ROUNDING,
    source=Source("wang2024global", "first theorem, part (ii): global maximisers", "second-hand"),
    assumptions=(*ASSUMED, "the classes differ in size"),
    control=but("fills the larger classes first", smaller_first=False),
    corrects=(
        r"The book states that global maximisers have $\sum_j r_j = \min(n, d)$ for every $\lambda$ of the "
        r"interval (it prints m for n). Near its right end a dimension of the largest class, or of any "
        r"class, gains less than nothing, and lower ranks or $X = 0$ are better."
    ),
    corrected=Source(
        "buchanan2025learning", 'Chapter 3, theorem "Local and Global Optima", part (ii)', "confirmed"
    ),
)
def global_maximisers(generator: Generator, *, smaller_first: bool = True) -> Measured:
    r"""At the largest $F(X) = \Delta R(X|y) - \frac{\lambda}{2}\|X\|_F^2$ the $d$ dimensions go to the
    smaller classes first, at most $n_j$ to class $j$, as long as a dimension gains $\frac12[\log(1 + \alpha
    \bar s_j) - \gamma_j \log(1 + \alpha_j \bar s_j) - \lambda \bar s_j] > 0$, $\bar s_j$ the larger root of
    $\frac{\alpha}{1 + \alpha s} - \frac{\alpha}{1 + \alpha_j s} = \lambda$. (The gains per dimension are
    derived here.)
    """
    gaps, detail = [], {}
    sizes, dim = _unequal_sizes(generator), 3
    bound = largest_penalty(sizes, dim, eps=EPS)
    shares = (
        0.2 + 0.4 * float(torch.rand((), generator=generator)),
        0.9 + 0.09 * float(torch.rand((), generator=generator)),
    )
    for share in shares if smaller_first else shares[:1]:
        problem = Regularised(sizes, dim, EPS, share * bound)
        gains = _gains(problem)
        order = sorted(range(3), key=lambda j: sizes[j], reverse=not smaller_first)
        closed = _filled(problem, order, gains)
        ranks = [
            r for r in itertools.product(*(range(min(size, dim) + 1) for size in sizes)) if sum(r) <= dim
        ]
        best = max(
            problem.value(orthogonal_critical_point(problem, (0, 0, 0), each, generator=generator))
            for each in ranks
        )
        reached = max(problem.value(X) for X in _ends(problem, generator, 1))
        gaps += [abs(best - closed), reached - closed]
        detail[f"largest F of {len(ranks)} maximisers, share {share:.2f} of the bound"] = best
        detail[f"F of an ascent, share {share:.2f} of the bound"] = reached
        detail[f"smallest gain of a dimension, share {share:.2f} of the bound"] = min(gains)
    return Measured(max(gaps), detail)


def _slopes(problem: OnSpheres, size: int, s: float) -> tuple[float, float]:
    """Returns the first and second derivatives of f_j at s, for a class of this size."""
    alpha, share = problem.unit, size / sum(problem.sizes)
    a = alpha / share
    first = 0.5 * alpha / (1 + alpha * s) - 0.5 * alpha / (1 + a * s)
    return first, -0.5 * alpha**2 / (1 + alpha * s) ** 2 + 0.5 * alpha * a / (1 + a * s) ** 2


def _exchanges(problem: OnSpheres, X: Tensor, ranks: Sequence[int]) -> tuple[list[float], list[float]]:
    r"""Returns the second derivatives of ΔR if the smallest singular value of a class grows at the expense of
    its others.

    The first list has them by the Hessian, the second by the formula :math:`4 a (1 - a/n_j) (f_j''(a) +
    f_j''(b) / (r_j - 1))` for squared values :math:`(a, b, \dots, b)`, which is :math:`4 a f_j''(a)` if b =
    a. Classes of rank one are left out.
    """
    hessian, measured, predicted = problem.hessian(X), [], []
    for part, (size, rank) in enumerate(zip(problem.sizes, ranks)):
        if rank == 1:
            continue
        first = sum(problem.sizes[:part])
        left, values, right = torch.linalg.svd(X[first : first + size])
        a, b = float(values[rank - 1] ** 2), float(values[0] ** 2)
        weights = torch.full((rank,), -((a / size / (rank - 1)) ** 0.5), dtype=torch.float64)
        weights[-1] = (1 - a / size) ** 0.5
        direction = torch.zeros_like(X)
        direction[first : first + size] = left[:, :rank] * weights @ right[:rank]
        measured.append(float(direction.flatten() @ hessian @ direction.flatten()))
        curvature = _slopes(problem, size, a)[1] + _slopes(problem, size, b)[1] / (rank - 1)
        predicted.append(4 * a * (1 - a / size) * curvature)
    return measured, predicted


def _new_values(problem: OnSpheres, X: Tensor) -> list[float]:
    """Returns the second derivatives of ΔR if a singular value of a class grows from zero, in a direction
    that no class uses.
    """
    hessian, free, found = problem.hessian(X), torch.linalg.svd(X).Vh[-1], []
    for part, size in enumerate(problem.sizes):
        first = sum(problem.sizes[:part])
        direction = torch.zeros_like(X)
        direction[first : first + size] = torch.outer(
            torch.linalg.svd(X[first : first + size]).U[:, -1], free
        )
        found.append(float(direction.flatten() @ hessian @ direction.flatten()))
    return found


@claim(
    "rate_reduction/spheres",
    measures="largest error of the gradient, of second derivatives, of their signs and of the largest "
    "eigenvalue, in units of α",
    at_most=ROUNDING,
    source=Source("yu2020learning", "", "own"),
    assumptions=(
        "the sum of the ranks is below d",
        "two sets of ranks at two distortions, below and above the bound; d = 7",
    ),
    control=but("takes spectra that are not flat", flat=False),
)
def spheres(generator: Generator, *, flat: bool = True) -> float:
    r"""Under $\|X_j\|_F^2 = n_j$ orthogonal classes with $r_j$ equal squared singular values $s = n_j / r_j$
    are critical. With $f_j(s) = \frac12 \log(1 + \alpha s) - \frac{\gamma_j}{2} \log(1 + \alpha_j s)$ the
    second derivative is $4 s f_j''(s)$ if one of them grows at the expense of the others and $-2 f_j'(s)$ if
    a new one appears. They are local maximisers (observed beyond these two directions) if $r_j <
    \sqrt{n_j/n}\, d / \epsilon^2$ wherever $r_j > 1$, and saddles otherwise. Spectra $(a, b, \dots, b)$ of a
    class with $a < b$ and $ab = \frac{n_j}{n} / \alpha^2$ are saddles, too.
    """
    differences, sizes, dim = [], (6, 6, 8), 7
    for eps, ranks in itertools.product((1.0, 2.0**0.5), ((2, 2, 2), (1, 2, 3))):
        problem = OnSpheres(sizes, dim, eps)
        if flat:
            points = [orthogonal_classes(sizes, ranks, dim, generator=generator)[0]]
            points += [uneven(problem, ranks, generator=generator)] if eps == 1.0 else []
        else:
            shares = [[1.0] if rank == 1 else [0.25, *[0.75 / (rank - 1)] * (rank - 1)] for rank in ranks]
            points = [
                with_spectra(
                    sizes,
                    [[size * x for x in each] for size, each in zip(sizes, shares)],
                    dim,
                    generator=generator,
                )
            ]
        for X in points:
            measured, predicted = _exchanges(problem, X, ranks)
            # If all predictions are negative, the largest eigenvalue is 0, because X can be rotated.
            # Otherwise it is at least the largest.
            top = problem.steepest(X) * problem.unit
            differences += [
                float(problem.gradient(X).norm()),
                top if max(predicted) < 0 else min(0.0, top - max(predicted)),
            ]
            differences += [one - other for one, other in zip(measured, predicted)]
        # the uneven spectra are saddles
        differences += [min(0.0, value) for value in predicted] if len(points) > 1 else []
        levels = [size / rank for size, rank in zip(sizes, ranks)]
        differences += [
            new + 2 * _slopes(problem, *at)[0]
            for new, at in zip(_new_values(problem, points[0]), zip(sizes, levels))
        ]
        # At the bound on the rank the second derivative is zero.
        levels = [size / largest_rank(size, sum(sizes), dim, eps=eps) for size in sizes]
        differences += [4 * s * _slopes(problem, size, s)[1] for size, s in zip(sizes, levels)]
    return max(map(abs, differences)) / problem.unit


CLAIMS = (maximisers, strict_saddles, penalty_bound, global_maximisers, spheres)
