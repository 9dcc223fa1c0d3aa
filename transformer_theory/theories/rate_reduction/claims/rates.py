"""Coding rates: the rate reduction is not negative, and its gradient has a closed form."""

import torch
from torch import Generator, Tensor

from ....citations import Source
from ....claims import Claim, Evidence
from ....metrics.coding import class_coding_rates, coding_rate, rate_reduction, unit_norm
from ..problem import equal_moments
from ..redunet import layer
from .instance import EPS

MCR2, REDUNET = Source("yu2020learning"), Source("chan2022redunet")


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
