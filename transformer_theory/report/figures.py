"""The figures of results by name: one for each theory and view of the data, and those of training runs and
experiments; as PDF and SVG files, or one by one in a notebook.

A figure depends only on the stored result: the same result gives the same bytes.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from ..comparison.judged import findings, headlines, is_of_one_network, quantities, rung_results
from ..comparison.pooling import (
    COMPARE,
    ON_DATA,
    PROBE,
    TRAIN,
    Aggregate,
    aggregate,
    data_name,
    result_label,
)
from ..core import format
from ..core.errors import nearest
from ..core.plotting import pdf, style, svg
from ..core.result import Result
from ..core.table import Table
from ..core.theory import Theory
from . import curve_figures, effects, judged_figures, side_by_side
from .curves import Series, curves, on_timeline, series, split_headline, timeline_series
from .interventions import found_in
from .paper import COLUMN, PAGE
from .pictures import attention, features
from .sentences import subject
from .training import network_name, training_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAME = 40  # largest number of characters from the name of a data set in a file name


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn.

    Attributes:
        name: file name without suffix; lower-case letters, digits and hyphens.
        title: title in plain text.
        theory: name of the theory; None if the figure belongs to no theory.
        draw: function that makes the figure; it returns None if there is nothing to draw.
        model: network whose features the theory analysed; empty for raw tokens and for other figures.
        result: index of the result that the figure shows.
    """

    name: str
    title: str
    theory: str | None
    draw: "Callable[[], Figure | None]"
    model: str = ""
    result: int = 0


class Drawn(NamedTuple):
    """Figures as files.

    Attributes:
        files: contents by file name.
        shown: the pictures that were drawn.
        failed: one sentence per picture that could not be drawn.
    """

    files: dict[str, bytes]
    shown: list[Picture]
    failed: list[str]


def view(result: Result, model: str) -> Result:
    """Selects the part of a comparison that was measured on raw tokens (``""``) or on the features of one
    network.

    Its arrays have the names that theories gave them, so ``theory.on_data.plot(view(result, "ViT"))`` works.
    If the comparison has several seeds, only the first is selected.
    """
    rows = result.select(kind=ON_DATA, model=model)
    seeds = [row.seed for row in rows]
    prefix = f"{model}::" if model else ""  # stored arrays of networks are named "network::name"
    arrays = {
        name.removeprefix(prefix): array for name, array in result.arrays.items() if name.startswith(prefix)
    }
    # raw tokens: drop the arrays of networks
    arrays = {name: array for name, array in arrays.items() if "::" not in name}
    return replace(
        result, table=Table(row for row in rows if row.seed == seeds[0]), arrays=arrays, verifications=()
    )


def views(result: Result) -> list[str]:
    """Lists the views of the data: raw tokens (``""``) first, then networks in order of appearance."""
    models = dict.fromkeys(row.model for row in result.table if row.kind in ON_DATA)
    return sorted(models, key=bool)


def models_of(result: Result) -> list[str]:
    """Lists the networks that were measured during training, in order of appearance."""
    return list(dict.fromkeys(row.model for row in result.table if row.step is not None and row.model))


def pictures(combined: Aggregate) -> list[Picture]:
    """Lists all figures of the results. If several results have the same data, the names contain the label of
    the result.
    """
    stems = [format.slug(data_name(result))[:MAX_NAME].strip("-") for result in combined.results]
    all_pictures = []
    for index, (result, stem) in enumerate(zip(combined.results, stems)):
        suffix = result_label(index) if stems.count(stem) > 1 else ""
        for picture in of_result(result, combined.theories):
            name = "-".join(filter(None, (stem, suffix.lower(), picture.name)))
            title = f"{data_name(result)}{f' ({suffix})' if suffix else ''}: {picture.title}"
            all_pictures.append(replace(picture, name=name, title=title, result=index))
    stem = "-".join(
        dict.fromkeys(stem for result, stem in zip(combined.results, stems) if result.name == COMPARE)
    )
    all_pictures = [*of_all(combined, stem), *all_pictures]
    names = format.unique(picture.name for picture in all_pictures)
    return [replace(picture, name=name) for picture, name in zip(all_pictures, names)]


def of_all(combined: Aggregate, stem: str = "") -> Iterator[Picture]:
    """Yields the figures that sum the results up.

    They are the reach map and the matrix of findings, whose name begins with ``stem``, each also as wide as a
    column.
    """
    narrow = next((picture for picture in for_paper(combined) if picture.name == COLUMN), None)
    if rungs := rung_results(combined):
        title = "how far the theories reach as their assumptions are relaxed"
        yield Picture("reach-map", title, None, partial(judged_figures.reach_map, rungs))
    if found := findings(combined):
        title = "what was found: the headline of each theory on data and in networks"
        stem = "-".join(filter(None, (stem, "findings")))
        side = side_by_side.of(found, found_in(combined.results))
        drawn = partial(judged_figures.matrix, found) if side is None else partial(side_by_side.figure, side)
        yield Picture(stem, title, None, drawn)
    if narrow is not None and (rungs or found):
        yield replace(narrow, name=f"{stem if found else 'reach'}-{COLUMN}")


