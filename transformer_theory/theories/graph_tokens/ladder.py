r"""The ladder: how well fifteen heads attend to the keys of their patterns, as exactness, hard-max, encoding
and written weights are given up.

The quantity is the overlap of a head's attention with its row-normalised pattern, :math:`\sum_j \min(A_{ij},
\bar B_{ij})`, which is 1 minus their total variation: the mean over the queries of the right type, then over
the patterns. The theory predicts 1.

**The null.** A head that reads only the types of tokens overlaps with the patterns too: "all other nodes" has
many keys, most of which any spread of attention hits. The null permutes the identifiers of the keys among the
nodes. Types and the form of each map stay; which node is which is lost.

Source: :cite:t:`kim2022pure`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.ladder import Ladder, Rung
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, permutations
from .heads import attention_maps, in_precision, overlap, query_rows, worst_error
from .identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, permutation, tokenize_graph
from .learning import draw_batch, train_heads
from .patterns import normalised_patterns

NAME, SOURCE = "graph_tokens", Source("kim2022pure", "Lemma 1", "second-hand")
NULL_KIND = "identifiers of the keys permuted among the nodes"
LADDER = Ladder(quantity="overlap of attention and pattern", unit="share", side=">=", null_kind=NULL_KIND)
WORST = "worst error of an attention weight"
NODES, KEPT = 10, 5  # nodes of the graphs; dimensions that are kept where there are fewer than nodes
STEPS, HELD_OUT = 300, 4


def null_overlaps(
    maps: Float[Tensor, "15 pairs pairs"],
    targets: Float[Tensor, "15 pairs pairs"],
    rows: Bool[Tensor, "15 pairs"],
    generator: Generator,
    *,
    draws: int = LADDER_DRAWS,
) -> tuple[float, ...]:
    """Returns the overlaps of maps whose keys belong to permuted nodes, one per draw."""
    n = math.isqrt(maps.shape[-1])
    values = []
    for order in permutations(n, draws, generator):
        keys = (order[:, None] * n + order).flatten()  # place of the pair of permuted nodes
        values.append(overlap(maps[..., keys], targets, rows))
    return tuple(values)


def written(
    identifiers: Identifiers, dtype: torch.dtype, scale: float, generator: Generator
) -> Iterator[Measurement]:
    """Measures the explicit heads on one graph of Barabási and Albert."""
    import networkx

    graph = networkx.barabasi_albert_graph(NODES, 2, seed=int(torch.randint(2**31, (), generator=generator)))
    tokens = in_precision(tokenize_graph(graph, identifiers, generator=generator), dtype)
    maps, targets, rows = (
        attention_maps(tokens, scale=scale).double(),
        normalised_patterns(NODES),
        query_rows(NODES),
    )
    null = Null(NULL_KIND, null_overlaps(maps, targets, rows, generator))
    yield LADDER.row(NAME, overlap(maps, targets, rows), predicted=1.0, nulls=(null,), n=NODES, source=SOURCE)
    yield Measurement(NAME, "rung", WORST, worst_error(maps, NODES), predicted=0.0, n=NODES, source=SOURCE)


def learnt(identifiers: Identifiers, generator: Generator) -> Iterator[Measurement]:
    """Trains fifteen heads on graphs of 8 to 10 nodes and measures them on new graphs."""
    model = train_heads(identifiers, sizes=(8, 9, NODES), width=NODES, steps=STEPS, generator=generator)
    targets, rows = normalised_patterns(NODES), query_rows(NODES)
    with torch.no_grad():
        maps = model(draw_batch(NODES, HELD_OUT, identifiers, NODES, generator)).exp().double()
    values = [overlap(each, targets, rows) for each in maps]
    draws = [null_overlaps(each, targets, rows, generator) for each in maps]
    null = Null(NULL_KIND, tuple(sum(draw) / len(draw) for draw in zip(*draws)))
    yield LADDER.row(NAME, sum(values) / len(values), predicted=1.0, nulls=(null,), n=HELD_OUT, source=SOURCE)
    yield Measurement(
        NAME,
        "rung",
        WORST,
        max(worst_error(each, NODES) for each in maps),
        predicted=0.0,
        n=HELD_OUT,
        source=SOURCE,
    )


def _written(
    name: str,
    relaxes: str,
    column: str,
    identifiers: Identifiers,
    dtype: torch.dtype,
    scale: float,
    *,
    covered: bool = False,
) -> Rung:
    return Rung(name, relaxes, partial(written, identifiers, dtype, scale), column, covered=covered)


_HALF, _ORTHONORMAL = torch.bfloat16, Orthonormal()
LADDER = replace(
    LADDER,
    rungs=(
        _written(
            "integers, hard-max", "", "exact construction", permutation, torch.float64, math.inf, covered=True
        ),
        _written(
            "float64",
            "identifiers with integer products",
            "floating point",
            _ORTHONORMAL,
            torch.float64,
            math.inf,
        ),
        _written("float32", "64 bits", "floating point", _ORTHONORMAL, torch.float32, math.inf),
        _written("bfloat16", "32 bits", "floating point", _ORTHONORMAL, _HALF, math.inf),
        _written("softmax, a = 20", "hard-max attention", "softmax", _ORTHONORMAL, _HALF, 20.0),
        _written("softmax, a = 10", "a scale of 20", "softmax", _ORTHONORMAL, _HALF, 10.0),
        _written("softmax, a = 5", "a scale of 10", "softmax", _ORTHONORMAL, _HALF, 5.0),
        _written(
            "Laplacian, all n",
            "identifiers independent of the graph",
            "relaxed encoding",
            Laplacian(),
            _HALF,
            5.0,
        ),
        _written(
            "random, 1024 dimensions",
            "orthogonal identifiers",
            "relaxed encoding",
            RandomUnit(1024),
            _HALF,
            5.0,
        ),
        _written("random, 64 dimensions", "many dimensions", "relaxed encoding", RandomUnit(64), _HALF, 5.0),
        _written(
            "Laplacian, 5 of 10",
            "as many dimensions as nodes",
            "relaxed encoding",
            Laplacian(KEPT),
            _HALF,
            5.0,
        ),
        Rung(
            "learnt, orthonormal",
            "weights written by hand; identifiers are orthonormal",
            partial(learnt, _ORTHONORMAL),
            "learnt",
        ),
        Rung(
            "learnt, Laplacian",
            "identifiers independent of the graph",
            partial(learnt, Laplacian()),
            "learnt",
        ),
        Rung("learnt, 5 of n", "as many dimensions as nodes", partial(learnt, Laplacian(KEPT)), "learnt"),
    ),
)
