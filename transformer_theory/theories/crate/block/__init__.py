"""The blocks of a CRATE layer as modules; a variant is a block one passes. Source: :cite:t:`yu2023white`."""

from .causal import (
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
