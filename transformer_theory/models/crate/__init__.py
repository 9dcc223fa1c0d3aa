"""The blocks of a CRATE layer as modules; a variant is a block one passes, ours or any other that keeps to this interface.

*Compression* is made by ``attention(dim, heads=..., head_dim=...)``, reads tokens [batch, n, dim] behind a layer norm and returns their
change, [batch, n, dim]. It may say ``is_causal = True`` (then the language model takes it and the classifier does not), ask for ``context``
as one more keyword (the language model gives its own), and tell ``subspaces()``, U_k as columns, [K, dim, head_dim], which layer-wise
readings ask for; :class:`Subspaces` has them, with ``coordinates(tokens)``, [batch, K, n, head_dim]. *Sparsification* is made by
``sparsify(dim)`` and returns what takes the place of the tokens or, with ``skip = True``, what is added to them. For example

    class Gather(Subspaces):  # each token moves towards the mean, in every subspace
        def forward(self, tokens):
            read = self.coordinates(tokens)
            return 0.1 * ((read.mean(2, keepdim=True) - read) @ self.subspaces().mT).sum(1)

    layer = Layer(96, attention=Gather(96, heads=4, head_dim=24), sparsify=Ista(96))

Source: :cite:t:`yu2023white`.
"""

from .causal_blocks import (
    CausalExactAttention,
    CausalPaperAttention,
    CausalReleasedAttention,
    CausalReleasedTokenStatisticsAttention,
    CausalTokenStatisticsAttention,
)
from .compression import (
    ExactAttention,
    PaperAttention,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    Subspaces,
    TokenStatisticsAttention,
)
from .layer import Layer, PreNorm
from .orthogonal import orthogonal
from .sparsification import Fista, Ista, OvercompleteIsta
from .stack import Stack

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
    "orthogonal",
]
