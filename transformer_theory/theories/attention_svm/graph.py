r"""The token-priority graphs of next-token data: which tokens came next where which others could have.

Sequences of token ids end in a token k, which asks; the label, one of the sequence's tokens, comes next. The graph :math:`G_k` has an edge
from the label to every other token of each sequence that ends in k. Tokens of one strongly connected component are each other's label at
times; between components the priority is strict. See :mod:`.next_token` for what that says about attention.

Source: :cite:t:`li2024mechanics`.
"""

from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .constraint_set import came, check_real, check_whole


@dataclass(frozen=True)
class PriorityGraph:
    """The token-priority graphs of a data set, one for each token that ends a sequence.

    Attributes:
        tokens: K, the size of the vocabulary.
        edges: for each last token k, which token has an edge to which, ``[K, K]``.
        component: for each last token k, the component of every token, named by its smallest token, ``[K]``.
    """

    tokens: int
    edges: dict[int, Bool[Tensor, "K K"]]
    component: dict[int, Int[Tensor, " K"]]

    def equal(self) -> list[tuple[int, int, int]]:
        """(k, i, j): token j is in the component of :math:`G_k` that is named by i < j."""
        return [(k, int(i), j) for k, name in self.component.items() for j, i in enumerate(name) if int(i) != j]

    def above(self) -> list[tuple[int, int, int]]:
        """(k, i, j): the component of :math:`G_k` that is named by i has an edge to the one named by j."""
        found = []
        for k, edges in self.edges.items():
            names = self.component[k]
            high, low = edges.nonzero(as_tuple=True)
            pairs = {(int(i), int(j)) for i, j in zip(names[high], names[low]) if i != j}
            found += [(k, i, j) for i, j in sorted(pairs)]
        return found


def priority_graph(ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tokens: int) -> PriorityGraph:
    """The graphs of sequences with their next tokens.

    Args:
        ids: token ids, ``[n, T]``; the last of a sequence asks.
        labels: the token that comes next, ``[n]``; one of the sequence.
        tokens: K, the size of the vocabulary.
    Returns:
        One graph for each token that ends a sequence.
    Raises:
        TypeError: not a tensor, or a size that is no whole number.
        ValueError: an id outside 0..K-1, or a label that is not in its sequence.

    Source: :cite:t:`li2024mechanics`; components by Tarjan's algorithm (scipy).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    check_sequences(ids, labels, tokens)
    edges, component = {}, {}
    for k in ids[:, -1].unique().tolist():
        mine = ids[:, -1] == k
        graph = torch.zeros(tokens, tokens, dtype=torch.bool)
        graph[labels[mine][:, None].expand_as(ids[mine]).ravel(), ids[mine].ravel()] = True
        graph.fill_diagonal_(False)
        name = torch.from_numpy(connected_components(csr_array(graph.numpy()), connection="strong")[1]).long()
        smallest = torch.full((tokens,), tokens).scatter_reduce(0, name, torch.arange(tokens), "amin")
        edges[k], component[k] = graph, smallest[name]
    return PriorityGraph(tokens, edges, component)


def check_graph(graph: PriorityGraph, embeddings: Tensor) -> None:
    """Refuses what is no graph, and embeddings ``[K, d]`` other than one for each of its tokens.

    Raises:
        TypeError: not a graph, or not a tensor.
        ValueError: another number of embeddings than tokens of the graph, or a wrong type of their entries.
    """
    if not isinstance(graph, PriorityGraph):
        raise TypeError(f"graph must be a PriorityGraph, got {came(graph)}; priority_graph(ids, labels, tokens=K) makes one")
    check_real(embeddings, "embeddings", "[K, d]", 2)
    if len(embeddings) != graph.tokens:
        raise ValueError(f"embeddings must have one row a token, {graph.tokens}, got {len(embeddings)}")


def check_sequences(ids: Tensor, labels: Tensor, tokens: int) -> None:
    """Refuses ids outside 0..K-1 and labels that are not in their sequences.

    Args:
        ids: token ids, ``[n, T]``.
        labels: the token that comes next, ``[n]``.
        tokens: K, the size of the vocabulary.
    Raises:
        TypeError, ValueError: says what was expected and what came.
    """
    if isinstance(tokens, bool) or not isinstance(tokens, Integral):
        raise TypeError(f"tokens must be a whole number, the size of the vocabulary, got {came(tokens)}")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be a tensor [n, T] with at least one sequence and token, got {came(ids)}")
    check_whole(ids, "ids", ids.shape)
    check_whole(labels, "labels", ids.shape[:1])
    if int(ids.min()) < 0 or int(ids.max()) >= tokens:
        raise ValueError(f"ids must lie in [0, {tokens}), got {int(ids.min()) if int(ids.min()) < 0 else int(ids.max())}")
    absent = ~(ids == labels[:, None]).any(1)
    if bool(absent.any()):
        i = int(absent.nonzero()[0])
        raise ValueError(f"labels must be tokens of their sequences, but {int(labels[i])} is not in sequence {i}; leave it out")
