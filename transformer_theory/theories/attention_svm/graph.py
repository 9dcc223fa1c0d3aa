r"""The token-priority graphs of next-token data.

Sequences of token ids end in a token k, which is the query; the label, one of the sequence's tokens, comes next. The graph :math:`G_k` has
an edge from the label to every other token of each sequence that ends in k. Within a strongly connected component there is a path from each
token to each other one, so none has priority; between components the priority is strict. :mod:`.next_token` states the consequences for
attention. The definitions are those of :cite:t:`li2024mechanics`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...core.validation import converted, integers
from .validation import check_positions, check_real, check_shape, check_type


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
        triples = []
        for k, edges in self.edges.items():
            names = self.component[k]
            high, low = edges.nonzero(as_tuple=True)
            pairs = {(int(i), int(j)) for i, j in zip(names[high], names[low]) if i != j}
            triples += [(k, i, j) for i, j in sorted(pairs)]
        return triples


@converted(int64=("ids", "labels"))
def priority_graph(ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tokens: int) -> PriorityGraph:
    """The token-priority graphs of sequences with their next tokens.

    Args:
        ids: token ids, ``[n, T]``; the last of a sequence is the query.
        labels: the token that comes next, ``[n]``; one of the sequence.
        tokens: K, the size of the vocabulary.
    Returns:
        One graph for each token that ends a sequence.
    Raises:
        TypeError: no tensor or array of integers, or a size that is no integer.
        ValueError: an id outside 0..K-1, or a label that is not in its sequence.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    check_sequences(ids, labels, tokens)
    edges, component = {}, {}
    for k in ids[:, -1].unique().tolist():
        ends_in_k = ids[:, -1] == k
        graph = torch.zeros(tokens, tokens, dtype=torch.bool)
        graph[labels[ends_in_k][:, None].expand_as(ids[ends_in_k]).ravel(), ids[ends_in_k].ravel()] = True
        graph.fill_diagonal_(False)
        # Components are named by their smallest tokens, so that equal graphs have equal names whatever numbers scipy assigns.
        name = torch.from_numpy(connected_components(csr_array(graph.numpy()), connection="strong")[1]).long()
        smallest = torch.full((tokens,), tokens).scatter_reduce(0, name, torch.arange(tokens), "amin")
        edges[k], component[k] = graph, smallest[name]
    return PriorityGraph(tokens, edges, component)


def check_graph(graph: PriorityGraph, embeddings: Tensor) -> None:
    """Checks that embeddings ``[K, d]`` belong to the tokens of a graph.

    Raises:
        TypeError: no graph, or no tensor.
        ValueError: another number of embeddings than tokens of the graph, or values that are not finite.
    """
    check_type("graph", graph, PriorityGraph, hint="priority_graph(ids, labels, tokens=K) makes one")
    check_real("embeddings", embeddings, "[K, d]", 2)
    if len(embeddings) != graph.tokens:
        raise ValueError(f"embeddings must have one row per token, {graph.tokens}, got {len(embeddings)}")


def check_sequences(ids: Tensor, labels: Tensor, tokens: int) -> None:
    """Checks token ids ``[n, T]`` in 0..K-1 and labels ``[n]`` in their sequences.

    Raises:
        TypeError: no tensor of integers, or a size that is no integer.
        ValueError: a shape, an id or a label that does not fit.
    """
    integers(tokens=tokens)
    if not isinstance(ids, Tensor) or ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be a tensor [n, T] with at least one sequence and token, got shape {list(getattr(ids, 'shape', ()))}")
    check_positions("ids", ids, ids.shape, int(tokens))
    check_shape("labels", labels, ids.shape[:1])
    absent = ~(ids == labels[:, None]).any(1)
    if bool(absent.any()):
        i = int(absent.nonzero()[0])
        raise ValueError(f"labels must be tokens of their sequences, but {int(labels[i])} is not in sequence {i}; remove that sequence")
