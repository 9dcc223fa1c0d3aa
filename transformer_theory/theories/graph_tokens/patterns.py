r"""The fifteen patterns of order two: all permutation-equivariant linear maps between matrices indexed by
pairs of nodes.

A tensor of order two, ``[n, n, c]``, has one entry for each pair :math:`i = (i_1, i_2)` of nodes: the entry
of a node is on the diagonal, that of an edge off it. A *pattern* :math:`\mu` says which of the four indices
:math:`i_1, i_2, j_1, j_2` are equal. Its 0-1 matrix

.. math:: B^\mu_{ij} = 1 \iff (i_1, i_2, j_1, j_2) \text{ are equal exactly as } \mu \text{ says}

commutes with every permutation of the nodes, and the fifteen matrices (one for each partition of four
indices, the Bell number of four) span all linear maps that do: :math:`L(X) = \sum_\mu B^\mu X w_\mu`. Five
patterns have a node as the query i and ten an edge.

Source: :cite:t:`maron2019invariant`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import integers

Kind = Literal["node", "edge"]
LETTERS = "uvwx"


@dataclass(frozen=True)
class Pattern:
    """One equality pattern of the four indices of a query pair and a key pair.

    Attributes:
        labels: class of each of i1, i2, j1, j2, numbered in the order of appearance: ``(0, 1, 0, 2)`` is a
            query (u, v) with keys (u, w).
    Raises:
        ValueError: the labels are not numbered in this way.
    """

    labels: tuple[int, int, int, int]

    def __post_init__(self):
        if len(self.labels) != 4 or any(
            label not in range(max((-1, *self.labels[:k])) + 2) for k, label in enumerate(self.labels)
        ):
            raise ValueError(
                f"labels must be four classes, numbered in the order of appearance, got {self.labels}; e.g. "
                "(0, 1, 0, 2)"
            )

    @property
    def query(self) -> Kind:
        """Type of the tokens that have keys under this pattern."""
        return "node" if self.labels[0] == self.labels[1] else "edge"

    @property
    def key(self) -> Kind:
        """Type of the keys."""
        return "node" if self.labels[2] == self.labels[3] else "edge"

    @property
    def name(self) -> str:
        """Query and key in letters, e.g. ``"uv to uw"``."""
        i1, i2, j1, j2 = (LETTERS[label] for label in self.labels)
        return f"{i1}{i2} to {j1}{j2}"

    @cached_property
    def signs(self) -> Float[Tensor, "2 2"]:
        """+1 where index x of the query equals index y of the key, otherwise -1, ``[2 (x), 2 (y)]``."""
        i, j = self.labels[:2], self.labels[2:]
        return torch.tensor([[1.0 if x == y else -1.0 for y in j] for x in i], dtype=torch.float64)

    def keys_per_query(self, n: int) -> int:
        """Returns the number of keys of a query of the right type: the product of n - r over the classes r
        that it leaves free.
        """
        count = 1
        for taken in range(len(set(self.labels[:2])), len(set(self.labels))):
            count *= max(0, n - taken)
        return count

    def matrix(self, n: int) -> Bool[Tensor, "pairs pairs"]:
        """Returns the matrix B, ``[n^2, n^2]``; row (i1, i2) has the index ``i1 n + i2``.

        Raises:
            ValueError: ``n`` is below 1.
        """
        integers(n=n)
        index = torch.cartesian_prod(torch.arange(n), torch.arange(n))  # [n^2, 2]
        rows, cols = index[:, None].expand(-1, n * n, -1), index[None].expand(n * n, -1, -1)
        four = torch.cat([rows, cols], dim=-1)
        agree = torch.ones(n * n, n * n, dtype=torch.bool)
        for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
            agree &= (four[..., a] == four[..., b]) == (self.labels[a] == self.labels[b])
        return agree


def equivalence_patterns() -> tuple[Pattern, ...]:
    """Returns the fifteen patterns, first the five of nodes and then the ten of edges.

    >>> [pattern.name for pattern in equivalence_patterns()][:5]
    ['uu to uu', 'uu to uv', 'uu to vu', 'uu to vv', 'uu to vw']
    """
    # A partition is a list of labels in which each new label is at most one more than all before it.
    return tuple(Pattern((0, a, b, c)) for a in range(2) for b in range(a + 2) for c in range(max(a, b) + 2))


PATTERNS = equivalence_patterns()


def normalised_patterns(n: int) -> Float[Tensor, "15 pairs pairs"]:
    """Returns the patterns' matrices with rows divided by their sums, ``[15, n^2, n^2]`` float64; rows
    without keys are zero.

    Raises:
        ValueError: ``n`` is below 1.
    """
    return torch.stack(
        [pattern.matrix(n).double() / max(1, pattern.keys_per_query(n)) for pattern in PATTERNS]
    )


def pattern_sums(tensor: Float[Tensor, "n n c"]) -> Float[Tensor, "15 n n c"]:
    """Computes B X for all fifteen patterns in O(n^2 c), ``[15, n, n, c]``.

    Every entry is a combination of an entry, a row sum, a column sum and the total, so the matrices of n^4
    entries are never formed.
    """
    n = tensor.shape[0]
    eye = torch.eye(n, dtype=tensor.dtype)[..., None]
    nodes = tensor.diagonal().mT  # [n, c]
    edges = tensor * (1 - eye)
    back = edges.transpose(0, 1)  # entry (v, u) at (u, v)
    rows, cols = edges.sum(1), edges.sum(0)  # over w: of (u, w) and of (w, u)
    all_nodes, all_edges = nodes.sum(0), edges.sum((0, 1))
    u, v = slice(None), None  # x[u, v] is x of the first index of the query, x[v] that of the second
    of_nodes = (nodes, rows, cols, all_nodes - nodes, all_edges - rows - cols)
    # A sum over keys that avoid the query's nodes is the sum over all keys minus the keys that meet them.
    # Keys that meet both nodes were subtracted twice and are added again.
    apart = all_edges - (rows + cols)[u, v] - (rows + cols)[v] + edges + back
    of_edges = (
        nodes[u, v].expand_as(edges),  # to uu
        edges,  # to uv
        rows[u, v] - edges,  # to uw
        back,  # to vu
        nodes[v].expand_as(edges),  # to vv
        rows[v] - back,  # to vw
        cols[u, v] - back,  # to wu
        cols[v] - edges,  # to wv
        all_nodes - nodes[u, v] - nodes[v],  # to ww
        apart,  # to wx
    )
    return torch.cat([eye * torch.stack(of_nodes)[:, :, None], (1 - eye) * torch.stack(of_edges)])
