"""Membership maps of token statistics, and their agreement with a known region of each image.

The preference of a head is the probability that a random foreground patch has a larger membership than a
random background patch of the same image, the area under the ROC curve. Its agreement is the preference, or
one minus it, whichever is larger on other images.

Source: :cite:t:`wu2025token` (memberships).
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ....models.crate.compression import memberships
from ....probes.evaluation import converted_inputs, evaluation
from ..layer_curves import on_layers

PERMUTED, OTHERS = "permuted positions", "regions of other images"

Maps = Float[Tensor, "layers n K seq"]
Region = Bool[Tensor, "n seq"]


class Examples(NamedTuple):
    """Sequences with a known foreground: tokens [n, seq, dim], foreground [n, seq], images [n, size, size,
    channels].
    """

    tokens: Tensor
    foreground: Tensor
    images: Tensor


class Agreement(NamedTuple):
    """Agreement of the best head of each layer with the foreground.

    Attributes:
        test: on the test images, [layers].
        validation: on the validation images, which determine the head and its direction, [layers].
        head: the best head, [layers].
        nulls: :data:`PERMUTED`, test regions with their patches permuted in every image, and :data:`OTHERS`,
            regions of other test images at the same positions; [draws, layers] each.
    """

    test: Tensor
    validation: Tensor
    head: Tensor
    nulls: dict[str, Tensor]


def membership_maps(model: nn.Module, tokens: Float[Tensor, "n seq dim"]) -> Maps:
    """Returns the memberships of the patches in the heads of every layer, [layers, n, K, seq]; they sum to
    one over the heads.

    Args:
        model: a network of CRATE layers with
            :class:`~transformer_theory.models.crate.ReleasedTokenStatisticsAttention`.
        tokens: patches; the class token in front, which the network adds, is left out of the maps.
    """
    found: dict[int, Tensor] = {}

    def listener(number: int, layer: Any, stream: Tensor, output: Tensor) -> None:
        coords = layer.block.coordinates(layer.norm(stream))
        found[number] = memberships(coords, temperature=layer.block.temp.squeeze(-1))[..., 1:].double()

    with on_layers(model, listener), evaluation(model):
        model(converted_inputs(model, tokens))
    return torch.stack([found[number] for number in sorted(found)])


def preferences(maps: Float[Tensor, "*batch n K seq"], foreground: Region) -> Float[Tensor, "*batch K"]:
    """Returns the probability that a random foreground patch has a larger membership than a random background
    patch of its image.

    This is the area under the ROC curve, in [0, 1]; ties count one half. Mean over the images that have both
    kinds of patches.
    """
    return _preferences(_ranks(maps), foreground)


def _ranks(maps: Float[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq"]:
    """Returns the rank of each patch in its map, 0 for the smallest; tied patches share the mean of their
    ranks.
    """
    larger = (maps[..., :, None] > maps[..., None, :]).double().sum(-1)
    return larger + ((maps[..., :, None] == maps[..., None, :]).double().sum(-1) - 1) / 2


def _preferences(ranks: Float[Tensor, "*batch n K seq"], foreground: Region) -> Float[Tensor, "*batch K"]:
    """Computes :func:`preferences` from the ranks of the patches by the formula of Mann and Whitney."""
    inside = foreground.sum(-1).double()
    outside = foreground.shape[-1] - inside
    both = (inside > 0) & (outside > 0)
    sums = (ranks[..., both, :, :] * foreground[both][:, None]).sum(-1)  # [*batch, images, K]
    inside, outside = inside[both][:, None], outside[both][:, None]
    return ((sums - inside * (inside - 1) / 2) / (inside * outside)).mean(-2)


def agreements(
    model: nn.Module, validation: Examples, test: Examples, *, draws: int, generator: torch.Generator
) -> Agreement:
    """Measures the agreement of the best head of each layer with the foreground of the test images, and draws
    its chance levels.

    The head, and whether it prefers foreground or background, are chosen on the validation images, so the
    chance level is 1/2.
    """
    chosen = preferences(membership_maps(model, validation.tokens), validation.foreground)
    strength, head = (chosen - 0.5).abs().max(-1)
    sign = (chosen.gather(-1, head[:, None]) - 0.5).sign()
    maps = membership_maps(model, test.tokens)
    maps = (
        maps.gather(2, head[:, None, None, None].expand(-1, maps.shape[1], 1, maps.shape[3]))
        * sign[:, None, None]
    )
    ranks, region = _ranks(maps), test.foreground

    def shuffled() -> Region:
        return region.gather(-1, torch.rand(region.shape, generator=generator).argsort(-1))

    def exchanged() -> Region:
        return region[torch.randperm(len(region), generator=generator)]

    drawn = {PERMUTED: shuffled, OTHERS: exchanged}
    nulls = {
        kind: torch.stack([_preferences(ranks, draw())[..., 0] for _ in range(draws)])
        if draws
        else torch.zeros(0, len(ranks))
        for kind, draw in drawn.items()
    }
    return Agreement(_preferences(ranks, region)[..., 0], 0.5 + strength, head, nulls)
