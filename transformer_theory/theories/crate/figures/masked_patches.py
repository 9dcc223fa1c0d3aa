r"""What a completion of masked images is compared with, and what the layers of a CRATE-MAE do.

Simple predictions of a masked patch:

* the mean patch of the training images at its position;
* the nearest visible patches of the image (the mean of all that are equally near);
* a linear completion: with the mean mu and the covariance C of the pixels of the training images, h the
  hidden pixels and v the visible ones, the prediction is mu_h + C_hv (C_vv + rho I)^-1 (x_v - mu_v).

Source: :cite:t:`pai2024masked` (the layers).
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ....metrics.coding import unit_norm
from ....models.crate import Layer
from ....models.crate.compression import coordinates
from ....models.crate.masked_autoencoder import CRATEMAE, DecoderLayer
from ..in_networks import head_rate
from ..layer_curves import EPS

POSITION_MEAN, NEAREST, LINEAR = "mean patch", "nearest visible patches", "linear completion"
RIDGE = 0.01  # rho, as a share of the mean variance of a pixel

Patches = Float[Tensor, "n seq patch_dim"]
Masked = Bool[Tensor, "n seq"]
Tokens = Float[Tensor, "n tokens dim"]


def masked_error(predicted: Patches, truth: Patches, masked: Masked) -> float:
    """Returns the mean squared error over the masked patches."""
    return float((predicted - truth).square().mean(-1)[masked].double().mean())


def predictions(
    train: Float[Tensor, "train seq patch_dim"], truth: Patches, masked: Masked
) -> dict[str, Patches]:
    """Returns the three simple predictions of all patches by name; only those of masked patches have a
    meaning.
    """
    return {
        POSITION_MEAN: train.mean(0).expand_as(truth),
        NEAREST: nearest_visible(truth, masked),
        LINEAR: linear_completion(train, truth, masked),
    }


def nearest_visible(patches: Patches, masked: Masked) -> Patches:
    """Returns for each patch the mean of the visible patches of its image that are nearest to its position in
    the square grid.
    """
    side = round(patches.shape[1] ** 0.5)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    distances = (
        (places[:, None] - places)
        .square()
        .sum(-1)
        .expand(len(patches), -1, -1)
        .masked_fill(masked[:, None], torch.inf)
    )
    nearest = (distances == distances.amin(-1, keepdim=True)).to(patches.dtype)
    return nearest / nearest.sum(-1, keepdim=True) @ patches


def linear_completion(
    train: Float[Tensor, "train seq patch_dim"], patches: Patches, masked: Masked
) -> Patches:
    """Predicts the masked patches of each image from its visible ones by ridge regression; visible patches
    are copied.
    """
    pixels = train.flatten(1).double()
    mean, covariance = pixels.mean(0), torch.cov(pixels.T)
    ridge = RIDGE * covariance.diagonal().mean()
    completed = patches.flatten(1).double()
    for row, hidden in zip(completed, masked.repeat_interleave(patches.shape[-1], 1)):
        visible = ~hidden
        within = covariance[visible][:, visible] + ridge * torch.eye(int(visible.sum()), dtype=torch.float64)
        row[hidden] = mean[hidden] + covariance[hidden][:, visible] @ torch.linalg.solve(
            within, row[visible] - mean[visible]
        )
    return completed.view_as(patches).to(patches.dtype)


@dataclass(frozen=True)
class Stream:
    """Tokens around one layer, [n, 1 + seq, dim], and around its attention, with the bases of its subspaces
    [K, dim, p].
    """

    before: Tokens
    after: Tokens
    attention_before: Tokens
    attention_after: Tokens
    bases: Float[Tensor, "K dim p"]


def layer_streams(model: CRATEMAE, images: Float[Tensor, "n c h w"], masked: Masked) -> list[Stream]:
    """Returns the tokens around the layers of the encoder, then of the decoder, for masked images, without
    gradients.
    """
    calls: list[tuple[Any, Tensor, Any]] = []
    layers = [module for module in model.modules() if isinstance(module, Layer | DecoderLayer)]
    handles = [
        layer.register_forward_hook(lambda module, inputs, output: calls.append((module, inputs[0], output)))
        for layer in layers
    ]
    try:
        with torch.no_grad():
            model(images, masked)
            return [_stream(layer, before, after) for layer, before, after in calls]
    finally:
        for handle in handles:
            handle.remove()


def _stream(layer: nn.Module, before: Tokens, after: Tokens) -> Stream:
    first, second = layer.children()
    if isinstance(layer, DecoderLayer):  # rotates, then subtracts attention
        return Stream(before, after, first(before), after, second.fn.subspaces().detach())  # pyright: ignore
    return Stream(before, after, before, before + first(before), first.fn.subspaces().detach())  # pyright: ignore


def rate_ratio(stream: Stream, *, eps: float = EPS) -> float:
    """Returns R^c after attention over R^c before, means over images.

    As in :func:`~.layer_curves.layerwise`, tokens are centred, the bases of each subspace are
    orthonormalised, and the coordinates of each token in each head are scaled to norm one.
    """
    bases = torch.linalg.qr(stream.bases.double())[0]
    rates = []
    for tokens in (stream.attention_before, stream.attention_after):
        centred = (tokens - tokens.mean(-1, keepdim=True)).double()
        rates.append(float(head_rate(unit_norm(coordinates(centred, bases)), eps=eps).mean()))
    return rates[1] / rates[0]


def readout_error(
    train_tokens: Float[Tensor, "m dim"],
    train_patches: Float[Tensor, "m patch_dim"],
    tokens: Float[Tensor, "k dim"],
    patches: Float[Tensor, "k patch_dim"],
) -> float:
    """Fits a linear map with an intercept from tokens to patches by ridge regression; returns its error on
    other tokens.
    """
    inputs, outputs = train_tokens.double(), train_patches.double()
    centre, mean = inputs.mean(0), outputs.mean(0)
    gram = torch.cov(inputs.T, correction=0)
    gram = gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram, (inputs - centre).T @ (outputs - mean) / len(inputs))
    return float(((tokens.double() - centre) @ weights + mean - patches.double()).square().mean())
