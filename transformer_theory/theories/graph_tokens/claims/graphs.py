"""Claims about the graphs that networks and tests distinguish."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..baselines import GraphAttention, MessagePassing, TokenTransformer
from ..identifiers import Laplacian, adjacency, laplacian, tokenize_graph
from ..layers import by_heads, random_network, relative_difference
from ..pairs import Pair, cycle_pair, lift_pair, rook, separable_pair, shrikhande, shuffled
from ..refinement import distinguished, folklore_weisfeiler_leman, weisfeiler_leman
from .heads import OWN

EQUAL = (cycle_pair, cycle_pair, lift_pair, lift_pair)
TREES = (separable_pair, separable_pair)
PAIRS = (
    "pairs: a cycle and two disjoint cycles; two random 2-lifts, of 12 nodes, of one irregular graph, with "
    "different spectra, which are therefore not isomorphic"
)
VECTORS = 3  # eigenvectors that the transformer reads; all of their signs are enumerated


def _order_two(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the largest relative difference of the outputs of random networks on pairs of graphs, by sums
    and by heads.
    """
    largest, refined = {"sums": 0.0, "heads": 0.0}, 0
    for pick in draw:
        pair = pick(generator)
        network = random_network(len(pair.first), generator=generator)
        outputs: dict[str, list[Tensor]] = {"sums": [], "heads": []}
        for graph in (pair.first, pair.second):
            A, tokens = adjacency(graph)[..., None], tokenize_graph(graph, Laplacian(), generator=generator)
            outputs["sums"].append(network(A))
            outputs["heads"].append(network(A, lambda layer, X, tokens=tokens: by_heads(layer, X, tokens)))
        largest = {how: max(value, relative_difference(*outputs[how])) for how, value in largest.items()}
        refined += distinguished(pair.first, pair.second)
    return Evidence(
        max(largest.values()),
        1e-11,
        "<=",
        detail=largest | {"pairs distinguished by 1-WL": refined, "pairs": len(draw)},
    )


def _messages(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the largest relative difference of the outputs of message passing and of graph attention on
    pairs of graphs.
    """
    values = []
    for pick in draw:
        pair = pick(generator)
        for network in (MessagePassing.draw(generator), GraphAttention.draw(generator)):
            values.append(
                relative_difference(network(adjacency(pair.first)), network(adjacency(pair.second)))
            )
    return Evidence(max(values), 1e-11, "<=")


def _folklore(generator: Generator, draw: tuple[Callable[[Generator], Pair], ...]) -> Evidence:
    """Measures the share of pairs that the folklore test distinguishes, minus the share that 1-WL
    distinguishes.
    """
    pairs = [pick(generator) for pick in draw]
    shares = [
        sum(distinguished(pair.first, pair.second, refine) for pair in pairs) / len(pairs)
        for refine in (folklore_weisfeiler_leman, weisfeiler_leman)
    ]
    return Evidence(shares[0] - shares[1], 1.0, ">=", detail={"folklore": shares[0], "1-WL": shares[1]})


def _strongly_regular(generator: Generator) -> Pair:
    """The rook's graph and the Shrikhande graph with their nodes in random orders."""
    return Pair("rook and Shrikhande", shuffled(rook(), generator), shuffled(shrikhande(), generator))


def _laplacian(generator: Generator, *, isomorphic: bool) -> Evidence:
    """Measures the smaller of two relative differences: of means over all signs between two graphs, and
    between signs for one graph.

    Three transformers; the largest difference of each kind counts.
    """
    while True:
        pair = lift_pair(generator)
        first, second = pair.first, shuffled(pair.first, generator) if isomorphic else pair.second
        lowest = torch.stack(
            [torch.linalg.eigvalsh(laplacian(graph))[: VECTORS + 1] for graph in (first, second)]
        )
        if float(lowest.diff().min()) > 1e-2:  # otherwise eigenvectors differ by more than signs
            break
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * VECTORS)
    graphs, signed = 0.0, 0.0
    for _ in range(3):
        transformer, outputs = TokenTransformer.draw(2 * VECTORS + 3, generator), []
        for graph in (first, second):
            P = Laplacian(VECTORS)(graph, generator)
            outputs.append(
                torch.stack([transformer(tokenize_graph(graph, lambda *_, P=P * row: P)) for row in signs])
            )
        graphs = max(graphs, relative_difference(outputs[0].mean(0), outputs[1].mean(0)))
        signed = max(signed, *(relative_difference(outputs[0][0], other) for other in outputs[0]))
    return Evidence(
        min(graphs, signed), 1e-3, ">=", detail={"between the graphs": graphs, "between signs": signed}
    )


