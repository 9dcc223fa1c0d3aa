"""Selection of the most frequent ids, and of a random subset of the sequences, from data sets for next-token
prediction.
"""

import torch
from jaxtyping import Int
from torch import Generator, Tensor


def most_frequent(ids: Int[Tensor, " n"], number: int, *, min_count: int = 1) -> Int[Tensor, " selected"]:
    """Returns the most frequent ids, most frequent first; among equally frequent ids, the smaller comes
    first.

    Args:
        ids: integers, ``[n]``.
        number: largest number of ids to return.
        min_count: smallest number of occurrences of a returned id.
    """
    values, counts = ids.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:number]
    return values[order[counts[order] >= min_count]]


def subsample(rows: Int[Tensor, " n"], limit: int, generator: Generator) -> Int[Tensor, " selected"]:
    """Draws ``limit`` random rows and returns them in their original order; returns all rows if there are at
    most ``limit``.

    Args:
        rows: row indices, ``[n]``.
        limit: largest number of rows to return.
        generator: source of the random subset.
    """
    if len(rows) <= limit:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:limit]].sort().values
