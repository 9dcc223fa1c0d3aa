r"""Graphs as tokens: one token for each node and each pair of nodes, with the identifiers of its nodes and
its type.

The token of the pair :math:`i = (i_1, i_2)` is :math:`z_i = [P_{i_1}; P_{i_2}; e_{\mathrm{type}(i)}]`
together with the features :math:`x_i`; a node u is the pair (u, u). The rows of :math:`P \in \mathbb{R}^{n
\times d}` are the *identifiers* of the nodes:

* :class:`Orthonormal`: rows of a random orthogonal matrix. Their inner products are 0 and 1, so those of
  tokens are 0, 1 and 2.
* :class:`Laplacian`: eigenvectors of the normalised Laplacian, lowest eigenvalues first. All n of them are
  orthonormal as well, but they depend on the graph, on the signs of the eigenvectors and on the basis of each
  eigenspace.
* :class:`RandomUnit`: independent unit vectors, which are orthogonal only in the limit of many dimensions.
* :class:`Simplex`: n unit vectors with equal inner products, in n - 1 dimensions.

Source: :cite:t:`kim2022pure`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import nearest
from ...core.validation import integers
from ...data.graphs import check_simple

if TYPE_CHECKING:
    import networkx

Selection = Literal["dense", "sparse"]


def adjacency(graph: "networkx.Graph") -> Float[Tensor, "n n"]:
    """Returns the 0-1 adjacency matrix, ``[n, n]`` float64, in the order of the graph's nodes. Weights of
    edges are ignored.

    Raises:
        TypeError, ValueError: see :func:`.check_simple`.
    """
    import networkx

    check_simple(graph)
    return torch.from_numpy(networkx.to_numpy_array(graph, weight=None))  # pyright: ignore[reportArgumentType]


def laplacian(graph: "networkx.Graph") -> Float[Tensor, "n n"]:
    r"""Returns the normalised Laplacian :math:`I - D^{-1/2} A D^{-1/2}`, ``[n, n]``."""
    A = adjacency(graph)
    # an isolated node has a zero row in D^{-1/2} A D^{-1/2}, whatever its factor
    root = A.sum(1).clamp_min(1.0).rsqrt()
    return torch.eye(len(A), dtype=torch.float64) - root[:, None] * A * root


def permutation(graph: "networkx.Graph", generator: torch.Generator) -> Float[Tensor, "n n"]:
    """Draws a permutation matrix: identifiers whose inner products are integers, exact in any arithmetic."""
    return torch.eye(len(graph), dtype=torch.float64)[torch.randperm(len(graph), generator=generator)]


@dataclass(frozen=True)
class Orthonormal:
    """Rows of a random orthogonal matrix.

    Attributes:
        width: number of dimensions, at least the number n of nodes. None: n.
        kept: number of columns that are kept, to truncate the identifiers; the rows are then no longer
            orthonormal. None: all.
    """

    width: int | None = None
    kept: int | None = None

    def __call__(self, graph: "networkx.Graph", generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Draws the identifiers, ``[n, d]``.

        Raises:
            ValueError: there are fewer dimensions than nodes, or too many columns are kept.
        """
        n = len(graph)
        width = n if self.width is None else self.width
        integers(width=width)
        if width < n:
            raise ValueError(
                f"width must be at least {n}, the number of nodes, got {width}; truncate with kept={width} "
                "instead"
            )
        return _columns(torch.linalg.qr(_gaussian(width, width, generator)).Q[:n], self.kept)


