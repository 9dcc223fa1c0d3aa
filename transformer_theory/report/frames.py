"""What the step slider shows: a network's attention maps and features at every stored step, as small numbers for the page's script.

Maps are bytes on one scale for all frames, features bytes in one plane and one box for all frames, so that what moves on the page is the
network and not the scale. The same result gives the same bytes.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.notes import is_share
from ..core.result import Result
from .attended import Attended, attended, ink, seen
from .figures import positions
from .timeline import series
from .wording import number, percent

IMAGES = 6  # rows of maps
LAYERS = 6  # columns of maps
BUDGET = 2**18  # bytes of maps a network; longer sequences get fewer rows
PIXELS = 64  # side of the largest image; of larger ones every second or third pixel is shown
TINTS = 64  # colours of the maps


@dataclass(frozen=True)
class Film:
    """The frames of one network.

    Attributes:
        model: its name.
        captions: what each frame is of, in words.
        moving: whether features are there (only their end is, in results of older versions).
        top: the share of attention that the darkest tint stands for; None without maps.
        on_images: whether the maps lie on images.
        told: what the script draws, JSON values only.
    """

    model: str
    captions: tuple[str, ...]
    moving: bool
    top: str | None
    on_images: bool
    told: dict[str, Any]


def film(result: Result, model: str) -> Film | None:
    """The frames of a network; None if fewer than two steps were stored."""
    steps = result.arrays.get(f"network/{model}/steps")
    if steps is None or len(steps) < 2:
        return None
    looked = _few(result, model, len(steps))
    points = _points(result, model, len(steps))
    if looked is None and points is None:
        return None
    told: dict[str, Any] = {"captions": _captions(result, model, steps)}
    if looked is not None:
        told["attention"] = _maps(looked)
    if points is not None:
        told["features"] = points
    top = None if looked is None else number(looked.top)
    return Film(model, tuple(told["captions"]), points is not None, top, looked is not None and looked.images is not None, told)


def _captions(result: Result, model: str, steps: np.ndarray) -> list[str]:
    """``"step 56 of 600, held-out accuracy 64.38 %"``; without the accuracy where none was read at the step."""
    own = [s for s in series(result) if (s.theory, s.model) == ("network", model) and is_share(s.quantity)]
    read = {int(step): f", {own[0].quantity} {percent(float(value))}" for step, value in zip(own[0].steps, own[0].values)} if own else {}
    return [f"step {int(step):,} of {int(steps[-1]):,}{read.get(int(step), '')}" for step in steps]


def _few(result: Result, model: str, steps: int) -> Attended | None:
    """As many rows of maps as there is room for."""
    looked = attended(result, model, IMAGES)
    if looked is None or len(looked.maps) != steps:
        return None
    layers = min(LAYERS, looked.maps.shape[1])
    room = BUDGET // (steps * layers * looked.maps.shape[-2] * looked.maps.shape[-1])
    return attended(result, model, min(IMAGES, room)) if room else None


def _maps(looked: Attended) -> dict[str, Any]:
    layers = positions(looked.maps.shape[1], LAYERS)
    maps, grid = looked.maps[:, layers], list(looked.maps.shape[-2:])
    told = {"layers": layers, "images": maps.shape[2], "grid": grid, "shape": grid, "heat": _bytes(maps / looked.top)}
    if looked.images is not None:
        by = -(-max(looked.images.shape[-2:]) // PIXELS)
        images = [image[:, ::by, ::by] for image in looked.images]
        told["shape"] = list(images[0].shape[1:])
        told["inputs"] = _bytes(np.stack([_colours(image) for image in images]))
        told["ink"] = _bytes(np.stack([ink(image) for image in images]))
    return {**told, "tints": _tints(0.8 if looked.images is not None else 1.0)}


def _colours(image: np.ndarray) -> np.ndarray:
    """An image ``[c, h, w]`` as the page shows it: RGB ``[h, w, 3]`` in [0, 1], drawings dark on white."""
    shown = seen(image)
    return shown if shown.ndim == 3 else np.repeat(1 - shown[..., None], 3, axis=2)


def _tints(end: float) -> list[list[int]]:
    """Colours from the smallest to the largest share of attention, RGB of 0 to 255; those of the figures."""
    import matplotlib

    return np.round(255 * matplotlib.colormaps["YlOrBr"](np.linspace(0, end, TINTS))[:, :3]).astype(int).tolist()


def _points(result: Result, model: str, steps: int) -> dict[str, Any] | None:
    """Features in the plane, and the median of each class among them: ``[steps, n + classes, 2]`` as bytes."""
    points, labels = result.arrays.get(f"network/{model}/features over training"), result.arrays.get("network/labels")
    if points is None or labels is None or points.ndim != 3 or len(points) != steps or not points.size or len(labels) < points.shape[1]:
        return None
    import matplotlib
    from matplotlib.colors import to_hex

    labels = labels[: points.shape[1]]
    classes = np.unique(labels)
    centres = np.stack([np.median(points[:, labels == label], axis=1) for label in classes], axis=1)
    low, high = points.min(axis=(0, 1)), points.max(axis=(0, 1))
    span = float((high - low).max()) or 1.0  # one scale for both axes
    placed = (np.concatenate([points, centres], axis=1) - (low + high - span) / 2) / span
    tints = [to_hex(matplotlib.colormaps["tab10"](i)) for i in range(10)]
    return {"points": _bytes(placed), "labels": labels.tolist(), "classes": classes.tolist(), "tints": tints}


def _bytes(shares: np.ndarray) -> str:
    """Numbers in [0, 1] as bytes of 0 to 255, in base64; what is not finite is 0."""
    whole = np.round(255 * np.clip(np.nan_to_num(shares), 0, 1)).astype(np.uint8)
    return base64.b64encode(whole.tobytes()).decode()
