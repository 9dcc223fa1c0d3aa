r"""Training of positional attention: free scores or :math:`A = P P^\top`, SGD or Adam, with a learning rate
of its own for A.

The loss is :math:`\log(1 + e^{-y F})` on new images in each step. Source: :cite:t:`jelassi2022vision`; the
constants are our own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.validation import integers, positive
from ...models.embedding import build
from ...training.fitting import Callback, fit
from ...training.tasks import StreamTask
from .association import Association, patch_association
from .patches import LINEAR, SpatialPatchData, SpatialPatches, check_numbers, sigma

STEPS, BATCH, TESTED, SPREAD = 3000, 256, 4096, 0.01

# The settings of train_patches that claims and figure compare.
KINDS: dict[str, dict[str, Any]] = {
    "P P^T, diagonal, Adam": {"optimiser": "adam", "rank": 24, "diagonal": True, "spread": 0.1},
    "P P^T, no diagonal, Adam": {"optimiser": "adam", "rank": 24, "spread": 0.1},
    "free A, no diagonal, Adam": {"optimiser": "adam"},
    "free A, no diagonal, SGD": {"score_rate": 0.5, "spread": 1e-6},
    "free A, diagonal, SGD": {"score_rate": 0.5, "spread": 1e-6, "diagonal": True},
}


class PositionalAttentionModel(nn.Module):
    """Positional attention, ``[batch, D, dim] -> [batch]``, see :mod:`.patches`.

    Args:
        patches, dim: D, and dimension of a patch.
        rank: number of columns of P in A = P P^T; 0: a free matrix A.
        diagonal: whether a patch may attend to itself.
        linear: nu.
        spread: standard deviation of the initial entries of A; those of P have its square root, divided by
            rank^(1/4).
    Raises:
        ValueError: there are fewer than two patches, or a number is negative or not finite.
    """

    def __init__(
        self,
        patches: int,
        dim: int,
        *,
        rank: int = 0,
        diagonal: bool = False,
        linear: float = LINEAR,
        spread: float = SPREAD,
    ):
        super().__init__()
        integers(patches=patches, minimum=2)
        integers(dim=dim)
        integers(rank=rank, minimum=0)
        check_numbers(linear=linear, spread=spread)
        self.rank, self.diagonal, self.linear = rank, diagonal, linear
        shape, scale = ((patches, rank), spread**0.5 / rank**0.25) if rank else ((patches, patches), spread)
        self.positions = nn.Parameter(scale * torch.randn(shape))  # P, or A
        self.value = nn.Parameter(0.1 * torch.randn(dim) / dim**0.5)

    def scores(self) -> Float[Tensor, "D D"]:
        """Returns A, ``[D, D]``."""
        return self.positions @ self.positions.mT if self.rank else self.positions

    def weights(self) -> Float[Tensor, "D D"]:
        """Returns S, ``[D, D]``; each row is a distribution."""
        A = self.scores()
        return torch.softmax(
            A if self.diagonal else A.masked_fill(torch.eye(len(A), dtype=torch.bool), -torch.inf), -1
        )

    def forward(self, patches: Tensor) -> Float[Tensor, " batch"]:
        """Returns F(X)."""
        x = patches @ self.value
        return sigma(x.shape[-1] * x @ self.weights().mT, self.linear).sum(-1)


def logistic_loss(model: nn.Module, batch: SpatialPatches) -> Float[Tensor, ""]:
    """Returns the mean of log(1 + exp(-y F)), nats."""
    return functional.softplus(-batch.labels * model(batch.patches)).mean()


@torch.no_grad()
def accuracy(model: nn.Module, data: SpatialPatches) -> float:
    """Computes the share of images with y F > 0; F = 0 counts one half."""
    margin = data.labels * model(data.patches)
    return float((margin > 0).double().mean() + (margin == 0).double().mean() / 2)


@dataclass(frozen=True)
class Learnt:
    """A trained model with its feature w, accuracy on new images and association."""

    model: PositionalAttentionModel
    w: Float[Tensor, " dim"]
    accuracy: float
    association: Association


Optimiser = Literal["sgd", "adam"]


def train_patches(
    data: SpatialPatchData,
    *,
    generator: Generator,
    optimiser: Optimiser = "sgd",
    rate: float = 0.02,
    score_rate: float | None = None,
    steps: int = STEPS,
    batch: int = BATCH,
    rank: int = 0,
    diagonal: bool = False,
    spread: float = SPREAD,
    stored: int = 0,
    decay: float = 0.0,
    callbacks: Sequence[Callback] = (),
) -> Learnt:
    """Trains :class:`PositionalAttentionModel` on new images in each step.

    Args:
        data: distribution of the images.
        generator: draws the feature, the initial weights and the images.
        optimiser: "sgd" or "adam".
        rate, score_rate: learning rates of v, and of A or P; None: the same.
        steps, batch: number of steps, and images per step.
        rank, diagonal, spread: see :class:`PositionalAttentionModel`.
        stored: number of images of a fixed training set; 0: new images in each step.
        decay: weight decay of AdamW; 0 for SGD.
        callbacks: those of :func:`~transformer_theory.training.fitting.fit`.
    Raises:
        ValueError: the optimiser is unknown, or a number is out of range.
    """
    integers(steps=steps, batch=batch)
    integers(stored=stored, minimum=0)
    score_rate = rate if score_rate is None else score_rate
    positive(rate=rate, score_rate=score_rate)
    if optimiser not in ("sgd", "adam"):
        raise ValueError(f"optimiser must be 'sgd' or 'adam', got {optimiser!r}; choose one")
    check_numbers(decay=decay)
    if decay and optimiser == "sgd":
        raise ValueError(f"decay must be 0 for SGD, got {decay}; use the optimiser 'adam'")
    w = data.direction(generator)
    model = build(
        lambda: PositionalAttentionModel(data.patches, data.dim, rank=rank, diagonal=diagonal, spread=spread),
        generator,
    )
    assert isinstance(model, PositionalAttentionModel)
    groups = [{"params": [model.value], "lr": rate}, {"params": [model.positions], "lr": score_rate}]
    chosen = (
        torch.optim.SGD(groups, lr=rate)
        if optimiser == "sgd"
        else torch.optim.AdamW(groups, lr=rate, weight_decay=decay)
    )
    fit(
        model,
        StreamTask(logistic_loss, _stream(data, w, batch, stored)),
        optimiser=chosen,
        steps=steps,
        generator=generator,
        callbacks=callbacks,
    )
    found = patch_association(model.scores().detach(), data.groups)
    return Learnt(model, w, accuracy(model, data.sample(TESTED, w, generator)), found)


def _stream(
    data: SpatialPatchData, w: Tensor, batch: int, stored: int
) -> Callable[[Generator], Iterator[SpatialPatches]]:
    def stream(draws: Generator) -> Iterator[SpatialPatches]:
        fixed = data.sample(stored, w, draws) if stored else None
        while True:
            if fixed is None:
                yield data.sample(batch, w, draws)
            else:
                chosen = torch.randint(stored, (batch,), generator=draws)
                yield SpatialPatches(fixed.patches[chosen], fixed.labels[chosen], fixed.active[chosen])

    return stream


def transfer_accuracy(
    model: PositionalAttentionModel,
    data: SpatialPatchData,
    *,
    images: int,
    generator: Generator,
    steps: int = 300,
    rate: float = 0.02,
) -> float:
    """Trains a new v on a few images with a new feature, with the attention of ``model`` frozen, and measures
    it on new images.

    Args:
        model: source of A.
        data: distribution of the images; the feature is new.
        images: number of training images.
        generator: draws feature, initial v and images.
        steps, rate: full-batch steps of Adam and their rate.
    Raises:
        ValueError: the model has another number of patches, or a number is out of range.
    """
    integers(images=images, steps=steps)
    positive(rate=rate)
    if len(model.positions) != data.patches:
        raise ValueError(
            f"model must have the {data.patches} patches of the data, got {len(model.positions)}; train it "
            "on data of this size"
        )
    w = data.direction(generator)
    sample = data.sample(images, w, generator)
    new = build(
        lambda: PositionalAttentionModel(
            data.patches, data.dim, diagonal=model.diagonal, linear=model.linear
        ),
        generator,
    )
    assert isinstance(new, PositionalAttentionModel)
    with torch.no_grad():
        new.positions.copy_(model.scores())
    new.positions.requires_grad_(False)
    stream = StreamTask(logistic_loss, lambda _: iter([sample] * steps))
    fit(new, stream, optimiser=torch.optim.Adam([new.value], lr=rate), steps=steps, generator=generator)
    return accuracy(new, data.sample(TESTED, w, generator))
