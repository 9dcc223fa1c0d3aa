"""What the report shows of the inside of a network: where it attends, its features in the plane, and sample
images with its answers.

Attention and features are drawn as figures, and as a slider over the stored steps, whose numbers are
quantised to bytes for the page's script. All steps share one scale of attention, one plane and one bounding
box of features. What moves on the page is therefore a change of the network. The same result gives the same
bytes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import format
from ..core.plotting import axes, plain, style
from ..core.result import Result
from ..data.tokens import patch_grid
from ..training.image.samples import CERTAIN, POOL, RIGHT, VALIDATION, WRONG
from .curves import curves, positions, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_IMAGES = 6  # rows of maps in the slider
MAX_LAYERS = 6  # columns of maps in the slider
BUDGET = 2**18  # bytes of maps per network in the slider; longer sequences get fewer rows
PIXELS = 64  # largest side of an image; larger images are subsampled to every second pixel, every third, ...
TINTS = 64  # number of colours of the maps
# The darkest fifth of the colours would hide the ink of an image, so maps over images leave it out.
OVER_IMAGES = 0.8
SIDE = 96  # pixels of a sample image on the page


# ---- attention


@dataclass(frozen=True, eq=False)
class DisplayedMaps:
    """Attention maps of a network, averaged over heads: over the images if the tokens are a grid of patches,
    otherwise alone.

    Attributes:
        steps: training steps of the maps, ``[s]``.
        maps: shares of attention, ``[s, layers, n, rows, columns]``. With images: the share that each patch
            receives from the class token, or from all patches if there is none. Without images: queries by
            keys.
        images: the images, ``[n, channels, height, width]``; None if the tokens are not a grid of patches.
    """

    steps: np.ndarray
    maps: np.ndarray
    images: np.ndarray | None

    @property
    def largest(self) -> float:
        """The largest share in all maps, the upper end of the scale."""
        return float(np.nanmax(self.maps)) or 1.0


def displayed_maps(result: Result, model: str, count: int) -> DisplayedMaps | None:
    """Returns the maps of the first ``count`` images or sequences; None if the result stores no maps of this
    network.

    The stored maps have the shape [steps, layers, heads, n, queries, keys].
    """
    maps = result.arrays.get(f"network/{model}/attention")
    if maps is None or maps.ndim != 6 or not maps.size:
        return None
    steps = result.arrays.get(f"network/{model}/steps", np.arange(len(maps)))
    mean = maps[:, :, :, :count].mean(axis=2)  # over heads: [steps, layers, images, queries, keys]
    images, n, keys = result.arrays.get("network/images"), mean.shape[2], mean.shape[-1]
    if images is None or len(images) < n:
        return DisplayedMaps(steps, mean, None)
    # Class and register tokens stand before the patches.
    sides = images.shape[-2:]
    skip = int(result.settings.get("leading", 0 if patch_grid(keys, *sides) else 1))
    grid = result.settings.get("grid") or patch_grid(keys - skip, *sides)
    if grid is None or grid[0] * grid[1] != keys - skip or sides[0] % grid[0] or sides[1] % grid[1]:
        return DisplayedMaps(steps, mean, None)
    # With a class token, row 0 is its query and column 0 its key. Otherwise: average over the patches.
    received = mean[..., 0, 1:] if skip == 1 else mean[..., skip:, skip:].mean(axis=-2)
    # maps: [steps, layers, n, rows, columns]
    return DisplayedMaps(steps, received.reshape(*received.shape[:-1], *grid), images[:n])


def displayed_image(image: np.ndarray) -> np.ndarray:
    """Prepares an image ``[c, h, w]`` for display: in colour ``[h, w, 3]`` if it has three channels,
    otherwise as ink ``[h, w]``.
    """
    if len(image) != 3:
        return ink(image)
    colours = np.moveaxis(np.asarray(image, dtype=float), 0, -1)
    low, high = min(0.0, colours.min()), max(1.0, colours.max())  # normalised pixels may lie outside [0, 1]
    return (colours - low) / (high - low)


def ink(image: np.ndarray) -> np.ndarray:
    """Returns the darkness of each pixel of an image ``[c, h, w]``, scaled to [0, 1], as ``[h, w]``.

    With one channel, darkness is the value itself, because drawings store ink as 1; with several, it is minus
    the mean of the channels.
    """
    grey = np.asarray(image, dtype=float).mean(axis=0) * (1 if len(image) == 1 else -1)
    span = np.ptp(grey)
    return (grey - grey.min()) / span if span > 0 else np.zeros_like(grey)


@style()
def attention(result: Result, model: str, *, images: int = 3, layers: int = 2) -> "Figure | None":
    """Draws attention maps at several steps and layers: over the input images if the tokens are a grid
    of patches, else alone.

    Args:
        result: result that stores the maps.
        model: name of the network.
        images: largest number of images.
        layers: largest number of layers.
    """
    stored = displayed_maps(result, model, images)
    if stored is None:
        return None
    from matplotlib.colors import PowerNorm

    inputs = stored.images
    times = positions(len(stored.maps), 4)
    chosen = positions(stored.maps.shape[1], layers if len(times) > 1 else 6)
    maps = stored.maps[np.ix_(times, chosen)]  # [times, layers, n, rows, columns]
    count, first = maps.shape[2], 0 if inputs is None else 1  # a column of images comes first
    columns = first + len(chosen) * len(times)
    figure, panels = axes(count, columns, 7.6, 0.5 + 6.5 / max(columns, 5) * count)
    grid = panels.reshape(count, columns)
    for ax in panels:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    top = float(np.nanmax(maps)) or 1.0
    for i in range(count):
        if inputs is not None:
            grid[i, 0].imshow(displayed_image(inputs[i]), cmap="gray_r", vmin=0, vmax=1)
            grid[0, 0].set_title("input", fontsize=7.5, fontweight="normal")
        for a, layer in enumerate(chosen):
            for b, time in enumerate(times):
                ax = grid[i, first + a * len(times) + b]
                if inputs is not None:
                    ax.imshow(_overlay(maps[b, a, i] / top, ink(inputs[i])))
                else:
                    # rows of many keys have small shares
                    ax.imshow(maps[b, a, i], norm=PowerNorm(0.5, 0, top), cmap="YlOrBr")
                if i == 0:
                    start = f"layer {layer}" if b == 0 else ""
                    step = f"\nstep {int(stored.steps[time]):,}" if len(times) > 1 else ""
                    ax.set_title(f"{start}{step}", fontsize=7.5, fontweight="normal")
    _bar(figure, grid, top, over_images=inputs is not None)
    return figure


def _overlay(heat: np.ndarray, ink: np.ndarray) -> np.ndarray:
    """Combines an image with its heat map: each patch is tinted by its heat in [0, 1], and ink darkens the
    tint.

    Args:
        heat: share of attention of each patch, scaled to [0, 1], ``[rows, columns]``.
        ink: darkness of each pixel, ``[h, w]``.
    Returns:
        RGB values in [0, 1], ``[h, w, 3]``.
    """
    import matplotlib

    tint = matplotlib.colormaps["YlOrBr"](np.clip(heat, 0, 1) * OVER_IMAGES)[..., :3]
    height, width = ink.shape[0] // heat.shape[0], ink.shape[1] // heat.shape[1]  # size of a patch in pixels
    # The Kronecker product repeats the tint of each patch for all of its pixels.
    return np.kron(tint, np.ones((height, width, 1))) * (1 - 0.6 * ink[..., None])


def _bar(figure: "Figure", grid: np.ndarray, top: float, *, over_images: bool) -> None:
    """Adds the colour scale of attention to the right of the panels."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize, PowerNorm

    if over_images:  # the colours of _overlay
        colours = ListedColormap(matplotlib.colormaps["YlOrBr"](np.linspace(0, OVER_IMAGES, 128)))
        scale, label = ScalarMappable(Normalize(0, top), colours), "attention received"
    else:
        scale, label = ScalarMappable(PowerNorm(0.5, 0, top), "YlOrBr"), "attention"
    bar = figure.colorbar(scale, ax=list(grid.ravel()), fraction=0.02, pad=0.012, aspect=28)
    bar.set_label(label, fontsize=7.5)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


