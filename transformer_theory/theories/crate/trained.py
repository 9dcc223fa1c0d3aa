"""The door of the room to whole networks and their training, for experiments and claims about networks that have learned something.

The rest of the room builds on the ground alone, since networks are built from the room's blocks: so they are imported when they are used.
Source: :cite:t:`yu2023white`, :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...data import digits
from ...data.tokens import TokenData
from .block import Ista, ReleasedAttention

if TYPE_CHECKING:
    from ...training import Trained

DIM, DEPTH, HEADS = 64, 4, 4
RATES = {"CRATE": 3e-3, "ViT": 2e-3}  # of AdamW, those of the recipes


@dataclass(frozen=True)
class Split:
    """Data to learn from, to choose settings by, and to measure on once they are chosen."""

    train: TokenData
    validation: TokenData
    test: TokenData


def split(data: TokenData, *, seed: int) -> Split:
    """70 % to learn from, 10 % to choose by, 20 % to measure on, drawn by ``seed``, every class in each as in the whole.

    Raises:
        ValueError: too few sequences for three parts. Source: none, the usual practice.
    """
    generator = torch.Generator().manual_seed(seed)
    learn, rest = data.split(0.7, generator)
    validation, test = rest.split(1 / 3, generator)
    return Split(learn, validation, test)


@lru_cache(maxsize=8)
def digit_split(*, seed: int) -> Split:
    """The handwritten digits, 1,257 to learn from, 180 to choose by, 360 to measure on. Source: :cite:t:`alpaydin1998optical`."""
    return split(digits(words=2), seed=seed)


def crate(
    data: TokenData,
    *,
    seed: int,
    attention: Callable[..., nn.Module] = ReleasedAttention,
    sparsify: Callable[[int], nn.Module] = Ista,
    dim: int = DIM,
    depth: int = DEPTH,
    heads: int = HEADS,
    spread: float = 1.0,
) -> nn.Module:
    """An untrained CRATE for the tokens and classes of the data; arguments as in :class:`~transformer_theory.models.CRATE`.

    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
    """
    from ...models import CRATE, build

    shape = {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}
    sizes = {"dim": dim, "depth": depth, "heads": heads, "spread": spread}
    return build(
        lambda: CRATE.for_tokens(**shape, **sizes, attention=attention, sparsify=sparsify), torch.Generator().manual_seed(seed)
    ).eval()


def vit(data: TokenData, *, seed: int, dim: int = DIM, depth: int = DEPTH, heads: int = HEADS) -> nn.Module:
    """An untrained ViT for the same data and of the same width, depth and heads.

    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`dosovitskiy2021image`.
    """
    from ...models import ViT, build

    shape = {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}
    return build(lambda: ViT.for_tokens(**shape, dim=dim, depth=depth, heads=heads), torch.Generator().manual_seed(seed)).eval()


def fit(model: nn.Module, data: Split, *, steps: int, learning_rate: float, seed: int) -> "Trained":
    """Trains the model in place by the library's own loop; its accuracy is that on the validation part.

    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: settings out of range. Source: :cite:t:`loshchilov2019decoupled`.
    """
    from ...training import train

    generator = torch.Generator().manual_seed(seed)
    return train(model, data.train, data.validation, steps=steps, learning_rate=learning_rate, generator=generator)


def accuracy(model: nn.Module, data: TokenData) -> float:
    """Share of the sequences classified correctly.

    Raises:
        ValueError: no labels. Source: none, the usual measure.
    """
    from ...training import accuracy as measured

    return measured(model, data)


def parameters(model: nn.Module) -> int:
    """Number of trainable parameters. Source: none, a count."""
    return sum(parameter.numel() for parameter in model.parameters())
