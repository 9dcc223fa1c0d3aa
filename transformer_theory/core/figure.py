"""Figures as functions of their coordinates, and the views that draw their rows.

:func:`figure` turns a function of coordinates into an :class:`~.experiment.Experiment`: the axes and the
keyword arguments become its settings, each call becomes rows, and a view draws the rows of the stored result.

    @figure(
        "attention_svm.global_convergence",
        source=Source("tarzanagh2023transformers"),
        over=dict(n=Axis(5, 10, 15, ge=1, help="numbers of inputs"), d=Axis(2, 5, 10, ge=1, setting="dims")),
        view=curves("d", panels=(Panel(lines="n"),), ylabel="share of problems"),
        quick=dict(n=(3, 5), trials=10),
    )
    def global_convergence(n: int, d: int, *, trials: int = setting(100, ge=1, help="problems per size")):
        return share("share of problems that select every best token", selects_best(n, d, trials))

An experiment whose rows do not come from independent calls defines ``measure`` and ``view`` itself. The views
are :func:`curves`, :func:`bands`, :func:`size_map`, :func:`matrix` and :func:`scatter`; a figure that needs
another one defines ``plot``.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, make_dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .experiment import Experiment, RandomExperiment, setting, sweep
from .measurement import COLUMNS, Basis, Measurement
from .plotting import COLOURS, TINTS, axes, caption, colour, heatmap, label_ends, shades, style
from .result import Result
from .sources import Source
from .statistics import clopper_pearson
from .table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS: dict[str, tuple[str, str]] = {  # basis of a reference number -> its marker and its legend entry
    "figure": ("x", "read off the paper's figure"),
    "printed": ("x", "released code's output"),
    "recomputed": ("+", "recomputed independently"),
}
FEW_TICKS = 8  # largest number of coordinates that are all labelled
MARKED = 12  # largest number of points of a curve that get markers
DASHED = (0, (4, 3))


@dataclass(frozen=True, init=False)
class Axis:
    """One coordinate of a sweep.

    Attributes:
        values: default values; all are integers, real numbers or texts.
        setting: name of the setting, and of the option of the command line; by default that of the
            coordinate.
        limits: range and help of the setting, as in :func:`~.experiment.setting`.
    """

    values: tuple[Any, ...]
    setting: str
    limits: Mapping[str, Any]

    def __init__(self, *values: Any, setting: str = "", **limits: Any):
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "setting", setting)
        object.__setattr__(self, "limits", limits)


@dataclass(frozen=True)
class Reading:
    """A measured quantity that is not yet placed in a table.

    Attributes:
        quantity: name of the quantity.
        value: the number; None if it is missing, with a reason among the columns.
        reference: published number and its basis.
        needs: settings that must have their defaults for a published reference; None: all except the axes.
        columns: further columns of the row.
    """

    quantity: str
    value: float | None
    reference: tuple[float, Basis] | None = None
    needs: tuple[str, ...] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def reading(
    quantity: str,
    value: float | None,
    *,
    reference: tuple[float, Basis] | None = None,
    needs: tuple[str, ...] | None = None,
    **columns: Any,
) -> Reading:
    """Returns a reading; the columns are those of :class:`~.measurement.Measurement`."""
    return Reading(quantity, value, reference, needs, columns)


def share(quantity: str, successes: Any, n: int | None = None, **columns: Any) -> Reading:
    """Returns the share of successes with its 95 % interval (Clopper-Pearson).

    Args:
        quantity: name of the quantity.
        successes: truth values, or their number.
        n: number of trials, if ``successes`` is a number.
        columns: further columns of the row; the ``reason`` is used if there is no trial.
    """
    if n is None:
        successes = np.asarray(successes)
        successes, n = int(successes.sum()), successes.size
    reason = "" if n else columns.get("reason", "no trial")
    low, high = clopper_pearson(successes, n)
    columns |= {"interval": (float(low), float(high)), "interval_kind": "over samples", "reason": reason}
    return reading(quantity, successes / n if n else None, n=n, unit="share", **columns)


def readings(found: Any, quantity: str) -> Iterator[Reading]:
    """Yields the readings of what a function of the coordinates returns: a number or an object with a
    ``value``, which have the given name, a dictionary of quantities, a reading, or several readings.
    """
    if isinstance(found, Reading):
        yield found
    elif isinstance(found, Mapping):
        yield from (reading(name, value) for name, value in found.items())
    elif isinstance(found, list | tuple):
        for one in found:
            yield from readings(one, quantity)
    else:
        yield reading(quantity, float(getattr(found, "value", found)))


@dataclass(frozen=True)
class Sweep:
    """What :func:`figure` knows of an experiment beside its settings."""

    function: Callable[..., Any]
    axes: Mapping[str, Axis]
    where: Callable[..., bool] | None
    reference: Callable[..., float | None] | None
    basis: Basis
    quantity: str
    one_seed: bool  # whether all calls get the same seed

    def points(self, values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Returns the coordinates of all calls, those of the last axis varying fastest."""
        points = [dict(zip(values, point)) for point in product(*values.values())]
        return [point for point in points if self.where is None or _passing(self.where, point)]