GRAPHS = (
    Claim(
        id="graph_tokens/order-two",
        statement="Equivariant networks F of order two distinguish no more plain graphs than 1-WL: $F(G) = "
        "F(H)$ if 1-WL gives G and H the same colours.",
        measures="largest relative difference of the outputs of random networks on two such graphs, by sums "
        "and by heads",
        source=Source("geerts2020expressive", status="second-hand"),
        assumptions=(
            "plain graphs: no features but the adjacency",
            "identifiers do not enter, or are orthonormal (all Laplacian eigenvectors) and read by heads",
            PAIRS,
        ),
        check=lambda generator: _order_two(generator, EQUAL),
        control=lambda generator: _order_two(generator, TREES),
        control_description="trees of 10 nodes with equal degrees that 1-WL distinguishes",
        corrects='Theorem 4.1 of Wong et al. (2023) (Corollary 2 of the paper): TokenGT "is at least as '
        "powerful as k-WL "
        "and is more expressive "
        'than all message-passing GNNs". This holds for TokenGT of order k. The one used in practice has '
        "order two, which is the "
        "oblivious test of order two, that is, 1-WL on plain graphs: the bound of message passing.",
    ),
    Claim(
        id="graph_tokens/message-passing",
        statement="Message passing and graph attention distinguish no more plain graphs than 1-WL: $F(G) = "
        "F(H)$ if 1-WL gives G and H the same colours.",
        measures="largest relative difference of the outputs of random networks on two such graphs",
        source=Source("xu2019powerful", status="second-hand"),
        assumptions=("nodes start from their degrees", PAIRS),
        check=lambda generator: _messages(generator, EQUAL),
        control=lambda generator: _messages(generator, TREES),
        control_description="trees of 10 nodes with equal degrees that 1-WL distinguishes",
    ),
    Claim(
        id="graph_tokens/folklore-test",
        statement="The folklore test of order two, which refines $c(u, v)$ by the pairs $(c(u, w), c(w, "
        "v))$ over all w, distinguishes pairs on which networks of order two give equal outputs.",
        measures="share of the pairs that the folklore test distinguishes, minus the share that 1-WL "
        "distinguishes",
        source=Source("cai1992optimal", status="second-hand"),
        assumptions=(PAIRS,),
        check=lambda generator: _folklore(generator, EQUAL),
        control=lambda generator: _folklore(generator, (_strongly_regular,)),
        control_description="the rook's graph and the Shrikhande graph, strongly regular with equal "
        "parameters",
    ),
    Claim(
        id="graph_tokens/laplacian",
        statement="A transformer that reads Laplacian eigenvectors P as features depends on their signs: "
        r"its outputs differ for P and $P \operatorname{diag}(\pm 1)$. The mean over all signs is "
        "invariant, and differs between graphs that 1-WL does not distinguish.",
        measures="smaller of two relative differences: between the means of two graphs over all signs, and "
        "between two choices of signs",
        source=OWN,
        assumptions=(
            "three transformers with random weights, two layers, one head; the largest difference counts",
            "three eigenvectors, of simple eigenvalues; all pairs of nodes are tokens",
            "two random 2-lifts, of 12 nodes, of one irregular graph",
        ),
        check=lambda generator: _laplacian(generator, isomorphic=False),
        control=lambda generator: _laplacian(generator, isomorphic=True),
        control_description="the second graph is the first with its nodes in another order",
    ),
)