# ---- features


@style()
def features(result: Result, models: Sequence[str]) -> "Figure | None":
    """Draws the features of each network in the plane of its first two principal components, coloured and
    numbered by class.
    """
    labels = result.arrays.get("network/labels")
    models = [
        model
        for model in models
        if (points := result.arrays.get(f"network/{model}/features")) is not None and points.ndim == 2
    ]
    if not models or labels is None:
        return None
    figure, panels = axes(1, max(2, len(models)), 7.6, 3.6)
    import matplotlib

    palette = matplotlib.colormaps["tab10"]
    for ax, model in zip(panels, models):
        points = result.arrays[f"network/{model}/features"]
        classes = labels[: len(points)]
        for label in np.unique(classes):
            members = points[classes == label]
            ax.scatter(
                members[:, 0], members[:, 1], s=7, color=palette(int(label) % 10), alpha=0.55, linewidths=0
            )
        for label in np.unique(classes):
            x, y = np.median(points[classes == label], axis=0)[:2]
            text = ax.text(
                x,
                y,
                str(int(label)),
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                color="#15181C",
            )
            text.set_bbox(
                {
                    "boxstyle": "circle,pad=0.18",
                    "facecolor": "white",
                    "edgecolor": palette(int(label) % 10),
                    "alpha": 0.85,
                }
            )
        ax.set(xticks=[], yticks=[], title=plain(model), xlabel="first principal component", ylabel="second")
        ax.grid(False)
    for ax in panels[len(models) :]:
        ax.set_visible(False)
    return figure


