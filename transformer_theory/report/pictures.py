"""The figures of results as files for papers: of each theory on each view of the data, of trainings, of experiments, each as PDF and SVG.

Each is a pure function of the stored result: the same result gives the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..core.measurement import ASSUMPTION
from ..core.notes import is_share
from ..core.plotting import pdf, style, svg
from ..core.result import Result
from ..core.theory import Theory
from . import figures, training_figures, wording
from .facts import facts
from .located import COMPARE, TRAIN, data_of
from .merged import Merged
from .readings import readings
from .views import RAW, findings, networks, on_timeline, theories_of, view, view_of, views

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 40  # letters of the name of a data set in the name of a file


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn.

    Attributes:
        name: of its files without the ending: small letters, digits and hyphens.
        title: in plain words.
        theory: whose it is; None of what is not one theory's.
        draw: draws it; None if there is nothing to draw.
        view: of which data of a comparison; empty if it is of no single view.
        run: of which result, counted from 0.
    """

    name: str
    title: str
    theory: str | None
    draw: Callable[[], "Figure | None"]
    view: str = ""
    run: int = 0


def pictures(merged: Merged) -> list[Picture]:
    """All figures of these results; the names of those of like results end in the results' labels."""
    stems = [wording.slug(data_of(result))[:LONGEST].strip("-") for result in merged.results]
    found = []
    for run, (result, stem) in enumerate(zip(merged.results, stems)):
        like = stems.count(stem) > 1
        name = f"{stem}-{merged.label(run).lower()}" if like else stem
        told = f" ({merged.label(run)})" if like else ""
        for picture in _of_result(result, merged.theories):
            whole = "-".join(filter(None, (name, picture.name)))
            found.append(replace(picture, name=whole, title=f"{data_of(result)}{told}: {picture.title}", run=run))
    return _named_apart(found)


class Drawn(NamedTuple):
    """Figures as files.

    Attributes:
        files: by their names.
        shown: the pictures behind them.
        failed: a sentence for each picture that could not be drawn.
    """

    files: dict[str, bytes]
    shown: list[Picture]
    failed: list[str]


def names(found: Iterable[Picture]) -> list[str]:
    """The files that these pictures become where there is something to draw."""
    return [f"{picture.name}.{ending}" for picture in found for ending in ("svg", "pdf")]


def files(found: Sequence[Picture], *, progress: Callable[[str], None] | None = None) -> Drawn:
    """The figures drawn, each as SVG and as PDF.

    Args:
        found: what to draw.
        progress: called with a line before each.
    """
    made: dict[str, bytes] = {}
    shown, failed = [], []
    for number, picture in enumerate(found, 1):
        if progress:
            progress(f"drawing {picture.name} ({number} of {len(found)})")
        with style():
            try:
                drawn = _both(picture.draw())
            except Exception as error:  # one of them must not cost the reader all that can be drawn
                said = " ".join(str(error).split())
                failed.append(f"{picture.title} could not be drawn ({type(error).__name__}: {said})")
                continue
        if drawn is not None:
            made.update(zip(names([picture]), drawn))
            shown.append(picture)
    return Drawn(made, shown, failed)


def _both(figure: "Figure | None") -> tuple[bytes, bytes] | None:
    """SVG and PDF in one layout."""
    if figure is None:
        return None
    drawn = svg(figure).encode()
    figure.set_layout_engine("none")  # the places are found already
    return drawn, pdf(figure)


def _of_result(result: Result, known: Iterable[Theory]) -> Iterator[Picture]:
    if result.name == COMPARE:
        yield from _of_comparison(result, known)
    elif result.name == TRAIN:
        yield from _of_training(result, known)
    elif kind := next((kind for theory in known for kind in theory.experiments if kind.name == result.name), None):
        theory = next(theory.name for theory in known if kind in theory.experiments)
        yield Picture("", "the figure of the experiment", theory, lambda: kind.of(result).draw(result))


def _of_comparison(result: Result, known: Iterable[Theory]) -> Iterator[Picture]:
    own = theories_of(result, known)
    for theory in own:
        for name in views(result) or [RAW]:
            rows = [row for row in findings(result) if row["theory"] == theory.name and view_of(row) == name]
            if any(not wording.absent(row) and not row["quantity"].startswith(ASSUMPTION) for row in rows):
                title = f"{theory.title}, {wording.subject(name)}"
                draw = lambda theory=theory, name=name: theory.draw(view(result, name))  # noqa: E731
                yield Picture(f"{wording.slug(theory.name)}-{wording.slug(name)}", title, theory.name, draw, name)
    yield from _timeline(result, own)
    models = networks(result)
    yield Picture("learning", "the networks learn", None, lambda: figures.learning(result))
    for model in models:
        yield Picture(
            f"attention-{wording.slug(model)}", f"attention in {model}", None, lambda model=model: figures.attention(result, model)
        )
    yield Picture("features", "features of the networks in the plane", None, lambda: figures.features(result, models))


def _of_training(result: Result, known: Iterable[Theory]) -> Iterator[Picture]:
    own, read = theories_of(result, known), readings(result)
    yield Picture("learning", "the network learns", None, lambda: training_figures.learning(read, facts(result, read)))
    yield from _timeline(result, own)
    for theory in own:
        mine = [one for one in read if one.theory == theory.name and not one.empty]
        order = next((one for one in mine if one.quantity == theory.order_parameter), None)
        others = [one for one in mine if one is not order]
        if mine:
            draw = lambda order=order, others=others: training_figures.theory(order, others)  # noqa: E731
            yield Picture(wording.slug(theory.name), f"{theory.title}, readings in training", theory.name, draw)


def _timeline(result: Result, known: Iterable[Theory]) -> Iterator[Picture]:
    """The theories' order parameters over the same steps; the learning curves alone are a figure of their own."""
    group = on_timeline(result, known)
    if any(series.theory != "network" for series in group):
        drawn = [series for series in group if series.theory != "network" or is_share(series.quantity)]
        yield Picture("timeline", "all theories over the same training steps", None, lambda: figures.timeline(drawn))


def _named_apart(found: Sequence[Picture]) -> list[Picture]:
    return [replace(picture, name=name) for picture, name in zip(found, wording.apart(picture.name for picture in found))]
