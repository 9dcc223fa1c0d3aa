r"""How well what a network looks at, or what its tokens are, marks out the objects of an image whose masks are known.

* *Attention*: the last block's attention from the class token to the patches, a map a head. Of each map the fewest patches that hold a
  share ``KEPT`` of its mass are taken; the head that fits an object best is counted (what is done for photographs).
* *Principal components*: projections of the last block's patch tokens on their first components over all images, both signs, the same mass
  protocol on what exceeds the mean.

Candidates are compared with a mask by intersection over union at the resolution of pixels. The best of several candidates is better than
one, so the null has as many: patches drawn at random, as many as each candidate holds.

Source: :cite:t:`yu2023emergence`. Notation: docs/notation.md.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...models.crate.stack import blocks
from ...probes import AttentionMaps, NoAttention, Observation, probe
from .layer_curves import compressions, observe

KEPT = 0.6  # share of a map's mass
COMPONENTS = 2  # with both signs as many candidates as four heads
BATCH = 256

Maps = Float[Tensor, "n candidates seq"]
Chosen = Bool[Tensor, "n candidates seq"]
Masks = Bool[Tensor, "n objects size size"]


@dataclass(frozen=True)
class Overlap:
    """Intersection over union of candidates and objects.

    Attributes:
        per_object: of the best candidate for each object, mean over objects and images.
        foreground: of the best candidate for both objects together, mean over images.
    """

    per_object: float
    foreground: float


def top_mass(maps: Maps, *, kept: float = KEPT) -> Chosen:
    """The fewest patches of each map that hold at least a share ``kept`` of its mass.

    Args:
        maps: non-negative, [n, candidates, seq].
        kept: in (0, 1).
    Returns:
        [n, candidates, seq]; at least one patch of each map.
    Raises:
        ValueError: a share outside (0, 1) or a negative entry. Source: :cite:t:`yu2023emergence`.
    """
    if not 0 < kept < 1:
        raise ValueError(f"kept must lie inside (0, 1), got {kept}")
    if not bool((maps >= 0).all()):
        raise ValueError(f"maps must be non-negative numbers, got one of {float(maps.min()):.3g}; take a softmax, or what exceeds a mean")
    sorted_maps, order = maps.sort(-1, descending=True)
    before = sorted_maps.cumsum(-1) - sorted_maps
    inside = before < kept * sorted_maps.sum(-1, keepdim=True)
    inside[..., 0] = True
    return torch.zeros_like(inside).scatter(-1, order, inside)


def overlap(chosen: Chosen, masks: Masks) -> Overlap:
    """Compares patches with masks of pixels; of all candidates the best counts, for each object of each image.

    Args:
        chosen: patches of a square image, row by row, [n, candidates, seq].
        masks: [n, objects, size, size]; the side is a multiple of that of the patches' grid.
    Returns:
        Overlap with two means in [0, 1]: ``per_object`` and ``foreground``.
    Raises:
        ValueError: shapes do not fit, or the patches do not tile the image. Source: :cite:t:`yu2023emergence`.
    """
    if chosen.ndim != 3:
        raise ValueError(f"chosen must have shape [n, candidates, seq], got {list(chosen.shape)}; top_mass gives it")
    if masks.ndim != 4 or masks.shape[2] != masks.shape[3] or len(masks) != len(chosen):
        raise ValueError(f"masks must have shape [{len(chosen)}, objects, size, size], got {list(masks.shape)}; one object is masks[:, :1]")
    side, size = round(chosen.shape[-1] ** 0.5), masks.shape[-1]
    if side**2 != chosen.shape[-1] or size % side:
        raise ValueError(f"patches must tile the image, got {chosen.shape[-1]} patches for {size} x {size} pixels")
    pixels = chosen.unflatten(-1, (side, side)).repeat_interleave(size // side, -1).repeat_interleave(size // side, -2)
    pixels = pixels.flatten(-2).double()

    def best(truth: Tensor) -> float:
        truth = truth.flatten(-2).double()
        both = pixels @ truth.mT
        either = pixels.sum(-1)[..., None] + truth.sum(-1)[:, None] - both
        return float((both / either.clamp(min=1)).amax(1).mean())

    return Overlap(best(masks), best(masks.any(1, keepdim=True)))


def class_attention(model: nn.Module, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, "n heads seq"]:
    """Attention of the class token (the first) to all other tokens in the last block, a map a head.

    Args:
        model: any network that :func:`~transformer_theory.probe` can read, with a class token in front.
        inputs: what it reads, [n, ...]; cast to its precision, sent to its device.
    Returns:
        [n, heads, seq], non-negative: what the patches get of the weights of a head, which sum to one with that of the class token itself.
    Raises:
        ValueError: no attention was seen, or its blocks have no attention map. Source: :cite:t:`yu2023emergence`.
    """
    found = []
    for chunk in inputs.split(BATCH):
        keeper = AttentionMaps(keep=len(chunk))
        try:
            with probe(model, [keeper]) as p, torch.no_grad():
                model(_cast(model, chunk))
        except NoAttention as error:
            if halves := blocks(model):
                raise ValueError(
                    f"model must have attention maps, got blocks of {type(halves[-1][1].fn).__name__}, which compute none;"
                    " take crate.components, or a network with ReleasedAttention or PaperAttention"
                ) from error
            raise
        arrays = p.result().arrays
        found.append(torch.from_numpy(arrays[max(arrays)])[:, :, 0, 1:].double())
    return torch.cat(found)


def components(model: nn.Module, inputs: Float[Tensor, "n *shape"], *, count: int = COMPONENTS) -> Float[Tensor, "n count seq"]:
    """Projections of the last block's patch tokens (all but the first) on their first principal components over all images, deviation 1.

    Args:
        model: a network of CRATE layers, or any that :func:`~transformer_theory.probe` can read, with a class token in front.
        inputs: what it reads, [n, ...]; cast to its precision, sent to its device.
        count: components, two unless told: at least one, at most the width of the tokens.
    Returns:
        [n, count, seq], the first component first; signs are arbitrary.
    Raises:
        ValueError: no attention was seen, or there are not so many components. Source: :cite:t:`yu2023emergence`.
    """
    layers, last = compressions(model), _Last()
    found = []
    for chunk in inputs.split(BATCH):
        with torch.no_grad():
            if layers:
                observe(model, layers[-1:], _cast(model, chunk), lambda seen: last.update(seen, None))
            else:
                with probe(model, [last]):
                    model(_cast(model, chunk))
        found.append(last.output[:, 1:].double())
    tokens = torch.cat(found)
    if not 1 <= count <= tokens.shape[-1]:
        raise ValueError(f"count must be at least 1 and at most {tokens.shape[-1]}, the width of the tokens, got {count}")
    centred = tokens - tokens.mean((0, 1))
    flat = centred.flatten(0, 1)
    directions = torch.linalg.eigh(flat.mT @ flat)[1].flip(1)[:, :count]
    projected = centred @ directions
    return (projected / projected.std((0, 1)).clamp(min=1e-12)).transpose(1, 2)


def exceeding(projections: Float[Tensor, "n count seq"]) -> Float[Tensor, "n candidates seq"]:
    """What exceeds an image's own mean, in either direction, as non-negative maps: two candidates a component.

    Source: none, a convention.
    """
    apart = projections - projections.mean(-1, keepdim=True)
    return torch.cat([apart.relu(), (-apart).relu()], 1)


def random_patches(chosen: Chosen, *, generator: torch.Generator) -> Chosen:
    """The null: as many patches as each candidate holds, anywhere. Source: none, a null."""
    order = torch.rand(chosen.shape, generator=generator).argsort(-1)
    return chosen.gather(-1, order)


class _Last:
    """Reducer: the output of the last block."""

    output: Tensor

    def reset(self) -> None:
        """Nothing is kept."""

    def update(self, seen: Observation, labels: object) -> None:
        if seen.kind == "features":
            self.output = seen.output.detach()

    def compute(self) -> list:
        return []

    def merge(self, other: "_Last") -> None:
        self.output = other.output


def _cast(model: nn.Module, inputs: Tensor) -> Tensor:
    parameter = next(model.parameters())
    return inputs.to(parameter.device, parameter.dtype)
