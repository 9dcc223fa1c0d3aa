"""Token ids, which may be numpy arrays, tensors, lists or a file: reading and checks."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..core.reading import check_file, read_array

LIMIT = 2**63  # ids are int64


def read_integers(path: Path) -> np.ndarray:
    """Reads a ``.npy`` file of integers; :func:`integer_tensor` checks that they are.

    Raises:
        FileNotFoundError, PermissionError: see :func:`.check_file`.
        ValueError: it is no file, or no array.
    """
    check_file(path)
    try:
        return read_array(path)
    except ValueError as error:
        raise ValueError(f"{path} must be an array of integers, got {error}") from error


def integer_tensor(values: np.ndarray | Tensor, name: str, *, shape: str) -> Int[Tensor, "..."]:
    """Converts integers to an int64 tensor on the CPU.

    Args:
        values: array, tensor or nested list.
        name: name of the values in error messages.
        shape: names of the dimensions, e.g. ``"[n, context]"``; their number is the required rank.
    Raises:
        ValueError: the values are not integers, do not fit into int64, or have another rank.
    """
    if not isinstance(values, Tensor):
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise ValueError(
                f"{name} must be an array {shape} of integers, got rows of unequal length; cut or pad them"
            ) from error
        if array.dtype.kind not in "iu":
            hint = "convert with .astype(int)" if array.dtype.kind == "f" else "number the tokens from 0"
            raise ValueError(f"{name} must be an array {shape} of integers, got dtype {array.dtype}; {hint}")
        if array.dtype == np.uint64 and array.size and int(array.max()) >= LIMIT:
            raise ValueError(f"{name} must fit into int64, got {int(array.max())}; recode")
        values = torch.from_numpy(array.astype(np.int64))
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(
            f"{name} must be a tensor {shape} of integers, got {values.dtype}; convert with .long()"
        )
    rank = shape.count(",") + 1
    if values.ndim != rank or not values.numel():
        raise ValueError(
            f"{name} must have shape {shape} with at least one of each, got {list(values.shape)}"
        )
    return values.detach().cpu().long()


def sequence_ids(
    ids: np.ndarray | Tensor,
    query_ids: np.ndarray | Tensor,
    next_ids: np.ndarray | Tensor,
    vocab_size: int | None,
) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"], Int[Tensor, " n"], int]:
    """Checks the ids of n sequences, and returns them with the size M of the vocabulary.

    Args:
        ids: contextual tokens, ``[n, context]``.
        query_ids, next_ids: query token and next token of each sequence, ``[n]``.
        vocab_size: M. None: one more than the largest id, and at least 2.
    Raises:
        ValueError: the lengths differ, an id lies outside the vocabulary, or M is invalid; otherwise see
            :func:`integer_tensor`.
    """
    ids = integer_tensor(ids, "ids", shape="[n, context]")
    query_ids, next_ids = (
        integer_tensor(query_ids, "query_ids", shape="[n]"),
        integer_tensor(next_ids, "next_ids", shape="[n]"),
    )
    parts = (("ids", ids), ("query_ids", query_ids), ("next_ids", next_ids))
    for name, values in parts:
        if len(values) != len(ids):
            raise ValueError(
                f"{name} must have one entry for each of the {len(ids)} sequences, got {len(values)}; pass "
                "arrays of one length"
            )
    M = (
        max(2, 1 + max(int(values.max()) for _, values in parts))
        if vocab_size is None
        else count_of_tokens(vocab_size)
    )
    for name, values in parts:
        extreme = int(values.min()) if int(values.min()) < 0 else int(values.max())
        if not 0 <= extreme < M:
            hint = "number the tokens from 0" if extreme < 0 else "pass a larger vocab_size or recode"
            raise ValueError(f"{name} must lie in [0, {M}), got {extreme}; {hint}")
    return ids, query_ids, next_ids, M


def count_of_tokens(vocab_size: int) -> int:
    """Converts the size M of a vocabulary to a Python int.

    Raises:
        ValueError: ``vocab_size`` is not an integer in [2, 2**63].
    """
    if (
        isinstance(vocab_size, bool)
        or not isinstance(vocab_size, int | np.integer)
        or not 2 <= vocab_size <= LIMIT
    ):
        raise ValueError(f"vocab_size must be an integer of at least 2 and at most 2**63, got {vocab_size!r}")
    return int(vocab_size)
