"""Recipes: which network, and how it is trained, each value with its reason.

A recipe builds its network for the data at hand (``TokenData.tokens`` are its input), so that every theory and every network read the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from ..data.tokens import TokenData
from ..models import CRATE, ViT
from ..models.crate import PaperAttention


@dataclass(frozen=True)
class Recipe:
    """A small network and its training.

    Attributes:
        name: as tables and figures show it.
        build: the network for given data, with ``[batch, seq, dim]`` tokens in and one logit a class out.
        learning_rate: of AdamW after the warm-up.
        batch_size: sequences a step.
        about: what it is, in one sentence.
    """

    name: str
    build: Callable[[TokenData], nn.Module] = field(repr=False)
    learning_rate: float
    about: str
    batch_size: int = 64


def _sizes(data: TokenData) -> dict:
    # width 96, two layers, four heads: the smallest that learns the digits to the accuracy of larger ones
    return {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes, "dim": 96, "depth": 2, "heads": 4}


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "ViT",
            lambda data: ViT.for_tokens(**_sizes(data)),
            learning_rate=2e-3,
            about="a pre-norm vision transformer: separate W_Q, W_K, W_V and a GELU MLP of width 4 dim",
        ),
        Recipe(
            "CRATE (released form)",
            lambda data: CRATE.for_tokens(**_sizes(data)),
            learning_rate=3e-3,
            about="CRATE as its released networks are: shared W_Q = W_K = W_V, free output matrix, residual step, one ISTA step",
        ),
        Recipe(
            "CRATE (paper form)",
            lambda data: CRATE.for_tokens(**_sizes(data), attention=PaperAttention),
            learning_rate=3e-3,
            about="CRATE as the paper derives it: output tied to the subspaces, the shrinking step (1 - κβ)Z + κβ MSSA(Z), one ISTA step",
        ),
    )
}
