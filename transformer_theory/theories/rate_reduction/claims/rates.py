r"""Claims about coding rates: the nats that hard or soft classes save, and the gradient.

The bounds of "equal-moments" are Jensen's inequality with a modulus: with :math:`\beta = d/\epsilon^2`,
:math:`S_j = X^\top\Pi_jX/n_j` and :math:`\sigma` the largest eigenvalue of any :math:`S_j`, the second
derivative of :math:`\tfrac12\log\det(I + \beta S)` along D lies between :math:`-\tfrac12\beta^2\|D\|_F^2` and
:math:`-\tfrac12\beta^2\|D\|_F^2 / (1 + \beta\sigma)^2`. Convexity in the memberships: :math:`n_jR_j` is the
perspective of that concave function. Source: :cite:t:`yu2020learning`, :cite:t:`ma2007segmentation`.
"""

import torch
from torch import Generator, Tensor

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....metrics.coding import (
    class_coding_rates,
    coding_rate,
    compression_operators,
    expansion_operator,
    rate_reduction,
    rate_reduction_gradient,
)
from ..problem import equal_moments, sorted_labels

EPS = 0.5**0.5  # ε² = 1/2, the distortion of the MCR² experiments
SHAPES = ((12, 3, 2), (40, 8, 3), (60, 8, 5), (30, 50, 4), (200, 16, 10))  # samples, dimensions, classes


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _random_features(generator: Generator, n: int, d: int) -> Tensor:
    """Draws Gaussian features with a random covariance."""
    return _normal(generator, n, d) @ _normal(generator, d, d)


def _random_memberships(generator: Generator, n: int, k: int) -> Tensor:
    """Draws soft memberships, from nearly even to nearly certain ones."""
    return torch.softmax(
        3 * torch.rand(n, 1, dtype=torch.float64, generator=generator) * _normal(generator, n, k), 1
    )


def _random_labels(generator: Generator, n: int, k: int) -> Tensor:
    return torch.randint(k, (n,), generator=generator)


def _nonnegative_control(generator: Generator) -> float:
    unweighted = []
    for n, d, k in SHAPES:
        features = _random_features(generator, n, d)
        within = class_coding_rates(features, _random_labels(generator, n, k), eps=EPS).sum()
        unweighted.append(float(coding_rate(features, eps=EPS) - within))
    return max(unweighted)


@claim(
    "rate_reduction/nonnegative",
    measures="smallest rate reduction, nats",
    at_least=-1e-12,
    source=Source("yu2020learning", "", "not found"),
    assumptions=("each sample's memberships sum to one",),
    control=but("adds the classes' rates without their weights n_j / n", _nonnegative_control),
)
def nonnegative(generator: Generator) -> Measured:
    r"""$\Delta R(X|\Pi) = R(X) - \sum_j \frac{n_j}{n} R_j \ge 0$ for labels and for soft
    memberships $\Pi_j$.
    """
    hard, soft = [], []
    for n, d, k in SHAPES:
        features = _random_features(generator, n, d)
        hard.append(float(rate_reduction(features, _random_labels(generator, n, k), eps=EPS)))
        soft.append(float(rate_reduction(features, _random_memberships(generator, n, k), eps=EPS)))
    return Measured(
        min(*hard, *soft), {"smallest with labels": min(hard), "smallest with memberships": min(soft)}
    )


def _spread(features: Tensor, labels: Tensor) -> tuple[float, float]:
    """Returns the weighted mean squared distance of the second moments S_j from their mean, and the largest
    eigenvalue of any S_j.
    """
    classes = [features[labels == j] for j in labels.unique()]
    mean = features.mT @ features / len(features)
    moments = [members.mT @ members / len(members) for members in classes]
    spread = sum(
        len(members) / len(features) * float((S - mean).square().sum())
        for members, S in zip(classes, moments)
    )
    return spread, max(float(torch.linalg.eigvalsh(S)[-1]) for S in moments)


def _equal_moments_control(generator: Generator) -> Measured:
    """Uses classes with equal covariances and different means: distances of covariances do not bound ΔR from
    above.
    """
    root, beta = _normal(generator, 6, 6), 6 / EPS**2
    deviations = []
    for n in (15, 20, 40):
        # The columns are orthonormal and orthogonal to the constant, so the class has mean 0 and covariance
        # root^T root.
        columns = orthonormalise(
            torch.cat([torch.ones(n, 1, dtype=torch.float64), _normal(generator, n, 6)], 1)
        )[:, 1:]
        deviations.append(n**0.5 * columns @ root)
    labels = sorted_labels([len(members) for members in deviations])
    centred, means = torch.cat(deviations), _normal(generator, 3, 6)
    scale = (beta * _spread(centred, labels)[1]) ** -0.5
    reduction = float(rate_reduction(scale * (centred + means[labels]), labels, eps=EPS))
    spread = _spread(scale * centred, labels)[0]
    return Measured(
        0.25 * beta**2 * spread / reduction, {"distance of the covariances": spread, "ΔR": reduction}
    )


