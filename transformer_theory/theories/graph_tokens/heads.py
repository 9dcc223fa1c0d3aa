r"""Explicit attention heads, one for each pattern.

The head of the pattern :math:`\mu` scores the key j for the query i by

.. math:: s(i, j) = \sum_{x, y \in \{1, 2\}} \sigma_{xy} \langle P_{i_x}, P_{j_y} \rangle + 2 \sigma_{jj}\,
    t_j = z_j^\top W_\mu z_i ,

where :math:`\sigma_{xy} = 1` if :math:`\mu` sets :math:`i_x = j_y` and -1 otherwise, :math:`\sigma_{jj}`
likewise for :math:`j_1 = j_2`, and :math:`t_j = 1` for a node and -1 for an edge. For orthonormal identifiers
and a query of the right type the largest scores are exactly those of the keys of :math:`\mu`, by a gap of at
least 1. So :math:`\mathrm{softmax}(a s)` tends to the row-normalised pattern:

.. math:: |A_{ij} - \bar B^\mu_{ij}| \le n^2 e^{-a} .

*Equal inner products suffice.* If :math:`P P^\top = \alpha I + \beta\, 1 1^\top`, then :math:`\beta` adds the
same number to all keys of a query and the scores of identifiers are multiplied by :math:`\alpha`. So n - 1
dimensions are enough, :class:`~.identifiers.Simplex`.

Source: :cite:t:`kim2022pure`; the scores, the gap and the last remark are the library's own.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import converted, full_precision, in_range, number
from .identifiers import GraphTokens
from .patterns import PATTERNS, Pattern, normalised_patterns

# units of rounding by which equal scores of hard-max attention may differ: in bfloat16 .5, half of the gap
TIE = 64
MAX_SCALE = 1e30  # largest a whose products with scores are finite in float32 and bfloat16


def pattern_head(pattern: Pattern, width: int) -> Float[Tensor, "address address"]:
    r"""Returns the matrix W of the head of a pattern, score :math:`z_j^\top W z_i` for key j and query i.

    Args:
        pattern: one of :func:`.equivalence_patterns`.
        width: number d of dimensions of the identifiers; W is ``[2 d + 2, 2 d + 2]``.
    """
    W = torch.zeros(2 * width + 2, 2 * width + 2, dtype=torch.float64)
    # Rows belong to the key: block (y, x) compares the key's node y with the query's node x.
    W[: 2 * width, : 2 * width] = torch.kron(
        pattern.signs.mT.contiguous(), torch.eye(width, dtype=torch.float64)
    )
    # The query's type identifier has the sum 1, a constant. The key's type t_j is the difference of its two
    # entries.
    prefers_nodes = 1.0 if pattern.key == "node" else -1.0
    W[2 * width, 2 * width :], W[2 * width + 1, 2 * width :] = 2 * prefers_nodes, -2 * prefers_nodes
    return W


def pattern_heads(width: int) -> Float[Tensor, "15 address address"]:
    """Returns the matrices of all fifteen heads, ``[15, 2 d + 2, 2 d + 2]``, for identifiers of ``width`` = d
    dimensions.
    """
    return torch.stack([pattern_head(pattern, width) for pattern in PATTERNS])


@in_range
@full_precision
def head_scores(
    tokens: GraphTokens, heads: Float[Tensor, "heads address address"] | None = None
) -> Float[Tensor, "heads tokens tokens"]:
    """Returns the scores ``[heads, queries, keys]`` in the dtype of the tokens.

    Args:
        tokens: tokens of one graph.
        heads: matrices W. None: those of :func:`pattern_heads`, without forming them, which would take O(d^2)
            memory.
    """
    if heads is not None:
        z = tokens.addresses
        return z @ heads.to(z.dtype).mT @ z.mT
    first, second = tokens.structure.chunk(2, dim=1)
    # [x, y, queries, keys]
    products = torch.stack([torch.stack([i @ j.mT for j in (first, second)]) for i in (first, second)])
    signs = torch.stack([pattern.signs for pattern in PATTERNS]).to(products.dtype)
    prefers_nodes = torch.tensor(
        [1.0 if pattern.key == "node" else -1.0 for pattern in PATTERNS], dtype=products.dtype
    )
    t = tokens.types[:, 0] - tokens.types[:, 1]
    return torch.einsum("pxy,xyij->pij", signs, products) + 2 * prefers_nodes[:, None, None] * t


@full_precision
def attention_maps(tokens: GraphTokens, *, scale: float) -> Float[Tensor, "15 tokens tokens"]:
    r"""Computes the attention :math:`\mathrm{softmax}_j(a\, s(i, j))` of the fifteen heads, ``[15, queries,
    keys]``.

    Args:
        tokens: tokens of one graph.
        scale: a > 0. With ``math.inf``, the limit: uniform over the keys of the largest score (hard-max).
    Raises:
        TypeError: the argument is not the tokens of a graph, or the scale is not a number.
        ValueError: the scale is not positive, or too large for floating point.
    """
    if not isinstance(tokens, GraphTokens):
        raise TypeError(
            f"tokens must be GraphTokens, got {type(tokens).__name__}; pass tokenize_graph(graph)"
        )
    if not 0 < number("scale", scale) <= MAX_SCALE and scale != math.inf:
        raise ValueError(
            f"scale must be in (0, {MAX_SCALE:g}], got {scale}; pass e.g. scale=20, or math.inf for "
            "hard-max attention"
        )
    scores = head_scores(tokens)
    if scale < math.inf:
        return (scale * scores).softmax(-1)
    largest = scores >= scores.amax(-1, keepdim=True) - TIE * torch.finfo(scores.dtype).eps
    return largest / largest.sum(-1, keepdim=True).to(scores.dtype)


def query_rows(n: int) -> Bool[Tensor, "15 pairs"]:
    """Returns which of the n^2 dense tokens are queries of the right type, ``[15, n^2]``; the feed-forward
    layer zeroes the other rows.

    For n < 4 some patterns have no keys, and therefore no queries.
    """
    is_node = torch.eye(n, dtype=torch.bool).flatten()
    return torch.stack(
        [
            (is_node if pattern.query == "node" else ~is_node) & (pattern.keys_per_query(n) > 0)
            for pattern in PATTERNS
        ]
    )


@in_range
def worst_error(maps: Float[Tensor, "15 pairs pairs"], n: int) -> float:
    """Returns the largest distance of an attention weight from the row-normalised pattern, over queries of
    the right type.
    """
    gaps = (maps.double() - normalised_patterns(n)).abs().amax(-1)
    return float(gaps[query_rows(n)].max())


def smallest_gap(scores: Float[Tensor, "15 pairs pairs"], n: int) -> float:
    """Returns by how much the lowest score of a key of the pattern exceeds the highest score of the other
    keys, in the worst row.
    """
    gaps = []
    for pattern, score, rows in zip(PATTERNS, scores, query_rows(n)):
        if bool(rows.any()):
            wanted = pattern.matrix(n)[rows]
            low = score[rows].masked_fill(~wanted, math.inf).amin(-1)
            high = score[rows].masked_fill(wanted, -math.inf).amax(-1)
            gaps.append(float((low - high).min()))
    return min(gaps)


def in_precision(tokens: GraphTokens, dtype: torch.dtype) -> GraphTokens:
    """Returns the tokens with features, identifiers and types rounded to a dtype; attention is then computed
    in it.
    """
    return replace(
        tokens, **{name: getattr(tokens, name).to(dtype) for name in ("features", "structure", "types")}
    )


@in_range
@converted(floats=("maps", "targets"), masks=("rows",))
def overlap(
    maps: Float[Tensor, "15 pairs pairs"],
    targets: Float[Tensor, "15 pairs pairs"],
    rows: Bool[Tensor, "15 pairs"],
) -> float:
    r"""Returns the overlap :math:`\sum_j \min(A_{ij}, \bar B_{ij})`, 1 minus the total variation, a mean over
    rows, then over patterns.
    """
    shared, used = torch.minimum(maps, targets).sum(-1), rows.any(1)
    return float(((shared * rows).sum(1) / rows.sum(1))[used].mean())