def _passing(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function with those of the arguments that it takes."""
    return function(**{name: arguments[name] for name in inspect.signature(function).parameters})


def figure(
    name: str,
    *,
    source: Source | tuple[Source, ...],
    over: Mapping[str, Axis],
    view: "Callable[[Result], Figure]",
    where: Callable[..., bool] | None = None,
    reference: Callable[..., float | None] | None = None,
    basis: Basis = "theory",
    quantity: str = "",
    quick: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], type[Experiment]]:
    """Turns a function of coordinates into an experiment, which runs it at every point of a grid.

    The function takes the coordinates by name and the other settings as keyword arguments, whose defaults are
    declared by :func:`~.experiment.setting`. It returns what :func:`readings` accepts. If it takes ``seed``,
    the experiment has a seed, and call k of K gets ``seed * K + k``, or the seed itself if its default is
    declared by ``setting``. Calls may run in other processes, which import the function by its name.

    Args:
        name: ``"theory.figure"``.
        source: papers whose figure the experiment reproduces; rows cite the first.
        over: axes by coordinate.
        view: draws the stored result; one of the five views, or a function.
        where: condition on some of the coordinates; points that fail it are skipped.
        reference: number for the value at some of the coordinates, or None. A number that is not the theory's
            holds at the default settings only.
        basis: origin of the reference.
        quantity: name of the quantity, if the function returns a number.
        quick: settings of a run of about a second.
    """
    sources = source if isinstance(source, tuple) else (source,)

    def decorate(function: Callable[..., Any]) -> type[Experiment]:
        original = inspect.unwrap(function)
        settings = {name: axis.setting or name for name, axis in over.items()}
        defaults = original.__kwdefaults__ or {}
        keywords = {name: default for name, default in defaults.items() if isinstance(default, Field)}
        random = "seed" in defaults
        # A direct call uses the defaults themselves instead of their declarations.
        original.__kwdefaults__ = defaults | {name: default.default for name, default in keywords.items()}
        hints = inspect.get_annotations(original)
        declared = [
            (settings[name], tuple[type(axis.values[0]), ...], setting(axis.values, **axis.limits))
            for name, axis in over.items()
        ]
        declared += [(name, hints[name], default) for name, default in keywords.items() if name != "seed"]
        namespace = {
            "__doc__": original.__doc__,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "name": name,
            "sources": sources,
            "view": staticmethod(view),
            "sweep": Sweep(function, over, where, reference, basis, quantity, "seed" in keywords),
            "measure": _measure,
            "quick": classmethod(lambda kind: kind(**(quick or {}))),
        }
        base = RandomExperiment if random else Experiment
        return make_dataclass(original.__name__, declared, bases=(base,), namespace=namespace, frozen=True)

    return decorate


def _measure(experiment: Any) -> Iterator[Measurement]:
    """Yields the rows of all points; :meth:`Experiment.measure` of an experiment that :func:`figure` made."""
    made: Sweep = experiment.sweep
    names = {name: axis.setting or name for name, axis in made.axes.items()}
    points = made.points({name: getattr(experiment, setting) for name, setting in names.items()})
    if not points:
        raise ValueError(
            f"{', '.join(names.values())} must have a combination that {experiment.name} measures, got none; "
            f"the defaults of its axes have some"
        )
    keywords = [one.name for one in fields(experiment) if one.name not in {*names.values(), "seed"}]
    shared = {name: getattr(experiment, name) for name in keywords}
    kind = {"figure": f"{type(experiment).__module__}:{type(experiment).__qualname__}"}
    calls = [kind | point | shared for point in points]
    if experiment.seed is not None:
        first, stride = (experiment.seed, 0) if made.one_seed else (experiment.seed * len(calls), 1)
        calls = [call | {"seed": first + stride * k} for k, call in enumerate(calls)]
    for point, found in zip(points, sweep(_at_point, calls)):
        for one in readings(found, made.quantity):
            reference = one.reference
            if made.reference and (number := _passing(made.reference, point)) is not None:
                reference = (number, made.basis)
            needs = keywords if one.needs is None else one.needs
            if reference and reference[1] in MARKERS and needs and not experiment.at_defaults(*needs):
                reference = None
            place = {"at": point | one.columns.get("at", {})}
            yield experiment.row(one.quantity, one.value, reference=reference, **{**one.columns, **place})


def _at_point(figure: str, **arguments: Any) -> Any:
    """Calls the function of an experiment, which is named ``module:name``."""
    module, _, name = figure.partition(":")
    return getattr(importlib.import_module(module), name).sweep.function(**arguments)


@dataclass(frozen=True)
class Panel:
    """One panel of a view: its rows, and what becomes a curve.

    Attributes:
        title: title of the panel.
        quantity: quantities of the rows; all if empty.
        at: coordinates and columns of the rows, as in :meth:`~.measurement.Table.select`.
        lines: coordinate, column or "quantity" with one curve per value; or its name and, by value, the looks
            of the curves that are drawn, in this order: arguments of ``Axes.plot``, where ``color`` may be
            the name of a theory or a network, and ``band=False`` for no band.
        predicted: label of a dashed black curve through the predictions; empty draws none.
        legend: place of the legend; "ends" writes labels at the ends of the curves, empty draws none.
        axes: arguments of ``Axes.set``.
        x: coordinate of the horizontal axis, if it differs from that of the other panels.
    """

    title: str = ""
    quantity: str | tuple[str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    lines: str | tuple[str, Mapping[Any, Mapping[str, Any]]] = ""
    predicted: str = ""
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
        for line, look in _lines(rows, panel, result):
            _curve(ax, line, across, look)
            if spread and look.get("band", True):
                _spread_band(ax, line, across, result.table, spread, look)
            if drawn := [row for row in _ordered(line, across) if row.null and row.null.draws]:
                _null_band(ax, drawn, across)
        _annotate(ax, rows, panel, across)
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
            text = f"{short(row.value)}\n±{short(half)}"
        tint = "white" if values[i, j] > 0.55 * largest else "black"  # legible on dark cells
        ax.text(j, i, text, ha="center", va="center", fontsize=7, color=tint, linespacing=1.0)
    heatmap(ax, values, bar=False, vmin=0, vmax=largest, cmap="Blues")


def short(number: float) -> str:
    """Formats a number with at most three digits: ``.05``, ``1.00``, ``15.0``."""
    return f"{number:.2f}".lstrip("0") if number < 9.995 else f"{number:.1f}"


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
    name, looks = (panel.lines, {}) if isinstance(panel.lines, str) else panel.lines
    values = list(looks) or (distinct(rows, name) if name else [None])
    numbers = len(values) > 1 and not any(isinstance(value, str) for value in values)
    tints = shades(len(values)) if numbers else [TINTS[k % len(TINTS)] for k in range(len(values))]
    tints = [colour(result.name.partition(".")[0])] if len(values) == 1 else tints
    for value, tint in zip(values, tints):
        of_line = [row for row in rows if not name or coordinate(row, name) == value]
        label = "_" if value is None else value if isinstance(value, str) else f"{name} = {_text(value)}"
        look = {"color": tint, "label": label, **looks.get(value, {})}
        if of_line:
            yield of_line, look | {"color": colour(look["color"])}


def _curve(ax: "Axes", line: Sequence[Measurement], x: str, look: Mapping[str, Any]) -> None:
    """Plots a curve with the band of its intervals."""
    line = _ordered(line, x)
    place, value = [coordinate(row, x) for row in line], [_value(row) for row in line]
    if look.get("band", True) and any(row.interval for row in line):
        low, high = np.array([row.interval or (np.nan, np.nan) for row in line]).T
        ax.fill_between(place, low, high, color=look["color"], alpha=0.14, linewidth=0)
    marker = {"marker": "o", "markersize": 3} if len(line) <= MARKED else {}
    ax.plot(place, value, **{**marker, **{name: value for name, value in look.items() if name != "band"}})


def _annotate(ax: "Axes", rows: Table, panel: Panel, x: str) -> None:
    """Adds predictions, published numbers and ticks to a panel."""
    known = [row for row in _ordered(rows, x) if row.predicted is not None]
    if panel.predicted:
        place: dict[Any, Any] = {
            coordinate(row, x): row.predicted for row in known if row.basis not in MARKERS
        }
        look = {"color": "black", "linewidth": 1.0, "linestyle": DASHED, "label": panel.predicted}
        ax.plot(list(place), list(place.values()), **look)
    mark(ax, known, x)
    places = distinct(rows, x)
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
