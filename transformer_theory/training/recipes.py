"""Recipes of small networks that take the tokens of :class:`~transformer_theory.data.TokenData`, so that
theories and networks have the same input, with the reason for each value.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..data.tokens import TokenData
from ..models import CRATE, ViT
from ..models.crate import PaperAttention
from .supervised import Trained, train_classifier


@dataclass(frozen=True)
class Recipe:
    """A small network on tokens and its training.

    Attributes:
        name: name in tables and figures.
        build: builds the network for the given data; it maps tokens ``[batch, seq, dim]`` to one logit per
            class.
        learning_rate: peak learning rate of AdamW, at the end of the warm-up.
        batch_size: sequences per step.
        about: a description, one sentence.
    """

    name: str
    build: Callable[[TokenData], nn.Module] = field(repr=False)
    learning_rate: float
    about: str
    batch_size: int = 64

    def train(
        self,
        model: nn.Module,
        train_data: TokenData,
        validation_data: TokenData,
        *,
        steps: int,
        generator: torch.Generator,
        **options: Any,
    ) -> Trained:
        """Trains a network of this recipe in place, see :func:`.train_classifier`.

        Args:
            model: the network.
            train_data, validation_data, steps, generator, options: arguments of :func:`.train_classifier`.
        """
        return train_classifier(
            model,
            train_data,
            validation_data,
            steps=steps,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            generator=generator,
            **options,
        )


def _sizes(data: TokenData, dim: int = 96) -> dict:
    # The smallest sizes at which the networks learn the digits almost as accurately as larger networks do.
    return {
        "seq": data.tokens.shape[1],
        "token_dim": data.tokens.shape[2],
        "num_classes": data.classes,
        "dim": dim,
        "depth": 2,
        "heads": 4,
    }


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "ViT",
            # with its MLP, a ViT of width 96 has four times the parameters of a CRATE
            lambda data: ViT.for_tokens(**_sizes(data, dim=64)),
            learning_rate=3e-3,
            about="a pre-norm vision transformer: separate W_Q, W_K, W_V and a GELU MLP of width 4 dim",
        ),
        Recipe(
            "CRATE (released form)",
            lambda data: CRATE.for_tokens(**_sizes(data)),
            learning_rate=3e-3,
            about="CRATE in the form of its released networks: shared W_Q = W_K = W_V, free output matrix, "
            "residual step, one ISTA step",
        ),
        Recipe(
            "CRATE (paper form)",
            lambda data: CRATE.for_tokens(**_sizes(data), attention=PaperAttention),
            learning_rate=3e-3,
            about="CRATE in the form of the paper: output tied to the subspaces, the shrinking step (1 - "
            "κβ)Z + κβ MSSA(Z), one ISTA step",
        ),
    )
}
