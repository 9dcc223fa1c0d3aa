"""The blocks of a CRATE layer as modules; a variant is a block one passes. Source: :cite:t:`yu2023white`."""

from .causal import CausalExactAttention, CausalPaperAttention, CausalReleasedAttention, CausalTokenStatisticsAttention
from .compression import ExactAttention, PaperAttention, ReleasedAttention, Subspaces, TokenStatisticsAttention
from .layer import Layer, PreNorm
from .orthogonal import orthogonal
from .sparsification import Fista, Ista, OvercompleteIsta
from .stack import Stack

__all__ = [
    "CausalExactAttention",
    "CausalPaperAttention",
    "CausalReleasedAttention",
    "CausalTokenStatisticsAttention",
    "ExactAttention",
    "Fista",
    "Ista",
    "Layer",
    "OvercompleteIsta",
    "PaperAttention",
    "PreNorm",
    "ReleasedAttention",
    "Stack",
    "Subspaces",
    "TokenStatisticsAttention",
    "orthogonal",
]
