"""Figures in one style, without pyplot's global state: colours that colour-blind readers can distinguish,
byte-reproducible SVG and PDF.

Decorate each function that plots with ``@style()``: matplotlib reads some settings when a title or a legend
is added, others when the figure is drawn or saved. :func:`svg` and :func:`pdf` save in the style.

    figure, (left, right) = axes(1, 2)
    line(left, steps, cosine, name="attention_svm", label="cosine", null=0.1)
    label_ends(left)
    heatmap(right, attention, "attention")
    text = svg(figure)

The colours are Okabe and Ito's for theories and Tol's for networks. Other curves get :data:`TINTS` or, for
ordered numbers, :func:`shades`, so that no colour has two meanings. matplotlib is imported when the first
figure is created.
"""

import hashlib
import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .presentation import presenting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

# a cache of fonts that cannot be written is made again the next time
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

COLOURS = {  # of networks, of the data in their features ("raw"), and of null distributions
    "network": "#5B6470",
    "ViT": "#4477AA",
    "CRATE": "#AA3377",
    "CRATE (paper form)": "#AA3377",
    "CRATE (released form)": "#C78A1B",
    "raw": "#3F4751",
    "null": "#8A939E",
}
_THEORIES: dict[str, str] = {}  # colours of the theories, see set_colour
# Colours of curves that stand for neither a theory nor a network.
TINTS = ("#004488", "#BB5566", "#DDAA33", "#228833", "#66CCEE", "#AA4499")
# Colours of other names.
_SPARE = ("#56B4E9", "#AA4499", "#882255", "#999933", "#661100")

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5B6470",
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#E4E7EB",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": "#3F4751",
    "ytick.color": "#3F4751",
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "image.cmap": "viridis",
    "image.interpolation": "nearest",
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "transformer_theory",
    "pdf.fonttype": 42,  # TrueType, which journals ask for
}


_active = False  # whether a style is active; global, like matplotlib's settings


@contextmanager
def style() -> Iterator[None]:
    """Applies our style to every plotting call, as a context or a decorator; the user's settings are restored
    afterwards.

    A nested style changes nothing.
    """
    global _active
    if _active:
        yield
        return
    import matplotlib
    from cycler import cycler

    settings = {**STYLE, "axes.prop_cycle": cycler(color=TINTS)}
    with matplotlib.rc_context(settings):  # pyright: ignore[reportArgumentType]
        _active = True
        try:
            yield
        finally:
            _active = False


def set_colour(theory: str, tint: str) -> None:
    """Sets the colour of a theory, ``"#RRGGBB"``; :class:`~.theory.Theory` calls it.

    Raises:
        ValueError: the colour has another form.
    """
    if not re.fullmatch("#[0-9A-Fa-f]{6}", tint):
        raise ValueError(f"the colour of a theory must have the form #RRGGBB, got {tint!r}; give one")
    _THEORIES[theory] = tint


def colour(name: str) -> str:
    """Returns the colour of a theory, a network or any other name; the same name always has the same colour.
    A colour, ``"#RRGGBB"``, is returned unchanged.
    """
    if name.startswith("#"):
        return name
    if name in COLOURS:
        return COLOURS[name]
    if name not in _THEORIES:  # theories are imported at first use, so it may not be known yet
        presenting().load_theories()
    return _THEORIES.get(name) or _SPARE[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(_SPARE)]


def shades(count: int) -> list[str]:
    """Returns ``count`` colours from dark to light, for curves of settings, layers or tokens rather than
    theories or networks.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # lighter colours would be invisible on white
    return [to_hex(tint) for tint in colormaps["viridis"](np.linspace(0, 0.78, count))]


def blank(width: float | int, height: float | int) -> "Figure":
    """Creates a figure without panels and without a layout, for drawings that place every mark themselves;
    sizes in inches.
    """
    return _figure_class()(figsize=(width, height))


@cache
def _figure_class() -> "type[Figure]":
    """Returns matplotlib's figure with a method that lets a notebook show it without
    ``%matplotlib inline``.
    """
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook shows as SVG."""

        def _repr_svg_(self) -> str:
            return svg(self)

    return NotebookFigure


def axes(
    rows: int = 1, cols: int = 1, width: float | int = 7.0, height: float | int = 2.8
) -> "tuple[Figure, np.ndarray]":
    """Creates a figure with ``rows * cols`` panels in the style of this module.

    Args:
        rows, cols: shape of the grid of panels.
        width, height: size of the whole figure, inches; the page of a report is 7 inches wide.
    Returns:
        The figure, and its axes as a **flat** array ``[rows * cols]``, row by row, even for a single panel:
        ``figure, (ax,) = axes()``.
    Raises:
        ValueError: rows or cols is less than 1.
    """
    if rows < 1 or cols < 1:
        raise ValueError(f"rows and cols must be at least 1, got {rows} and {cols}")
    with style():
        figure = _figure_class()(figsize=(width, height), layout="constrained")
        return figure, np.asarray(figure.subplots(rows, cols, squeeze=False)).ravel()


