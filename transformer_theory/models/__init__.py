"""Whole networks, each readable in one sitting: ViT, a causal decoder of words, CRATE with the names and sizes of the released networks,
the residual network that rate reduction is trained with; the attention they use (:mod:`.attention`) and their weights (:mod:`.weights`)."""

from .crate import (
    CRATE,
    CRATEMAE,
    CRATELanguageModel,
    crate_alpha,
    crate_alpha_base,
    crate_alpha_from_published,
    crate_alpha_large,
    crate_base,
    crate_large,
    crate_mae_base,
    crate_mae_small,
    crate_mae_tiny,
    crate_small,
    crate_tiny,
    random_mask,
    tie_head,
)
from .decoder import Decoder
from .embedding import build
from .resnet import ResNet18
from .vit import ViT
from .weights import load_weights, save_weights, unwrap

__all__ = [
    "CRATE",
    "CRATEMAE",
    "CRATELanguageModel",
    "Decoder",
    "ResNet18",
    "ViT",
    "build",
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
    "load_weights",
    "random_mask",
    "save_weights",
    "tie_head",
    "unwrap",
]