# ---- the slider


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
    shares = [s for s in series(curves(replace(result, table=rows))) if s.split == "validation"]
    measured = {}
    for share in shares[:1]:
        measured = {
            int(step): f", {share.label} {format.percent(float(value))}"
            for step, value in zip(share.steps, share.values)
        }
    return [f"step {int(step):,} of {int(steps[-1]):,}{measured.get(int(step), '')}" for step in steps]


def _maps_within_budget(result: Result, model: str, steps: int) -> DisplayedMaps | None:
    """Returns the maps of as many images as :data:`BUDGET` allows; None if they were not stored at every step
    or one image is too large.
    """
    stored = displayed_maps(result, model, MAX_IMAGES)
    if stored is None or len(stored.maps) != steps:
        return None
    layers = min(MAX_LAYERS, stored.maps.shape[1])
    # One byte per number: the cost of one image is steps x layers x rows x columns of its map.
    rows = BUDGET // (steps * layers * stored.maps.shape[-2] * stored.maps.shape[-1])
    return displayed_maps(result, model, min(MAX_IMAGES, rows)) if rows else None


def _maps(stored: DisplayedMaps) -> dict[str, Any]:
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
    return {**data, "tints": _tints(OVER_IMAGES if stored.images is not None else 1.0)}


def _colours(image: np.ndarray) -> np.ndarray:
    """Converts an image ``[c, h, w]`` to RGB ``[h, w, 3]`` in [0, 1] for the page; drawings are dark on
    white.
    """
    picture = displayed_image(image)
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


# ---- sample images


@dataclass(frozen=True)
class Sample:
    """An image with its class and the network's answer.

    Attributes:
        image: PNG as a data URL.
        answer, label: names of the classes.
        confidence: probability of the answer, as text.
    """

    image: str
    answer: str
    label: str
    confidence: str

    @property
    def right(self) -> bool:
        """Whether the answer is the class of the image."""
        return self.answer == self.label


@dataclass(frozen=True)
class Group:
    """The samples of one rule.

    Attributes:
        title: heading.
        rule: how the samples were chosen.
        samples: the samples.
    """

    title: str
    rule: str
    samples: tuple[Sample, ...]


def sample_groups(result: Result) -> list[Group]:
    """Returns the samples of a training by rule; empty if it stored none."""
    arrays = result.arrays
    if "samples/images" not in arrays:
        return []
    names = [str(name) for name in arrays["samples/names"]]
    samples = [
        Sample(_png(image), names[answer], names[label], format.percent(float(confidence)))
        for image, answer, label, confidence in zip(
            *(arrays[f"samples/{column}"] for column in ("images", "answers", "labels", "confidences"))
        )
    ]
    rules = [str(rule) for rule in arrays["samples/rules"]]
    pool = min(POOL, result.settings.get("test_samples") or POOL)
    texts = {
        VALIDATION: ("Validation images", "The first validation images, the same at every measurement."),
        RIGHT: (
            "Right",
            f"Of {pool:,} test images in random order, the first that the network classifies correctly.",
        ),
        WRONG: ("Wrong", "Of the same images, the first that it classifies incorrectly."),
        CERTAIN: (
            "Most certain errors",
            "Of the same images, the wrong answers with the largest probability. Some labels may be wrong.",
        ),
    }
    by_rule: dict[str, list[Sample]] = {rule: [] for rule in rules if rule in texts}
    for rule, sample in zip(rules, samples):
        if rule in texts:
            by_rule[rule].append(sample)
    return [Group(*texts[rule], tuple(members)) for rule, members in by_rule.items()]


def _png(image: np.ndarray) -> str:
    """Encodes an image ``[c, h, w]``, 0 to 255, as a data URL; large images are scaled down to :data:`SIDE`
    pixels.
    """
    from PIL import Image

    pixels = np.moveaxis(image, 0, -1) if len(image) == 3 else image[0]
    picture = Image.fromarray(np.ascontiguousarray(pixels.astype(np.uint8)))
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