def stacked(
    ratios: Sequence[float | int], *, height: float | int, width: float | int = 7.0
) -> "tuple[Figure, list[SubFigure]]":
    """Creates a figure of parts one below the other, each of which has its own grid of panels.

    Args:
        ratios: heights of the parts in relation to one another.
        height, width: size of the whole figure, inches.
    Returns:
        The figure and its parts, from the top; ``part.subplots(rows, cols)`` creates panels.
    """
    with style():
        figure = _figure_class()(figsize=(width, height), layout="constrained")
        return figure, list(
            np.ravel(figure.subfigures(len(ratios), 1, height_ratios=list(ratios), squeeze=False))
        )


def line(
    ax: "Axes", x, y, *, name: str = "network", label: str = "", null: float | int | None = None, **options
) -> "Line2D":
    """Draws a curve in the colour of ``name`` (a theory or a network), and its chance level as a thin dashed
    line of the same colour.

    Args:
        x, y: arrays or lists of equal length; NaN leaves a gap.
        name: theory or network that determines the colour.
        label: text for :func:`label_ends` or a legend.
        null: chance level; None draws no line.
        options: further arguments of ``Axes.plot``; ``color`` overrides the colour of ``name``.
    """
    options = {"color": colour(name), "linewidth": STYLE["lines.linewidth"], "label": label or "_", **options}
    (curve,) = ax.plot(x, y, **options)
    if null is not None:
        ax.axhline(null, color=options["color"], linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.75, zorder=1)
    return curve


