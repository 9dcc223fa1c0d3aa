r"""Networks with random weights that are compared on pairs of graphs: message passing, graph attention, and a
transformer on graph tokens.

* :class:`MessagePassing`: :math:`h_v \leftarrow \mathrm{MLP}(W_1 h_v + \sum_{w \sim v} W_2 h_w)`, then the
  mean over nodes and an MLP.
* :class:`GraphAttention`: :math:`h_v \leftarrow \tanh(\sum_{w \in N(v) \cup \{v\}} a_{vw} W h_w)` with
  attention :math:`a_{vw} = \mathrm{softmax}_w(\mathrm{LeakyReLU}(p^\top W h_v + q^\top W h_w))`.
* :class:`TokenTransformer`: softmax attention on whole tokens, identifiers included, as TokenGT is used in
  practice.

The first two start from the degrees of the nodes. Neither distinguishes graphs that 1-WL does not. The third
depends on the identifiers.

Source: :cite:t:`xu2019powerful`, :cite:t:`velickovic2018graph`, :cite:t:`kim2022pure`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .identifiers import GraphTokens

WIDTH, ROUNDS = 16, 4
SLOPE = 0.2  # of the leaky ReLU


@dataclass(frozen=True, eq=False)
class MessagePassing:
    """Message passing with random weights.

    Attributes:
        weights: W_1, W_2 and the second matrix of the MLP in each round, ``[rounds, 3, width, width]``.
    """

    weights: Float[Tensor, "rounds 3 width width"]

    @classmethod
    def draw(cls, generator: Generator) -> "MessagePassing":
        """Draws Gaussian weights."""
        return cls(_gaussian(ROUNDS, 3, WIDTH, WIDTH, generator=generator))

    def __call__(self, matrix: Float[Tensor, "n n"]) -> Float[Tensor, " width"]:
        """Computes the output ``[width]`` from the adjacency matrix ``[n, n]``."""
        h = _degrees(matrix, self.weights.shape[-1])
        for own, others, second in self.weights:
            # tanh is injective where a ReLU would be zero, so no information is lost on the way.
            h = torch.tanh(torch.tanh(h @ own + matrix @ h @ others) @ second)
        return h.mean(0)


@dataclass(frozen=True, eq=False)
class GraphAttention:
    """Graph attention with random weights, one head.

    Attributes:
        weights: W in each round, ``[rounds, width, width]``.
        scores: p and q in each round, ``[rounds, 2, width]``.
    """

    weights: Float[Tensor, "rounds width width"]
    scores: Float[Tensor, "rounds 2 width"]

    @classmethod
    def draw(cls, generator: Generator) -> "GraphAttention":
        """Draws Gaussian weights."""
        return cls(
            _gaussian(ROUNDS, WIDTH, WIDTH, generator=generator),
            WIDTH**0.5 * _gaussian(ROUNDS, 2, WIDTH, generator=generator),
        )

    def __call__(self, matrix: Float[Tensor, "n n"]) -> Float[Tensor, " width"]:
        """Computes the output ``[width]`` from the adjacency matrix ``[n, n]``."""
        h = _degrees(matrix, self.weights.shape[-1])
        seen = (matrix + torch.eye(len(matrix), dtype=matrix.dtype)) > 0
        for W, (p, q) in zip(self.weights, self.scores):
            values = h @ W
            raw = torch.nn.functional.leaky_relu((values @ p)[:, None] + (values @ q)[None], SLOPE)
            h = torch.tanh(raw.masked_fill(~seen, -math.inf).softmax(-1) @ values)
        return h.mean(0)


@dataclass(frozen=True, eq=False)
class TokenTransformer:
    """A transformer on whole tokens with random weights, one head per layer and the mean as read-out.

    Attributes:
        embedding: ``[token, width]``.
        weights: W_Q, W_K, W_V and the MLP's matrix of each layer, ``[layers, 4, width, width]``.
    """

    embedding: Float[Tensor, "token width"]
    weights: Float[Tensor, "layers 4 width width"]

    @classmethod
    def draw(cls, token: int, generator: Generator) -> "TokenTransformer":
        """Draws Gaussian weights for tokens of a width ``token``."""
        return cls(
            _gaussian(token, WIDTH, generator=generator) * token**0.5,
            _gaussian(2, 4, WIDTH, WIDTH, generator=generator),
        )

    def __call__(self, tokens: GraphTokens) -> Float[Tensor, " width"]:
        """Computes the output ``[width]`` from the tokens of a graph, in any order."""
        h = tokens.vectors @ self.embedding
        for query, key, value, second in self.weights:
            h = h + ((h @ query) @ (h @ key).mT / WIDTH**0.5).softmax(-1) @ (h @ value)
            h = h + torch.relu(h) @ second
        return h.mean(0)


def _degrees(matrix: Tensor, width: int) -> Tensor:
    """Returns the degree of each node and a constant, in sines of several frequencies so that all channels
    differ, ``[n, width]``.
    """
    return torch.sin(matrix.sum(1)[:, None] * torch.linspace(0.1, 1.3, width, dtype=matrix.dtype) + 0.5)


def _gaussian(*shape: int, generator: Generator) -> Tensor:
    """Draws Gaussian matrices whose products with unit-variance vectors have unit variance."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-2] ** 0.5
