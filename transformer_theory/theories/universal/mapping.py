r"""The contextual mapping: attention layers that give every token of every grid a code of its own.

With :math:`S = k^d` and the codes of the tokens :math:`l_1 < \dots < l_n` in increasing order, a *selective
shift* for t = 0, 1, ... moves the tokens with :math:`l = t` by :math:`S (\max_k l_k - \min_k l_k)`. After all
of them

.. math:: \tilde l_1 = l_1 + S (l_n - l_1), \qquad \tilde l_j = l_j + S (\tilde l_{j-1} - l_j), \quad j = 2,
    \dots, n .

A *global shift* adds :math:`F \max_k \tilde l_k` to every token, with F larger than every :math:`\tilde l_k`.
So the code :math:`q_j = \tilde l_j + F \tilde l_n` of one token determines :math:`\tilde l_n`, hence
:math:`l_n = \tilde l_n \bmod S`, and backwards all other :math:`l_j`: any two tokens whose grids are not
permutations of one another have different codes.

**The factor.** :math:`\tilde l_n \le S^n l_n`, so :math:`F = S^n (1 + \max l)` suffices. Without positions
this is the paper's :math:`S^{n+1}`. With positions :math:`\max l` is larger, and :math:`S^{n+1}` is not
always enough: for (k, d, n) = (5, 1, 3) the third token of (0, 2, 2) and the first of (2, 4, 4) have the same
code.

**Which grids.** Without positions the tokens of a grid must be distinct. With positions, :math:`E_j = (j -
1)\,(1, \dots, 1)`, the codes of the j-th tokens lie in a window of their own, since two windows are :math:`k
+ k^2 + \dots + k^d \ge S` apart; then every grid is covered. (For n = 2, d = 1 the grid (k - 1, 0) is moved
twice, since its first token arrives in the second window. Its codes are still its own.) Source:
:cite:t:`yun2020transformers`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Shaped

from ...core.validation import as_tensor, integers, positive
from .grids import Codes, all_grids, column_codes, has_distinct_tokens, powers, resolution
from .layers import Attention, global_shift, run, selective_shift

Positions = Literal["none", "integers", "steps"]
"""Added to the j-th token, j = 1, ..., n, in every entry.

- none: nothing (Theorem 2, permutation-equivariant functions);
- integers: j - 1 (Theorem 3), so that the windows of different j are disjoint;
- steps: (j - 1) delta, for comparison: the windows overlap.
"""


def floating(dtype: Any) -> np.dtype:
    """Returns a floating dtype of numpy.

    Raises:
        TypeError: it is another one; integers of fixed size would overflow without a word.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind != "f":
        raise TypeError(
            f"dtype must be None (exact integers) or a floating dtype of numpy, got {dtype}; pass e.g. "
            "dtype=np.float64"
        )
    return found


INT64_BITS = 62  # codes are doubled when they are compared with half-integers, and int64 has 63 bits


