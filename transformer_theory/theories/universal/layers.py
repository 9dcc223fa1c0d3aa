r"""The layers of the construction, with explicit weights, and their evaluation in any arithmetic.

All numbers are in units of :math:`\delta`. A layer adds its output to the tokens :math:`z_1, \dots, z_n`:

.. math:: z_j \leftarrow z_j + \sum_h o_h\, v_h^\top z_{m_h(j)}, \qquad m_h(j) = \arg\max_k\; (w_h^\top z_j -
    b_h)\,(w_h^\top z_k)

for attention, and for the feed-forward part

.. math:: z_j \leftarrow z_j + W_2\, \mathrm{relu}(W_1 z_j + b_1).

A head of size one with query :math:`w^\top z_j - b`, key and value :math:`w^\top z_k` returns the largest
:math:`w^\top z_k` to tokens with :math:`w^\top z_j > b` and the smallest to the others. The difference of two
such heads moves only the tokens between two thresholds. Thresholds are half-integers, stored as twice their
value, so that integers suffice and no comparison is a tie.

**Softmax.** At inverse temperature :math:`\beta`, in the paper's units, the scores are multiplied by
:math:`\beta \delta^2`. Source: :cite:t:`yun2020transformers`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

Tokens = Shaped[np.ndarray, "*grids n d"]


@dataclass(frozen=True, eq=False)
class Head:
    """A head of size one.

    Attributes:
        weight: w, the common vector of query, key and value, ``[d]``.
        twice_threshold: 2b, an odd integer.
        output: o, ``[d]``.
    """

    weight: Shaped[np.ndarray, " d"]
    twice_threshold: int
    output: Shaped[np.ndarray, " d"]

    @property
    def parameters(self) -> int:
        """Number of weights: query, key, value and output vectors, and the threshold."""
        return 4 * len(self.weight) + 1


@dataclass(frozen=True, eq=False)
class Attention:
    """A layer of attention: a sum of heads, added to its input.

    Attributes:
        heads: its heads.
    """

    heads: tuple[Head, ...]

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(head.parameters for head in self.heads)

    def __call__(self, tokens: Tokens, *, scale: float | None = None) -> Tokens:
        """Applies the layer in the dtype of the tokens.

        Args:
            tokens: ``[*grids, n, d]``; integers, Python integers or fractions (dtype object), or floats.
            scale: factor of the scores of softmax attention; None: hard-max attention.
        """
        out = tokens
        for head in self.heads:
            keys = (tokens * head.weight.astype(tokens.dtype)).sum(-1)  # w^T z, [*grids, n]
            chosen = (
                _hard(keys, head.twice_threshold)
                if scale is None
                else _soft(keys, head.twice_threshold, scale)
            )
            out = out + chosen[..., None] * head.output.astype(tokens.dtype)
        return out


def _hard(keys: np.ndarray, twice_threshold: int) -> np.ndarray:
    """Returns the value at the largest score. Keys are values, so ties do not matter, and the sign of the
    query decides.
    """
    return np.where(2 * keys > twice_threshold, keys.max(-1, keepdims=True), keys.min(-1, keepdims=True))


def _soft(keys: np.ndarray, twice_threshold: int, scale: float) -> np.ndarray:
    """Returns the softmax mean of the values, in the dtype of the keys."""
    query = keys - keys.dtype.type(twice_threshold / 2)
    scores = (query[..., :, None] * keys[..., None, :]) * keys.dtype.type(scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights * keys[..., None, :]).sum(-1)


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A feed-forward layer with ReLUs, added to its input.

    Attributes:
        inner: W_1, ``[width, d]``.
        bias: b_1, ``[width]``.
        outer: W_2, ``[d, width]``.
    """

    inner: np.ndarray
    bias: np.ndarray
    outer: np.ndarray

    @property
    def width(self) -> int:
        """Number of hidden units."""
        return len(self.bias)

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return self.inner.size + self.bias.size + self.outer.size

    def __call__(self, tokens: Tokens) -> Tokens:
        """Applies the layer to ``[*grids, n, d]``. The weights are cast to the dtype of the tokens."""
        inner, bias, outer = (part.astype(tokens.dtype) for part in (self.inner, self.bias, self.outer))
        hidden = tokens @ inner.T + bias
        return tokens + np.where(hidden > 0, hidden, hidden * 0) @ outer.T


Layer = Attention | FeedForward


def run(layers: Iterable[Layer], tokens: Tokens, *, scale: float | None = None) -> Tokens:
    """Applies layers in order to tokens ``[*grids, n, d]`` in units of delta; ``scale`` is that of
    :meth:`Attention.__call__`.
    """
    for layer in layers:
        tokens = layer(tokens, scale=scale) if isinstance(layer, Attention) else layer(tokens)
    return tokens


def selective_shift(weight: np.ndarray, t: int, output: np.ndarray) -> Attention:
    """Moves the tokens with w^T z = t by output * (max - min) of w^T z, and no others: one layer of two
    heads.

    Args:
        weight: w, ``[d]``.
        t: an integer.
        output: o, ``[d]``.
    """
    # Tokens above both thresholds receive max - max, those below both min - min; those between them receive
    # max - min.
    return Attention((Head(weight, 2 * t - 1, output), Head(weight, 2 * t + 1, -output)))


def global_shift(weight: np.ndarray, output: np.ndarray) -> Attention:
    """Moves all tokens by output * max of w^T z, one layer of one head; w^T z must not be negative."""
    return Attention((Head(weight, -1, output),))


def quantiser(index: int, t: int, d: int, *, ramp: float) -> FeedForward:
    r"""Maps entry ``index`` from :math:`[t, t+1)` to t: the function -s on [0, 1), 0 elsewhere, of s = z - t,
    with three ReLUs.

    ReLUs cannot jump: the function returns to 0 linearly on :math:`[1 - \text{ramp}, 1)`.

    Args:
        index: coordinate of the token, in [0, d).
        t: lower end of the interval, in units of delta.
        d: dimension of the tokens.
        ramp: width of the interval on which the layer is not exact, in units of delta.
    """
    slope = (1 - ramp) / ramp
    inner, outer = np.zeros((3, d)), np.zeros((d, 3))
    inner[:, index] = 1.0
    outer[index] = (-1.0, 1 + slope, -slope)
    return FeedForward(inner, -t - np.array([0.0, 1 - ramp, 1.0]), outer)


def value_step(weight: np.ndarray, code: int, move: np.ndarray) -> FeedForward:
    r"""Adds ``move`` to the tokens with :math:`|w^\top z - \text{code}| \le 1/4`, and nothing beyond 1/2: a
    bump of four ReLUs.

    Args:
        weight: w, ``[d]``.
        code: centre of the bump.
        move: vector ``[d]``.
    """
    ends = np.array([-2, -1, 1, 2], dtype=object)  # in quarters; exact in every arithmetic
    inner = np.stack([weight.astype(object)] * 4) * 4
    bias = -4 * int(code) - ends
    return FeedForward(inner, bias, np.outer(move.astype(object), np.array([1, -1, -1, 1], dtype=object)))