@claim(
    "rate_reduction/equal-moments",
    measures="smallest of: the rate reduction over its lower bound; its upper bound over it; at equal "
    "moments, 1e-12 nats over it",
    at_least=1.0,
    margin=BOUND,
    source=Source("yu2020learning", "", "own"),
    assumptions=(
        "each sample belongs to one class",
        "drawn: equal second moments, scaled to βσ = 1; then one class is changed by a linear map",
    ),
    control=but(
        "takes covariances instead of second moments, in classes with equal covariances and different means",
        _equal_moments_control,
    ),
)
def zero_reduction(generator: Generator) -> Measured:
    r"""$\Delta R = 0$ if and only if all second moments $S_j = X_j^\top X_j / n_j$ are equal: with $V =
    \sum_j \frac{n_j}{n} \|S_j - \frac1n X^\top X\|_F^2$, $\beta = d/\epsilon^2$ and $\sigma$ the largest
    eigenvalue of any $S_j$, $\frac{\beta^2}{4(1 + \beta\sigma)^2} V \le \Delta R \le \frac{\beta^2}{4} V$.
    The two bounds are derived here.
    """
    features, labels = equal_moments((15, 20, 40), 6, generator=generator)
    beta, change = 6 / EPS**2, _normal(generator, 6, 6)
    # βσ = 1, which the change of one class raises
    features = features / (beta * _spread(features, labels)[1]) ** 0.5
    ratios, largest = {}, {}
    for size in (1.0, 1e-1, 1e-2, 1e-3):
        unequal = torch.where((labels == 0)[:, None], features + size * features @ change, features)
        reduction, (spread, sigma) = float(rate_reduction(unequal, labels, eps=EPS)), _spread(unequal, labels)
        ratios[f"ΔR over the lower bound, moments changed by {size:g}"] = reduction / (
            0.25 * (beta / (1 + beta * sigma)) ** 2 * spread
        )
        ratios[f"upper bound over ΔR, moments changed by {size:g}"] = 0.25 * beta**2 * spread / reduction
        largest[f"βσ, moments changed by {size:g}"] = beta * sigma
    equal = abs(float(rate_reduction(features, labels, eps=EPS)))
    ratios["1e-12 over ΔR of equal moments"] = 1e-12 / max(equal, 1e-16)
    return Measured(min(ratios.values()), ratios | largest)


@claim(
    "rate_reduction/soft-memberships",
    measures="largest excess of the rate reduction over the chord, nats",
    at_most=1e-12,
    source=Source("ma2007segmentation", status="second-hand"),
    assumptions=("each sample's memberships sum to one",),
    control=but("mixes features instead of memberships", of_memberships=False),
)
def soft_memberships(generator: Generator, *, of_memberships: bool = True) -> float:
    r"""$\Delta R(X|\Pi)$ is convex in the memberships $\Pi$: it lies on or below the chord between any two,
    so uncertain memberships never save more than the best labels.
    """
    rises = []
    for n, d, k in SHAPES:
        features = _random_features(generator, n, d)
        labels, soft = (
            torch.nn.functional.one_hot(_random_labels(generator, n, k), k).double(),
            _random_memberships(generator, n, k),
        )
        ends = (
            ((features, labels), (features, soft))
            if of_memberships
            else ((features, soft), (_random_features(generator, n, d), soft))
        )
        first, last = (float(rate_reduction(*end, eps=EPS)) for end in ends)
        for share in (0.1, 0.5, 0.9):
            between = [(1 - share) * start + share * end for start, end in zip(*ends)]
            rises.append(float(rate_reduction(*between, eps=EPS)) - (1 - share) * first - share * last)
    return max(rises)


def _plain_reduction(features: Tensor, memberships: Tensor) -> Tensor:
    """Computes ΔR directly from its definition, so that autograd alone differentiates it."""
    n, d = features.shape
    identity = torch.eye(d, dtype=features.dtype)
    value = 0.5 * torch.logdet(identity + d / (n * EPS**2) * features.mT @ features)
    for weights in memberships.mT:
        size = weights.sum()
        value = value - 0.5 * size / n * torch.logdet(
            identity + d / (size * EPS**2) * features.mT @ torch.diag(weights) @ features
        )
    return value


@claim(
    "rate_reduction/gradients",
    measures="largest relative error of the gradient",
    at_most=1e-9,
    source=Source("chan2022redunet", status="second-hand"),
    assumptions=("each sample's memberships sum to one and are held fixed",),
    control=but("leaves out the weights n_j / n of the classes", weighted=False),
)
def gradients(generator: Generator, *, weighted: bool = True) -> float:
    r"""$\nabla_X \Delta R = XE - \sum_j \frac{n_j}{n} \Pi_j X C_j$ with $E = \alpha(I + \alpha X^\top
    X)^{-1}$ and $C_j = \alpha_j (I + \alpha_j X^\top \Pi_j X)^{-1}$.
    """
    gaps = []
    for n, d, k in ((40, 7, 3), (10, 20, 3), (30, 8, 10)):
        features, labels = _random_features(generator, n, d) / d, torch.arange(n) % k
        for classes in (labels, _random_memberships(generator, n, k)):
            memberships = classes if classes.ndim == 2 else torch.nn.functional.one_hot(labels, k).double()
            leaf = features.clone().requires_grad_()
            (automatic,) = torch.autograd.grad(_plain_reduction(leaf, memberships), leaf)
            shares = memberships.mean(0) if weighted else torch.ones(k, dtype=memberships.dtype)
            compressed = features @ compression_operators(features, classes, eps=EPS)
            operators = features @ expansion_operator(features, eps=EPS) - torch.einsum(
                "nj,jnd->nd", memberships * shares, compressed
            )
            candidates = (
                [operators, rate_reduction_gradient(features, classes, eps=EPS)] if weighted else [operators]
            )
            gaps += [float((automatic - closed).abs().max() / automatic.abs().max()) for closed in candidates]
    return max(gaps) if weighted else min(gaps)


CLAIMS = (nonnegative, zero_reduction, soft_memberships, gradients)
