"""Pictures of the attention maps that a probe kept (:class:`~transformer_theory.metrics.AttentionMaps`): every head, and the rollout.

On images a map is drawn as heat over the patches: the row of the class token if there is one, otherwise the mean weight of each patch.
Images are ``[n, channels, height, width]``, those of the first sequences, whose maps were kept.
Source: :cite:t:`abnar2020quantifying` (rollout).
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.plotting import axes, caption, style
from ..core.result import Result
from ..metrics import attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Images = Float[Tensor, "n c h w"]


@style()
def heads(result: Result, *, sequence: int = 0, images: Images | None = None, step: int | None = None) -> "Figure":
    """Every layer (rows) and head (columns) of one sequence, each panel on its own scale.

    Args:
        result: of a probe with :class:`~transformer_theory.metrics.AttentionMaps`.
        sequence: number of the sequence among those kept.
        images: the background; if None, the maps themselves are drawn, queries down, keys across.
        step: of the measurement, if there are several; the last if None.
    Raises:
        ValueError: the result holds no maps, or none of that step or sequence, or the tokens are no square grid of patches of the images.
    """
    maps = [each[sequence] for each in _maps(result, step, sequence)]
    columns = max(len(each) for each in maps)
    figure, panels = axes(len(maps), columns, 0.6 + 1.1 * columns, 0.5 + 1.15 * len(maps))
    grid = _bare(panels, len(maps), columns)
    for layer, each in enumerate(maps):
        for head in range(columns):
            if head >= len(each):
                grid[layer, head].set_visible(False)
            elif images is None:
                grid[layer, head].imshow(each[head], vmin=0, cmap="YlOrBr")
            else:
                _on_image(grid[layer, head], _heat(each[head]), images[sequence])
            if not layer:
                grid[0, head].set_title(f"head {head}", fontsize=7.5, fontweight="normal")
        grid[layer, 0].set_ylabel(f"layer {layer}", fontsize=7.5)
    caption(figure, "deeper colour: more weight, each panel on its own scale")
    return figure


@style()
def rollout(result: Result, images: Images, *, step: int | None = None) -> "Figure":
    """For each sequence kept: the image, and the share of each patch in the last layer's class token (or mean token).

    Args:
        result: of a probe with :class:`~transformer_theory.metrics.AttentionMaps`.
        images: of the sequences.
        step: of the measurement, if there are several; the last if None.
    Raises:
        ValueError: the result holds no maps, or none of that step, or the tokens are no square grid of patches of the images.
    """
    maps = _maps(result, step, 0)
    count = min(len(maps[0]), len(images))
    figure, panels = axes(2, count, 0.6 + 1.3 * count, 3.1)
    grid = _bare(panels, 2, count)
    for i in range(count):
        flow = attention.rollout(torch.from_numpy(np.stack([each[i].mean(0, keepdims=True) for each in maps])))
        grid[0, i].imshow(_ink(images[i]), cmap="gray_r")
        _on_image(grid[1, i], _heat(flow.numpy()), images[i])
    grid[0, 0].set_ylabel("image", fontsize=7.5)
    grid[1, 0].set_ylabel("rollout", fontsize=7.5)
    caption(figure, "deeper colour: larger share of the patch, each panel on its own scale")
    return figure


def _maps(result: Result, step: int | None, sequence: int) -> list[np.ndarray]:
    """The maps of one measurement, layer by layer, ``[sequences, heads, queries, keys]``; of a block, its first attention."""
    names = [name for name in result.arrays if name.startswith("attention/") and "." not in name]
    steps = sorted({int(name.partition("@")[2] or 0) for name in names})
    if not names:
        raise ValueError("the result must hold attention maps, got none; add AttentionMaps() to the metrics of the probe")
    if step is not None and "@" in names[0] and step not in steps:
        raise ValueError(f"step must be one of the measured steps, {steps}, got {step}")
    chosen = f"@{steps[-1] if step is None else step}"
    maps = [result.arrays[name] for name in sorted(names) if "@" not in name or name.endswith(chosen)]
    if not -len(maps[0]) <= sequence < len(maps[0]):
        raise ValueError(
            f"sequence must be one of the {len(maps[0])} that were kept, got {sequence}; keep more with AttentionMaps(keep=...)"
        )
    return maps


def _heat(weights: np.ndarray) -> np.ndarray:
    """Weight on each patch, ``[side, side]``, from a map ``[tokens, tokens]``."""
    keys = weights.shape[-1]
    side = math.isqrt(keys)
    if side**2 not in (keys, keys - 1) or side < 2:
        raise ValueError(f"tokens must be a square grid of patches, with or without a class token, got {keys}; draw without images")
    return (weights.mean(0) if side**2 == keys else weights[0, 1:]).reshape(side, side)


def _on_image(ax: "Axes", heat: np.ndarray, image: Tensor) -> None:
    """Draws the patches tinted by heat, with the image as dark ink above them."""
    import matplotlib

    ink = _ink(image)
    if ink.shape[0] % len(heat) or ink.shape[1] % len(heat):
        raise ValueError(
            f"images must divide into {len(heat)} x {len(heat)} patches, got {list(ink.shape)} pixels; pass the model's images"
        )
    tint = matplotlib.colormaps["YlOrBr"](heat / (heat.max() or 1.0) * 0.8)[..., :3]
    tall, wide = (side // len(heat) for side in ink.shape)
    ax.imshow(np.kron(tint, np.ones((tall, wide, 1))) * (1 - 0.6 * ink[..., None]))


def _ink(image: Tensor) -> np.ndarray:
    """An image ``[c, h, w]`` as ink in [0, 1]: of three channels where it is dark, of one channel where it is large (digits)."""
    grey = image.detach().cpu().double().mean(0).numpy()
    span = float(np.ptp(grey))
    ink = (grey - grey.min()) / span if span > 0 else np.zeros_like(grey)
    return 1 - ink if len(image) == 3 else ink


def _bare(panels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Panels without ticks, as a grid."""
    grid = panels.reshape(rows, columns)
    for ax in panels:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return grid
