"""Complete networks, their attention (:mod:`.attention`), and functions that load and save their weights
(:mod:`.weights`).

The networks are a ViT, a causal word decoder, the residual networks for rate reduction, and the CRATE family:
classifier, CRATE-alpha, masked autoencoder and language model, with the names and sizes of the released
networks. CRATE blocks are in :mod:`.crate`.
"""

from .crate.alpha import crate_alpha, crate_alpha_base, crate_alpha_from_published, crate_alpha_large
from .crate.finetuning import at_resolution, with_head, with_pooling
from .crate.language_model import CRATELanguageModel, tie_head
from .crate.masked_autoencoder import CRATEMAE, crate_mae_base, crate_mae_small, crate_mae_tiny, random_mask
from .crate.network import CRATE, crate_base, crate_large, crate_small, crate_tiny
from .decoder import Decoder
from .embedding import build, resized_positions
from .exported import export
from .resnet import ResNet18, ResNet18Control, ResNet18STL
from .stored import load
from .vit import ViT
from .weights import load_weights, save_weights, unwrap

__all__ = [
    "CRATE",
    "CRATEMAE",
    "CRATELanguageModel",
    "Decoder",
    "ResNet18",
    "ResNet18Control",
    "ResNet18STL",
    "ViT",
    "at_resolution",
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
    "export",
    "load",
    "load_weights",
    "random_mask",
    "resized_positions",
    "save_weights",
    "tie_head",
    "unwrap",
    "with_head",
    "with_pooling",
]