def null_band(ax: "Axes", low: float | int, high: float | int | None = None, label: str = "null") -> None:
    """Draws a grey band from ``low`` to ``high``, labelled at the left edge; a line if ``high`` is None or
    equal to ``low``.
    """
    if high is None or high == low:
        ax.axhline(low, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    else:
        ax.axhspan(low, high, color=COLOURS["null"], alpha=0.18, linewidth=0, zorder=0)
    transform = ax.get_yaxis_transform()  # x in axes coordinates, y in data coordinates
    top = low if high is None else max(low, high)
    ax.annotate(
        label,
        (0.01, top),
        xycoords=transform,
        xytext=(0, 1.5),
        textcoords="offset points",
        color=COLOURS["null"],
        fontsize=7,
    )


def label_ends(ax: "Axes", *, fontsize: float | int = 7.5) -> None:
    """Writes each curve's label at its right end, in its colour, in place of a legend; labels that would
    overlap are moved apart.

    Call it last: the limits of the axes must be final.
    """
    ax.autoscale_view()  # matplotlib would compute the limits only when drawing
    curves = [curve for curve in ax.get_lines() if not str(curve.get_label()).startswith("_")]
    ends = []
    for curve in curves:
        y = np.asarray(curve.get_ydata(), dtype=float)
        finite = y[np.isfinite(y)]
        if len(finite):
            height = ax.transAxes.inverted().transform(ax.transData.transform((0.0, finite[-1])))[1]
            ends.append((float(np.clip(height, 0, 1)), curve))
    if not ends:
        return
    ends.sort(key=lambda end: end[0])
    figure, spec = ax.get_figure(root=True), ax.get_subplotspec()
    rows = spec.get_gridspec().nrows if spec is not None else 1
    # Height of a line of text in axes coordinates (72 points per inch), if the panels of a column fill 72 %
    # of the figure's height.
    unit = 1.22 * fontsize / 72 / (0.72 * figure.get_size_inches()[1] / rows)  # pyright: ignore
    # A label of k lines is k lines high and gets a gap of 0.12 lines.
    heights = [unit * (1.12 + str(curve.get_label()).count("\n")) for _, curve in ends]
    for (_, curve), y in zip(ends, _apart([end[0] for end in ends], heights, low=-0.05, high=1.05)):
        text, tint = str(curve.get_label()), curve.get_color()
        ax.text(
            1.015,
            y,
            text,
            transform=ax.transAxes,
            color=tint,
            fontsize=fontsize,
            va="center",
            linespacing=1.05,
            clip_on=False,
        )


def _apart(
    places: list[float], heights: list[float], low: float = -np.inf, high: float = np.inf
) -> list[float]:
    """Moves sorted centres as little as possible (least squares), so that boxes of these heights do not
    overlap.

    The boxes are then shifted into [low, high]. Boxes that do not fit extend beyond ``high``.
    """
    # Boxes do not overlap if the centres minus the cumulative heights do not decrease, so this is isotonic
    # regression. The algorithm of pool adjacent violators merges neighbouring blocks whose means decrease,
    # and gives every member of a block the block's mean.
    offsets = np.concatenate([[0.0], np.cumsum([(a + b) / 2 for a, b in pairwise(heights)])])
    blocks: list[tuple[float, int]] = []  # sum of (place - offset), count
    for place, offset in zip(places, offsets):
        blocks.append((place - float(offset), 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = (blocks[-1][0] + total, blocks[-1][1] + count)
    starts = [total / count for total, count in blocks for _ in range(count)]
    lowest, highest = low + heights[0] / 2, high - heights[-1] / 2 - float(offsets[-1])
    return [max(lowest, min(highest, start)) + float(offset) for start, offset in zip(starts, offsets)]


def heatmap(
    ax: "Axes", matrix, label: str = "", *, vmin=None, vmax=None, cmap: str = "viridis", bar: bool = True
):
    """Draws a matrix as an image with square cells, without a grid, with a colour bar labelled ``label``.

    Args:
        matrix: numbers ``[rows, cols]``; NaN is white.
        vmin, vmax, cmap: as in ``Axes.imshow``; use ``"RdBu_r"`` with symmetric limits for signed values.
        label: label of the colour bar, or title of the panel if ``bar`` is False.
        bar: whether to draw the colour bar.
    Returns:
        The image.
    Raises:
        ValueError: the matrix does not have two dimensions.
    """
    values = np.asarray(matrix, dtype=float)
    if values.ndim != 2:
        raise ValueError(f"matrix must have shape [rows, cols], got {list(values.shape)}")
    image = ax.imshow(values, vmin=vmin, vmax=vmax, cmap=cmap, interpolation="nearest")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if bar:
        colourbar = ax.get_figure(root=True).colorbar(image, ax=ax, fraction=0.046, pad=0.03)  # pyright: ignore[reportOptionalMemberAccess]
        colourbar.set_label(label, fontsize=7.5)
        colourbar.ax.tick_params(labelsize=7, length=2)
        colourbar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    elif label:
        ax.set_title(label)
    return image


def caption(figure: "Figure", text: str) -> None:
    """Adds a caption below the panels, which explains lines, bands and marks; place a legend of the whole
    figure above the panels.
    """
    import textwrap

    size = 7.2  # points; a character is about 0.53 of it wide
    lines = textwrap.fill(text, int(figure.get_size_inches()[0] * 72 / (0.53 * size)), break_on_hyphens=False)
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=size, color=COLOURS["raw"], linespacing=1.25)


def text_figure(message: str, width: float | int = 7.0, height: float | int = 1.0) -> "Figure":
    """Creates a small figure with a message in place of panels."""
    import textwrap

    figure, (ax,) = axes(width=width, height=height)
    ax.axis("off")
    # At this font size, 13 characters take an inch.
    ax.text(
        0.5,
        0.5,
        textwrap.fill(message, int(13 * width)),
        ha="center",
        va="center",
        color=COLOURS["raw"],
        transform=ax.transAxes,
    )
    return figure


def plain(name: str) -> str:
    r"""Returns a name as a label, with dollars escaped: matplotlib would read ``a$x$`` as a formula."""
    return name.replace("$", r"\$")


def svg(figure: "Figure", prefix: str = "") -> str:
    """Returns the figure as an ``<svg>`` element; equal figures give equal bytes (fixed hash salt, no date,
    no version).

    Args:
        prefix: prefix of the ids inside, so that several figures can share a page; if empty, a hash of the
            content.
    """
    text = _saved(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None}).decode()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"[ \t]+\n", "\n", text)  # trailing spaces
    prefix = prefix or "f" + hashlib.sha256(text.encode()).hexdigest()[:8]
    # matplotlib's <style> would apply to the whole page, so it is limited to this figure, like the ids and
    # the references to them: id="p1" becomes id="PREFIX-p1", url(#p1) becomes url(#PREFIX-p1), and href="#p1"
    # becomes href="#PREFIX-p1".
    text = text.replace("*{stroke", f"#{prefix}-figure_1 *{{stroke", 1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)


def pdf(figure: "Figure") -> bytes:
    """Returns the figure as a one-page PDF with embedded fonts; equal figures give equal bytes (no date, no
    version).
    """
    fonts = logging.getLogger("fontTools")  # would warn about dates inside fonts
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        return _saved(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})
    finally:
        fonts.setLevel(level)


def _saved(figure: "Figure", form: str, metadata: dict[str, None]) -> bytes:
    """Returns the figure as a file. ``Figure.savefig`` would draw it twice, once for the layout alone."""
    from matplotlib.backend_bases import get_registered_canvas_class

    canvas, dpi, buffer = figure.canvas, figure.dpi, io.BytesIO()
    with style():
        getattr(get_registered_canvas_class(form)(figure), f"print_{form}")(buffer, metadata=metadata)
    figure.set_canvas(canvas)
    figure.set_dpi(dpi)
    return buffer.getvalue()
