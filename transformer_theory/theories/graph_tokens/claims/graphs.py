"""Claims about the graphs that networks and tests distinguish."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....core.claims import Measured, but, claim
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


@claim(
    "graph_tokens/order-two",
    measures="largest relative difference of the outputs of random networks on two such graphs, by sums "
    "and by heads",
    at_most=1e-11,
    source=Source("geerts2020expressive", status="second-hand"),
    assumptions=(
        "plain graphs: no features but the adjacency",
        "identifiers do not enter, or are orthonormal (all Laplacian eigenvectors) and read by heads",
        PAIRS,
    ),
    control=but("trees of 10 nodes with equal degrees that 1-WL distinguishes", draw=TREES),
    corrects=(
        'It cites Corollary 2 of Kim et al. (2022) as: TokenGT "is at least as powerful as k-WL and is '
        'more expressive than all message-passing GNNs". This holds for TokenGT of order k. The one used '
        "in practice has order two, which is the oblivious test of order two, that is, 1-WL on plain "
        "graphs: the bound of message passing."
    ),
    corrected=Source("wong2023understanding", "Theorem 4.1", "confirmed"),
)
def order_two(generator: Generator, *, draw: tuple[Callable[[Generator], Pair], ...] = EQUAL) -> Measured:
    """Equivariant networks F of order two distinguish no more plain graphs than 1-WL: $F(G) = F(H)$ if 1-WL
    gives G and H the same colours.
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
    return Measured(
        max(largest.values()), largest | {"pairs distinguished by 1-WL": refined, "pairs": len(draw)}
    )


@claim(
    "graph_tokens/message-passing",
    measures="largest relative difference of the outputs of random networks on two such graphs",
    at_most=1e-11,
    source=Source("xu2019powerful", "Lemma 2", "second-hand"),
    assumptions=("nodes start from their degrees", PAIRS),
    control=but("trees of 10 nodes with equal degrees that 1-WL distinguishes", draw=TREES),
)
def message_passing(generator: Generator, *, draw: tuple[Callable[[Generator], Pair], ...] = EQUAL) -> float:
    """Message passing and graph attention distinguish no more plain graphs than 1-WL: $F(G) = F(H)$ if 1-WL
    gives G and H the same colours.
    """
    values = []
    for pick in draw:
        pair = pick(generator)
        for network in (MessagePassing.draw(generator), GraphAttention.draw(generator)):
            values.append(
                relative_difference(network(adjacency(pair.first)), network(adjacency(pair.second)))
            )
    return max(values)


def _strongly_regular(generator: Generator) -> Pair:
    """The rook's graph and the Shrikhande graph with their nodes in random orders."""
    return Pair("rook and Shrikhande", shuffled(rook(), generator), shuffled(shrikhande(), generator))


@claim(
    "graph_tokens/folklore-test",
    measures="share of the pairs that the folklore test distinguishes, minus the share that 1-WL "
    "distinguishes",
    at_least=1.0,
    source=Source("cai1992optimal", status="second-hand"),
    assumptions=(PAIRS,),
    control=but(
        "the rook's graph and the Shrikhande graph, strongly regular with equal parameters",
        draw=(_strongly_regular,),
    ),
)
def folklore_test(generator: Generator, *, draw: tuple[Callable[[Generator], Pair], ...] = EQUAL) -> Measured:
    """The folklore test of order two, which refines $c(u, v)$ by the pairs $(c(u, w), c(w, v))$ over all w,
    distinguishes pairs on which networks of order two give equal outputs.
    """
    pairs = [pick(generator) for pick in draw]
    shares = [
        sum(distinguished(pair.first, pair.second, refine) for pair in pairs) / len(pairs)
        for refine in (folklore_weisfeiler_leman, weisfeiler_leman)
    ]
    return Measured(shares[0] - shares[1], {"folklore": shares[0], "1-WL": shares[1]})


@claim(
    "graph_tokens/laplacian",
    measures="smaller of two relative differences: between the means of two graphs over all signs, and "
    "between two choices of signs",
    at_least=1e-3,
    source=OWN,
    assumptions=(
        "three transformers with random weights, two layers, one head; the largest difference counts",
        "three eigenvectors; pairs are drawn again until the lowest four eigenvalues of both lie .01 apart",
        "all pairs of nodes are tokens",
        "two random 2-lifts, of 12 nodes, of one irregular graph",
    ),
    control=but("the second graph is the first with its nodes in another order", isomorphic=True),
)
def laplacian_signs(generator: Generator, *, isomorphic: bool = False) -> Measured:
    r"""A transformer that reads Laplacian eigenvectors P as features depends on their signs: its outputs
    differ for P and $P \operatorname{diag}(\pm 1)$. The mean over all signs is invariant, and differs between
    graphs that 1-WL does not distinguish.
    """
    # Three transformers; the largest difference of each kind counts.
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
    return Measured(min(graphs, signed), {"between the graphs": graphs, "between signs": signed})


CLAIMS = (order_two, message_passing, folklore_test, laplacian_signs)
