"""Where ascents of the rate reduction end, and the critical points of the rate reduction.

Source: :cite:t:`yu2020learning`, :cite:t:`wang2024global`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator

from ....core.experiment import setting
from ....core.figure import DASHED, Reading, figure, reading
from ....core.measurement import Op
from ....core.plotting import COLOURS, axes, colour, style
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
# marker of each kind of critical point, in the order of their numbers in the arrays
KINDS = {"end of an ascent": "o", "zero of the gradient, searched": "x", "constructed": "s"}
OPTIMUM = "optimum of the rate reduction"
DISORDER = "largest disorder of a critical point without direction of ascent"
STEEPNESS = "smallest of the largest Hessian eigenvalues at all other critical points"


@style()
def draw(result: Result) -> "Figure":
    """Plots the sorted rate reductions of the starts with the optimum, and the critical points of the problem
    with a penalty.

    The right panel shows value and largest Hessian eigenvalue: zero at maximisers, positive at saddles, and
    negative at X = 0.
    """
    drawn, (left, right) = axes(1, 2, width=7.4, height=2.8)
    values = result.arrays[f"{NAME}/reached"]
    dashed = {"color": COLOURS["null"], "linestyle": DASHED, "linewidth": 0.9, "zorder": 1}
    left.plot(range(1, len(values) + 1), values, ".", color=colour(NAME), label="reached")
    left.axhline(result.table.select(quantity=OPTIMUM).one().value, label="optimum, closed form", **dashed)
    left.set(title="Ascents under the constraint", xlabel="start, sorted", ylabel="ΔR reached, nats")
    left.margins(y=0.15)
    kind, value, _, steepest = result.arrays[f"{NAME}/critical"].T
    for number, (label, marker) in enumerate(KINDS.items()):
        right.plot(value[kind == number], steepest[kind == number], marker, fillstyle="none", label=label)
    right.axhline(0, **dashed)
    right.set(title="Critical points, with a penalty", xlabel="ΔR - λ‖X‖²/2, nats")
    right.set_ylabel("largest Hessian eigenvalue / λ")
    left.legend()
    right.legend()
    return drawn


@figure("rate_reduction.landscape", source=(MCR2, LANDSCAPE), view=draw, quick={"starts": 2})
def landscape(
    *,
    starts: int = setting(
        100, ge=1, help="random starts: ascents of the first problem; ascents and searches of the others"
    ),
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    share: float = setting(
        0.5,
        gt=0,
        lt=1,
        help="penalty, as a share of the bound below which every class has non-zero maximisers",
    ),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """End points of random starts: every maximiser has orthogonal classes with flat spectra, but only the
    best ones keep all dimensions.

    The first problem has the constraint on the scale: three classes of 20 samples with rank at most 4 in 12
    dimensions. The second replaces the constraint by a penalty and has 11 samples in 4 dimensions, few enough
    to classify every critical point by all eigenvalues of its Hessian. Its points are the ends of ascents,
    constructed saddles, and zeros of the gradient from a search that may also converge to saddles. The third
    problem is as small as the second but has the constraint; its Hessian is taken along the spheres.
    """
    generator = torch.Generator().manual_seed(seed)
    yield from _constrained(starts, eps, generator)
    penalty = share * largest_penalty(SMALL_SIZES, SMALL_DIM, eps=eps)
    yield from _regularised(Regularised(SMALL_SIZES, SMALL_DIM, eps, penalty), starts, generator)
    yield from _on_spheres(OnSpheres(SMALL_SIZES, SMALL_DIM, eps), starts, generator)


def _constrained(starts: int, eps: float, generator: Generator) -> Iterator[Reading | Arrays]:
    """Yields the values that ascents reach under the constraint."""
    best = optimum(SIZES, DIM, eps=eps, budget=RANKS).value
    reached = []
    for _ in range(starts):
        features, labels, _ = maximise(SIZES, RANKS, DIM, eps=eps, generator=generator)
        reached.append(float(rate_reduction(features, labels, eps=eps)))
    place: dict[str, Any] = {"at": {"problem": CONSTRAINED}, "source": OPTIMUM_THEOREM}
    excess, quantity = max(reached) - best, "excess of the best start over the closed form"
    yield reading(quantity, excess, at_most=1e-9, predicted=1e-9, unit="nats", **place)
    values = torch.tensor(reached, dtype=torch.float64)
    reaching = float((values > best - 1e-9).double().mean())
    yield reading("share of starts that reach the optimum", reaching, unit="share", n=starts, **place)
    yield reading(OPTIMUM, best, unit="nats", **place)
    yield Arrays({f"{NAME}/reached": values.sort().values.numpy()})


def _regularised(problem: Regularised, starts: int, generator: Generator) -> Iterator[Reading | Arrays]:
    """Yields the numbers and the shape of the critical points of the problem with a penalty."""
    ascents, searches = [], []
    # entries of X at which αS is about d² I; starts vary around it by a factor of 10
    typical = (SMALL_DIM * problem.eps**2) ** 0.5
    for _ in range(starts):
        size = typical * 10 ** float(torch.rand((), generator=generator) - 0.5)
        start = size * torch.randn(sum(SMALL_SIZES), SMALL_DIM, dtype=torch.float64, generator=generator)
        ascents.append(ascend(problem, start))
        searches.append(polish(problem, start))
    # Numbers of singular values at the smaller and at the larger root, per class; one at the smaller root
    # makes a saddle.
    numbers = (
        ((1, 0, 0), (0, 0, 0)),
        ((1, 1, 1), (0, 0, 0)),
        ((0, 1, 0), (1, 0, 1)),
        ((2, 0, 0), (0, 1, 1)),
    )
    constructed = [orthogonal_critical_point(problem, *pair, generator=generator) for pair in numbers]
    place = {"at": {"problem": PENALTY}, "source": LANDSCAPE}
    classified = []  # kind, value, disorder and largest Hessian eigenvalue of each critical point
    for number, (kind, points) in enumerate(zip(KINDS, (ascents, searches, constructed))):
        critical = [X for X in points if float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.penalty]
        classified += [(number, problem.value(X), problem.disorder(X), problem.steepest(X)) for X in critical]
        columns = {"n": len(points), "note": f"gradient below {GRADIENT_RTOL:g} of the penalty", **place}
        found = len(critical) / len(points)
        yield reading(f"share of critical points, {kind}", found, unit="share", **columns)
    table = torch.tensor(classified, dtype=torch.float64).reshape(-1, 4)
    yield Arrays({f"{NAME}/critical": table.numpy()})
    kinds, values, disorder, steepest = table.T
    level = steepest <= LEVEL_ATOL
    note = "0: orthogonal classes with singular values 0 or one common number"
    yield _extreme(DISORDER, disorder[level], "<=", LEVEL_ATOL, predicted=0.0, note=note, **place)
    note = "in units of the penalty"
    yield _extreme(STEEPNESS, steepest[~level], ">=", 1e-3, predicted=1e-3, note=note, **place)
    ends = values[(kinds == 0) & level]
    if len(ends):
        best = float((ends > ends.max() - 1e-9).double().mean())
        columns = {"n": len(ends), "note": f"values {ends.min():.4f} to {ends.max():.4f} nats", **place}
        yield reading("share of ascents that end at the best value", best, unit="share", **columns)


def _on_spheres(problem: OnSpheres, starts: int, generator: Generator) -> Iterator[Reading]:
    """Yields disorder and steepness under the constraint on the scale, without source and prediction: no
    paper states them.
    """
    shape = (sum(SMALL_SIZES), SMALL_DIM)
    drawn = [
        problem.project(torch.randn(shape, dtype=torch.float64, generator=generator)) for _ in range(starts)
    ]
    points = [search(problem, start) for search in (ascend, polish) for start in drawn]
    points += [on_lines(problem, lines, generator=generator) for lines in ((0, 1, 2), (0, 0, 1), (0, 0, 0))]
    critical = [X for X in points if float(problem.gradient(X).norm()) <= GRADIENT_RTOL * problem.unit]
    classified = [(problem.disorder(X), problem.steepest(X)) for X in critical]
    disorder, steepest = torch.tensor(classified, dtype=torch.float64).reshape(-1, 2).T
    level, place = steepest <= LEVEL_ATOL, {"at": {"problem": SPHERES}, "source": None}
    note = "observed; no source states it"
    yield _extreme(DISORDER, disorder[level], "<=", note=note, **place)
    yield _extreme(STEEPNESS, steepest[~level], ">=", note=f"in units of α; {note}", **place)


def _extreme(
    quantity: str,
    values: torch.Tensor,
    op: Op,
    threshold: float | None = None,
    predicted: float | None = None,
    **columns: Any,
) -> Reading:
    """Returns the largest (<=) or smallest (>=) of the values, with a verdict if there is a threshold and any
    value.
    """
    columns |= {"n": len(values)}
    if not len(values):
        return reading(quantity, None, reason="the searches found no such point", **columns)
    value = float(values.max() if op == "<=" else values.min())
    bound = {"at_most": threshold} if op == "<=" else {"at_least": threshold}
    return reading(quantity, value, **bound, predicted=predicted, **columns)
