r"""Entropies and mutual information of discrete laws, in nats, and their bias on samples.

With :math:`0 \log 0 = 0`, the information of a joint law p is :math:`I(X;Y) = \sum_{xy} p(x,y) \log
\frac{p(x,y)}{p(x) p(y)}`. Computed from the counts of n independent samples it is too large by about
:math:`(|X| - 1)(|Y| - 1) / 2n` nats, the correction of Miller and Madow. A continuous deterministic map has
infinite information with its input, so features are discretised first (:func:`words`), and the numbers are
about the words, not about the features.
Source: :cite:t:`miller1955note` (bias).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.statistics import fixed_generator
from ...core.validation import as_float64, as_int64, finite, integers

SUM_ATOL = 1e-6  # largest distance of the sum of a joint law from 1


def joint_law(joint) -> Float[Tensor, "x y"]:
    """Checks a joint law p(x, y) and drops its rows and columns of probability zero, ``[x, y]`` float64; the
    sum becomes exactly 1.

    Raises:
        ValueError: the law is not a matrix, holds NaN, infinite or negative entries, does not sum to 1 within
            1e-6, or has one row or
        column. TypeError: the law does not hold real numbers.
    """
    joint = as_float64("joint", joint)
    if joint.ndim != 2:
        raise ValueError(f"expected joint of shape [x, y], got {list(joint.shape)}; reshape it")
    finite(joint=joint)
    if bool((joint < 0).any()):
        raise ValueError(
            f"expected joint without negative entries, got {float(joint.min()):.3g}; pass probabilities"
        )
    if abs(float(joint.sum()) - 1) > SUM_ATOL:
        raise ValueError(f"expected joint that sums to 1, got {float(joint.sum()):.6g}; divide it by its sum")
    joint = joint[joint.sum(1) > 0][:, joint.sum(0) > 0]
    if min(joint.shape) < 2:
        raise ValueError(
            f"expected joint with two rows and two columns that are not zero, got {list(joint.shape)}; a "
            "constant tells nothing"
        )
    return joint / joint.sum()


def entropy(law: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Returns the entropy of laws ``[..., n]`` in nats."""
    return -torch.xlogy(law, law).sum(-1)


def information(joint: Float[Tensor, "*batch x y"]) -> Float[Tensor, "*batch"]:
    """Returns the mutual information of joint laws ``[..., x, y]`` in nats."""
    return entropy(joint.sum(-1)) + entropy(joint.sum(-2)) - entropy(joint.flatten(-2))


def divergence(p: Float[Tensor, "... n"], q: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Returns the divergence KL(p || q) of laws ``[..., n]`` in nats; infinite if p is positive where q is
    zero.
    """
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def table(
    first: Int[Tensor, "... n"], second: Int[Tensor, "... n"], shape: tuple[int, int]
) -> Float[Tensor, "... x y"]:
    """Returns the counts of pairs of integers, ``[..., x, y]`` float64."""
    rows, columns = shape
    first, second = torch.broadcast_tensors(first, second)
    flat = (first * columns + second).reshape(-1, first.shape[-1])
    counts = torch.zeros(len(flat), rows * columns, dtype=torch.float64)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float64))
    return counts.reshape(*first.shape[:-1], rows, columns)


def plug_in_bias(x: int, y: int, n: int) -> float:
    """Returns (x - 1)(y - 1) / 2n, the expected plug-in information of independent variables with x and y
    values in n samples, in nats.

    Raises:
        ValueError: a number is below 1.
        TypeError: a number is not an integer.
    """
    integers(x=x, y=y, n=n)
    return (x - 1) * (y - 1) / (2 * n)


def corrected_information(counts: Float[Tensor, "... x y"]) -> Float[Tensor, "..."]:
    r"""Returns the information of counts ``[..., x, y]`` with each entropy corrected by Miller and Madow, in
    nats.

    An entropy of k occupied values is too small by about (k - 1) / 2n. So this is :math:`I + (k_X + k_Y -
    k_{XY} - 1) / 2n` with the number :math:`k_{XY}` of pairs that occur: near the correction of
    :func:`plug_in_bias` at independence if n is large, too weak if many pairs are missing by chance, and
    positive if y is a function of x.
    """
    n = counts.sum((-2, -1))
    occupied = [(each > 0).sum(-1) for each in (counts.sum(-1), counts.sum(-2), counts.flatten(-2))]
    return information(counts / n[..., None, None]) + (occupied[0] + occupied[1] - occupied[2] - 1) / (2 * n)


def sample_information(first, second) -> tuple[float, float]:
    """Computes the information of paired samples from their counts, and the bias of this number; subtract it
    for Miller and Madow.

    Args:
        first, second: integers from 0, ``[n]``.
    Returns:
        Plug-in information and bias in nats.
    Raises:
        ValueError: the samples are not vectors of one length with at least two entries, or an integer is
            negative.
        TypeError: the samples are not integers.
    """
    first, second = as_int64("first", first), as_int64("second", second)
    if first.ndim != 1 or first.shape != second.shape or len(first) < 2:
        raise ValueError(
            f"expected two vectors of one length, at least 2, got {list(first.shape)} and "
            f"{list(second.shape)}; pair the samples"
        )
    if int(first.min()) < 0 or int(second.min()) < 0:
        raise ValueError(
            f"expected integers from 0, got {min(int(first.min()), int(second.min()))}; relabel them"
        )
    first, second = (torch.unique(each, return_inverse=True)[1] for each in (first, second))
    used = int(first.max()) + 1, int(second.max()) + 1
    counts = table(first, second, used)
    return float(information(counts / len(first))), plug_in_bias(*used, len(first))


def words(points: Float[Tensor, "n d"], k: int, *, steps: int = 10) -> Int[Tensor, " n"]:
    """Divides points into at most k words by Lloyd's k-means, from k points spread by farthest-first search,
    ``[n]``.

    The words use no labels. They depend on the points, and on their order if there are more than 16 k: the
    first centre is the point that is farthest from the mean.

    Args:
        points: ``[n, d]``.
        k: largest number of words.
        steps: number of Lloyd steps.
    Raises:
        ValueError: k is below 1, or the points are no matrix of finite numbers.
    """
    integers(k=k, steps=steps)
    if points.ndim != 2 or not points.numel():
        raise ValueError(
            f"points must be [n, d] with at least one point, got {list(points.shape)}; reshape them"
        )
    finite(points=points)
    x = points.double() - points.double().mean(0)
    # A draw of points bounds the cost and keeps single outliers from taking most centres.
    pool = x[torch.randperm(len(x), generator=fixed_generator())[: 16 * k]]
    centres = pool[pool.square().sum(1).argmax()][None]
    distance = (pool - centres).square().sum(1)
    while len(centres) < min(k, len(pool)) and float(distance.max()) > 0:
        centres = torch.cat([centres, pool[distance.argmax()][None]])
        distance = torch.minimum(distance, (pool - centres[-1]).square().sum(1))
    nearest = _nearest(x, centres)
    for _ in range(steps):
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        count = torch.bincount(nearest, minlength=len(centres))[:, None]
        centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
        nearest = _nearest(x, centres)
    return torch.unique(nearest, return_inverse=True)[1]


def _nearest(x: Float[Tensor, "n d"], centres: Float[Tensor, "k d"]) -> Int[Tensor, " n"]:
    return (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)
