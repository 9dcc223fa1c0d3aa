r"""Attention heads that learn the fifteen patterns by gradient descent, from random graphs.

Fifteen heads read the addresses :math:`z_i = [P_{i_1}; P_{i_2}; e_{\mathrm{type}(i)}]` of dense tokens. Each
computes
:math:`\mathrm{softmax}_j(\langle W_Q z_i, W_K z_j\rangle / \sqrt{p})` and is trained to reproduce one
row-normalised pattern on the queries of the right type. Graphs are those of Barabási and Albert; every batch
draws new graphs and new identifiers, so that the heads have to work with any identifiers of the kind.

Source: :cite:t:`kim2022pure`, whose experiment is larger: graphs of 10 to 15 nodes, heads of width 128.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.validation import integers
from ...training.fitting import State, fit
from ...training.tasks import StreamTask
from .heads import query_rows
from .identifiers import GraphTokens, Identifiers, tokenize_graph
from .patterns import PATTERNS, normalised_patterns


class LearntHeads(nn.Module):
    """Fifteen heads with learnt projections of queries and keys.

    Args:
        address: width 2 d + 2 of the tokens' addresses.
        head_dim: width p of queries and keys.
        generator: draws the initial weights.
    """

    def __init__(self, address: int, head_dim: int, generator: Generator):
        super().__init__()
        shape, std = (len(PATTERNS), address, head_dim), address**-0.5
        self.query = nn.Parameter(std * torch.randn(shape, generator=generator))
        self.key = nn.Parameter(std * torch.randn(shape, generator=generator))

    def forward(
        self, addresses: Float[Tensor, "graphs tokens address"]
    ) -> Float[Tensor, "graphs 15 tokens tokens"]:
        """Returns the logarithm of the attention weights, ``[graphs, 15, queries, keys]``."""
        z = addresses[:, None].to(self.query.dtype)
        scores = (z @ self.query) @ (z @ self.key).mT / math.sqrt(self.query.shape[-1])
        return scores.log_softmax(-1)


def padded(tokens: GraphTokens, width: int) -> Float[Tensor, "tokens address"]:
    """Returns the addresses of tokens whose identifiers are padded with zeros to ``width`` dimensions,
    ``[tokens, 2 width + 2]``.

    Raises:
        ValueError: the identifiers have more dimensions.
    """
    first, second = tokens.structure.chunk(2, dim=1)
    if first.shape[1] > width:
        raise ValueError(
            f"width must be at least {first.shape[1]}, the width of the identifiers, got {width}; pass a "
            "larger width"
        )
    zeros = first.new_zeros(len(first), width - first.shape[1])
    return torch.cat([first, zeros, second, zeros, tokens.types], dim=1)


def draw_batch(
    n: int, graphs: int, identifiers: Identifiers, width: int, generator: Generator
) -> Float[Tensor, "graphs pairs address"]:
    """Draws graphs of Barabási and Albert with 2 or 3 attachments, and the addresses of their tokens,
    ``[graphs, n^2, 2 width + 2]``.

    Args:
        n: number of nodes, at least 4, so that every pattern has keys.
        graphs: number of graphs.
        identifiers: see :func:`.tokenize_graph`.
        width: width to which identifiers are padded.
        generator: draws everything.
    """
    import networkx

    addresses = []
    for _ in range(graphs):
        attachments, seed = (
            int(torch.randint(2, 4, (), generator=generator)),
            int(torch.randint(2**31, (), generator=generator)),
        )
        graph = networkx.barabasi_albert_graph(n, attachments, seed=seed)
        addresses.append(padded(tokenize_graph(graph, identifiers, generator=generator), width))
    return torch.stack(addresses)


@lru_cache(maxsize=8)
def _targets(n: int) -> tuple[Tensor, Tensor]:
    return normalised_patterns(n), query_rows(n)


def pattern_loss(model: nn.Module, addresses: Float[Tensor, "graphs pairs address"]) -> Float[Tensor, ""]:
    """Returns the mean cross-entropy of the attention weights with the row-normalised patterns, over queries
    of the right type, ``[]``.
    """
    logs, (targets, rows) = model(addresses), _targets(math.isqrt(addresses.shape[1]))
    entropies = -torch.einsum("pij,gpij->pi", targets.to(logs.dtype), logs) / len(logs)
    # Rows of the wrong type have targets of zero already; each pattern counts alike, whatever its number of
    # queries.
    return (entropies.sum(1) / rows.sum(1)).mean()


def train_heads(
    identifiers: Identifiers,
    *,
    sizes: tuple[int, ...],
    width: int,
    steps: int,
    graphs: int = 4,
    head_dim: int = 32,
    rate: float = 2e-2,
    generator: Generator,
) -> LearntHeads:
    """Trains fifteen heads on random graphs by Adam, with a learning rate that falls along a cosine.

    Args:
        identifiers: see :func:`.tokenize_graph`; of at most ``width`` dimensions.
        sizes: numbers of nodes, at least 4, one of which is drawn for each batch.
        width: width to which identifiers are padded.
        steps: number of batches.
        graphs: graphs per batch.
        head_dim: width of queries and keys.
        rate: learning rate.
        generator: draws weights, graphs and identifiers.
    Returns:
        The heads in evaluation mode.
    Raises:
        ValueError: there is no size, or one is below 4, so that some patterns have no keys.
    """
    if not sizes:
        raise ValueError("sizes must hold at least one number of nodes, got none; pass e.g. sizes=(6, 7)")
    integers(minimum=4, **{f"sizes[{place}]": size for place, size in enumerate(sizes)})
    model = LearntHeads(2 * width + 2, head_dim, generator)

    def stream(generator: Generator) -> Iterator[Tensor]:
        while True:
            n = sizes[int(torch.randint(len(sizes), (), generator=generator))]
            yield draw_batch(n, graphs, identifiers, width, generator)

    def cosine(state: State) -> float:
        return 0.5 * (1 + math.cos(math.pi * state.done))

    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    fit(
        model,
        StreamTask(pattern_loss, stream),
        optimiser=optimiser,
        steps=steps,
        schedule=cosine,
        generator=generator,
    )
    return model
