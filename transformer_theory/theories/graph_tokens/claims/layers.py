"""Claims about layers and networks of order two, and about heads that learn."""

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..heads import overlap, query_rows
from ..identifiers import Identifiers, Orthonormal, RandomUnit, adjacency, tokenize_graph
from ..layers import by_heads, by_sums, random_layer, random_network, relative_difference
from ..learning import draw_batch, train_heads
from ..patterns import PATTERNS, normalised_patterns
from .heads import DENSE, IDENTIFIERS, ORTHONORMAL, PAPER, draw_graph, draw_tokens

WIDTH = 8  # of the identifiers of heads that learn
LEARNT = Orthonormal(WIDTH)


@claim(
    "graph_tokens/basis",
    measures="share of a random equivariant map (the average over all permutations) outside the span, n = 4",
    at_most=1e-12,
    source=Source("maron2019invariant", status="second-hand"),
    assumptions=("n is at least 4, so that no pattern is empty",),
    control=but("leaves one of the fifteen patterns out", missing=1),
)
def basis(generator: Generator, *, missing: int = 0) -> float:
    r"""The fifteen patterns span all linear maps of $n \times n$ tensors that commute with permutations of
    the nodes.
    """
    from itertools import permutations

    left_out = [int(torch.randint(15, (), generator=generator)) for _ in range(missing)]
    n = 4
    matrix = torch.randn(n * n, n * n, generator=generator, dtype=torch.float64)
    average = torch.zeros_like(matrix)
    for order in permutations(range(n)):
        # pair (i1, i2) -> permuted pair
        index = torch.cartesian_prod(torch.tensor(order), torch.tensor(order)) @ torch.tensor([n, 1])
        average += matrix[index][:, index] / math.factorial(n)
    rest = average.clone()
    for number, pattern in enumerate(PATTERNS):
        if number not in left_out:
            B = pattern.matrix(n).double()
            rest -= (average * B).sum() / B.sum() * B  # the patterns are disjoint, so projections add
    return relative_difference(average, average - rest)


@claim(
    "graph_tokens/layer",
    measures="relative error of the layer by heads at a = 40 and by pattern sums, against the matrices, "
    "the larger",
    at_most=1e-13,
    source=Source(PAPER, "Theorem 1", "second-hand"),
    assumptions=(
        ORTHONORMAL,
        DENSE,
        "the weights may depend on n: the number of keys is multiplied into them",
        "n = 10, Gaussian weights",
    ),
    control=but("all tokens have the same type identifier", typed=False),
)
def layer(generator: Generator, *, typed: bool = True) -> Measured:
    r"""Fifteen heads, whose outputs are gated by the query's type and multiplied by the number of keys,
    compute any equivariant layer $\sum_\mu B^\mu X w_\mu$ plus its bias.
    """
    n = 10
    layer = random_layer(4, 3, n, generator=generator)
    X = torch.randn(n, n, 4, generator=generator, dtype=torch.float64)
    tokens = draw_tokens(n, IDENTIFIERS, generator)
    if not typed:
        tokens = replace(tokens, types=torch.full_like(tokens.types, 0.5))
    flat = X.reshape(n * n, 4)
    sums = torch.stack(
        [pattern.matrix(n).double() @ flat @ w for pattern, w in zip(PATTERNS, layer.weights)]
    ).sum(0)
    eye = torch.eye(n, dtype=torch.float64)[..., None]
    exact = sums.reshape(n, n, 3) + eye * layer.bias[0] + (1 - eye) * layer.bias[1]
    errors = [relative_difference(exact, other) for other in (by_heads(layer, X, tokens), by_sums(layer, X))]
    return Measured(max(errors), {"heads": errors[0], "sums": errors[1]})


@claim(
    "graph_tokens/stack",
    measures="largest relative error of the output by heads, for a graph and for a permuted copy with "
    "other identifiers",
    at_most=1e-12,
    source=Source(PAPER, "Theorem 2", "second-hand"),
    assumptions=(ORTHONORMAL, DENSE, "three layers, n = 8, Gaussian weights"),
    control=but(
        "identifiers are random unit vectors of 64 dimensions, not orthogonal", identifiers=RandomUnit(64)
    ),
)
def stack(generator: Generator, *, identifiers: Identifiers = IDENTIFIERS) -> float:
    r"""A stack of such layers with ReLU and the invariant read-out computes an equivariant network of order
    two (a 2-IGN), $F(\pi X \pi^\top) = F(X)$ for every permutation $\pi$ of the nodes, whichever orthonormal
    identifiers are drawn.
    """
    n = 8
    graph, network = draw_graph(n, generator), random_network(n, generator=generator)
    A, order = adjacency(graph), torch.randperm(n, generator=generator)
    exact, errors = network(A[..., None]), []
    for matrix in (A, A[order][:, order]):
        # of a graph of this size: features are not used
        tokens = tokenize_graph(graph, identifiers, generator=generator)
        errors.append(
            relative_difference(
                exact, network(matrix[..., None], lambda layer, X, t=tokens: by_heads(layer, X, t))
            )
        )
    return max(errors)


def _no_identifiers(graph, generator: Generator) -> Tensor:
    return torch.zeros(len(graph), 1, dtype=torch.float64)


@claim(
    "graph_tokens/learnt",
    measures="overlap of attention and row-normalised pattern (1 - total variation) on new graphs of 7 "
    "nodes, mean over patterns",
    at_least=0.9,
    margin=NEAR,
    source=Source(PAPER, status="own"),
    assumptions=(
        "orthonormal identifiers, drawn anew for each graph",
        "200 batches of 4 graphs of 6 or 7 nodes, Adam",
    ),
    control=but("no identifiers, only types", identifiers=_no_identifiers),
    cost="training",
)
def learnt(generator: Generator, *, identifiers: Identifiers = LEARNT) -> float:
    r"""Fifteen heads $\mathrm{softmax}(\langle W_Q z_i, W_K z_j \rangle / \sqrt{p})$ learn the patterns by
    gradient descent from random graphs and identifiers. The threshold is ours.
    """
    model = train_heads(identifiers, sizes=(6, 7), width=WIDTH, steps=200, generator=generator)
    with torch.no_grad():
        maps = model(draw_batch(7, 4, identifiers, WIDTH, generator)).exp().double()
    return sum(overlap(each, normalised_patterns(7), query_rows(7)) for each in maps) / len(maps)


CLAIMS = (basis, layer, stack, learnt)
