"""Claims about the graphs that networks and tests distinguish."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..baselines import GraphAttention, MessagePassing, TokenTransformer
from ..identifiers import Laplacian, adjacency, tokenize_graph
from ..layers import by_heads, random_network, relative_difference
from ..pairs import Pair, cycle_pair, regular_pair, rook, separable_pair, shrikhande
from ..refinement import distinguished, folklore_weisfeiler_leman, weisfeiler_leman
from .drawing import OWN

EQUAL = (cycle_pair, cycle_pair, regular_pair, regular_pair)
TREES = (separable_pair, separable_pair)
REGULAR = "pairs: a cycle and two disjoint cycles; cubic graphs of 10 nodes with different spectra, which are therefore not isomorphic"


def _order_two(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the largest relative difference of the outputs of random networks of order two on pairs of graphs."""
    largest, refined = 0.0, 0
    for pick in draw:
        pair = pick(generator)
        network = random_network(len(pair.first), generator=generator)
        one, other = (network(adjacency(graph)[..., None]) for graph in (pair.first, pair.second))
        largest = max(largest, relative_difference(one, other))
        refined += distinguished(pair.first, pair.second)
    return Evidence(largest, 1e-11, "<=", detail={"pairs distinguished by 1-WL": refined, "pairs": len(draw)})


def _messages(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the largest relative difference of the outputs of message passing and of graph attention on pairs of graphs."""
    values = []
    for pick in draw:
        pair = pick(generator)
        for network in (MessagePassing.draw(generator), GraphAttention.draw(generator)):
            values.append(relative_difference(network(adjacency(pair.first)), network(adjacency(pair.second))))
    return Evidence(max(values), 1e-11, "<=")


def _folklore(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the share of pairs that the folklore test distinguishes, minus the share that 1-WL distinguishes."""
    pairs = [pick(generator) for pick in draw]
    shares = [
        sum(distinguished(pair.first, pair.second, refine) for pair in pairs) / len(pairs)
        for refine in (folklore_weisfeiler_leman, weisfeiler_leman)
    ]
    return Evidence(shares[0] - shares[1], 1.0, ">=", detail={"folklore": shares[0], "1-WL": shares[1]})


def _strongly_regular(generator: Generator) -> Pair:
    """The rook's graph and the Shrikhande graph with their nodes in random orders."""
    import networkx

    def shuffled(graph):
        order = torch.randperm(len(graph), generator=generator).tolist()
        return networkx.relabel_nodes(graph, dict(enumerate(order)))

    return Pair("rook and Shrikhande", shuffled(rook()), shuffled(shrikhande()))


def _laplacian(generator: Generator, *, invariant: bool) -> Evidence:
    """Measures the smaller of two relative differences: between the graphs of a pair, and between two choices of signs for one graph."""
    pair = cycle_pair(generator)
    n = len(pair.first)
    transformer, network = TokenTransformer.draw(2 * n + 3, generator), random_network(n, generator=generator)

    def output(graph) -> Tensor:
        tokens = tokenize_graph(graph, Laplacian(), generator=generator)
        if invariant:
            return network(adjacency(graph)[..., None], lambda layer, X: by_heads(layer, X, tokens))
        return transformer(tokens)

    first, again, second = output(pair.first), output(pair.first), output(pair.second)
    tie, signs = relative_difference(first, second), relative_difference(first, again)
    return Evidence(min(tie, signs), 1e-3, ">=", detail={"between the graphs": tie, "between two choices of signs": signs})


GRAPHS = (
    Claim(
        id="graph_tokens/order-two",
        statement=r"Equivariant networks F of order two distinguish no more plain graphs than 1-WL: $F(G) = F(H)$ if 1-WL gives G and H "
        "the same colours.",
        measures="largest relative difference of the outputs of random networks on two such graphs",
        source=Source("geerts2020expressive", status="second-hand"),
        assumptions=(
            "plain graphs: no features but the adjacency",
            "identifiers do not enter, or are orthonormal and read by heads",
            REGULAR,
        ),
        check=lambda generator: _order_two(generator, EQUAL),
        control=lambda generator: _order_two(generator, TREES),
        control_description="trees of 10 nodes with equal degrees that 1-WL distinguishes",
        corrects='Theorem 4.1 of the survey (Corollary 2 of the paper): TokenGT "is at least as powerful as k-WL and is more expressive '
        'than all message-passing GNNs". This holds for TokenGT of order k. The one used in practice has order two, which is the '
        "oblivious test of order two, that is, 1-WL on plain graphs: the bound of message passing.",
    ),
    Claim(
        id="graph_tokens/message-passing",
        statement=r"Message passing and graph attention distinguish no more plain graphs than 1-WL: $F(G) = F(H)$ if 1-WL gives G and H "
        "the same colours.",
        measures="largest relative difference of the outputs of random networks on two such graphs",
        source=Source("xu2019powerful", status="second-hand"),
        assumptions=("nodes start from their degrees", REGULAR),
        check=lambda generator: _messages(generator, EQUAL),
        control=lambda generator: _messages(generator, TREES),
        control_description="trees of 10 nodes with equal degrees that 1-WL distinguishes",
    ),
    Claim(
        id="graph_tokens/folklore-test",
        statement=r"The folklore test of order two, which refines $c(u, v)$ by the pairs $(c(u, w), c(w, v))$ over all w, "
        "distinguishes pairs on which networks of order two give equal outputs.",
        measures="share of the pairs that the folklore test distinguishes, minus the share that 1-WL distinguishes",
        source=Source("cai1992optimal", status="second-hand"),
        assumptions=(REGULAR,),
        check=lambda generator: _folklore(generator, EQUAL),
        control=lambda generator: _folklore(generator, (_strongly_regular,)),
        control_description="the rook's graph and the Shrikhande graph, strongly regular with equal parameters",
    ),
    Claim(
        id="graph_tokens/laplacian",
        statement=r"A transformer that reads Laplacian identifiers P as features gives different outputs for a cycle and two cycles, but "
        r"also for P and $P \operatorname{diag}(\pm 1)$: it breaks the tie by leaving the invariant setting.",
        measures="smaller of two relative differences: between the graphs, and between two choices of signs for one graph",
        source=OWN,
        assumptions=("random weights, two layers, one head", "a cycle of 6 to 12 nodes and two disjoint cycles with as many"),
        check=lambda generator: _laplacian(generator, invariant=False),
        control=lambda generator: _laplacian(generator, invariant=True),
        control_description="the same identifiers, read by the heads of the patterns only",
    ),
)
