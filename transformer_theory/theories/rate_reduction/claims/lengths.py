r"""Claims about coding lengths: the bits of a Gaussian, of a mean, and of the group of each sample.

**Mean.** With :math:`\Sigma` the second moment of the deviations from the mean :math:`\mu`, the second moment
of the samples is
:math:`\Sigma + \mu\mu^\top`, whose determinant is :math:`(1 + \mu^\top\Sigma^{-1}\mu) \det\Sigma`. So for
:math:`\epsilon \to 0` the code of the deviations is shorter by :math:`\tfrac{n+d}2 \log_2(1 +
\mu^\top\Sigma^{-1}\mu)`; the mean takes
:math:`\tfrac d2\log_2(1 + \|\mu\|^2/\epsilon^2)`. With :math:`\sigma_i` the eigenvalues of :math:`\Sigma`,
the remainder for any
:math:`\epsilon` is at most :math:`\tfrac{n+d}{2\ln 2} \sum_i \tfrac{\epsilon^2}{d\sigma_i}`, because
:math:`\log(1 + x) - \log x \le 1/x` and both codes have remainders of the same sign.

**Groups.** By the method of types :math:`\frac{n!}{\prod_j n_j!} \le 2^{nH} \le (n + 1)^k \frac{n!}{\prod_j
n_j!}`, H the entropy of the shares in bits: :math:`nH` bits name a grouping with these sizes, and at most
:math:`k\log_2(n + 1)` of them are too many.

Source: :cite:t:`ma2007segmentation`.
"""

import math

import numpy as np
import torch
from torch import Generator, Tensor

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ....metrics.coding import centred_coding_length, coding_length, segmented_coding_length

LENGTHS = Source("ma2007segmentation", "", "own")  # the code is the paper's, the bounds are not


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@claim(
    "rate_reduction/coding-length",
    measures="smallest distance of the excess bits per vector from their bounds",
    at_least=-1e-9,
    source=LENGTHS,
    assumptions=(
        "the second moment has full rank",
        "the distortion is at most that of the smallest eigenvalue",
    ),
    control=but("counts nats for bits", unit=math.log(2)),
)
def excess_bits(generator: Generator, *, unit: float = 1.0) -> Measured:
    r"""$L = (n + d)\, R / \ln 2$ counts bits: for $\epsilon^2 \le d \lambda_d$ each of the $n + d$ vectors
    takes no fewer than the rate-distortion function $\frac12 \sum_i \log_2 \frac{d\lambda_i}{\epsilon^2}$ of
    a Gaussian with the same second moment, eigenvalues $\lambda_1 \ge \dots \ge \lambda_d$, and at most
    $\frac{\epsilon^2}{2d \ln 2} \sum_i \frac{1}{\lambda_i}$ more.
    """
    slack, detail = [], {}
    for n, d in ((50, 3), (400, 8)):
        features = _normal(generator, n, d) * torch.linspace(0.5, 2, d, dtype=torch.float64)
        # eigenvalues, without forming X^T X
        variances = np.linalg.svd(features.numpy(), compute_uv=False)[::-1] ** 2 / n
        for share in (1.0, 0.3, 0.01):
            eps = share * math.sqrt(d * variances[0])  # at share 1 the last direction is just coded
            rate_distortion = 0.5 * np.log2(d * variances / eps**2).sum()
            excess = unit * float(coding_length(features, eps=eps)) / (n + d) - rate_distortion
            bound = eps**2 / (2 * d * math.log(2)) * (1 / variances).sum()
            slack += [excess, bound - excess]
            detail[f"excess bits, n = {n}, share {share:g}"] = float(excess)
    return Measured(float(min(slack)), detail)


@claim(
    "rate_reduction/coding-length-of-a-mean",
    measures="largest error of the formula for the bits saved, in units of its bound",
    at_most=1.0,
    margin=BOUND,
    source=LENGTHS,
    assumptions=("the second moment of the deviations has full rank",),
    control=but("counts the mean as one number instead of d", dimensions=False),
)
def coding_length_of_a_mean(generator: Generator, *, dimensions: bool = True) -> Measured:
    r"""Coding the mean $\mu$ separately saves $\frac{n+d}{2} \log_2(1 + \mu^\top \Sigma^{-1} \mu) - \frac d2
    \log_2(1 + \|\mu\|^2/\epsilon^2)$ bits, $\Sigma$ the second moment of the deviations from it, with an
    error of at most $\frac{n+d}{2 \ln 2} \sum_i \frac{\epsilon^2}{d \sigma_i}$, $\sigma_i$ the eigenvalues of
    $\Sigma$.
    """
    worst, detail = 0.0, {}
    for n, d in ((40, 3), (200, 6)):
        deviations = _normal(generator, n, d) @ (
            torch.eye(d, dtype=torch.float64) + 0.3 * _normal(generator, d, d)
        )
        deviations = deviations - deviations.mean(0)
        mean = _normal(generator, d)
        covariance = deviations.mT @ deviations / n
        for eps in (10.0, 1.0, 0.1, 0.01):
            samples = deviations + mean
            saved = float(coding_length(samples, eps=eps) - centred_coding_length(samples, eps=eps))
            own = (d if dimensions else 1) / 2 * math.log2(1 + float(mean.square().sum()) / eps**2)
            limit = (n + d) / 2 * math.log2(1 + float(mean @ torch.linalg.solve(covariance, mean))) - own
            remainder = (
                (n + d)
                / (2 * math.log(2))
                * eps**2
                / d
                * float((1 / torch.linalg.eigvalsh(covariance)).sum())
            )
            worst = max(worst, abs(saved - limit) / remainder)
            detail[f"bits saved, n = {n}, eps = {eps:g}"] = saved
    return Measured(worst, detail)


@claim(
    "rate_reduction/grouping-bits",
    measures="smallest distance of the bits for the groups from their bounds",
    at_least=-1e-6,
    source=LENGTHS,
    assumptions=("no group is empty",),
    control=but("leaves out the bits for the groups", named=False),
)
def grouping_bits(generator: Generator, *, named: bool = True) -> Measured:
    r"""$L^s$ exceeds the sum of the groups' lengths $L(X_j)$ by enough bits to name the grouping, at least
    $\log_2 \frac{n!}{\prod_j n_j!}$, and by at most $k \log_2(n + 1)$ more than that.
    """
    slack, detail = [], {}
    for n, d, k in ((30, 4, 2), (90, 6, 5), (300, 3, 10)):
        features = _normal(generator, n, d)
        labels = torch.cat([torch.arange(k), torch.randint(k, (n - k,), generator=generator)])
        sizes = torch.bincount(labels)
        alone = sum(float(coding_length(features[labels == j], eps=0.3)) for j in range(k))
        bits = float(segmented_coding_length(features, labels, eps=0.3)) - alone if named else 0.0
        groupings = (math.lgamma(n + 1) - float(torch.lgamma(sizes.double() + 1).sum())) / math.log(2)
        slack += [bits - groupings, groupings + k * math.log2(n + 1) - bits]
        detail[f"bits for {k} groups of {n} samples"] = bits
        detail[f"log2 of the number of groupings, {k} groups of {n} samples"] = groupings
    return Measured(min(slack), detail)


CLAIMS = (excess_bits, coding_length_of_a_mean, grouping_bits)
