r"""Segmentation of images with known masks by the attention of a network or by the principal components of
its tokens.

* *Attention*: the last block's attention from the class token to the patches, one map per head. The candidate
  of a head consists of the fewest patches that hold a share ``MASS`` of its map. For each object the best
  head counts (the paper's protocol for photographs).
* *Principal components*: projections of the last block's patch tokens on their first principal components
  over all images. The excess of a projection over its mean, in either direction, gives two maps per
  component; the same protocol applies to them.

Candidates are compared with a mask by intersection over union at the resolution of pixels. The best of
several candidates fits better than a single one by chance alone. The chance level therefore has as many
candidates, each with as many patches, but at random places.

Source: :cite:t:`yu2024emergence`. Notation: docs/notation.md.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...core.metric import Activations, Metric
from ...core.validation import converted, finite, in_range
from ...maths.linalg import binary_scale
from ...metrics.networks import AttentionMaps
from ...models.crate import layers_of
from ...probes import NoAttention, probe
from ...probes.evaluation import converted_inputs
from .layer_curves import compression_layers, on_layers

MASS = 0.6  # share of a map that the selected patches hold
COMPONENTS = 2  # number of components; their two signs give four candidates, as many as four heads
BATCH = 256  # images per forward pass

Maps = Float[Tensor, "n candidates seq"]
Selection = Bool[Tensor, "n candidates seq"]
Masks = Bool[Tensor, "n objects size size"]


@dataclass(frozen=True)
class Overlap:
    """Intersection over union of candidates and objects.

    Attributes:
        per_object: value of the best candidate for each object, mean over objects and images.
        foreground: value of the best candidate for both objects together, mean over images.
    """

    per_object: float
    foreground: float


@in_range
@converted(floats=("maps",))
def top_mass(maps: Maps, *, mass: float = MASS) -> Selection:
    """Selects the fewest patches of each map that hold at least a share ``mass`` of it.

    Args:
        maps: non-negative maps, [n, candidates, seq].
        mass: share in (0, 1).
    Returns:
        The selection, [n, candidates, seq], with at least one patch of each map.
    Raises:
        ValueError: ``mass`` lies outside (0, 1), there is no patch, or an entry is negative or not finite.
    """
    if not 0 < mass < 1:
        raise ValueError(f"mass must lie in (0, 1), got {mass}")
    if not bool((maps >= 0).all()):
        smallest = float(maps.min())
        raise ValueError(
            f"maps must be non-negative numbers, got {smallest:.3g}; take a softmax, or the excess over a "
            "mean"
        )
    finite(maps=maps)
    maps = maps / binary_scale(maps, -1)  # their sum is then in range
    sorted_maps, order = maps.sort(-1, descending=True)
    # A patch belongs to the selection if the larger patches before it hold less than the required share.
    mass_before = sorted_maps.cumsum(-1) - sorted_maps
    inside = mass_before < mass * sorted_maps.sum(-1, keepdim=True)
    inside[..., 0] = True  # also in a map of zeros
    return torch.zeros_like(inside).scatter(-1, order, inside)


def overlap(selection: Selection, masks: Masks) -> Overlap:
    """Compares patches with masks of pixels; for each object of each image the best candidate counts.

    Args:
        selection: patches of a square image, row by row, [n, candidates, seq].
        masks: masks of the objects, [n, objects, size, size]; ``size`` is a multiple of the number of patches
            per side.
    Returns:
        The two mean overlaps, in [0, 1].
    Raises:
        ValueError: shapes do not fit, or the patches do not tile the image.
    """
    if selection.ndim != 3:
        raise ValueError(
            f"selection must have shape [n, candidates, seq], got {list(selection.shape)}; top_mass returns "
            "it"
        )
    if masks.ndim != 4 or masks.shape[2] != masks.shape[3] or len(masks) != len(selection):
        raise ValueError(
            f"masks must have shape [{len(selection)}, objects, size, size], got {list(masks.shape)}; one "
            "object is masks[:, :1]"
        )
    side, size = round(selection.shape[-1] ** 0.5), masks.shape[-1]
    if side**2 != selection.shape[-1] or size % side:
        raise ValueError(
            f"patches must tile the image, got {selection.shape[-1]} patches for {size} x {size} pixels"
        )
    # [n, candidates, side, side] -> [n, candidates, size, size] -> [n, candidates, size * size]: each patch
    # becomes a square of pixels.
    pixels = (
        selection.unflatten(-1, (side, side))
        .repeat_interleave(size // side, -1)
        .repeat_interleave(size // side, -2)
    )
    pixels = pixels.flatten(-2).double()

    def best(objects: Tensor) -> float:
        """Returns the overlap of the best candidate with each object, mean over objects and images."""
        truth = objects.flatten(-2).double()
        intersection = pixels @ truth.mT
        union = pixels.sum(-1)[..., None] + truth.sum(-1)[:, None] - intersection
        return float((intersection / union.clamp(min=1)).amax(1).mean())

    return Overlap(best(masks), best(masks.any(1, keepdim=True)))


def class_attention(model: nn.Module, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, "n heads seq"]:
    """Returns the attention of the class token (the first) to all other tokens in the last block, one map per
    head.

    Args:
        model: any network that :func:`~transformer_theory.probe` can read, with a class token in front.
        inputs: inputs of the model, [n, ...]; converted to its precision and device.
    Returns:
        The non-negative weights of the patches, [n, heads, seq]; together with the weight of the class token
        itself they sum to one.
    Raises:
        ValueError: the blocks of the network have no attention map.
        NoAttention: the network calls no attention.
    """
    maps = []
    for batch in inputs.split(BATCH):
        metric = AttentionMaps(keep=len(batch))
        try:
            with probe(model, [metric]), torch.no_grad():
                model(converted_inputs(model, batch))
        except NoAttention as error:
            if halves := layers_of(model):
                raise ValueError(
                    f"model must have attention maps, got blocks of {type(halves[-1][1].fn).__name__} "
                    "without one; use crate.components, or a network with ReleasedAttention or "
                    "PaperAttention"
                ) from error
            raise
        last = metric.sums[max(metric.sums)]  # [batch, heads, q, k] of the last block
        maps.append(last[:, :, 0, 1:].double())
    return torch.cat(maps)


def components(
    model: nn.Module, inputs: Float[Tensor, "n *shape"], *, count: int = COMPONENTS
) -> Float[Tensor, "n count seq"]:
    """Projects the last block's patch tokens (all except the class token) on their first principal components
    over all images.

    Args:
        model: a network of CRATE layers, or any that :func:`~transformer_theory.probe` can read, with a class
            token in front.
        inputs: inputs of the model, [n, ...]; converted to its precision and device.
        count: number of components, at most the width of the tokens.
    Returns:
        The projections, [n, count, seq], scaled to standard deviation 1, in the order of the components;
        signs are arbitrary.
    Raises:
        ValueError: ``count`` is below 1 or above the width of the tokens.
        NoAttention: the network calls no attention.
    """
    last = _LastOutput()
    hooked = bool(compression_layers(model))
    outputs = []
    for batch in inputs.split(BATCH):
        context = (
            on_layers(model, lambda number, layer, tokens, output: last.keep(output))
            if hooked
            else probe(model, [last])
        )
        with context, torch.no_grad():
            model(converted_inputs(model, batch))
        outputs.append(last.output[:, 1:].double())
    tokens = torch.cat(outputs)
    if not 1 <= count <= tokens.shape[-1]:
        raise ValueError(
            f"count must be at least 1 and at most {tokens.shape[-1]}, the width of the tokens, got {count}"
        )
    centred = tokens - tokens.mean((0, 1))
    flat = centred.flatten(0, 1)
    directions = torch.linalg.eigh(flat.mT @ flat)[1].flip(1)[:, :count]  # eigenvalues ascend, so flip
    projected = centred @ directions
    return (projected / projected.std((0, 1)).clamp(min=1e-12)).transpose(1, 2)


def exceeding(projections: Float[Tensor, "n count seq"]) -> Float[Tensor, "n candidates seq"]:
    """Returns the excess of each projection over its mean in the image, in both directions, as two
    non-negative maps per component.
    """
    centred = projections - projections.mean(-1, keepdim=True)
    return torch.cat([centred.relu(), (-centred).relu()], 1)


def random_patches(selection: Selection, *, generator: torch.Generator) -> Selection:
    """Draws, for each candidate, the same number of patches at random places, as the chance level."""
    order = torch.rand(selection.shape, generator=generator).argsort(-1)
    return selection.gather(-1, order)


class _LastOutput(Metric):
    """Keeps the output of the last block that ran."""

    # "attention" makes the probe raise NoAttention if the network calls no attention
    kinds = ("attention", "features")
    output: Tensor

    def keep(self, output: Tensor) -> None:
        self.output = output.detach()

    def update(self, activations: Activations) -> None:
        if activations.kind == "features":
            self.keep(activations.output)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> list:
        return []
