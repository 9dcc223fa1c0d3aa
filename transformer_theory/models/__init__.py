"""Whole networks, each readable in one sitting: ViT, and CRATE with the names and sizes of the released networks."""

from .crate import CRATE, crate_base, crate_large, crate_small, crate_tiny
from .embedding import build
from .vit import ViT

__all__ = ["CRATE", "ViT", "build", "crate_base", "crate_large", "crate_small", "crate_tiny"]
