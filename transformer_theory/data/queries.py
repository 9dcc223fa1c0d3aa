"""Selection from data sets of next tokens: the most frequent ids, and a random subset of the sequences."""

import torch
from jaxtyping import Int
from torch import Generator, Tensor


def most_frequent(ids: Int[Tensor, " n"], number: int, *, min_count: int = 1) -> Int[Tensor, " selected"]:
    """The most frequent ids, most frequent first; of equally frequent ones the smaller id comes first.

    Args:
        ids: any integers, ``[n]``.
        number: largest number of ids to return.
        min_count: occurrences below which an id is omitted.
    """
    values, counts = ids.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:number]
    return values[order[counts[order] >= min_count]]


def subsample(rows: Int[Tensor, " n"], limit: int, generator: Generator) -> Int[Tensor, " selected"]:
    """``limit`` random rows in their original order; all of them, without a draw, if there are no more than that.

    Args:
        rows: numbers of the rows, ``[n]``.
        limit: largest number of rows to return.
        generator: draws the subset.
    """
    if len(rows) <= limit:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:limit]].sort().values