@dataclass(frozen=True)
class ContextualMapping:
    r"""The attention layers of the construction.

    >>> mapping = ContextualMapping(d=1, n=3, delta=1 / 4)
    >>> len(mapping.layers()), mapping.codes([[[0], [1], [3]]]).tolist()
    (5, [[43788, 43821, 43947]])

    Attributes:
        d: dimension of the tokens.
        n: number of tokens.
        delta: width of a cube, 1/k.
        positions: what is added to the tokens (:data:`Positions`).
        global_factor: F of the global shift; None: S^n (1 + max l), which suffices.

    Raises:
        ValueError: a size is below 1, ``delta`` is not 1/k, or ``positions`` is unknown.
        TypeError: a size is not an integer.
    """

    d: int
    n: int
    delta: Any
    positions: Positions = "none"
    global_factor: int | None = None

    def __post_init__(self):
        integers(d=self.d, n=self.n, global_factor=1 if self.global_factor is None else self.global_factor)
        for name in ("d", "n", "global_factor"):  # integers of numpy would overflow
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))
        if self.positions not in get_args(Positions):
            raise ValueError(
                f"positions must be one of {', '.join(map(repr, get_args(Positions)))}, got "
                f"{self.positions!r}"
            )
        resolution(self.delta)

    @cached_property
    def k(self) -> int:
        """Number of values of an entry, 1/delta."""
        return resolution(self.delta)

    @property
    def states(self) -> int:
        """S = k^d, the number of different tokens."""
        return self.k**self.d

    @property
    def step(self) -> int:
        """Difference of the positions of successive tokens in every entry, in units of delta."""
        return {"none": 0, "integers": self.k, "steps": 1}[self.positions]

    @property
    def offset(self) -> int:
        """Distance of the windows of the codes of successive tokens, in units of delta."""
        return self.step * sum(self.k**i for i in range(self.d))

    @property
    def top(self) -> int:
        """Largest code of a token before the attention layers."""
        return self.states - 1 + (self.n - 1) * self.offset

    @property
    def range(self) -> int:
        """S^n (1 + top): a bound above every code before the global shift, and the global factor that
        suffices.
        """
        return self.states**self.n * (self.top + 1)

    @property
    def factor(self) -> int:
        """F, the factor of the global shift."""
        return self.range if self.global_factor is None else self.global_factor

    @property
    def largest_code(self) -> int:
        """An upper bound on the codes."""
        return self.range * (1 + self.factor)

    @property
    def dtype(self) -> Any:
        """The dtype of the codes: int64, or object (Python integers) if they may exceed 62 bits."""
        return np.int64 if self.largest_code.bit_length() <= INT64_BITS else object

    def grids(self) -> Shaped[np.ndarray, "grids n d"]:
        """Enumerates all grids, see :func:`.all_grids`.

        Raises:
            ValueError: there are too many.
        """
        return all_grids(self.k, self.d, self.n)

    def layers(self) -> tuple[Attention, ...]:
        """Returns the selective shifts in increasing order of t, and the global shift.

        Without positions these are k^d + 1 layers. With integer positions t runs over the n windows, which
        gives n k^d + 1 layers; shifts for the codes between two windows would move nothing.
        """
        u = powers(self.k, self.d)
        first = np.array([1] + [0] * (self.d - 1), dtype=object)
        windows = [range(j * self.offset, j * self.offset + self.states) for j in range(self.n)]
        scanned = sorted({t for window in windows for t in window})
        shifts = [selective_shift(u, t, first * self.states) for t in scanned]
        return (*shifts, global_shift(u, first * self.factor))

    def embed(self, grids: Any, *, dtype: Any = None) -> Shaped[np.ndarray, "*grids n d"]:
        """Adds the positions to grids.

        Args:
            grids: integers in [0, k), ``[*grids, n, d]``; arrays, tensors or lists.
            dtype: ``np.float64`` or another floating dtype. None: :attr:`dtype`, which holds all codes
                exactly.
        Raises:
            ValueError: the shape does not fit, or an entry is not an integer in [0, k).
            TypeError: ``dtype`` is not a floating dtype of numpy.
        """
        dtype = self.dtype if dtype is None else floating(dtype)
        tokens = as_tensor("grids", grids).numpy(force=True)
        if tokens.shape[-2:] != (self.n, self.d) or tokens.ndim < 2:
            raise ValueError(
                f"grids must have shape [*grids, {self.n}, {self.d}], got {list(tokens.shape)}; reshape them"
            )
        if tokens.size and (tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= self.k):
            found = (
                f"{tokens.dtype}" if tokens.dtype.kind not in "iu" else f"{tokens.min()} to {tokens.max()}"
            )
            raise ValueError(
                f"grids must hold integers in [0, {self.k}), in units of delta, got {found}; quantise them "
                "first"
            )
        return (tokens.astype(np.int64) + self.step * np.arange(self.n)[:, None]).astype(dtype)

    def run(
        self, grids: Any, *, dtype: Any = None, inverse_temperature: float | None = None
    ) -> Shaped[np.ndarray, "*grids n d"]:
        r"""Applies the attention layers to grids, and returns the tokens, ``[*grids, n, d]``, in units of
        delta.

        Args:
            grids: as in :meth:`embed`.
            dtype: arithmetic: None for exact integers, ``np.float64`` or ``np.float32``.
            inverse_temperature: :math:`\beta` of softmax attention, in the units of the paper; None: hard-max
                attention.
        Raises:
            ValueError: the grids do not fit, softmax attention is asked for in integers, or
                ``inverse_temperature`` is not positive.
        """
        tokens = self.embed(grids, dtype=dtype)
        if inverse_temperature is None:
            return run(self.layers(), tokens)
        positive(inverse_temperature=inverse_temperature)
        if dtype is None:
            raise ValueError("softmax attention needs a floating dtype, got None; pass dtype=np.float64")
        return run(self.layers(), tokens, scale=float(inverse_temperature) / self.k**2)

    def codes(self, grids: Any, *, dtype: Any = None, inverse_temperature: float | None = None) -> Codes:
        """Computes the codes q_j = u^T z_j after the attention layers, ``[*grids, n]``; for the arguments see
        :meth:`run`.
        """
        return column_codes(self.run(grids, dtype=dtype, inverse_temperature=inverse_temperature), self.k)

    def decode(self, codes: Codes) -> Shaped[np.ndarray, "codes n"]:
        r"""Recovers the increasing token codes of the whole sequence from the code of one of its tokens.

        :math:`\lfloor q / F \rfloor = \tilde l_n`. With b_j the start of the window of the j-th token (0
        without positions), :math:`l_j = b_j + (\tilde l_j - b_j) \bmod S` and :math:`\tilde l_{j-1} = l_j +
        (\tilde l_j - l_j) / S`.

        Args:
            codes: codes of tokens of covered grids, ``[codes]``.
        Returns:
            The codes l_1 < ... < l_n of the tokens, ``[codes, n]``.
        Raises:
            ValueError: a number is not the code of a token of a covered grid, the windows overlap, the factor
                is too small, or (n, d) = (2, 1) with positions, where a token moves twice.
        """
        if (
            self.positions == "steps"
            or self.factor < self.range
            or (self.positions != "none" and (self.n, self.d) == (2, 1))
        ):
            raise ValueError(
                f"decoding needs disjoint windows, a global factor of at least {self.range} and no token "
                f"that moves twice, got positions={self.positions!r}, factor {self.factor}, (n, d) = "
                f"({self.n}, {self.d}); use positions='none', or n >= 3"
            )
        codes = np.asarray(codes)
        found = self.unrolled(codes)
        entries = (found - self.offset * np.arange(self.n))[..., None] // powers(self.k, self.d) % self.k
        known = (self.codes(entries.astype(np.int64)) == codes[..., None]).any(-1)  # encoded again
        if self.positions == "none":
            known &= has_distinct_tokens(entries, self.k)
        if not known.all():
            raise ValueError(f"codes must be those of tokens of covered grids, got {codes[~known][0]}")
        return found

    def unrolled(self, codes: Codes) -> Shaped[np.ndarray, "codes n"]:
        """Applies the formulas of :meth:`decode` to any integers, without a check."""
        shifted, tokens = codes // self.factor, []
        for j in reversed(range(self.n)):
            start = j * self.offset
            token = start + (shifted - start) % self.states
            tokens.append(token)
            shifted = token + (shifted - token) // self.states
        return np.stack(tokens[::-1], axis=-1)
