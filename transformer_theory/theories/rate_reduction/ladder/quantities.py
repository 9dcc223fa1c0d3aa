r"""Quantities of the ladder: share of the optimum, angle between classes, and share of the value at neural
collapse.

Features :math:`x_i` have norm 1. The distortion is :math:`\epsilon^2 = 1/2`, as in trained networks
(:mod:`..in_networks`).

**Angle.** Let :math:`S_j = X_j^\top X_j / n_j` be the second moment of class j. The angle between two classes
is

.. math::
    \theta_{jl} = \arccos \sqrt{\frac{\langle S_j, S_l\rangle}{\|S_j\|_F \|S_l\|_F}}, \qquad
    \langle S_j, S_l\rangle = \frac{1}{n_j n_l} \sum_{i \in j,\, m \in l} (x_i^\top x_m)^2 .

It is 90° iff the classes span orthogonal subspaces. Between two lines it is their angle. Between flat
subspaces of dimension r the squared cosine is the mean of the squared cosines of the r principal angles. No
dimension and no share of the energy has to be chosen, and a direction counts by its energy.

**Neural collapse.** Each class is one point, and the k points are the vertices of a regular simplex:
:math:`m_j^\top m_l = -1/(k - 1)`. With the Gram matrix G of these points and :math:`D = \mathrm{diag}(n_j)`,

.. math::
    \Delta R = \tfrac12\log\det\big(I + \alpha D^{1/2} G D^{1/2}\big) - \tfrac12\log\big(1 +
    d/\epsilon^2\big), \qquad \alpha = \frac{d}{n\epsilon^2},

which for classes of equal size is :math:`\frac{k-1}{2}\log(1 + \frac{d}{(k-1)\epsilon^2}) - \frac12\log(1 +
\frac{d}{\epsilon^2})`. Two classes are the points u and -u, both with the second moment :math:`u
u^\top`: there :math:`\Delta R = 0` for any sizes, although the optimum is positive, and no share of it
exists.

Source: :cite:t:`yu2020learning` (the optimum), :cite:t:`papyan2020prevalence` (neural collapse). The angle
and the value at collapse are derived here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.ladder import Ladder
from ....core.measurement import Measurement, Null, present
from ....core.sources import Source
from ....core.statistics import fixed_generator
from ....core.validation import integers, positive
from ....metrics.class_features import EPS, NULL_KIND, permuted_labels, permuted_reductions
from ....metrics.coding import unit_norm
from ..in_networks import SHARE
from ..optimum import exact_reduction, optimum
from ..problem import MCR2, NAME, OPTIMUM_THEOREM, sorted_labels
from .inputs import isometric, projections

ANGLE = "mean angle between classes, degrees"
BEFORE = "rate reduction as a share of the optimum, before training"
COLLAPSED = "rate reduction as a share of its value at neural collapse"
# projected at random if they have more dimensions than the features
INPUTS = "rate reduction as a share of the optimum, centred inputs"
LAST_LAYER = "rate reduction as a share of the optimum, last layer"
ORTHOGONAL = 90.0  # degrees
COLLAPSE = Source("papyan2020prevalence")
ZERO_AT_COLLAPSE = "at the neural collapse of two classes, u and -u, the rate reduction is 0"
LADDER = Ladder(theory=NAME, quantity=SHARE, unit="share", side=">=", null=NULL_KIND, source=OPTIMUM_THEOREM)


@dataclass(frozen=True)
class Evaluated:
    """Features on which a rung is evaluated.

    Attributes:
        features: one row per sample, scaled to norm 1 when measured, ``[n, d]``.
        labels: classes 0, 1, ..., none of them empty, ``[n]``.
        orders: permutations of the samples, one per null draw, ``[draws, n]``.
        inputs: inputs of the network for the same samples, with the mean training input subtracted, ``[n,
            inputs]``.
        before: features of the same samples before training, ``[n, d]``; None: not measured.
        collapse: whether the training predicts neural collapse, so that the value there is a second
            reference.
        split: part of the data: "train", "validation".
        data, model: names for the columns of the rows.
        note: description of the features.
    """

    features: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    orders: Int[Tensor, "draws n"]
    inputs: Float[Tensor, "n inputs"]
    before: Float[Tensor, "n d"] | None = None
    collapse: bool = False
    split: str = "validation"
    data: str = "digits"
    model: str = ""
    note: str = ""

    @property
    def sizes(self) -> list[int]:
        """Number of samples of each class."""
        return torch.bincount(self.labels).tolist()


def rows(evaluated: Evaluated) -> Iterator[Measurement]:
    """Yields the headline with both nulls, the angle, the share of the inputs, and where they apply the share
    of the value at collapse and the share before training.
    """
    columns: dict[str, Any] = {
        name: getattr(evaluated, name) for name in ("split", "data", "model", "note")
    } | {"n": len(evaluated.labels)}
    best = optimum(evaluated.sizes, evaluated.features.shape[1], eps=EPS).value
    values = _reductions(evaluated.features, evaluated)
    shares = [value / best for value in values]
    share: dict[str, Any] = {"unit": "share", "side": ">=", "predicted": 1.0, **columns}
    nulls = present(permuted_labels(shares[1:]), inputs_null(evaluated))
    yield LADDER.row(shares[0], predicted=1.0, basis="theory", nulls=nulls, **columns)
    yield angle_row(evaluated, **columns)
    yield inputs_row(evaluated, **columns)
    if evaluated.collapse:
        reference = collapsed_reduction(evaluated.sizes, evaluated.features.shape[1], eps=EPS)
        known: dict[str, Any] = {"basis": "limit", "source": COLLAPSE, **share}
        if not reference:
            yield LADDER.other_row(COLLAPSED, None, reason=ZERO_AT_COLLAPSE, **known)
        else:
            relative = [value / reference for value in values]
            null = permuted_labels(relative[1:])
            yield LADDER.other_row(COLLAPSED, relative[0], nulls=present(null), **known)
    if evaluated.before is not None:
        shares = [value / best for value in _reductions(evaluated.before, evaluated)]
        yield LADDER.other_row(
            BEFORE,
            shares[0],
            nulls=present(permuted_labels(shares[1:])),
            **share,
        )


def inputs_null(evaluated: Evaluated) -> Null:
    """Returns the second null of the headline, random projections of the inputs to the dimension of the
    features.
    """
    return projections(
        evaluated.inputs, evaluated.labels, evaluated.features.shape[1], draws=len(evaluated.orders)
    )


def inputs_row(evaluated: Evaluated, **columns: Any) -> Measurement:
    """Returns the share of the inputs, projected once if they have more dimensions than the features, with
    permuted labels as the null.
    """
    dim = evaluated.features.shape[1]
    best = optimum(evaluated.sizes, dim, eps=EPS).value
    features = isometric(evaluated.inputs.double(), dim, fixed_generator())
    shares = [value / best for value in _reductions(features, evaluated)]
    columns |= {
        "unit": "share",
        "side": ">=",
        "note": "inputs without the mean training input",
    }
    return LADDER.other_row(
        INPUTS, shares[0], predicted=1.0, nulls=present(permuted_labels(shares[1:])), **columns
    )


def angle_row(evaluated: Evaluated, **columns: Any) -> Measurement:
    """Returns the row of the mean angle between classes, with permuted labels as the null."""
    angles = mean_angles(unit_norm(evaluated.features.double()), _groups(evaluated), evaluated.sizes).tolist()
    reason = "" if math.isfinite(angles[0]) else "a class has no features other than zero"
    null = permuted_labels(angles[1:])
    return LADDER.other_row(
        ANGLE,
        angles[0],
        predicted=ORTHOGONAL,
        bounds=(0.0, ORTHOGONAL),
        side=">=",
        source=MCR2,
        nulls=present(null),
        **{**columns, "reason": reason},
    )


def last_layer_row(evaluated: Evaluated, **columns: Any) -> Measurement:
    """Returns the share of the optimum as the row :data:`LAST_LAYER`, for networks whose headline is a mean
    over layers.

    The row has a reason instead of a value if there are more classes than dimensions.
    """
    columns |= {"unit": "share", "side": ">="}
    sizes, dim = evaluated.sizes, evaluated.features.shape[1]
    if len(sizes) > dim:
        reason = f"{len(sizes)} classes do not fit into orthogonal subspaces of {dim} dimensions"
        return LADDER.other_row(LAST_LAYER, None, reason=reason, **columns)
    best = optimum(sizes, dim, eps=EPS).value
    shares = [value / best for value in _reductions(evaluated.features, evaluated)]
    return LADDER.other_row(
        LAST_LAYER,
        shares[0],
        predicted=1.0,
        nulls=present(permuted_labels(shares[1:])),
        **columns,
    )


def _groups(evaluated: Evaluated) -> Int[Tensor, "groups n"]:
    """Returns indices of samples sorted by class: first by the true labels, then by the permuted labels of
    each draw.
    """
    return torch.cat([evaluated.labels.argsort(stable=True)[None], evaluated.orders])


def _reductions(features: Float[Tensor, "n d"], evaluated: Evaluated) -> list[float]:
    """Computes ΔR in nats, first with the true labels, then with the permuted labels of each draw."""
    return permuted_reductions(unit_norm(features.double()), _groups(evaluated), evaluated.sizes, eps=EPS)


def mean_angles(
    features: Float[Tensor, "n d"], groups: Int[Tensor, "draws n"], sizes: Sequence[int]
) -> Float[Tensor, " draws"]:
    """Computes the mean angle between two classes over all pairs of classes, in degrees.

    Args:
        features: one row per sample, float64, ``[n, d]``.
        groups: indices of samples; each row is cut into classes of the given sizes.
        sizes: number of samples of each class, at least two classes, with sum n.
    Returns:
        One angle per row of ``groups``; NaN if a class has no features other than zero.
    """
    squares = (features @ features.mT).square()
    # class of each sample, [draws, n]
    members = torch.zeros_like(groups).scatter(1, groups, sorted_labels(sizes).expand_as(groups))
    # [draws, k, n]
    averages = torch.nn.functional.one_hot(members).mT.to(squares) / torch.tensor(sizes).to(squares)[:, None]
    inner = averages @ squares @ averages.mT  # <S_j, S_l>, [draws, k, k]
    norms = inner.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = (inner / (norms[:, :, None] * norms[:, None, :])).clamp(max=1).sqrt()
    first, second = torch.triu_indices(len(sizes), len(sizes), offset=1)
    return torch.rad2deg(cosines[:, first, second].acos()).mean(1)


def collapsed_reduction(sizes: Sequence[int], dim: int, *, eps: float) -> float:
    """Returns ΔR at neural collapse: each class is one vertex of a regular simplex of unit vectors.

    >>> round(collapsed_reduction([25] * 10, 64, eps=0.5**0.5), 4)
    9.8225

    Args:
        sizes: number of samples of each class, at least two classes.
        dim: dimension d of the features, at least the number of classes less one, which the simplex spans.
        eps: distortion; squared inside.
    Returns:
        ΔR in nats per sample, exactly 0 for two classes.
    Raises:
        ValueError: eps is not positive, a size is below 1, or the simplex does not fit.
        TypeError: dim is not an integer.
    """
    positive(eps=eps)
    integers(dim=dim)
    k = len(sizes)
    if k < 2 or min(sizes) < 1 or dim < k - 1:
        raise ValueError(
            f"the simplex needs two classes with samples and {k - 1} dimensions, got sizes {list(sizes)} in "
            f"{dim} dimensions"
        )
    counts = torch.tensor(list(sizes), dtype=torch.float64)
    gram = (k * torch.eye(k, dtype=torch.float64) - 1) / (k - 1)  # 1 on the diagonal, -1 / (k - 1) elsewhere
    weighted = counts.sqrt()[:, None] * gram * counts.sqrt()
    scale = dim / (float(counts.sum()) * eps**2)
    whole = 0.5 * float(torch.linalg.slogdet(torch.eye(k, dtype=torch.float64) + scale * weighted).logabsdet)
    return exact_reduction(whole - 0.5 * math.log1p(dim / eps**2), whole)