def for_paper(combined: Aggregate) -> list[Picture]:
    """Returns the figure of a paper as wide as a page and as a column, named so; of other results only the
    first figure, for a page; empty if there is none.
    """
    found, rungs = findings(combined), rung_results(combined)
    side = side_by_side.of(found, found_in(combined.results))
    one = combined.results[0] if len(combined.results) == 1 else None
    title = "the effect of each theory's headline"
    if side is not None:
        title, drawn = "the headline of each theory in networks", partial(side_by_side.figure, side)
    elif found:
        drawn = partial(effects.figure, effects.of_findings(found))
    elif one is not None and is_of_one_network(one):
        chosen = headlines(quantities(one, combined.theories), combined.theories)
        named = [(each.short_title, each.judged) for each in chosen if each.rows]
        drawn = partial(effects.figure, effects.of_network(named, network_name(one)))
    elif rungs:
        title = "how far the theories reach, a square per rung"
        drawn = partial(judged_figures.reach_overview, rungs)
    else:
        first = [picture for result in combined.results for picture in of_result(result, combined.theories)]
        return [replace(picture, name=PAGE) for picture in first[:1]]
    return [
        Picture(PAGE, title, None, drawn),
        Picture(COLUMN, f"{title}, as wide as a column", None, partial(drawn, column=True)),
    ]


def file_names(pictures: Iterable[Picture]) -> list[str]:
    """Lists the file names of pictures, including pictures that may turn out to be empty."""
    return [f"{picture.name}.{ending}" for picture in pictures for ending in ("svg", "pdf")]


def draw(pictures: Sequence[Picture], *, progress: Callable[[str], None] | None = None) -> Drawn:
    """Draws pictures, each as SVG and as PDF. An error in one picture does not stop the others.

    Args:
        pictures: figures to draw.
        progress: function that is called with a line of text before each picture.
    """
    files: dict[str, bytes] = {}
    shown, failed = [], []
    for number, picture in enumerate(pictures, 1):
        if progress:
            progress(f"drawing {picture.name} ({number} of {len(pictures)})")
        try:
            contents = _svg_and_pdf(picture)
        except Exception as error:
            failed.append(
                f"{picture.title} could not be drawn ({type(error).__name__}: {' '.join(str(error).split())})"
            )
            continue
        if contents is not None:
            files.update(zip(file_names([picture]), contents))
            shown.append(picture)
    return Drawn(files, shown, failed)


def _svg_and_pdf(picture: Picture) -> tuple[bytes, bytes] | None:
    """Returns the picture as SVG and as PDF, both in the same layout; None if there is nothing to draw."""
    with style():
        figure = picture.draw()
        if figure is None:
            return None
        vector = svg(figure).encode()
        # a second layout pass could move labels; without it, the PDF keeps the layout of the SVG
        figure.set_layout_engine("none")
        return vector, pdf(figure)


def of_result(result: Result, theories: Sequence[Theory]) -> Iterator[Picture]:
    """Yields the figures of one result, with names that do not contain the name of the data; that of an
    experiment has none.
    """
    if result.name == COMPARE:
        yield from _of_comparison(result, theories)
    elif result.name == TRAIN:
        yield from _of_training(result, theories)
    elif result.name == PROBE:
        yield from _of_one_network(at_last_step(result), theories)
        if not is_of_one_network(result):
            yield from _timeline(series(curves(result)), theories)
    else:
        for theory in theories:
            for kind in theory.experiments:
                if kind.name == result.name:
                    plot = lambda kind=kind: kind.of(result).plot(result)  # noqa: E731
                    yield Picture("", "the figure of the experiment", theory.name, plot)


def _of_comparison(result: Result, theories: Sequence[Theory]) -> Iterator[Picture]:
    parts = {model: view(result, model) for model in views(result)}
    measured = {(row.theory, row.model) for row in result.select(kind="on data") if row.value is not None}
    for theory in theories:
        for model, part in parts.items():
            if theory.on_data is not None and (theory.name, model) in measured:
                title = f"{theory.title}, {format.view_name(model)}"
                name = f"{format.slug(theory.name)}-{format.slug(model or 'raw')}"
                yield Picture(name, title, theory.name, partial(theory.on_data.plot, part), model)
    models, available = models_of(result), series(curves(result))
    yield from _timeline(available, theories)
    yield Picture("learning", "the networks learn", None, partial(curve_figures.learning, available))
    for model in models:
        name = f"attention-{format.slug(model)}"
        yield Picture(name, f"attention in {model}", None, partial(attention, result, model))
    title = "features of the networks in the plane"
    yield Picture("features", title, None, partial(features, result, models))


