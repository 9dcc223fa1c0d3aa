"""Random splits in two parts that every class contributes its share to."""

import torch
from jaxtyping import Int
from torch import Tensor


def stratified(
    n: int, labels: Int[Tensor, " n"] | None, share: float, generator: torch.Generator, *, what: str
) -> tuple[Int[Tensor, " first"], Int[Tensor, " second"]]:
    """Positions of the first part, with ``share`` of all n, and of the second, each in ascending order.

    Args:
        labels: class of each, ``[n]``; None where there are none.
        what: they are, for the error.
    Raises:
        ValueError: the share leaves one part empty.
    """
    order = torch.randperm(n, generator=generator)
    if labels is not None:
        order = order[torch.argsort(labels[order], stable=True)]
    # every class contributes its share: deal the sorted ones out evenly
    dealt = torch.floor(torch.arange(n + 1, dtype=torch.float64) * share + 1e-9)
    deal = dealt[1:] > dealt[:-1]
    first, second = order[deal], order[~deal]
    if not len(first) or not len(second):
        raise ValueError(f"share must leave {what} on both sides, got {share} of {n}; choose a share inside (0, 1)")
    return first.sort().values, second.sort().values
