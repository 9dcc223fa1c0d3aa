"""Figures of the attention maps that :class:`~transformer_theory.metrics.AttentionMaps` stores: all heads of
a sequence, and the rollout.

Over an image, a map is drawn as one weight per patch: the row of the class token if there is one, otherwise
the mean over queries. The images ``[n, channels, height, width]`` must be the inputs of the sequences whose
maps are stored, in the same order. Source: :cite:t:`abnar2020quantifying` (rollout).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.plotting import axes, caption, style
from ..core.result import Result
from ..data.tokens import patch_grid
from ..metrics import attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Images = Float[Tensor, "n c h w"]


@style()
def heads(
    result: Result, *, sequence: int = 0, images: Images | None = None, step: int | None = None
) -> "Figure":
    """Draws the attention maps of one sequence: one row per layer, one column per head, one colour scale per
    panel.

    Args:
        result: result of a probe with :class:`~transformer_theory.metrics.AttentionMaps`.
        sequence: index of the sequence among the stored ones.
        images: background of the panels. None: the maps are drawn as matrices with a row per query and a
            column per key.
        step: step of the measurement. None: the last step.
    Raises:
        ValueError: the result has no maps of this step or sequence, or the tokens do not are no square
            patches of the images.
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
                _on_image(grid[layer, head], each[head], images[sequence])
            if not layer:
                grid[0, head].set_title(f"head {head}", fontsize=7.5, fontweight="normal")
        grid[layer, 0].set_ylabel(f"layer {layer}", fontsize=7.5)
    caption(figure, "deeper colour: more weight, each panel on its own scale")
    return figure


@style()
def rollout(result: Result, images: Images, *, step: int | None = None) -> "Figure":
    """Draws each stored image above its rollout: the share of each patch in the class token (or mean token)
    of the last layer.

    Args:
        result: result of a probe with :class:`~transformer_theory.metrics.AttentionMaps`.
        images: inputs of the sequences.
        step: step of the measurement. None: the last step.
    Raises:
        ValueError: the result has no maps of this step, or the tokens do not are no square patches of
            the images.
    """
    maps = _maps(result, step, 0)
    count = min(len(maps[0]), len(images))
    figure, panels = axes(2, count, 0.6 + 1.3 * count, 3.1)
    grid = _bare(panels, 2, count)
    for i in range(count):
        shares = attention.rollout(
            torch.from_numpy(np.stack([each[i].mean(0, keepdims=True) for each in maps]))
        )
        grid[0, i].imshow(_ink(images[i]), cmap="gray_r")
        _on_image(grid[1, i], shares.numpy(), images[i])
    grid[0, 0].set_ylabel("image", fontsize=7.5)
    grid[1, 0].set_ylabel("rollout", fontsize=7.5)
    caption(figure, "deeper colour: larger share of the patch, each panel on its own scale")
    return figure


def _maps(result: Result, step: int | None, sequence: int) -> list[np.ndarray]:
    """Returns the maps of one measurement, ``[sequences, heads, queries, keys]`` for the first attention of
    each layer.
    """
    # Arrays are called attention/<layer>, or attention/<layer>.<first head> for a second attention of a
    # layer, followed by @<step> if there are several steps.
    names = [name for name in result.arrays if name.startswith("attention/") and "." not in name]
    steps = sorted({int(name.partition("@")[2] or 0) for name in names})
    if not names:
        raise ValueError(
            "the result must hold attention maps, got none; add AttentionMaps() to the metrics of the probe"
        )
    if step is not None and "@" in names[0] and step not in steps:
        raise ValueError(f"step must be one of the measured steps, {steps}, got {step}")
    suffix = f"@{steps[-1] if step is None else step}"
    maps = [result.arrays[name] for name in sorted(names) if "@" not in name or name.endswith(suffix)]
    if not -len(maps[0]) <= sequence < len(maps[0]):
        raise ValueError(
            f"sequence must be one of the {len(maps[0])} that were kept, got {sequence}; keep more with "
            "AttentionMaps(keep=...)"
        )
    return maps


def _heat(
    weights: Float[np.ndarray, "tokens tokens"], height: int, width: int
) -> Float[np.ndarray, "rows columns"]:
    """Returns the weight on each patch of an image: that of the class token in front, if there is one, or the
    mean over the patches.
    """
    keys = weights.shape[-1]
    leading = 0 if patch_grid(keys, height, width) else 1
    grid = patch_grid(keys - leading, height, width)
    if grid is None:
        raise ValueError(
            f"tokens must be square patches of images of {height} x {width} pixels, with or without a class "
            f"token, got {keys}; pass the model's images, or draw without images"
        )
    return (weights[0, 1:] if leading else weights.mean(0)).reshape(grid)


def _on_image(ax: "Axes", weights: Float[np.ndarray, "tokens tokens"], image: Tensor) -> None:
    """Draws the patches, coloured by the weights on them, with the image as dark ink on top."""
    import matplotlib

    ink = _ink(image)
    heat = _heat(weights, *ink.shape)
    tint = matplotlib.colormaps["YlOrBr"](heat / (heat.max() or 1.0) * 0.8)[..., :3]
    tall, wide = (side // count for side, count in zip(ink.shape, heat.shape))
    ax.imshow(np.kron(tint, np.ones((tall, wide, 1))) * (1 - 0.6 * ink[..., None]))


def _ink(image: Tensor) -> np.ndarray:
    """Converts an image ``[c, h, w]`` to ink in [0, 1]. Colour images are inverted (dark pixels are ink);
    images of one channel are not.
    """
    grey = image.detach().cpu().double().mean(0).numpy()
    span = float(np.ptp(grey))
    ink = (grey - grey.min()) / span if span > 0 else np.zeros_like(grey)
    return 1 - ink if len(image) == 3 else ink


def _bare(panels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Removes ticks, grid lines and frames from the panels and returns them as an array
    ``[rows, columns]``.
    """
    grid = panels.reshape(rows, columns)
    for ax in panels:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return grid
