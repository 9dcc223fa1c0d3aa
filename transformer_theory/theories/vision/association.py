r"""Patch association: does attention between patches rank their group first, and does it have weight there?

A row i of A *ranks* its group first if its :math:`C - 1` largest entries, without the diagonal, are the other
patches of its group. The *mass* of S on them is another quantity: a ranking of nearly equal numbers may be
perfect at chance mass. Both have chance :math:`(C - 1)/(D - 1)`.

The function F of :mod:`.patches` is a sum over rows, so it does not change if the rows of S are permuted
(:func:`other_group_attention`): no property of F implies association.
Source: :cite:t:`jelassi2022vision` for the ranking; the mass is our own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ...core.validation import SHARES_ATOL, converted, in_range, integers
from .patches import LINEAR, check_numbers


@converted(int64=("groups",))
def check_groups(groups: Int[Tensor, " D"]) -> int:
    """Returns the size of the groups.

    Raises:
        ValueError: there are fewer than two groups, or they have one patch or different sizes.
    """
    sizes = torch.unique(groups, return_counts=True)[1].tolist() if groups.ndim == 1 else []
    if len(sizes) < 2 or len(set(sizes)) > 1 or sizes[0] < 2:
        raise ValueError(
            f"groups must be at least two of equal size, at least 2 patches each, got sizes {sizes}; pass "
            "the group of each patch"
        )
    return sizes[0]


def check_weights(S: Float[Tensor, "*batch D D"], groups: Int[Tensor, " D"]) -> int:
    """Returns the size of the groups.

    Raises:
        ValueError: the groups do not have equal size, or a row of S is no distribution over the patches.
    """
    size, D = check_groups(groups), len(groups)
    if S.shape[-2:] != (D, D) or not bool((S >= 0).all() and ((S.sum(-1) - 1).abs() <= SHARES_ATOL).all()):
        raise ValueError(
            f"S must be attention weights of shape [{D}, {D}] with rows that sum to 1, got {list(S.shape)}; "
            "apply the softmax"
        )
    return size


@converted(int64=("groups",))
def group_attention(groups: Int[Tensor, " D"], *, own: bool = True) -> Float[Tensor, "D D"]:
    """Returns attention that is uniform on the own group, ``[D, D]``, with or without the patch itself."""
    check_groups(groups)
    same = (groups[:, None] == groups).double() - (
        0.0 if own else torch.eye(len(groups), dtype=torch.float64)
    )
    return same / same.sum(1, keepdim=True)


@converted(int64=("groups",))
def other_group_attention(groups: Int[Tensor, " D"]) -> Float[Tensor, "D D"]:
    """Returns :func:`group_attention` with its rows moved by one group: each patch attends to the next group,
    and those of the last group to the first.
    """
    size = check_groups(groups)
    order = torch.argsort(groups, stable=True)
    S = torch.empty(len(groups), len(groups), dtype=torch.float64)
    S[order] = group_attention(groups)[order.roll(-size)]
    return S


@converted(float64=("S",), int64=("groups",))
def group_mass(S: Float[Tensor, "*batch D D"], groups: Int[Tensor, " D"]) -> Float[Tensor, "*batch"]:
    """Computes the mean weight of a patch on the other patches of its group, as a share of its weight on all
    other patches, ``[*batch]``.

    Uniform attention has :func:`chance`. A row whose weight is all on the diagonal counts as chance.

    Raises:
        ValueError: the groups do not have equal size, or a row of S is no distribution over the patches.
    """
    C = check_weights(S, groups)
    D = len(groups)
    same = (groups[:, None] == groups) & ~torch.eye(D, dtype=torch.bool)
    others = 1 - S.diagonal(dim1=-2, dim2=-1)
    share = (S * same).sum(-1) / others.clamp(min=1e-12)
    return torch.where(others > 1e-9, share, (C - 1) / (D - 1)).mean(-1)


def chance(patches: int, group: int) -> float:
    """Returns (C - 1)/(D - 1), the chance of both the ranking and the mass without the diagonal."""
    integers(group=group)
    integers(patches=patches, minimum=group + 1)
    return (group - 1) / (patches - 1)


@converted(float64=("A",), int64=("groups",))
def group_ranking(A: Float[Tensor, "D D"], groups: Int[Tensor, " D"]) -> float:
    """Computes the mean share of the C - 1 largest entries of a row, without the diagonal, that belong to the
    row's group.

    Entries that are equal to the smallest of them share the remaining places, so that constant rows have
    chance.

    Args:
        A: scores or weights, ``[D, D]``.
        groups: group of each patch, ``[D]``, of equal size.
    Raises:
        ValueError: the groups do not have equal size, or the scores do not fit.
    """
    C, D = check_groups(groups), len(groups)
    if A.shape != (D, D) or not bool(A.isfinite().all()):
        raise ValueError(
            f"A must be finite of shape [{D}, {D}] to fit the groups, got {list(A.shape)}; pass scores or "
            "weights"
        )
    diagonal = torch.eye(D, dtype=torch.bool)
    free = A.masked_fill(diagonal, -torch.inf)
    last = free.topk(C - 1, dim=1).values[:, -1:]
    tolerance = 1e-12 * A.abs().amax().clamp(min=1e-300)
    above, tied = free > last + tolerance, (free - last).abs() <= tolerance
    # chance of a tied entry to be among the largest
    places = (C - 1 - above.sum(1, keepdim=True)) / tied.sum(1, keepdim=True)
    same = (groups[:, None] == groups) & ~diagonal
    return float(((above + tied * places) * same).sum() / (D * (C - 1)))


@dataclass(frozen=True)
class Association:
    """Ranking and mass of the own group, each a share, and the chance of both."""

    ranking: float
    mass: float
    chance: float


@converted(float64=("A",), int64=("groups",))
def patch_association(A: Float[Tensor, "D D"], groups: Int[Tensor, " D"]) -> Association:
    """Computes how a matrix of scores ranks the own group, and how much weight its softmax has there, both
    without the diagonal.

    Args:
        A: scores, ``[D, D]``; the softmax of each row, without the diagonal, are the weights.
        groups: group of each patch, ``[D]``, of equal size.
    Raises:
        ValueError: the groups do not have equal size, or the scores do not fit.
    """
    ranking = group_ranking(A, groups)
    S = torch.softmax(A.masked_fill(torch.eye(len(groups), dtype=torch.bool), -torch.inf), -1)
    return Association(ranking, float(group_mass(S, groups)), chance(len(groups), check_groups(groups)))


@in_range
@converted(float64=("S",), int64=("groups",))
def mean_margin(
    S: Float[Tensor, "D D"], groups: Int[Tensor, " D"], *, q: float, linear: float = LINEAR
) -> float:
    r"""Computes :math:`E[y F(X)]` for v = w.

    With :math:`g_{il} = \sum_{j \in S_l} S_{ij}` and :math:`r_{il} = \sum_{j \notin S_l} S_{ij}^2`,

    .. math:: E[y F] = \frac1L \sum_l \sum_i D^3 (g_{il}^3 + 3 q\, g_{il} r_{il}) + \nu D g_{il}.

    Raises:
        ValueError: the groups do not have equal size, a row of S is no distribution, or a number is out of
            range.
    """
    check_weights(S, groups)
    check_numbers(q=q, linear=linear)
    D = len(groups)
    member = functional.one_hot(torch.unique(groups, return_inverse=True)[1]).double()  # [D, L]
    g, r = S @ member, S.square() @ (1 - member)
    return float((D**3 * (g**3 + 3 * q * g * r) + linear * D * g).sum() / member.shape[1])
