"""Graphs as tokens: what a transformer on nodes and edges computes, and which graphs it distinguishes.

:mod:`.identifiers` turns graphs into tokens, :mod:`.patterns` defines the fifteen equivariant patterns, and
:mod:`.heads` writes one attention head for each. :mod:`.layers` builds equivariant layers and networks from
them, :mod:`.learning` trains the heads. :mod:`.refinement` holds the tests of Weisfeiler and Leman,
:mod:`.baselines` message passing, graph attention and a transformer with random weights, :mod:`.pairs` graphs
that are hard to distinguish. :mod:`.claims` contains the checkable statements, :mod:`.figures` the
experiments, and :mod:`.on_data` applies the tests to graphs of the user.
"""

from ...core.sources import Source
from ...core.theory import Theory
from .baselines import GraphAttention, MessagePassing, TokenTransformer
from .claims import CLAIMS
from .figures import EXPERIMENTS
from .heads import attention_maps, head_scores, overlap, pattern_head, pattern_heads, worst_error
from .identifiers import GraphTokens, Laplacian, Orthonormal, RandomUnit, Simplex, tokenize_graph
from .ladder import LADDER
from .layers import EquivariantLayer, Network, by_heads, by_sums, random_layer, random_network
from .learning import LearntHeads, train_heads
from .on_data import ON_DATA
from .pairs import known_pairs
from .patterns import Pattern, equivalence_patterns
from .refinement import distinguished, folklore_weisfeiler_leman, weisfeiler_leman

THEORY = Theory(
    name="graph_tokens",
    title="Pure transformers on graphs",
    colour="#117733",
    question="Which graphs can a transformer on node and edge tokens distinguish?",
    statement="Make every node and every pair of nodes a token, with orthonormal identifiers of its nodes "
    "and its type. One attention head for each of the fifteen equality patterns of order two then attends "
    "to exactly the keys of its pattern, up to $n^2 e^{-a}$ at scale a. So fifteen heads compute any "
    r"equivariant layer $\sum_\mu B^\mu X w_\mu$, and a stack computes any equivariant network of order "
    "two. Such networks of sufficient depth distinguish plain graphs exactly if colour refinement (1-WL) "
    "does.",
    sources=(Source("kim2022pure"), Source("maron2019invariant"), Source("geerts2020expressive")),
    assumptions=(
        "all pairs of nodes are tokens, with the type of the token",
        "identifiers are orthonormal: at least as many dimensions as nodes",
        "large attention scale, or hard-max",
        "invariance: only inner products of identifiers are used",
    ),
    claims=CLAIMS,
    ladder=LADDER,
    experiments=EXPERIMENTS,
    on_data=ON_DATA,
)

__all__ = [
    "THEORY",
    "EquivariantLayer",
    "GraphAttention",
    "GraphTokens",
    "Laplacian",
    "LearntHeads",
    "MessagePassing",
    "Network",
    "Orthonormal",
    "Pattern",
    "RandomUnit",
    "Simplex",
    "TokenTransformer",
    "attention_maps",
    "by_heads",
    "by_sums",
    "distinguished",
    "equivalence_patterns",
    "folklore_weisfeiler_leman",
    "head_scores",
    "known_pairs",
    "overlap",
    "pattern_head",
    "pattern_heads",
    "random_layer",
    "random_network",
    "tokenize_graph",
    "train_heads",
    "weisfeiler_leman",
    "worst_error",
]