def _of_training(result: Result, theories: Sequence[Theory]) -> Iterator[Picture]:
    quantities, summary = curves(result), training_summary(result)
    learning = partial(curve_figures.learning_of_run, quantities, summary.score, summary.kept)
    yield Picture("learning", "the network learns", None, learning)
    yield from _timeline(series(quantities), theories)
    for theory in theories:
        headline, others = split_headline(quantities, theory)
        if headline is not None or others:
            plot = partial(curve_figures.in_training, headline, others)
            yield Picture(format.slug(theory.name), f"{theory.title}, in training", theory.name, plot)


def at_last_step(result: Result) -> Result:
    """Returns a result with the rows of the last step of each network."""
    last: dict[str, int] = {}
    for row in result.table:
        if row.step is not None:
            last[row.model] = max(row.step, last.get(row.model, row.step))
    return replace(
        result, table=result.table.where(lambda row: row.step is None or row.step == last[row.model])
    )


def _of_one_network(result: Result, theories: Sequence[Theory]) -> Iterator[Picture]:
    chosen, what = headlines(quantities(result, theories), theories), subject(result)
    model = network_name(result)
    title = f"headline of each theory by layer and head of {what}"
    yield Picture("layers", title, None, partial(curve_figures.heads_by_layer, chosen, what))
    yield Picture("attention", f"attention in {model}", None, partial(attention, result, model))


def _timeline(available: Sequence[Series], theories: Sequence[Theory]) -> Iterator[Picture]:
    """Yields the timeline if it contains a theory's headline; learning curves have a separate figure."""
    if group := timeline_series(on_timeline(available, theories)):
        title = "all theories over the same training steps"
        yield Picture("timeline", title, None, partial(curve_figures.timeline, group))


# ---- the figures of one result by name


class Figures(Mapping[str, "Figure"]):
    """The figures of a result by name; each is drawn when it is asked for, and a notebook shows all of them.

    Figures with nothing to draw, such as a timeline without training, are left out.
    """

    def __init__(self, drawings: Iterable[Picture]):
        self._pictures = {picture.name: picture for picture in drawings}
        self._drawn: dict[str, Figure | None] = {}

    def _figure(self, name: str) -> "Figure | None":
        if name not in self._drawn:
            with style():
                self._drawn[name] = self._pictures[name].draw()
        return self._drawn[name]

    def __getitem__(self, name: str) -> "Figure":
        figure = self._figure(name) if name in self._pictures else None
        if figure is None:
            raise KeyError(f"there is no figure {name!r}; there are: {', '.join(self._pictures)}")
        return figure

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._pictures if self._figure(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Figures({', '.join(self._pictures)})"

    def _repr_html_(self) -> str:
        return Markup("").join(_shown(self[name], self._pictures[name].title) for name in self)


def _shown(figure: "Figure", title: str) -> Markup:
    """Returns a figure as an image with its title. In an image the ids of several figures cannot collide."""
    source = svg(figure)
    if "xmlns=" not in source[: source.index(">")]:
        source = source.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)  # it stands alone
    data = base64.b64encode(source.encode()).decode()
    image = Markup(
        '<figure><img alt="{}" src="data:image/svg+xml;base64,{}"><figcaption>{}</figcaption></figure>'
    )
    return image.format(title, data, title)


def checked_result(result: object) -> None:
    """Checks that this is a result.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(result, Result):
        advice = (
            "Result.load(folder) reads a stored one"
            if isinstance(result, str | Path)
            else "pass what compare, probe or train returned"
        )
        raise ValueError(f"expected a Result, got {type(result).__name__}; {advice}")


def figures(result: Result, *, theories: Iterable[Theory] | None = None) -> Figures:
    """Returns the figures of a result, which a notebook shows: ``figures(result)``, or one of them,
    ``figures(result)["timeline"]``.

    Names are those of the command ``report --figures``, without the name of the data. The first sums the
    result up: the matrix of findings of a comparison, the map of a reach, the layers of a probed model, the
    learning curves of a training.

    Args:
        result: result of ``compare``, ``reach``, ``train``, a probe or an experiment, new or loaded from a
            folder.
        theories: theories that draw the figures; the registry if None.
    Raises:
        ValueError: this is no result.
    """
    checked_result(result)
    combined = aggregate([result], theories=None if theories is None else tuple(theories))
    drawings = [*of_all(combined), *of_result(result, combined.theories)]
    return Figures(replace(picture, name=picture.name or result.name) for picture in drawings)


def plot(result: Result, name: str | None = None) -> "Figure":
    """Draws one figure of a result, see :meth:`.Result.plot`.

    Raises:
        ValueError: the result has no such figure, or none at all.
    """
    available = figures(result)
    if name is None:
        if (first := next(iter(available), None)) is None:
            content = "has no rows" if not result.table else "holds nothing that a figure shows"
            raise ValueError(
                f"there is nothing to draw: the result {result.name!r} {content}; result.to_pandas() has "
                "its numbers"
            )
        return available[first]
    try:
        return available[name]
    except KeyError:
        known = list(available)
        raise ValueError(
            f"there is no figure {name!r}{nearest(name, known) if known else ', nor any other'}"
        ) from None
