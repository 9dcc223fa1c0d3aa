"""Whole networks, each readable in one sitting: ViT, and CRATE with the names and sizes of the released networks; and their weights."""

from .crate import CRATE, crate_base, crate_large, crate_small, crate_tiny
from .embedding import build
from .vit import ViT
from .weights import load_weights, save_weights, unwrap

__all__ = [
    "CRATE",
    "ViT",
    "build",
    "crate_base",
    "crate_large",
    "crate_small",
    "crate_tiny",
    "load_weights",
    "save_weights",
    "unwrap",
]
