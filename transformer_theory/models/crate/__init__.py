"""Blocks and layers of CRATE. :mod:`transformer_theory.models` exports the networks.

To vary a layer, pass another block as an argument.

*Compression* blocks are constructed as ``attention(dim, heads=..., head_dim=...)``. They map layer-normalised
tokens [batch, n, dim] to their change, [batch, n, dim]. A block may have the attribute ``is_causal = True``
(the language model requires it, the classifier refuses it), the argument ``context`` (the language model
passes its own context), and the method ``subspaces()``, which returns U_k as columns, [K, dim, head_dim], for
the metrics of the theory. The base class :class:`Subspaces` provides ``subspaces()`` and
``coordinates(tokens)``, [batch, K, n, head_dim].

*Sparsification* blocks are constructed as ``sparsify(dim)`` and return the new tokens or, with ``skip =
True``, the change that is added to the tokens. For example

    class Gather(Subspaces):  # each token moves towards the mean, in every subspace
        def forward(self, tokens):
            coords = self.coordinates(tokens)
            return 0.1 * ((coords.mean(2, keepdim=True) - coords) @ self.subspaces().mT).sum(1)

    layer = Layer(96, attention=Gather(96, heads=4, head_dim=24), sparsify=Ista(96))

Source: :cite:t:`yu2023white`.
"""

from .attention import (
    CausalExactAttention,
    CausalPaperAttention,
    CausalReleasedAttention,
    CausalReleasedTokenStatisticsAttention,
    CausalTokenStatisticsAttention,
    ExactAttention,
    PaperAttention,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    Subspaces,
    TokenStatisticsAttention,
    orthogonal,
)
from .layers import Layer, PreNorm, Stack, layers_of
from .sparsification import Fista, Ista, OvercompleteIsta

__all__ = [
    "CausalExactAttention",
    "CausalPaperAttention",
    "CausalReleasedAttention",
    "CausalReleasedTokenStatisticsAttention",
    "CausalTokenStatisticsAttention",
    "ExactAttention",
    "Fista",
    "Ista",
    "Layer",
    "OvercompleteIsta",
    "PaperAttention",
    "PreNorm",
    "ReleasedAttention",
    "ReleasedTokenStatisticsAttention",
    "Stack",
    "Subspaces",
    "TokenStatisticsAttention",
    "layers_of",
    "orthogonal",
]
