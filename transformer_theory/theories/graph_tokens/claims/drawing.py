"""What several claims share: assumptions, and the graphs whose dense tokens they draw."""

from typing import TYPE_CHECKING

import torch
from torch import Generator

from ....core.sources import Source
from ..identifiers import GraphTokens, Identifiers, tokenize_graph

if TYPE_CHECKING:
    import networkx

PAPER = "kim2022pure"
OWN = Source(PAPER, status="own")
DENSE = "all pairs of nodes are tokens (order two, dense), self-attention without mask"
ORTHONORMAL = "identifiers are orthonormal"


def draw_graph(n: int, generator: Generator) -> "networkx.Graph":
    """Draws a graph in which each pair of nodes is an edge with probability 1/2. Dense tokens exist for all pairs anyway."""
    import networkx

    return networkx.gnp_random_graph(n, 0.5, seed=int(torch.randint(2**31, (), generator=generator)))


def draw_tokens(n: int, identifiers: Identifiers, generator: Generator) -> GraphTokens:
    """Draws a graph with n nodes and its dense tokens."""
    return tokenize_graph(draw_graph(n, generator), identifiers, generator=generator)
