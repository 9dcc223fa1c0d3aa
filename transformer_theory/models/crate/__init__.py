"""CRATE: its networks (classifier, CRATE-alpha, masked autoencoder, causal language model) and the blocks they are made of.

A variant of a layer is another block, passed as an argument. *Compression* is made by ``attention(dim, heads=..., head_dim=...)``, reads
tokens [batch, n, dim] after a layer norm and returns their change, [batch, n, dim]. A block may have ``is_causal = True`` (then the
language model takes it and the classifier refuses it), a keyword ``context`` (the language model passes its own) and ``subspaces()``, U_k
as columns, [K, dim, head_dim], which the metrics of the theory need. :class:`Subspaces` has ``subspaces()`` and
``coordinates(tokens)``, [batch, K, n, head_dim]. *Sparsification* is made by ``sparsify(dim)`` and returns what replaces the tokens or,
with ``skip = True``, what is added to them. For example

    class Gather(Subspaces):  # each token moves towards the mean, in every subspace
        def forward(self, tokens):
            coords = self.coordinates(tokens)
            return 0.1 * ((coords.mean(2, keepdim=True) - coords) @ self.subspaces().mT).sum(1)

    layer = Layer(96, attention=Gather(96, heads=4, head_dim=24), sparsify=Ista(96))

Source: :cite:t:`yu2023white`.
"""

from .alpha import crate_alpha, crate_alpha_base, crate_alpha_from_published, crate_alpha_large
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
from .language_model import CRATELanguageModel, tie_head
from .layers import Layer, PreNorm, Stack, layers_of
from .masked_autoencoder import CRATEMAE, crate_mae_base, crate_mae_small, crate_mae_tiny, random_mask
from .network import CRATE, crate_base, crate_large, crate_small, crate_tiny
from .sparsification import Fista, Ista, OvercompleteIsta

__all__ = [
    "CRATE",
    "CRATEMAE",
    "CRATELanguageModel",
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
    "crate_alpha",
    "crate_alpha_base",
    "crate_alpha_from_published",
    "crate_alpha_large",
    "crate_base",
    "crate_large",
    "crate_mae_base",
    "crate_mae_small",
    "crate_mae_tiny",
    "crate_small",
    "crate_tiny",
    "layers_of",
    "orthogonal",
    "random_mask",
    "tie_head",
]
