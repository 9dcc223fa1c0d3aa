"""Networks that the experiments and claims train: CRATE and a ViT of the same sizes, on data split into three
parts.

Sources: :cite:t:`yu2023white`, :cite:t:`dosovitskiy2021image`, :cite:t:`alpaydin1998optical` (the digits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from ...core.result import Result
from ...data import digits
from ...data.tokens import TokenData
from ...models import CRATE, ViT, build
from ...models.crate import Ista, ReleasedAttention
from ...training.supervised import Trained, accuracy, train_classifier

__all__ = [
    "DataParts",
    "accuracy",
    "at_chance",
    "chance_note",
    "crate",
    "digit_parts",
    "fit",
    "guessing_p",
    "parameter_count",
    "split",
    "vit",
]

DIM, DEPTH, HEADS = 64, 4, 4
MAX_NAMED = 2  # networks that a caption names
GUESSING = 0.01  # smallest probability of an accuracy under guessing at which the accuracy counts as chance


@dataclass(frozen=True)
class DataParts:
    """Data for training, for the choice of settings, and for the final measurement."""

    train: TokenData
    validation: TokenData
    test: TokenData


def split(data: TokenData, *, seed: int) -> DataParts:
    """Splits the data at random: 70 % for training, 10 % for validation, 20 % for the test. All parts have
    the same shares of the classes.

    Raises:
        ValueError: there are too few sequences for three parts.
    """
    generator = torch.Generator().manual_seed(seed)
    train_part, rest = data.split(0.7, generator)
    validation, test = rest.split(1 / 3, generator)
    return DataParts(train_part, validation, test)


@lru_cache(maxsize=8)
def digit_parts(*, seed: int) -> DataParts:
    """Returns the handwritten digits: 1,257 for training, 180 for validation, 360 for the test."""
    return split(_digits(), seed=seed)


@lru_cache(maxsize=1)
def _digits() -> TokenData:
    return digits(words=2)


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
    """Returns an untrained CRATE for the tokens and classes of the data.

    The arguments are those of :class:`~transformer_theory.models.CRATE`.

    Raises:
        ValueError: the sizes do not fit.
    """
    sizes = {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "spread": spread,
        "attention": attention,
        "sparsify": sparsify,
    }
    return build(
        lambda: CRATE.for_tokens(**_shape(data), **sizes), torch.Generator().manual_seed(seed)
    ).eval()


def vit(data: TokenData, *, seed: int, dim: int = DIM, depth: int = DEPTH, heads: int = HEADS) -> nn.Module:
    """Returns an untrained ViT for the same data, with the same width, depth and heads.

    Raises:
        ValueError: the sizes do not fit.
    """
    return build(
        lambda: ViT.for_tokens(**_shape(data), dim=dim, depth=depth, heads=heads),
        torch.Generator().manual_seed(seed),
    ).eval()


def _shape(data: TokenData) -> dict[str, int]:
    return {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}


def fit(
    model: nn.Module, data: DataParts, *, steps: int, learning_rate: float, seed: int, batch_size: int = 64
) -> Trained:
    """Trains the model in place; the result holds its accuracy on the validation part.

    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: a setting is out of range.
    """
    settings = {"steps": steps, "learning_rate": learning_rate, "batch_size": batch_size}
    return train_classifier(
        model, data.train, data.validation, **settings, generator=torch.Generator().manual_seed(seed)
    )


def guessing_p(accuracies: Sequence[float], data: TokenData) -> float:
    """Returns the probability of as many correct answers in all, or more, when every answer is guessed.

    Each guess is correct with the share of the largest class.

    Args:
        accuracies: one per seed, each on as many sequences as ``data`` has.
        data: sequences with labels.
    """
    assert data.labels is not None
    share = float(torch.bincount(data.labels).max()) / len(data)
    correct = round(sum(accuracies) * len(data))
    from scipy.stats import binom

    return float(binom.sf(correct - 1, len(data) * len(accuracies), share))


def at_chance(p: float | None) -> bool:
    """Returns whether an accuracy with this probability under guessing counts as chance."""
    return p is not None and p >= GUESSING


def chance_note(result: Result, accuracy: str) -> str:
    """Returns a sentence for a caption that names the networks at chance accuracy, or their number if they
    are many; empty if none is.
    """
    rows = {row.model: row for row in result.table.select(quantity=accuracy)}
    names = [f"{name} ({row.value:.2f})" for name, row in rows.items() if at_chance(row.p)]
    listed = f"{len(names)} of {len(rows)} networks" if len(names) > MAX_NAMED else ", ".join(names)
    return f" At chance accuracy, so that nothing here is an effect of learning: {listed}." if names else ""


def parameter_count(model: nn.Module) -> int:
    """Returns the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
