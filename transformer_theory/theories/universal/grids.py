r"""The grid of Yun et al.: sequences whose entries are multiples of :math:`\delta = 1/k`, and the codes of
their columns.

A *grid* is a sequence of n tokens in :math:`\{0, \delta, \dots, 1-\delta\}^d`. All numbers are in units of
:math:`\delta`, so a grid is an array of integers ``[n, d]`` in [0, k). The paper writes tokens as columns;
here they are rows. With :math:`u = (1, k, \dots, k^{d-1})` the code of a token is :math:`l_j = u^\top x_j`,
an integer in :math:`[0, k^d)`, and different tokens have different codes.

The cube of a grid is half-open, :math:`[L, L + \delta)` in every entry, so that each point of :math:`[0,
1)^{n \times d}` lies in one cube. Source: :cite:t:`yun2020transformers`.
"""

import math
from fractions import Fraction
from numbers import Rational, Real
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Shaped

from ...core.validation import integers

MAX_GRIDS = 1_000_000  # largest number of grids that are enumerated
# far below what can be enumerated; avoids that a float near zero becomes a huge integer
SMALLEST_DELTA = 1e-6

Codes: TypeAlias = np.ndarray
"""Integers ``[*grids, n]``: int64 if every code that can occur fits, otherwise Python integers (dtype
object).
"""


def resolution(delta: object) -> int:
    r"""Returns :math:`k = 1/\delta`.

    >>> resolution(0.25)
    4

    Args:
        delta: width of a cube, 1/k for an integer k >= 2; a float, or a ``Fraction``.
    Raises:
        ValueError: ``delta`` is not 1/k.
        TypeError: ``delta`` is not a number.
    """
    if isinstance(delta, bool) or not isinstance(delta, Real):
        raise TypeError(f"delta must be a number, got {type(delta).__name__}; pass e.g. delta=1/4")
    value = float(delta)
    k = round(1 / value) if SMALLEST_DELTA <= value <= 1 else 0
    # a float32 is 1/k up to its rounding
    if k < 2 or abs(value * k - 1) > (1e-9 if isinstance(delta, float | Rational) else 1e-6):
        near = max(2, k)
        raise ValueError(
            f"delta must be 1/k for an integer k >= 2, so that cubes tile [0, 1), got {delta}; pass e.g. "
            f"delta=1/{near}"
        )
    return k


def number_of_grids(k: int, d: int, n: int) -> int:
    """Returns k^(dn), the number of grids.

    Raises:
        ValueError: a size is below 1.
        TypeError: a size is not an integer.
    """
    integers(k=k, d=d, n=n)
    return int(k) ** (int(d) * int(n))


def all_grids(k: int, d: int, n: int) -> Shaped[np.ndarray, "grids n d"]:
    """Enumerates all grids in lexicographic order, integers ``[k^(dn), n, d]`` in units of delta.

    Raises:
        ValueError: there are more than :data:`MAX_GRIDS`; the message states how many, and sizes that would
            do.
    """
    k, d, n = int(k), int(d), int(n)
    count = number_of_grids(k, d, n)
    if count > MAX_GRIDS:
        fitting_n = math.floor(math.log(MAX_GRIDS) / (d * math.log(k)) + 1e-9)
        fitting_k = math.floor(MAX_GRIDS ** (1 / (d * n)) + 1e-9)
        hints = [f"n <= {fitting_n}"] * (fitting_n >= 1) + [f"delta >= 1/{fitting_k}"] * (fitting_k >= 2)
        advice = "pass " + " or ".join(hints) if hints else "lower d or n"
        shown = f"{count:,}" if count < 10**15 else f"about 1e{math.floor(d * n * math.log10(k))}"
        raise ValueError(
            f"at most {MAX_GRIDS:,} grids can be enumerated, got {k}^({d} * {n}) = {shown}; {advice}"
        )
    digits = np.arange(count)[:, None] // k ** np.arange(d * n)[::-1] % k
    return digits.reshape(count, n, d)


def column_codes(tokens: Any, k: int) -> Shaped[np.ndarray, "*grids n"]:
    """Computes the codes of tokens, l_j = u^T x_j with u = (1, k, ..., k^(d-1)), in the dtype of the tokens
    ``[*grids, n, d]``.
    """
    tokens = np.asarray(tokens)
    return (tokens * powers(k, tokens.shape[-1], tokens.dtype)).sum(-1)


def powers(k: int, d: int, dtype: Any = object) -> Shaped[np.ndarray, " d"]:
    """Returns u = (1, k, ..., k^(d-1)), ``[d]``."""
    return np.array([k**i for i in range(d)], dtype=object).astype(dtype)


def has_distinct_tokens(grids: Any, k: int) -> Shaped[np.ndarray, "*grids"]:
    """Returns whether the tokens of each grid are pairwise distinct: the grids that Lemma 6 of the paper
    covers.
    """
    ordered = np.sort(column_codes(grids, k), axis=-1)
    return (ordered[..., 1:] != ordered[..., :-1]).all(-1)


def excluded_share(k: int, d: int, n: int) -> Fraction:
    r"""Returns the share of grids with a repeated token, :math:`1 - \frac{(k^d)!}{(k^d - n)!\, k^{dn}}`,
    exactly; 1 if n exceeds k^d.

    >>> excluded_share(4, 1, 3)
    Fraction(5, 8)

    For large k it is about :math:`\binom n2 \delta^d`.

    Raises:
        ValueError: a size is below 1.
    """
    integers(k=k, d=d, n=n)
    return 1 - Fraction(math.perm(k**d, n), number_of_grids(k, d, n))


def contexts(grids: Any, k: int) -> Shaped[np.ndarray, "grids n"]:
    """Numbers the tokens in context: two tokens have the same number if they are equal and their grids are
    permutations of one another.

    Returns:
        Integers from 0, ``[grids, n]``.
    """
    codes = column_codes(grids, k)
    _, multiset = np.unique(np.sort(codes, axis=-1), axis=0, return_inverse=True)
    pairs = np.stack([np.broadcast_to(multiset.reshape(-1, 1), codes.shape), codes], axis=-1)
    _, number = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    return number.reshape(codes.shape)


def collisions(number: Shaped[np.ndarray, "grids n"], codes: Codes) -> int:
    """Counts by how many the contexts outnumber their codes: 0 if every token in context has a code of its
    own.

    Args:
        number: what must have different codes, e.g. :func:`contexts`; equal numbers may share a code.
        codes: codes of the tokens, ``[grids, n]``.
    Raises:
        ValueError: the shapes differ.
    """
    if number.shape != codes.shape:
        raise ValueError(
            f"number and codes must have one shape, got {list(number.shape)} and {list(codes.shape)}"
        )
    # Numbers are few and small; codes may be Python integers, which np.unique sorts as well.
    pairs = {(int(one), code) for one, code in zip(number.ravel(), codes.ravel().tolist())}
    return len(pairs) - len({code for _, code in pairs})
