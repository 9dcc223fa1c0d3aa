"""The views that draw the rows of a figure: at most five, and a figure that needs another one draws its own.

:func:`curves`, :func:`bands`, :func:`scatter`, :func:`matrix` and :func:`size_map` return functions of a
stored result. :func:`draw_curves` draws a single panel, for a view that adds to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .format import effect
from .measurement import COLUMNS, Measurement, coordinates_text
from .plotting import COLOURS, TINTS, axes, caption, colour, heatmap, label_ends, shades, style
from .result import Result
from .table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS: dict[str, tuple[str, str]] = {  # basis of a reference number -> its marker and its legend entry
    "figure": ("x", "read off the paper's figure"),
    "printed": ("x", "released code's output"),
    "recomputed": ("+", "recomputed independently"),
}
RANGE = ("smallest", "largest")  # the ends of a band are the rows "smallest of ..." and "largest of ..."
FEW_TICKS = 8  # largest number of coordinates that are all labelled
MARKED = 12  # largest number of points of a curve that get markers
DASHED = (0, (4, 3))
DASHES = ("-", ":", "-.", (0, (6, 2)))  # of curves, see the pairs of Panel.lines


@dataclass(frozen=True)
class Panel:
    """One panel of a view: its rows, and what becomes a curve.

    Attributes:
        title: title of the panel.
        quantity: quantities of the rows; all if empty.
        at: coordinates and columns of the rows, as in :meth:`~.measurement.Table.select`.
        lines: coordinate, column or "quantity" with one curve per value. Two names give one curve per pair:
            the first decides the colour, the second the dashes. A name and, by value, the looks of the curves
            that are drawn, in this order: arguments of ``Axes.plot``, where ``color`` may be the name of a
            theory or a network, and ``band=False`` for no band.
        predicted: label of a dashed curve through the predictions, black or, where curves have different
            ones, in their colours; empty draws none.
        levels: dashed horizontal lines by label: numbers, or quantities, whose values are drawn. A label that
            begins with "_" is not shown.
        legend: place of the legend; "ends" writes labels at the ends of the curves, empty draws none.
        axes: arguments of ``Axes.set``.
        x: coordinate of the horizontal axis, if it differs from that of the other panels.
    """

    title: str = ""
    quantity: str | tuple[str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    lines: str | tuple[str, str] | tuple[str, Mapping[Any, Mapping[str, Any]]] = ""
    predicted: str = ""
    levels: Mapping[str, float | str] = field(default_factory=dict)
    legend: str = "best"
    axes: Mapping[str, Any] = field(default_factory=dict)
    x: str = ""

    def rows(self, table: Table) -> Table:
        """Returns the rows of the panel."""
        columns = {name: value for name, value in self.at.items() if name in COLUMNS and name != "n"}
        columns |= {"quantity": self.quantity} if self.quantity else {}
        return table.select(at={name: v for name, v in self.at.items() if name not in columns}, **columns)


def coordinate(row: Measurement, name: str) -> Any:
    """Returns a coordinate of the row, or else the column of this name; None if the row has neither."""
    return row.at[name] if name in row.at else getattr(row, name, None) if name != "n" else None


def distinct(rows: Iterable[Measurement], name: str) -> list[Any]:
    """Returns the values of a coordinate: numbers in ascending order, texts in the order of the rows."""
    values = list(dict.fromkeys(coordinate(row, name) for row in rows))
    return (
        values
        if any(isinstance(value, str) for value in values)
        else sorted(v for v in values if v is not None)
    )


def curves(
    x: str,
    *,
    panels: Sequence[Panel | tuple[Panel, ...]],
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    caption: "str | Callable[[Result], str]" = "",
    size: tuple[float, float] = (7.0, 3.1),
) -> "Callable[[Result], Figure]":
    """Returns the view of values against a coordinate: a band for intervals, marks for published numbers.

    Args:
        x: coordinate or column of the horizontal axis.
        panels: the panels, side by side; a tuple of panels is drawn in one, with the title, legend and axes
            of the first.
        xlabel, ylabel: labels; by default the name of the coordinate, and none.
        log: "x", "y" or "xy" for logarithmic axes.
        caption: text below the panels, formatted with the settings; or a function of the result.
        size: width and height of the figure, inches.
    """

    def draw(ax: "Axes", result: Result, layers: tuple[Panel, ...]) -> None:
        draw_curves(ax, result, *layers, x=x)

    return _view(draw, panels, xlabel or x, ylabel, log, caption, size)


def bands(
    *,
    panels: Sequence[Panel | tuple[Panel, ...]],
    x: str = "step",
    spread: str | tuple[str, str] = "",
    ylabel: str = "",
    log: str = "",
    caption: "str | Callable[[Result], str]" = "",
    size: tuple[float, float] = (7.0, 3.1),
) -> "Callable[[Result], Figure]":
    """Returns the view of values over the steps of training, or over layers: grey bands for null
    distributions, and bands for the spread over trials or seeds.

    Args:
        panels, ylabel, log, caption, size: as in :func:`curves`.
        x: column or coordinate of the horizontal axis.
        spread: the half-width of a band is the quantity ``"{spread} of {quantity}"``; of a pair, such as
            ``("smallest", "largest")``, the quantities are the ends. If empty, bands show intervals.
    """

    def draw(ax: "Axes", result: Result, layers: tuple[Panel, ...]) -> None:
        draw_curves(ax, result, *layers, x=x, spread=spread)

    return _view(draw, panels, x, ylabel, log, caption, size)


def draw_curves(
    ax: "Axes", result: Result, *layers: Panel, x: str, spread: str | tuple[str, str] = ""
) -> None:
    """Draws a panel of :func:`bands`, for figures that have a plot of their own; the title, legend and axes
    are those of the first layer.
    """
    # A change of scale would replace the ticks, so it comes first.
    ax.set(**{name: value for name, value in layers[0].axes.items() if name.endswith("scale")})
    for panel in layers:
        across = panel.x or x
        rows = Table(row for row in panel.rows(result.table) if coordinate(row, across) is not None)
        lines = list(_lines(rows, panel, result))
        for line, look in lines:
            _curve(ax, line, across, look | {"band": look.get("band", True) and not spread})
            if spread and look.get("band", True):
                _spread_band(ax, line, across, result.table, spread, look)
            if drawn := [row for row in _ordered(line, across) if row.null and row.null.draws]:
                _null_band(ax, drawn, across)
        if panel.predicted:
            _predictions(ax, lines, across, panel.predicted)
        mark(ax, _ordered(rows, across), across)
        _ticks(ax, distinct(rows, across))
        for label, level in panel.levels.items():
            heights = (
                result.table.select(quantity=level).column("value") if isinstance(level, str) else [level]
            )
            for height in heights:
                look = {"color": COLOURS["null"], "linewidth": 0.9, "linestyle": DASHED, "zorder": 1}
                ax.axhline(height, label=label, **look)
    if layers[0].title:
        ax.set_title(layers[0].title)
    ax.set(**{name: value for name, value in layers[0].axes.items() if not name.endswith("scale")})
    _legend(ax, layers[0].legend)


def _null_band(ax: "Axes", rows: Sequence[Measurement], x: str) -> None:
    """Plots the null distributions of a curve: a grey band, or a dashed line if each has one draw."""
    place = [coordinate(row, x) for row in rows]
    low, high = ([getattr(row.null, end) for row in rows] for end in ("low", "high"))
    if low == high:
        ax.plot(place, low, color=COLOURS["null"], linewidth=1.0, linestyle=DASHED, zorder=1)
    else:
        ax.fill_between(place, low, high, color=COLOURS["null"], alpha=0.18, linewidth=0, zorder=0)


def _spread_band(
    ax: "Axes", line: Sequence[Measurement], x: str, table: Table, spread: Any, look: Mapping
) -> None:
    """Plots the band of :func:`bands` around a curve."""
    names = [spread] if isinstance(spread, str) else spread
    quantities = tuple(f"{name} of {line[0].quantity}" for name in names)
    found = {(row.quantity, _place(row)): row.value for row in table.select(quantity=quantities)}
    rows = [row for row in _ordered(line, x) if (quantities[0], _place(row)) in found]
    ends = np.array([[found[quantity, _place(row)] for row in rows] for quantity in quantities])
    if len(names) == 1:
        value = np.array([_value(row) for row in rows])
        ends = np.stack([value - ends[0], value + ends[0]])
    place = [coordinate(row, x) for row in rows]
    ax.fill_between(place, *ends, color=look["color"], alpha=0.15, linewidth=0)


def scatter(
    x: str,
    y: str = "",
    *,
    panels: Sequence[Panel | tuple[Panel, ...]],
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    caption: "str | Callable[[Result], str]" = "",
    size: tuple[float, float] = (7.0, 3.1),
) -> "Callable[[Result], Figure]":
    """Returns the view of points: one quantity against another at the same coordinates, or against its
    prediction.

    Args:
        x: a quantity, or "predicted", which also draws the diagonal.
        y: a quantity; if empty, that of the panel.
        panels, xlabel, ylabel, log, caption, size: as in :func:`curves`.
    """

    def draw(ax: "Axes", result: Result, layers: tuple[Panel, ...]) -> None:
        partners = {_place(row): row.value for row in result.table.select(quantity=x)}
        for panel in layers:
            rows = panel.rows(result.table.select(quantity=y) if y else result.table)
            for line, look in _lines(rows, panel, result):
                pairs = [
                    (row.predicted if x == "predicted" else partners.get(_place(row)), row) for row in line
                ]
                points = [(place, row.value) for place, row in pairs if None not in (place, row.value)]
                ax.plot(
                    *zip(*points), **{"linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.7, **look}
                )
        if x == "predicted":
            ends = [min(ax.get_xlim()[0], ax.get_ylim()[0]), max(ax.get_xlim()[1], ax.get_ylim()[1])]
            ax.plot(ends, ends, color=COLOURS["null"], linewidth=0.9, linestyle=DASHED, zorder=0)
        ax.set(**layers[0].axes)
        _legend(ax, layers[0].legend)

    return _view(draw, panels, xlabel or x, ylabel or y, log, caption, size)


def matrix(
    rows: str,
    columns: str,
    *,
    panels: Sequence[Panel],
    limits: tuple[float | None, float | None] = (None, None),
    colours: str = "viridis",
    text: Callable[[Measurement], str] | None = None,
    caption: "str | Callable[[Result], str]" = "",
    size: tuple[float, float] = (7.0, 3.1),
) -> "Callable[[Result], Figure]":
    """Returns the view of values as colours, one coordinate against another; a missing value is white.

    Args:
        rows, columns: coordinates or columns of the vertical and of the horizontal axis.
        panels: the panels, side by side; the title is that of the colour bar if there is one.
        limits: values at the ends of the colour map.
        colours: name of the colour map.
        text: text in each cell; without it, a colour bar is drawn.
        caption, size: as in :func:`curves`.
    """

    def draw(ax: "Axes", result: Result, layers: tuple[Panel, ...]) -> None:
        chosen = layers[0].rows(result.table)
        ys, xs = distinct(chosen, rows), distinct(chosen, columns)
        values = np.full((len(ys), len(xs)), np.nan)
        for row in chosen:
            i, j = ys.index(coordinate(row, rows)), xs.index(coordinate(row, columns))
            values[i, j] = _value(row)
            if text is not None:
                ax.text(j, i, text(row), ha="center", va="center", fontsize=7)
        heatmap(ax, values, vmin=limits[0], vmax=limits[1], cmap=colours, bar=text is None)
        ax.set_xticks(range(len(xs)), [_text(value) for value in xs])
        ax.set_yticks(range(len(ys)), [_text(value) for value in ys])
        ax.set(**layers[0].axes)

    return _view(draw, panels, columns, rows, "", caption, size)


def size_map(
    rows: str,
    columns: str,
    panels: str,
    *,
    quantities: Mapping[str, str],
    names: Mapping[str, str],
    caption: "str | Callable[[Result], str]" = "",
) -> "Callable[[Result], Figure]":
    """Returns the view of maps over problem sizes: values with the distances to the farther ends of their
    intervals, one row of maps per quantity, one column per value of a third coordinate. A dash marks a
    missing value.

    Args:
        rows, columns: coordinates of the vertical and of the horizontal axis of each map.
        panels: coordinate with one map per value.
        quantities: labels by quantity; quantities other than shares have a common colour scale.
        names: labels of the axes by coordinate.
        caption: as in :func:`curves`.
    """

    @style()
    def view(result: Result) -> "Figure":
        ys, xs, zs = (distinct(result.table, name) for name in (rows, columns, panels))
        cell = max(
            0.315, 1.25 / len(ys)
        )  # inches: a cell holds two lines of text, a map has a smallest height
        drawn, grid = axes(
            len(quantities),
            len(zs),
            width=0.62 + len(zs) * (cell * len(xs) + 0.02),
            height=0.85 + len(quantities) * (cell * len(ys) + 0.02),
        )
        drawn.set_layout_engine("constrained", w_pad=0.02, h_pad=0.04, wspace=0.0, hspace=0.0)
        numbers = [row.value for row in result.table.select(quantity=tuple(quantities), unit="") if row.value]
        for number, (quantity, label) in enumerate(quantities.items()):
            known = result.table.select(quantity=quantity)
            largest = 1.0 if known[0].unit == "share" else max(numbers, default=1.0)
            for column, z in enumerate(zs):
                ax, last = grid[number * len(zs) + column], number == len(quantities) - 1
                _map(ax, known.select(at={panels: z}), (rows, ys), (columns, xs), largest)
                ax.set_xticks(range(len(xs)), [_text(x) if last else "" for x in xs])
                ax.set_yticks(range(len(ys)), ["" if column else _text(y) for y in ys])
                ax.set_title("" if number else f"{panels} = {z}")
                ax.set_xlabel(names[columns] if last else "")
                ax.set_ylabel("" if column else f"{label}\n{names[rows]}", fontsize=8)
        _caption(drawn, caption, result)
        return drawn

    return view


def _map(ax: "Axes", table: Table, rows: tuple[str, list], columns: tuple[str, list], largest: float) -> None:
    """Draws one map of :func:`size_map`."""
    values = np.full((len(rows[1]), len(columns[1])), np.nan)
    cells = {(coordinate(row, rows[0]), coordinate(row, columns[0])): row for row in table}
    for (i, y), (j, x) in product(enumerate(rows[1]), enumerate(columns[1])):
        row, text = cells.get((y, x)), "–"
        if row is not None and row.value is not None:
            values[i, j] = row.value
            half = max(abs(end - row.value) for end in row.interval) if row.interval else 0.0
            text = f"{effect(row.value)}\n±{effect(half)}"
        tint = "white" if values[i, j] > 0.55 * largest else "black"  # legible on dark cells
        ax.text(j, i, text, ha="center", va="center", fontsize=7, color=tint, linespacing=1.0)
    heatmap(ax, values, bar=False, vmin=0, vmax=largest, cmap="Blues")


def published(rows: Iterable[Measurement]) -> Table:
    """Returns the rows with a number that was printed, read off a figure or recomputed from published
    settings.
    """
    return Table(row for row in rows if row.predicted is not None and row.basis in MARKERS)


def mark(ax: "Axes", rows: Iterable[Measurement], x: str) -> None:
    """Plots published numbers against a coordinate, with one legend entry per basis."""
    for basis, (marker, label) in MARKERS.items():
        places = [(coordinate(row, x), row.predicted) for row in published(rows) if row.basis == basis]
        if places:
            look = {
                "marker": marker,
                "markersize": 5 if marker == "x" else 7,
                "markeredgewidth": 1.2,
                "zorder": 6,
            }
            ax.plot(*zip(*places), color="black", linestyle="", label=label, **look)


def _view(draw, panels, xlabel, ylabel, log, text, size) -> "Callable[[Result], Figure]":
    """Returns the view that draws each panel with ``draw(ax, result, layers)``.

    Raises:
        ValueError: the result has no row of any panel, as one of a former version, whose rows had no
            coordinates.
    """
    panels = [(layers,) if isinstance(layers, Panel) else layers for layers in panels]

    @style()
    def view(result: Result) -> "Figure":
        if not any(len(panel.rows(result.table)) for layers in panels for panel in layers):
            raise ValueError(
                f"the result must hold rows of the panels of {result.name}, got none; run it again"
            )
        drawn, grid = axes(1, len(panels), width=size[0], height=size[1])
        for ax, layers in zip(grid, panels):
            ax.set(title=layers[0].title, xlabel=xlabel, ylabel=ylabel)
            if "x" in log:
                ax.set_xscale("log")
            if "y" in log:
                ax.set_yscale("log")
            draw(ax, result, layers)
        _caption(drawn, text, result)
        return drawn

    return view


def _caption(drawn: "Figure", text: "str | Callable[[Result], str]", result: Result) -> None:
    """Adds the caption of a view."""
    if text:
        caption(drawn, text(result) if callable(text) else text.format(**result.settings))


def _lines(rows: Table, panel: Panel, result: Result) -> Iterator[tuple[list[Measurement], dict[str, Any]]]:
    """Yields the rows of each curve of a panel, and the look of the curve.

    A single curve has the colour of the theory, curves of numbers have shades, others have tints.
    """
    name, second = (panel.lines, {}) if isinstance(panel.lines, str) else panel.lines
    looks = {} if isinstance(second, str) else second
    values = list(looks) or (distinct(rows, name) if name else [None])
    numbers = len(values) > 1 and not any(isinstance(value, str) for value in values)
    tints = shades(len(values)) if numbers else [TINTS[k % len(TINTS)] for k in range(len(values))]
    tints = [colour(result.name.partition(".")[0])] if len(values) == 1 else tints
    for value, tint in zip(values, tints):
        of_line = [row for row in rows if not name or coordinate(row, name) == value]
        look = {"color": tint, "label": _label(name, value), **looks.get(value, {})}
        look |= {"color": colour(look["color"])}
        if isinstance(second, str):
            for number, other in enumerate(distinct(rows, second)):
                of_pair = [row for row in of_line if coordinate(row, second) == other]
                dashes = DASHES[number % len(DASHES)]
                both = {"label": f"{look['label']}, {_label(second, other)}", "linestyle": dashes}
                if of_pair:
                    yield of_pair, look | both
        elif of_line:
            yield of_line, look


def _label(name: str, value: Any) -> str:
    """Returns the entry of the legend for the curve of a value; "_" is not shown."""
    return "_" if value is None else coordinates_text({name: value})


def _curve(ax: "Axes", line: Sequence[Measurement], x: str, look: Mapping[str, Any]) -> None:
    """Plots a curve with the band of its intervals."""
    line = _ordered(line, x)
    place, value = [coordinate(row, x) for row in line], [_value(row) for row in line]
    if look.get("band", True) and any(row.interval for row in line):
        low, high = np.array([row.interval or (np.nan, np.nan) for row in line]).T
        ax.fill_between(place, low, high, color=look["color"], alpha=0.14, linewidth=0)
    marker = {"marker": "o", "markersize": 3} if len(line) <= MARKED else {}
    ax.plot(place, value, **{**marker, **{name: value for name, value in look.items() if name != "band"}})


def _predictions(
    ax: "Axes", lines: Sequence[tuple[Sequence[Measurement], Mapping]], x: str, label: str
) -> None:
    """Plots predictions: dashed and black, or in the colours of the curves if these have different ones."""
    predicted = [
        {
            coordinate(row, x): row.predicted
            for row in _ordered(line, x)
            if row.predicted is not None and row.basis not in MARKERS
        }
        for line, _ in lines
    ]
    longest = max(predicted, key=len, default={})
    common = all(line.items() <= longest.items() for line in predicted)
    drawn = [(longest, "#000000")] if common else zip(predicted, (look["color"] for _, look in lines))
    for number, (places, tint) in enumerate(drawn):
        look = {"color": tint, "linewidth": 1.0, "linestyle": DASHED, "label": "_" if number else label}
        ax.plot(list(places), list(places.values()), **look)


def _ticks(ax: "Axes", places: Sequence[Any]) -> None:
    """Labels the coordinates if they are few numbers."""
    if 0 < len(places) <= FEW_TICKS and not isinstance(places[0], str):
        ax.set_xticks(places, [_text(value) for value in places])
        ax.minorticks_off()


def _legend(ax: "Axes", place: Any) -> None:
    """Adds the legend of a panel, if a curve has a label."""
    if place == "ends":
        label_ends(ax)
    elif place and ax.get_legend_handles_labels()[1]:
        ax.legend(loc=place, handlelength=1.6, borderaxespad=0.2)


def _ordered(rows: Iterable[Measurement], x: str) -> list[Measurement]:
    """Returns the rows that have the coordinate, ordered by it; texts keep their order."""
    rows = [row for row in rows if coordinate(row, x) is not None]
    return (
        rows
        if any(isinstance(coordinate(row, x), str) for row in rows)
        else sorted(rows, key=lambda r: coordinate(r, x))
    )


def _place(row: Measurement) -> tuple:
    """Returns the coordinates and the place of a row, without its quantity."""
    return row.at, row.data, row.model, row.layer, row.head, row.step, row.seed


def _value(row: Measurement) -> float:
    return np.nan if row.value is None else row.value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
