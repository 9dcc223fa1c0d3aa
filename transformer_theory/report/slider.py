"""The step slider of the page: a network's attention maps and features at every stored step, quantised to
bytes for the page's script.

All steps share one scale of attention, one plane and one bounding box of features. What moves on the page is
therefore a change of the network. The same result gives the same bytes.
"""

import base64
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import format
from ..core.result import Result
from .attention_maps import AttentionMaps, attention_maps, displayed, ink
from .curves import series
from .network_figures import positions

MAX_IMAGES = 6  # rows of maps
MAX_LAYERS = 6  # columns of maps
BUDGET = 2**18  # bytes of maps per network; longer sequences get fewer rows
PIXELS = 64  # largest side of an image; larger images are subsampled to every second pixel, every third, ...
TINTS = 64  # number of colours of the maps


@dataclass(frozen=True)
class Slider:
    """The steps of one network.

    Attributes:
        model: name of the network.
        captions: the caption of each step.
        moving: whether the features at each step are stored.
        largest: share of attention of the darkest tint, as text; None without maps.
        on_images: whether the maps are drawn over the input images.
        data: input of the page's script, JSON values only.
    """

    model: str
    captions: tuple[str, ...]
    moving: bool
    largest: str | None
    on_images: bool
    data: dict[str, Any]


def slider(result: Result, model: str) -> Slider | None:
    """Returns the slider of a network; None if fewer than two steps, or neither maps nor features at each
    step, were stored.
    """
    steps = result.arrays.get(f"network/{model}/steps")
    if steps is None or len(steps) < 2:
        return None
    maps, points = _maps_within_budget(result, model, len(steps)), _points(result, model, len(steps))
    if maps is None and points is None:
        return None
    data: dict[str, Any] = {"captions": _captions(result, model, steps)}
    if maps is not None:
        data["attention"] = _maps(maps)
    if points is not None:
        data["features"] = points
    largest = None if maps is None else format.number(maps.largest)
    return Slider(
        model,
        tuple(data["captions"]),
        points is not None,
        largest,
        maps is not None and maps.images is not None,
        data,
    )


def _captions(result: Result, model: str, steps: np.ndarray) -> list[str]:
    """Returns one caption per step: ``"step 56 of 600, validation accuracy 64.38 %"``, without an accuracy if
    none was measured.
    """
    rows = result.table.select(theory="network", model=model, unit="share")
    shares = [s for s in series(replace(result, table=rows)) if s.split == "validation"]
    measured = {}
    for share in shares[:1]:
        measured = {
            int(step): f", {share.label} {format.percent(float(value))}"
            for step, value in zip(share.steps, share.values)
        }
    return [f"step {int(step):,} of {int(steps[-1]):,}{measured.get(int(step), '')}" for step in steps]


def _maps_within_budget(result: Result, model: str, steps: int) -> AttentionMaps | None:
    """Returns the maps of as many images as :data:`BUDGET` allows; None if they were not stored at every step
    or one image is too large.
    """
    stored = attention_maps(result, model, MAX_IMAGES)
    if stored is None or len(stored.maps) != steps:
        return None
    layers = min(MAX_LAYERS, stored.maps.shape[1])
    # One byte per number: the cost of one image is steps x layers x rows x columns of its map.
    rows = BUDGET // (steps * layers * stored.maps.shape[-2] * stored.maps.shape[-1])
    return attention_maps(result, model, min(MAX_IMAGES, rows)) if rows else None


def _maps(stored: AttentionMaps) -> dict[str, Any]:
    """Encodes the maps for the script: ``heat`` [steps, layers, images, *grid] and, if they lie on images,
    the images and their ink.
    """
    layers = positions(stored.maps.shape[1], MAX_LAYERS)
    maps, grid = stored.maps[:, layers], list(stored.maps.shape[-2:])
    data = {
        "layers": layers,
        "images": maps.shape[2],
        "grid": grid,
        "shape": grid,
        "heat": _bytes(maps / stored.largest),
    }
    if stored.images is not None:
        # -(-a // b) rounds up, so the side is at most PIXELS
        stride = -(-max(stored.images.shape[-2:]) // PIXELS)
        images = [image[:, ::stride, ::stride] for image in stored.images]
        data["shape"] = list(images[0].shape[1:])
        data["inputs"] = _bytes(np.stack([_colours(image) for image in images]))
        data["ink"] = _bytes(np.stack([ink(image) for image in images]))
    # The darkest fifth of the colours would hide the ink of an image, so maps over images leave it out.
    return {**data, "tints": _tints(0.8 if stored.images is not None else 1.0)}


def _colours(image: np.ndarray) -> np.ndarray:
    """Converts an image ``[c, h, w]`` to RGB ``[h, w, 3]`` in [0, 1] for the page; drawings are dark on
    white.
    """
    picture = displayed(image)
    return picture if picture.ndim == 3 else np.repeat(1 - picture[..., None], 3, axis=2)


def _tints(end: float) -> list[list[int]]:
    """Returns the colours from the smallest to the largest share of attention, RGB from 0 to 255, as in the
    figures.

    ``end`` in (0, 1] is the part of the colour map that is used.
    """
    import matplotlib

    return (
        np.round(255 * matplotlib.colormaps["YlOrBr"](np.linspace(0, end, TINTS))[:, :3]).astype(int).tolist()
    )


def _points(result: Result, model: str, steps: int) -> dict[str, Any] | None:
    """Encodes the features in the plane, followed by the median of each class, as bytes of ``[steps, n +
    classes, 2]``.

    None if the features were not stored at every step.
    """
    points, labels = (
        result.arrays.get(f"network/{model}/features over training"),
        result.arrays.get("network/labels"),
    )
    if (
        points is None
        or labels is None
        or points.ndim != 3
        or len(points) != steps
        or not points.size
        or len(labels) < points.shape[1]
    ):
        return None
    import matplotlib
    from matplotlib.colors import to_hex

    labels = labels[: points.shape[1]]
    classes = np.unique(labels)
    # medians of the points [steps, n, 2] of each class: [steps, classes, 2]
    centres = np.stack([np.median(points[:, labels == label], axis=1) for label in classes], axis=1)
    low, high = points.min(axis=(0, 1)), points.max(axis=(0, 1))
    span = float((high - low).max()) or 1.0  # one scale for both axes
    # Map the square with this side, centred on the bounding box of all steps, to [0, 1].
    placed = (np.concatenate([points, centres], axis=1) - (low + high - span) / 2) / span
    tints = [to_hex(matplotlib.colormaps["tab10"](i)) for i in range(10)]
    return {"points": _bytes(placed), "labels": labels.tolist(), "classes": classes.tolist(), "tints": tints}


def _bytes(values: np.ndarray) -> str:
    """Encodes numbers, clipped to [0, 1], as bytes from 0 to 255 in base64; NaN becomes 0."""
    quantised = np.round(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)
    return base64.b64encode(quantised.tobytes()).decode()
