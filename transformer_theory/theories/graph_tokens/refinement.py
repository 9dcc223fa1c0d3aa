r"""The tests of Weisfeiler and Leman: colour refinement of nodes (1-WL), and the folklore test on pairs of
nodes (2-FWL).

Both start from the isomorphism type and refine until the number of colours no longer grows:

.. math:: c(v) \leftarrow \big(c(v), \{\!\{ c(w) : w \sim v \}\!\}\big), \qquad
    c(u, v) \leftarrow \big(c(u, v), \{\!\{ (c(u, w), c(w, v)) : w \}\!\}\big) .

Two graphs are distinguished if their multisets of colours differ. The graphs of one call are refined
together, so that equal numbers mean equal colours in all of them. Isomorphic graphs are never distinguished.
The folklore test is stronger than 1-WL. The *oblivious* test on pairs, which collects the colours of (w, v)
and of (u, w) in separate multisets, distinguishes plain graphs exactly if 1-WL does; it is the one that
bounds equivariant networks of order two. Folklore k-WL is as strong as oblivious (k + 1)-WL.

Source: :cite:t:`cai1992optimal`; oblivious test: :cite:t:`geerts2020expressive`.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .identifiers import adjacency

if TYPE_CHECKING:
    import networkx

Colours = tuple[Int[Tensor, "..."], ...]


def weisfeiler_leman(graph: "networkx.Graph", *others: "networkx.Graph") -> Colours:
    """Computes the stable colours of the nodes of one or several graphs by 1-WL, ``[n]`` each, comparable
    between the graphs.

    Raises:
        TypeError, ValueError: a graph is not simple and undirected, or empty; see :func:`.check_simple`.
    """
    matrices = [adjacency(each).numpy().astype(bool) for each in (graph, *others)]
    neighbours = [[np.flatnonzero(row) for row in matrix] for matrix in matrices]

    def signatures(colours: list[np.ndarray]) -> list[tuple]:
        return [
            (int(colour[v]), *np.sort(colour[around]).tolist())
            for colour, lists in zip(colours, neighbours)
            for v, around in enumerate(lists)
        ]

    return _refine([np.zeros(len(matrix), dtype=np.int64) for matrix in matrices], signatures)


def folklore_weisfeiler_leman(graph: "networkx.Graph", *others: "networkx.Graph") -> Colours:
    """Computes the stable colours of the pairs of nodes by the folklore test of order two, ``[n, n]`` each;
    O(n^3 log n) a round.

    Raises:
        TypeError, ValueError: a graph is not simple and undirected, or empty; see :func:`.check_simple`.
    """
    # The isomorphism type of a pair: equal nodes, no edge, an edge.
    starts = [adjacency(each).numpy().astype(np.int64) + 1 for each in (graph, *others)]
    for start in starts:
        np.fill_diagonal(start, 0)

    def signatures(colours: list[np.ndarray]) -> list[bytes]:
        base = 1 + max(int(colour.max()) for colour in colours)
        rows = []
        for colour in colours:
            # Entry (u, v, w): the pair (c(u, w), c(w, v)) as one number; sorting makes a multiset of it.
            pairs = np.sort(colour[:, None, :] * base + colour.T[None], axis=-1)
            rows += [
                line.tobytes()
                for line in np.concatenate([colour[..., None], pairs], axis=-1).reshape(colour.size, -1)
            ]
        return rows

    return _refine(starts, signatures)


def distinguished(
    first: "networkx.Graph", second: "networkx.Graph", refine: Callable[..., Colours] = weisfeiler_leman
) -> bool:
    """Returns whether a test distinguishes two graphs.

    Args:
        first, second: the graphs.
        refine: :func:`weisfeiler_leman` or :func:`folklore_weisfeiler_leman`.
    Raises:
        TypeError: ``refine`` is not a function.
    """
    if not callable(refine):
        raise TypeError(
            f"refine must be a test, got {refine!r}; pass weisfeiler_leman or folklore_weisfeiler_leman"
        )
    one, other = (Counter(colours.flatten().tolist()) for colours in refine(first, second))
    return one != other


def _refine(colours: list[np.ndarray], signatures: Callable[[list[np.ndarray]], list]) -> Colours:
    """Replaces colours by the numbers of their signatures until the number of colours no longer grows."""
    count = len(np.unique(np.concatenate([colour.ravel() for colour in colours])))
    while True:
        numbers: dict = {}
        flat = np.array(
            [numbers.setdefault(signature, len(numbers)) for signature in signatures(colours)], dtype=np.int64
        )
        ends = np.cumsum([colour.size for colour in colours])[:-1]
        colours = [part.reshape(colour.shape) for part, colour in zip(np.split(flat, ends), colours)]
        # A signature contains the old colour, so classes only split: equal numbers of colours mean equal
        # classes.
        if len(numbers) == count:
            return tuple(torch.from_numpy(colour) for colour in colours)
        count = len(numbers)
