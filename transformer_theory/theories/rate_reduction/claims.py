"""Checkable statements about coding rates, the MCR² optimum and ReduNet, each with a control that must fail."""

import torch
from torch import Generator, Tensor

from ...citations import Source
from ...claims import Claim, Evidence
from ...metrics.coding import class_coding_rates, coding_rate, rate_reduction, unit_norm
from .problem import equal_moments, flat_reduction, gaussian_toy, largest_rank, maximise
from .redunet import construct, layer

MCR2, REDUNET, LANDSCAPE = Source("yu2020learning"), Source("chan2022redunet"), Source("wang2024global")
EPS = 0.5**0.5  # the distortion of the MCR² experiments: ε² = 1/2
SIZES, DIM = (20, 20, 20), 12


def _random_instances(generator: Generator) -> list[tuple[Tensor, Tensor]]:
    """Gaussian features of random covariance with labels drawn at random, of five shapes."""
    instances = []
    for n, d, k in ((12, 3, 2), (40, 8, 3), (60, 8, 5), (30, 50, 4), (200, 16, 10)):
        mixing = torch.randn(d, d, dtype=torch.float64, generator=generator)
        features = torch.randn(n, d, dtype=torch.float64, generator=generator) @ mixing
        instances.append((features, torch.randint(k, (n,), generator=generator)))
    return instances


def _nonnegative(generator: Generator) -> Evidence:
    smallest = min(float(rate_reduction(x, y, eps=EPS)) for x, y in _random_instances(generator))
    equal = float(rate_reduction(*equal_moments((15, 20, 40), 6, generator=generator), eps=EPS))
    return Evidence(min(smallest, -abs(equal)), -1e-12, ">=", detail={"smallest of five": smallest, "equal second moments": equal})


def _nonnegative_control(generator: Generator) -> Evidence:
    instances = _random_instances(generator)
    unweighted = [float(coding_rate(x, eps=EPS) - class_coding_rates(x, y, eps=EPS).sum()) for x, y in instances]
    return Evidence(max(unweighted), -1e-12, ">=")


def _best_of_ascents(generator: Generator, target: float, *, least: int = 3, most: int = 10) -> float:
    """The largest ΔR that ascents from several starts reach under rank <= 4; after the first few, only until the target is met."""
    best, starts = 0.0, 0
    while starts < least or (best < target - 1e-9 and starts < most):
        features, labels, _ = maximise(SIZES, (4, 4, 4), DIM, eps=EPS, generator=generator)
        best, starts = max(best, float(rate_reduction(features, labels, eps=EPS))), starts + 1
    return best


def _optimum(generator: Generator) -> Evidence:
    target = flat_reduction(SIZES, (4, 4, 4), DIM, eps=EPS)
    best = _best_of_ascents(generator, target)
    attained = best >= target - 1e-9  # otherwise the search failed, which says nothing against the statement
    assumed = all(largest_rank(n, sum(SIZES), DIM, eps=EPS) > 4 for n in SIZES)
    return Evidence(best - target, 1e-9, "<=", converged=attained, in_assumptions=assumed, detail={"reached": best, "closed form": target})


def _optimum_control(generator: Generator) -> Evidence:
    collapsed = flat_reduction(SIZES, (1, 1, 1), DIM, eps=EPS)
    return Evidence(_best_of_ascents(generator, collapsed, least=1) - collapsed, 1e-9, "<=")


def _disorder(features: Tensor, labels: Tensor) -> float:
    """How far classes are from orthogonal with flat spectra: the larger of the largest overlap of two classes' directions
    (largest cosine of a principal angle) and the largest relative spread of a class's non-zero singular values."""
    worst, bases = 0.0, []
    for j in labels.unique():
        _, s, right = torch.linalg.svd(features[labels == j], full_matrices=False)
        rank = int((s > 1e-3 * s[0]).sum())
        worst = max(worst, float(1 - s[rank - 1] / s[0]))
        for other in bases:
            worst = max(worst, float(torch.linalg.matrix_norm(other @ right[:rank].mT, ord=2)))
        bases.append(right[:rank])
    return worst


def _geometry(generator: Generator) -> Evidence:
    features, labels, gradient = maximise(SIZES, (4, 4, 4), DIM, eps=EPS, generator=generator)
    return Evidence(_disorder(features, labels), 1e-5, "<=", converged=gradient < 1e-6, detail={"gradient": gradient})