@dataclass(frozen=True)
class Laplacian:
    r"""Eigenvectors of the normalised Laplacian :math:`I - D^{-1/2} A D^{-1/2}`, lowest eigenvalues first.

    The signs are random, as in training; eigenspaces of several dimensions have the basis that the solver
    returns.

    Attributes:
        kept: number of eigenvectors. None: all n.
    """

    kept: int | None = None

    def __call__(self, graph: "networkx.Graph", generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Computes the identifiers, ``[n, d]``, and draws their signs.

        Raises:
            ValueError: too many eigenvectors are kept.
        """
        vectors = torch.linalg.eigh(laplacian(graph)).eigenvectors
        signs = 2.0 * torch.randint(2, (len(vectors),), generator=generator, dtype=torch.float64) - 1
        return _columns(vectors * signs, self.kept)


@dataclass(frozen=True)
class RandomUnit:
    """Independent random unit vectors.

    Attributes:
        width: number of dimensions. None: the number of nodes.
    """

    width: int | None = None

    def __call__(self, graph: "networkx.Graph", generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Draws the identifiers, ``[n, d]``."""
        width = len(graph) if self.width is None else self.width
        integers(width=width)
        rows = _gaussian(len(graph), width, generator)
        return rows / rows.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class Simplex:
    """Corners of a regular simplex, rotated at random: n unit vectors with inner products -1/(n - 1), in n -
    1 dimensions.
    """

    def __call__(self, graph: "networkx.Graph", generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Draws the identifiers, ``[n, n - 1]``.

        Raises:
            ValueError: the graph has a single node.
        """
        n = len(graph)
        if n < 2:
            raise ValueError(f"a simplex needs at least 2 nodes, got {n}; use Orthonormal()")
        # Project the standard basis onto the complement of the constant vector: the last n - 1 columns of an
        # orthogonal matrix whose first column is constant. Its rows have length sqrt(1 - 1/n).
        start = torch.cat([torch.ones(n, 1, dtype=torch.float64), _gaussian(n, n - 1, generator)], dim=1)
        return torch.linalg.qr(start).Q[:, 1:] / math.sqrt(1 - 1 / n)


Identifiers = Callable[["networkx.Graph", torch.Generator], Tensor]
NAMED: dict[str, Identifiers] = {
    "orthonormal": Orthonormal(),
    "laplacian": Laplacian(),
    "random": RandomUnit(),
    "simplex": Simplex(),
}


@dataclass(frozen=True, eq=False)
class GraphTokens:
    """The tokens of one graph.

    Attributes:
        features: features of each token, ``[tokens, c]``: the adjacency, 0 for a node.
        structure: identifiers of both nodes, ``[tokens, 2 d]``.
        types: type identifiers, node (1, 0) or edge (0, 1), ``[tokens, 2]``.
        pairs: the two nodes of each token, as places in the graph, ``[tokens, 2]``.
        nodes: number n of nodes.
    """

    features: Float[Tensor, "tokens c"]
    structure: Float[Tensor, "tokens width"]
    types: Float[Tensor, "tokens 2"]
    pairs: Int[Tensor, "tokens 2"]
    nodes: int

    @property
    def addresses(self) -> Float[Tensor, "tokens width"]:
        """Identifiers and types, from which attention is computed, ``[tokens, 2 d + 2]``."""
        return torch.cat([self.structure, self.types], dim=1)

    @property
    def vectors(self) -> Float[Tensor, "tokens width"]:
        """The whole tokens, ``[tokens, c + 2 d + 2]``."""
        return torch.cat([self.features, self.structure, self.types], dim=1)


def tokenize_graph(
    graph: "networkx.Graph",
    identifiers: str | Identifiers = "orthonormal",
    *,
    tokens: Selection = "dense",
    generator: torch.Generator | None = None,
) -> GraphTokens:
    """Turns a graph into tokens.

    Args:
        graph: simple undirected graph with any names of nodes.
        identifiers: ``"orthonormal"``, ``"laplacian"``, ``"random"``, ``"simplex"``; or a function of graph
            and generator that returns the identifiers ``[n, d]``, such as ``Laplacian(kept=4)``.
        tokens: "dense", all n^2 pairs, row by row, as the theorems ask; or "sparse", the n nodes and then
            both directions of each edge, as used in practice.
        generator: draws the identifiers. None: a generator with seed 0.
    Raises:
        TypeError: the graph is not a networkx graph, or identifiers or generator are of another type.
        ValueError: the graph is directed, a multigraph, empty or has self-loops; or a name is unknown.
    """
    A = adjacency(graph)
    n = len(A)
    if isinstance(identifiers, str):
        if identifiers not in NAMED:
            raise ValueError(f"unknown identifiers {identifiers!r}{nearest(identifiers, NAMED)}")
        identifiers = NAMED[identifiers]
    if not callable(identifiers) or isinstance(identifiers, type):
        got = getattr(identifiers, "__name__", type(identifiers).__name__)
        raise TypeError(
            f"identifiers must be a name or a function such as Laplacian(kept=4), got {got}; pass an instance"
        )
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}; pass torch.Generator().manual_seed(0)"
        )
    P = torch.as_tensor(
        identifiers(graph, torch.Generator().manual_seed(0) if generator is None else generator)
    )
    if P.ndim != 2 or len(P) != n:
        raise ValueError(
            f"identifiers must return one row per node, [{n}, d], got {list(P.shape)}; the rows are in the "
            "order of the nodes"
        )
    if tokens == "dense":
        pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    elif tokens == "sparse":
        pairs = torch.cat([torch.arange(n)[:, None].expand(-1, 2), A.nonzero()])
    else:
        raise ValueError(f"tokens must be 'dense' or 'sparse', got {tokens!r}")
    is_node = (pairs[:, 0] == pairs[:, 1]).to(P.dtype)
    structure = torch.cat([P[pairs[:, 0]], P[pairs[:, 1]]], dim=1)
    return GraphTokens(
        A[pairs[:, 0], pairs[:, 1], None].to(P.dtype),
        structure,
        torch.stack([is_node, 1 - is_node], dim=1),
        pairs,
        n,
    )


def _columns(matrix: Tensor, kept: int | None) -> Tensor:
    """Returns the first columns of a matrix [n, d]; all if ``kept`` is None."""
    if kept is None:
        return matrix
    integers(kept=kept)
    if kept > matrix.shape[1]:
        raise ValueError(
            f"kept must be at most {matrix.shape[1]}, the number of dimensions, got {kept}; leave it out to "
            "keep all"
        )
    return matrix[:, :kept]


def _gaussian(rows: int, cols: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, cols, generator=generator, dtype=torch.float64)
