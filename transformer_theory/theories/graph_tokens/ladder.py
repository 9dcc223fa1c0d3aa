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
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, permutations
from .heads import attention_maps, in_precision, overlap, query_rows, worst_error
from .identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, permutation, tokenize_graph
from .learning import draw_batch, train_heads
from .patterns import normalised_patterns

NULL_KIND = "identifiers of the keys permuted among the nodes"
LADDER = Ladder(
    theory="graph_tokens",
    quantity="overlap of attention and pattern",
    unit="share",
    side=">=",
    null=NULL_KIND,
    source=Source("kim2022pure", "Lemma 1", "second-hand"),
)
WORST = "worst error of an attention weight"
NODES, KEPT = 10, 5  # nodes of the graphs; dimensions that are kept where there are fewer than nodes
STEPS, HELD_OUT = 300, 4
ORTHONORMAL = Orthonormal()
# arguments of the rungs after bfloat16 and softmax
COARSE: dict[str, Any] = {"dtype": torch.bfloat16, "scale": 5.0}


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


@LADDER.rung("integers, hard-max", column="exact construction", covered=True, identifiers=permutation)
@LADDER.rung("float64", relaxes="identifiers with integer products", column="floating point")
@LADDER.rung("float32", relaxes="float32 instead of float64", column="floating point", dtype=torch.float32)
@LADDER.rung("bfloat16", relaxes="bfloat16 instead of float32", column="floating point", dtype=torch.bfloat16)
@LADDER.rung(
    "softmax, a = 20", relaxes="hard-max attention", column="softmax", dtype=torch.bfloat16, scale=20.0
)
@LADDER.rung(
    "softmax, a = 10",
    relaxes="a scale of 10 instead of 20",
    column="softmax",
    dtype=torch.bfloat16,
    scale=10.0,
)
@LADDER.rung("softmax, a = 5", relaxes="a scale of 5 instead of 10", column="softmax", **COARSE)
@LADDER.rung(
    "Laplacian, all n",
    relaxes="identifiers independent of the graph",
    column="relaxed encoding",
    identifiers=Laplacian(),
    **COARSE,
)
@LADDER.rung(
    "random, 1024 dimensions",
    relaxes="orthogonal identifiers",
    column="relaxed encoding",
    identifiers=RandomUnit(1024),
    **COARSE,
)
@LADDER.rung(
    "random, 64 dimensions",
    relaxes="64 dimensions instead of 1,024",
    column="relaxed encoding",
    identifiers=RandomUnit(64),
    **COARSE,
)
@LADDER.rung(
    "Laplacian, 5 of 10",
    relaxes="as many dimensions as nodes",
    column="relaxed encoding",
    identifiers=Laplacian(KEPT),
    **COARSE,
)
def written(
    generator: Generator,
    *,
    identifiers: Identifiers = ORTHONORMAL,
    dtype: torch.dtype = torch.float64,
    scale: float = math.inf,
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
    yield LADDER.row(overlap(maps, targets, rows), predicted=1.0, nulls=(null,), n=NODES)
    yield LADDER.other_row(WORST, worst_error(maps, NODES), predicted=0.0, bounds=(0.0, 1.0), n=NODES)


@LADDER.rung(
    "learnt, orthonormal",
    relaxes="weights written by hand; identifiers are orthonormal",
    column="learnt",
    identifiers=ORTHONORMAL,
)
@LADDER.rung(
    "learnt, Laplacian",
    relaxes="identifiers independent of the graph",
    column="learnt",
    identifiers=Laplacian(),
)
@LADDER.rung(
    "learnt, 5 of n",
    relaxes="as many dimensions as nodes",
    column="learnt",
    identifiers=Laplacian(KEPT),
)
def learnt(generator: Generator, *, identifiers: Identifiers) -> Iterator[Measurement]:
    """Trains fifteen heads on graphs of 8 to 10 nodes and measures them on new graphs."""
    model = train_heads(identifiers, sizes=(8, 9, NODES), width=NODES, steps=STEPS, generator=generator)
    targets, rows = normalised_patterns(NODES), query_rows(NODES)
    with torch.no_grad():
        maps = model(draw_batch(NODES, HELD_OUT, identifiers, NODES, generator)).exp().double()
    values = [overlap(each, targets, rows) for each in maps]
    draws = [null_overlaps(each, targets, rows, generator) for each in maps]
    null = Null(NULL_KIND, tuple(sum(draw) / len(draw) for draw in zip(*draws)))
    yield LADDER.row(sum(values) / len(values), predicted=1.0, nulls=(null,), n=HELD_OUT)
    yield LADDER.other_row(
        WORST,
        max(worst_error(each, NODES) for each in maps),
        predicted=0.0,
        bounds=(0.0, 1.0),
        n=HELD_OUT,
    )