def _geometry_control(generator: Generator) -> Evidence:
    features, labels, gradient = maximise((10,) * 5, (2,) * 5, 3, eps=EPS, generator=generator, steps=30)
    return Evidence(_disorder(features, labels), 1e-5, "<=", detail={"gradient": gradient})


def _smallest_rise(generator: Generator, step: float) -> Evidence:
    features, labels = gaussian_toy(2, 100, generator=generator)
    reductions = construct(features, labels, layers=100, eps=0.1**0.5, step=step).reductions
    return Evidence(float(reductions.diff().min()), 0.0, ">=", detail={"first": float(reductions[0]), "last": float(reductions[-1])})


def _gradient_gap(generator: Generator, *, weighted: bool) -> Evidence:
    features = unit_norm(torch.randn(40, 7, dtype=torch.float64, generator=generator)).requires_grad_()
    labels = torch.arange(40) % 3
    (automatic,) = torch.autograd.grad(rate_reduction(features, labels, eps=EPS), features)
    rows = features.detach()
    own = torch.nn.functional.one_hot(labels, 3).double()
    built = layer(rows, labels, eps=EPS)
    closed = built.gradient(rows, own if weighted else own / built.shares)
    return Evidence(float((automatic - closed).abs().max() / automatic.abs().max()), 1e-12, "<=")


CLAIMS = (
    Claim(
        id="rate_reduction/nonnegative",
        statement=r"$\Delta R(X|y) = R(X) - \sum_j \frac{n_j}{n} R(X_j) \ge 0$, "
        r"with equality if and only if all second moments $X_j^\top X_j / n_j$ are equal.",
        source=MCR2,
        assumptions=("each sample belongs to one class", "the rates of the classes are weighted by their shares"),
        check=_nonnegative,
        control=_nonnegative_control,
        control_says="adds the classes' rates without their weights n_j / n",
    ),
    Claim(
        id="rate_reduction/optimum",
        statement=r"Under $\|X_j\|_F^2 = n_j$ and $\mathrm{rank}\, X_j \le r_j$, $\sum_j r_j \le d$, the largest rate reduction is "
        r"$\sum_j \frac{r_j}{2}\left[\log(1 + \frac{\alpha n_j}{r_j}) - \frac{n_j}{n}\log(1 + \frac{\alpha_j n_j}{r_j})\right]$.",
        source=MCR2,
        assumptions=("the ranks fit: their sum is at most d", "the distortion is small: ε⁴ < (n_j/n) d²/r_j² for each class"),
        check=_optimum,
        control=_optimum_control,
        control_says="puts the value of collapsed classes (rank one each) in the place of the optimum's",
    ),
    Claim(
        id="rate_reduction/orthogonal-flat",
        statement=r"At a maximiser the classes are orthogonal, $X_i X_j^\top = 0$ for $i \ne j$, and the non-zero singular values of each "
        r"class are equal.",
        source=LANDSCAPE,
        assumptions=("there is room: the ranks' sum is at most d", "the distortion is small"),
        check=_geometry,
        control=_geometry_control,
        control_says="puts five classes into three dimensions, where they cannot be orthogonal",
    ),
    Claim(
        id="rate_reduction/redunet-ascent",
        statement=r"Each layer of ReduNet, $x^+ \propto x + \eta\,(xE - \sum_j \frac{n_j}{n} \pi_j\, xC_j)$ on the unit sphere, raises "
        r"$\Delta R$ of the training features (for small $\eta > 0$).",
        source=REDUNET,
        assumptions=("unit norm", "a small step: η <= 0.5 here, an observation and not a theorem", "training samples use their labels"),
        check=lambda generator: _smallest_rise(generator, 0.5),
        control=lambda generator: _smallest_rise(generator, -0.5),
        control_says="reverses the sign of the step",
    ),
    Claim(
        id="rate_reduction/gradients",
        statement=r"$\nabla_X \Delta R = XE - \sum_j \frac{n_j}{n} \Pi_j X C_j$ with $E = \alpha(I + \alpha X^\top X)^{-1}$ and "
        r"$C_j = \alpha_j (I + \alpha_j X_j^\top X_j)^{-1}$.",
        source=REDUNET,
        assumptions=("each sample belongs to one class",),
        check=lambda generator: _gradient_gap(generator, weighted=True),
        control=lambda generator: _gradient_gap(generator, weighted=False),
        control_says="leaves out the weights n_j / n of the classes",
    ),
)
