r"""Ids of tokens as anyone gives them: whole numbers, numpy or torch, of one vocabulary.

Source: textbook.
"""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

END = 2**63  # ids are int64


def whole_numbers(values: np.ndarray | Tensor, name: str, *, shape: str) -> Int[Tensor, "..."]:
    """Ids as an int64 tensor on the CPU.

    Args:
        values: an array, a tensor, or what numpy makes an array of.
        name: for the error.
        shape: in words, one part a dimension: ``"[n, context]"``.
    Raises:
        ValueError: they are no whole numbers, too large for int64, or of another rank.

    Source: textbook.
    """
    if not isinstance(values, Tensor):
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise ValueError(f"{name} must be an array {shape} of whole numbers, got rows of unequal length; cut or pad them") from error
        if array.dtype.kind not in "iu":
            hint = "convert with .astype(int)" if array.dtype.kind == "f" else "number the tokens from 0"
            raise ValueError(f"{name} must be an array {shape} of whole numbers, got dtype {array.dtype}; {hint}")
        if array.dtype == np.uint64 and array.size and int(array.max()) >= END:
            raise ValueError(f"{name} must fit into int64, got {int(array.max())}; recode")
        values = torch.from_numpy(array.astype(np.int64))
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} must be a tensor {shape} of whole numbers, got {values.dtype}; convert with .long()")
    rank = shape.count(",") + 1
    if values.ndim != rank or not values.numel():
        raise ValueError(f"{name} must have shape {shape} with at least one of each, got {list(values.shape)}")
    return values.detach().cpu().long()


def sequence_ids(
    ids: np.ndarray | Tensor, query_ids: np.ndarray | Tensor, next_ids: np.ndarray | Tensor, vocab_size: int | None
) -> tuple[Int[Tensor, "n context"], Int[Tensor, " n"], Int[Tensor, " n"], int]:
    """The ids of n sequences, checked, and M.

    Args:
        ids: contextual tokens, ``[n, context]``.
        query_ids, next_ids: the token that asks and the one that follows, ``[n]``.
        vocab_size: M; one more than the largest id, and at least 2, if None.
    Raises:
        ValueError: see :func:`whole_numbers`; lengths that differ, an id outside the vocabulary, or one that is no number of tokens.

    Source: textbook.
    """
    ids = whole_numbers(ids, "ids", shape="[n, context]")
    query_ids, next_ids = whole_numbers(query_ids, "query_ids", shape="[n]"), whole_numbers(next_ids, "next_ids", shape="[n]")
    given = (("ids", ids), ("query_ids", query_ids), ("next_ids", next_ids))
    for name, values in given:
        if len(values) != len(ids):
            raise ValueError(f"{name} must have one entry for each of the {len(ids)} sequences, got {len(values)}; cut them alike")
    M = max(2, 1 + max(int(values.max()) for _, values in given)) if vocab_size is None else count_of_tokens(vocab_size)
    for name, values in given:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        if not 0 <= wrong < M:
            mend = "number the tokens from 0" if wrong < 0 else "pass a larger vocab_size or recode"
            raise ValueError(f"{name} must lie in [0, {M}), got {wrong}; {mend}")
    return ids, query_ids, next_ids, M


def count_of_tokens(vocab_size: int) -> int:
    """M as a Python int.

    Raises:
        ValueError: it is no whole number in [2, 2**63].

    Source: textbook.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int | np.integer) or not 2 <= vocab_size <= END:
        raise ValueError(f"vocab_size must be a whole number of at least 2 and at most 2**63, got {vocab_size!r}")
    return int(vocab_size)
