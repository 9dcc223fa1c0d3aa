"""All figures of results as files, each as PDF and SVG: of each theory on each view of the data, of trainings, of experiments.

Each is a pure function of the stored result: the same result gives the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..core.measurement import Table
from ..core.plotting import pdf, style, svg
from ..core.result import Result
from ..core.theory import Theory
from . import format, network_figures, training_figures
from .aggregate import COMPARE, NETWORK, ON_DATA, TRAIN, Aggregate, data_name, result_label
from .timeline import Curves, Series, curves, on_timeline
from .training import training_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAME = 40  # letters of the name of a data set in the name of a file


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn.

    Attributes:
        name: of its files without the ending: small letters, digits and hyphens.
        title: in plain words.
        theory: name of its theory; None if it belongs to none.
        draw: makes the figure; returns None if there is nothing to draw.
        model: the network whose features the theory analysed; empty for raw tokens and for other figures.
        result: index of the result.
    """

    name: str
    title: str
    theory: str | None
    draw: "Callable[[], Figure | None]"
    model: str = ""
    result: int = 0


class Drawn(NamedTuple):
    """Figures as files: the bytes by their names, the pictures behind them, and a sentence for each that could not be drawn."""

    files: dict[str, bytes]
    shown: list[Picture]
    failed: list[str]


def view(result: Result, model: str) -> Result:
    """The part of a comparison that a theory measured on raw tokens (``""``) or on the features of a network, with plain array names, so
    that ``theory.on_data.plot(view(result, "ViT"))`` plots it; of several seeds the first."""
    rows = result.select(kind=ON_DATA, model=model)
    seeds = [row.seed for row in rows]
    prefix = f"{model}::" if model else ""
    named = {name.removeprefix(prefix): array for name, array in result.arrays.items() if name.startswith(prefix)}
    arrays = {name: array for name, array in named.items() if "::" not in name}
    return replace(result, table=Table(row for row in rows if row.seed == seeds[0]), arrays=arrays, verifications=())


def views(result: Result) -> list[str]:
    """The models of the rows on data: raw tokens (``""``) first, then networks in order of appearance."""
    models = dict.fromkeys(row.model for row in result.table if row.kind in ON_DATA)
    return sorted(models, key=bool)


def models_of(result: Result) -> list[str]:
    """The networks that were measured during training, in order of appearance."""
    return list(dict.fromkeys(row.model for row in result.table if row.step is not None and row.model))


def pictures(aggregate: Aggregate) -> list[Picture]:
    """All figures of these results; where several results have the same data, names of figures end in the labels of the results."""
    stems = [format.slug(data_name(result))[:MAX_NAME].strip("-") for result in aggregate.results]
    found = []
    for index, (result, stem) in enumerate(zip(aggregate.results, stems)):
        suffix = result_label(index) if stems.count(stem) > 1 else ""
        for picture in _of_result(result, aggregate.theories):
            name = "-".join(filter(None, (stem, suffix.lower(), picture.name)))
            title = f"{data_name(result)}{f' ({suffix})' if suffix else ''}: {picture.title}"
            found.append(replace(picture, name=name, title=title, result=index))
    return [replace(picture, name=name) for picture, name in zip(found, format.unique(picture.name for picture in found))]


def file_names(found: Iterable[Picture]) -> list[str]:
    """The names of the files of these pictures, whether or not there is something to draw."""
    return [f"{picture.name}.{ending}" for picture in found for ending in ("svg", "pdf")]


def draw(found: Sequence[Picture], *, progress: Callable[[str], None] | None = None) -> Drawn:
    """Draws the pictures, each as SVG and as PDF. One that fails does not stop the others.

    Args:
        found: what to draw.
        progress: called with a line before each.
    """
    files: dict[str, bytes] = {}
    shown, failed = [], []
    for number, picture in enumerate(found, 1):
        if progress:
            progress(f"drawing {picture.name} ({number} of {len(found)})")
        try:
            drawn = _svg_and_pdf(picture)
        except Exception as error:
            failed.append(f"{picture.title} could not be drawn ({type(error).__name__}: {' '.join(str(error).split())})")
            continue
        if drawn is not None:
            files.update(zip(file_names([picture]), drawn))
            shown.append(picture)
    return Drawn(files, shown, failed)


