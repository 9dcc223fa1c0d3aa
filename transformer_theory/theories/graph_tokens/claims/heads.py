"""Claims about tokens and heads: inner products, gaps, errors, and the dimensions that identifiers need."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Generator

from ....core.claims import NEAR, Measured, but, claim
from ....core.sources import Source
from ..heads import attention_maps, head_scores, pattern_heads, smallest_gap, worst_error
from ..identifiers import (
    GraphTokens,
    Identifiers,
    Laplacian,
    Orthonormal,
    RandomUnit,
    Simplex,
    permutation,
    tokenize_graph,
)

if TYPE_CHECKING:
    import networkx

PAPER = "kim2022pure"
OWN = Source(PAPER, status="own")
DENSE = "all pairs of nodes are tokens (order two, dense), self-attention without mask"
ORTHONORMAL = "identifiers are orthonormal"
INTEGERS = "identifiers are a permutation matrix, so that all scores are integers"
SCALES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
SIZES = "graphs of 4 to 7 nodes"
LARGER = "graphs of 5 to 8 nodes, an edge between two nodes with probability 1/2"
IDENTIFIERS, CORNERS = Orthonormal(), Simplex()


def draw_graph(n: int, generator: Generator) -> "networkx.Graph":
    """Draws a graph in which each pair of nodes is an edge with probability 1/2. Dense tokens exist for all
    pairs anyway.
    """
    import networkx

    return networkx.gnp_random_graph(n, 0.5, seed=int(torch.randint(2**31, (), generator=generator)))


def draw_tokens(n: int, identifiers: Identifiers, generator: Generator) -> GraphTokens:
    """Draws a graph with n nodes and its dense tokens."""
    return tokenize_graph(draw_graph(n, generator), identifiers, generator=generator)


def _size(generator: Generator) -> int:
    return int(torch.randint(4, 8, (), generator=generator))


@claim(
    "graph_tokens/inner-products",
    measures="largest error of an inner product",
    at_most=1e-12,
    source=Source(PAPER, "Section 3", "second-hand"),
    assumptions=(
        "identifiers: rows of a random orthogonal matrix, or all n eigenvectors of the Laplacian",
        DENSE,
        SIZES,
    ),
    control=but("identifiers are orthogonal, but of lengths between 1 and 2", unit=False),
    corrects=(
        "It asks for *orthogonal* identifiers. Its products 1 and 0 need *orthonormal* ones, and that of "
        "a node with itself is 2."
    ),
    corrected=Source("wong2023understanding", "App. D.1.1", "confirmed"),
)
def inner_products(generator: Generator, *, unit: bool = True) -> Measured:
    r"""With orthonormal identifiers $\langle [P_{i_1}; P_{i_2}], [P_{j_1}; P_{j_2}] \rangle = [i_1 = j_1] +
    [i_2 = j_2]$: 2 for a token with itself, 1 for an edge and a node on it, 0 for tokens without a common
    place.
    """
    n, errors = _size(generator), {}
    for name, identifiers in (("random", Orthonormal()), ("Laplacian", Laplacian())):
        tokens = draw_tokens(n, identifiers, generator)
        lengths = (
            torch.ones(n, dtype=torch.float64)
            if unit
            else 1 + torch.rand(n, generator=generator, dtype=torch.float64)
        )
        structure = tokens.structure * lengths[tokens.pairs].repeat_interleave(n, dim=1)
        equal = (tokens.pairs[:, None] == tokens.pairs[None]).sum(-1)  # how many of the two places agree
        errors[name] = float((structure @ structure.mT - equal).abs().max())
    return Measured(max(errors.values()), errors)


@claim(
    "graph_tokens/gap",
    measures="smallest gap between the score of a key of the pattern and that of another key",
    at_least=1.0,
    source=OWN,
    assumptions=(INTEGERS, DENSE, SIZES),
    control=but("the heads do not read the type of the key", type_term=False),
)
def gap(generator: Generator, *, type_term: bool = True) -> Measured:
    r"""In the head of each of the fifteen patterns the keys of the pattern have equal scores, larger than all
    others by at least 1: $\min_{j \in \mu} s(i, j) - \max_{j \notin \mu} s(i, j) \ge 1$.
    """
    n = _size(generator)
    tokens, heads = draw_tokens(n, permutation, generator), pattern_heads(n)
    if not type_term:
        heads[:, 2 * n :] = 0
    # The heads' matrices and the direct sum are the same scores.
    gaps = [smallest_gap(scores, n) for scores in (head_scores(tokens, heads), head_scores(tokens))]
    return Measured(min(gaps), {"n": n})


@claim(
    "graph_tokens/hard-max",
    measures="worst error of an attention weight, for queries of the right type",
    at_most=1e-15,
    source=OWN,
    assumptions=(INTEGERS, DENSE, SIZES),
    control=but(
        "identifiers are random unit vectors of 64 dimensions, not orthogonal", identifiers=RandomUnit(64)
    ),
)
def hard_max(generator: Generator, *, identifiers: Identifiers = permutation) -> Measured:
    r"""So hard-max attention, uniform over the keys of the largest score, is the row-normalised pattern $\bar
    B^\mu$, exactly.
    """
    n = _size(generator)
    return Measured(
        worst_error(attention_maps(draw_tokens(n, identifiers, generator), scale=math.inf), n), {"n": n}
    )


def _bounded(generator: Generator, identifiers: Identifiers) -> Measured:
    """Measures the worst error of the heads over the bound n^2 e^-a, the largest over three scales."""
    n = _size(generator)
    tokens = draw_tokens(n, identifiers, generator)
    errors = {a: worst_error(attention_maps(tokens, scale=a), n) for a in (5.0, 10.0, 20.0)}
    ratio = max(error / (n * n * math.exp(-a)) for a, error in errors.items())
    return Measured(ratio, {f"worst error at a = {a:g}": error for a, error in errors.items()} | {"n": n})


@claim(
    "graph_tokens/patterns",
    measures=r"worst error of an attention weight over $n^2 e^{-a}$, the largest at a = 5, 10, 20",
    at_most=1.0,
    source=Source(PAPER, "Lemma 1", "second-hand"),
    assumptions=(ORTHONORMAL, DENSE, SIZES),
    control=but(
        "identifiers are random unit vectors of 64 dimensions, not orthogonal", identifiers=RandomUnit(64)
    ),
)
def patterns(generator: Generator, *, identifiers: Identifiers = IDENTIFIERS) -> Measured:
    r"""Softmax heads approximate the row-normalised patterns to any accuracy. The rate is ours: $|A_{ij} -
    \bar B_{ij}| \le n^2 e^{-a}$ at scale a, for every query of the right type.
    """
    return _bounded(generator, identifiers)


@claim(
    "graph_tokens/simplex",
    measures=r"worst error of an attention weight over $n^2 e^{-a}$, the largest at a = 5, 10, 20",
    at_most=1.0,
    source=OWN,
    assumptions=("the identifiers are unit vectors with equal inner products", DENSE, SIZES),
    control=but(
        "n - 1 dimensions, by dropping one column of a random orthogonal matrix",
        identifiers=lambda graph, g: Orthonormal(kept=len(graph) - 1)(graph, g),
    ),
)
def simplex(generator: Generator, *, identifiers: Identifiers = CORNERS) -> Measured:
    """Identifiers need equal inner products, not orthogonal ones: the corners of a regular simplex, in n - 1
    dimensions, give the same patterns within $n^2 e^{-a}$.
    """
    return _bounded(generator, identifiers)


def _fewer(generator: Generator, fewer: Callable[[int], tuple[Identifiers, ...]]) -> Measured:
    """Measures the worst error at the best of the scales and identifiers."""
    n = _size(generator) + 1
    errors = []
    for identifiers in fewer(n):
        tokens = draw_tokens(n, identifiers, generator)
        errors.append(min(worst_error(attention_maps(tokens, scale=a), n) for a in SCALES))
    return Measured(min(errors), {"n": n, "largest": max(errors)})


@claim(
    "graph_tokens/fewer-dimensions",
    measures="worst error of an attention weight, at the best of eight scales from 1 to 1000 and of "
    "three kinds of identifiers",
    at_least=0.3,
    source=OWN,
    assumptions=(
        "identifiers of n - 2 dimensions: truncated orthonormal, truncated Laplacian, random unit vectors",
        DENSE,
        LARGER,
    ),
    control=but("a simplex in n - 1 dimensions", fewer=lambda n: (Simplex(),)),
)
def fewer_dimensions(
    generator: Generator,
    *,
    fewer: Callable[[int], tuple[Identifiers, ...]] = lambda n: (
        Orthonormal(kept=n - 2),
        Laplacian(n - 2),
        RandomUnit(n - 2),
    ),
) -> Measured:
    r"""With n - 2 dimensions no scale repairs the heads: hard-max needs $P P^\top = D + \beta 1 1^\top$ with
    a diagonal $D > 0$, of rank at least n - 1. The threshold is ours.
    """
    return _fewer(generator, fewer)


@claim(
    "graph_tokens/random-identifiers",
    measures="worst error of an attention weight, at the best of eight scales from 1 to 1000",
    at_least=0.3,
    margin=NEAR,
    source=OWN,
    assumptions=(DENSE, LARGER),
    control=but("orthonormal identifiers of 64 dimensions", fewer=lambda n: (Orthonormal(width=64),)),
)
def random_identifiers(
    generator: Generator, *, fewer: Callable[[int], tuple[Identifiers, ...]] = lambda n: (RandomUnit(64),)
) -> Measured:
    r"""Many dimensions do not replace orthogonality: for random unit vectors, with inner products of size $1
    / \sqrt{d}$, no scale repairs the heads at d = 64. The threshold is ours.
    """
    return _fewer(generator, fewer)


CLAIMS = (inner_products, gap, hard_max, patterns, simplex, fewer_dimensions, random_identifiers)
