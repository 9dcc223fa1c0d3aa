"""CRATE."""

from .block import ExactAttention, Ista, PaperAttention, ReleasedAttention

__all__ = ["ExactAttention", "Ista", "PaperAttention", "ReleasedAttention"]