def _svg_and_pdf(picture: Picture) -> tuple[bytes, bytes] | None:
    """SVG and PDF in one layout."""
    with style():
        figure = picture.draw()
        if figure is None:
            return None
        drawn = svg(figure).encode()
        figure.set_layout_engine("none")  # a second layout could move labels: the PDF keeps the layout of the SVG
        return drawn, pdf(figure)


def _of_result(result: Result, known: Sequence[Theory]) -> Iterator[Picture]:
    if result.name == COMPARE:
        yield from _of_comparison(result, known)
    elif result.name == TRAIN:
        yield from _of_training(result, known)
    else:
        for theory in known:
            for kind in theory.experiments:
                if kind.name == result.name:
                    yield Picture("", "the figure of the experiment", theory.name, lambda kind=kind: kind.of(result).plot(result))


def _of_comparison(result: Result, known: Sequence[Theory]) -> Iterator[Picture]:
    for theory in known:
        for model in views(result) if theory.on_data is not None else ():
            if any(row.value is not None for row in result.select(theory=theory.name, kind="on data", model=model)):
                title = f"{theory.title}, {format.view_name(model)}"
                plot = theory.on_data.plot if theory.on_data is not None else None
                name = f"{format.slug(theory.name)}-{format.slug(model or 'raw')}"
                yield Picture(name, title, theory.name, lambda plot=plot, model=model: plot and plot(view(result, model)), model)
    yield from _timeline(result, known)
    models = models_of(result)
    yield Picture("learning", "the networks learn", None, lambda: network_figures.learning(result))
    for model in models:
        name = f"attention-{format.slug(model)}"
        yield Picture(name, f"attention in {model}", None, lambda model=model: network_figures.attention(result, model))
    yield Picture("features", "features of the networks in the plane", None, lambda: network_figures.features(result, models))


def _of_training(result: Result, known: Sequence[Theory]) -> Iterator[Picture]:
    own = curves(result)
    yield Picture("learning", "the network learns", None, lambda: training_figures.learning(own, training_summary(result)))
    yield from _timeline(result, known)
    for theory in known:
        headline, others = split_headline(own, theory)
        if headline is not None or others:
            plot = lambda headline=headline, others=others: training_figures.theory(headline, others)  # noqa: E731
            yield Picture(format.slug(theory.name), f"{theory.title}, in training", theory.name, plot)


def split_headline(own: Sequence[Curves], theory: Theory | None) -> tuple[Curves | None, list[Curves]]:
    """The curves of a theory, or of none: its headline (None if it was not measured) and the others, without empty ones."""
    mine = [one for one in own if one.theory == (NETWORK if theory is None else theory.name) and not one.empty]
    name = "" if theory is None or theory.in_networks is None else theory.in_networks.headline
    headline = next((one for one in mine if one.quantity == name), None)
    return headline, [one for one in mine if one is not headline]


def _timeline(result: Result, known: Sequence[Theory]) -> Iterator[Picture]:
    """The theories' headlines over the same steps; learning curves alone are a figure of their own."""
    group = timeline_series(result, known)
    if group:
        yield Picture("timeline", "all theories over the same training steps", None, lambda: network_figures.timeline(group))


def timeline_series(result: Result, known: Sequence[Theory]) -> list[Series]:
    """The series of the timeline figure; none if no theory's headline is among them."""
    group = on_timeline(result, known)
    if not any(one.theory != NETWORK for one in group):
        return []
    return [one for one in group if one.theory != NETWORK or one.unit == "share"]
