r"""The token-priority graphs of next-token data.

The last token k of a sequence of token ids is the query. The label is the token that comes next, and it
occurs in the sequence. The graph :math:`G_k` has an edge from the label to every other token of each sequence
that ends in k. Within a strongly connected component every token has a path to every other one, so no token
has priority; between components the priority is strict. :mod:`.next_token` states the consequences for
attention. The definitions come from :cite:t:`li2024mechanics`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...core.validation import converted, integers
from .validation import check_positions, check_real, check_shape, check_type


@dataclass(frozen=True)
class PriorityGraph:
    """The token-priority graphs of a data set, one per last token of a sequence.

    Attributes:
        tokens: K, the size of the vocabulary.
        edges: last token k -> adjacency matrix of :math:`G_k`, ``[K, K]``; rows are sources.
        component: last token k -> component of every token in :math:`G_k`, ``[K]``; the name of a component
            is its smallest token.
    """

    tokens: int
    edges: dict[int, Bool[Tensor, "K K"]]
    component: dict[int, Int[Tensor, " K"]]

    def equal(self) -> list[tuple[int, int, int]]:
        """Returns all (k, i, j) such that the component of :math:`G_k` named i contains another token j
        > i.
        """
        return [
            (k, int(i), j) for k, name in self.component.items() for j, i in enumerate(name) if int(i) != j
        ]

    def above(self) -> list[tuple[int, int, int]]:
        """Returns all (k, i, j) such that the component of :math:`G_k` named i has an edge to the component
        named j.
        """
        triples = []
        for k, edges in self.edges.items():
            names = self.component[k]
            high, low = edges.nonzero(as_tuple=True)
            pairs = {(int(i), int(j)) for i, j in zip(names[high], names[low]) if i != j}
            triples += [(k, i, j) for i, j in sorted(pairs)]
        return triples


@converted(int64=("ids", "labels"))
def priority_graph(ids: Int[Tensor, "n T"], labels: Int[Tensor, " n"], *, tokens: int) -> PriorityGraph:
    """Returns the token-priority graphs of sequences with their next tokens.

    Args:
        ids: token ids, ``[n, T]``; the last id of a sequence is the query.
        labels: next token of each sequence, ``[n]``; it occurs in the sequence.
        tokens: K, the size of the vocabulary.
    Returns:
        One graph per last token of a sequence.
    Raises:
        TypeError: ids or labels are not a tensor or array of integers, or the size is not an integer.
        ValueError: an id is outside 0..K-1, or a label is not in its sequence.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    check_sequences(ids, labels, tokens)
    edges, component = {}, {}
    for k in ids[:, -1].unique().tolist():
        ends_in_k = ids[:, -1] == k
        # Edges from the label of a sequence to all its tokens; edges from a label to itself are deleted.
        graph = torch.zeros(tokens, tokens, dtype=torch.bool)
        graph[labels[ends_in_k][:, None].expand_as(ids[ends_in_k]).ravel(), ids[ends_in_k].ravel()] = True
        graph.fill_diagonal_(False)
        # The numbers that scipy gives to components are arbitrary. Each component is named by its smallest
        # token instead, so that equal graphs have equal names.
        number = torch.from_numpy(
            connected_components(csr_array(graph.numpy()), connection="strong")[1]
        ).long()
        smallest = torch.full((tokens,), tokens).scatter_reduce(0, number, torch.arange(tokens), "amin")
        edges[k], component[k] = graph, smallest[number]
    return PriorityGraph(tokens, edges, component)


def check_graph(graph: PriorityGraph, embeddings: Tensor) -> None:
    """Checks that there is one embedding ``[K, d]`` per token of a graph.

    Raises:
        TypeError: ``graph`` is not a graph, or ``embeddings`` is not a tensor.
        ValueError: the number of embeddings differs from the number of tokens of the graph, or a value is not
            finite.
    """
    check_type("graph", graph, PriorityGraph, hint="priority_graph(ids, labels, tokens=K) makes one")
    check_real("embeddings", embeddings, "[K, d]", 2)
    if len(embeddings) != graph.tokens:
        raise ValueError(f"embeddings must have one row per token, {graph.tokens}, got {len(embeddings)}")


def check_sequences(ids: Tensor, labels: Tensor, tokens: int) -> None:
    """Checks token ids ``[n, T]`` in 0..K-1 and labels ``[n]`` in their sequences.

    Raises:
        TypeError: ids or labels are not a tensor of integers, or the size is not an integer.
        ValueError: a shape does not fit, an id is outside 0..K-1, or a label is not in its sequence.
    """
    integers(tokens=tokens)
    if not isinstance(ids, Tensor) or ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            "ids must be a tensor [n, T] with at least one sequence and token, got shape "
            f"{list(getattr(ids, 'shape', ()))}"
        )
    check_positions("ids", ids, ids.shape, int(tokens))
    check_shape("labels", labels, ids.shape[:1])
    absent = ~(ids == labels[:, None]).any(1)
    if bool(absent.any()):
        i = int(absent.nonzero()[0])
        raise ValueError(
            f"labels must be tokens of their sequences, but {int(labels[i])} is not in sequence {i}; remove "
            "that sequence"
        )
