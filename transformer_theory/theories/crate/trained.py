"""Networks that learn something, for experiments and claims about them: CRATE and, beside it, a ViT, on data in three parts.

Source: :cite:t:`yu2023white`, :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from ...data import digits
from ...data.tokens import TokenData
from ...models.crate import Ista, ReleasedAttention
from ...models.crate.classifier import Classifier
from ...models.embedding import build
from ...models.vit import ViT
from ...training.supervised import Trained, train

DIM, DEPTH, HEADS = 64, 4, 4


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
    """An untrained CRATE for the tokens and classes of the data; arguments as in :class:`.Classifier`.

    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
    """
    shape = {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}
    sizes = {"dim": dim, "depth": depth, "heads": heads, "spread": spread}
    return build(
        lambda: Classifier.for_tokens(**shape, **sizes, attention=attention, sparsify=sparsify), torch.Generator().manual_seed(seed)
    ).eval()


def vit(data: TokenData, *, seed: int, dim: int = DIM, depth: int = DEPTH, heads: int = HEADS) -> nn.Module:
    """An untrained ViT for the same data and of the same width, depth and heads.

    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`dosovitskiy2021image`.
    """
    shape = {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}
    return build(lambda: ViT.for_tokens(**shape, dim=dim, depth=depth, heads=heads), torch.Generator().manual_seed(seed)).eval()


def fit(model: nn.Module, data: Split, *, steps: int, learning_rate: float, seed: int, batch_size: int = 64) -> Trained:
    """Trains the model in place by the library's own loop; its accuracy is that on the validation part.

    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: settings out of range. Source: :cite:t:`loshchilov2019decoupled`.
    """
    settings = {"steps": steps, "learning_rate": learning_rate, "batch_size": batch_size}
    return train(model, data.train, data.validation, **settings, generator=torch.Generator().manual_seed(seed))


def parameters(model: nn.Module) -> int:
    """Number of trainable parameters. Source: none, a count."""
    return sum(parameter.numel() for parameter in model.parameters())
