"""The page of a running training: curves, every theory's headline, speed, remaining time, sample images.

The page is drawn at intervals and replaces itself in the browser. It leaves out what takes long to draw, so
that it costs little of the training's time; the page of the finished training (:mod:`.page`) has everything.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import replacing
from ..core.format import clock
from ..core.measurement import Table
from ..core.result import Result
from ..core.theory import Theory
from ..training.folder import PAGE
from ..training.moment import Moment
from . import samples, training, training_figures
from .aggregate import NETWORK, aggregate, data_name
from .curves import Curves, Series, curves
from .figures import timeline_series
from .html import inline, rendered
from .network_figures import attention, timeline
from .timeline import on_timeline

SHARE = 0.04  # largest share of a training's time that is spent on drawing its page
REFRESH = 10  # seconds after which the browser loads the page again


@dataclass(frozen=True)
class Status:
    """The state of a training on its page.

    Attributes:
        moment: the last interval.
        ended: why the training has stopped; empty while it runs.
    """

    moment: Moment
    ended: str = ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and texts of the facts."""
        moment = self.moment
        facts = [
            ("step", f"{moment.step:,}"),
            ("epoch", f"{moment.epoch:.2f}"),
            ("done", f"{100 * moment.done:.0f} %"),
            ("speed", "" if moment.speed is None else f"{moment.speed:,.0f} images per second"),
            ("time so far", clock(moment.seconds)),
            ("time left", "" if moment.left is None or self.ended else f"about {clock(moment.left)}"),
        ]
        return [(name, text) for name, text in facts if text]


def live(result: Result, status: Status, *, theories: tuple[Theory, ...] | None = None, now: str = "") -> str:
    """Returns the page of a running or interrupted training, a complete HTML document.

    Args:
        result: the result so far.
        status: state of the training.
        theories: theories that provide titles and headlines; the registry if None.
        now: time at which the page is drawn, as text.
    """
    known = aggregate(Result(result.name, result.settings, Table()), theories=theories).theories
    headlines = {
        (theory.name, theory.in_networks.headline) for theory in known if theory.in_networks is not None
    }
    # Only the rows of the figures: a long training has a hundred times as many.
    rows = [
        row
        for row in result.table
        if (row.theory, row.quantity) in headlines or (row.theory == NETWORK and row.layer is None)
    ]
    small = Result(result.name, result.settings, Table(rows), result.arrays)
    quantities = curves(small)
    model = next((row.model for row in rows if row.model), "network")
    context: dict[str, Any] = {
        "title": f"{model} learns {data_name(result)}",
        "model": model,
        "data": data_name(result),
        "status": status,
        "now": now,
        "refresh": 0 if status.ended else REFRESH,
        "learning": inline(
            lambda: training_figures.learning(quantities, training.training_summary(small)),
            "learning",
            "Loss and accuracy over the steps",
        ),
        "timeline": inline(
            lambda: timeline(timeline_series(_headlines(quantities, known))),
            "timeline",
            "The theories' headlines",
        ),
        "samples": samples.groups(result),
        "attention": inline(
            lambda: attention(result, model, images=3, layers=4),
            "attention",
            "Attention on validation images",
        ),
    }
    return rendered("live.html.j2", context)


def _headlines(quantities: list[Curves], theories: tuple[Theory, ...]) -> list[Series]:
    means = [curve.mean() for curve in quantities if curve.model and not curve.empty and not curve.setting]
    return on_timeline(means, theories)


@contextmanager
def live_page(folder: Path) -> Iterator[Callable[[Moment], None]]:
    """Yields a callback of :func:`~..training.loop.train` that writes the page of the training into its
    folder.

    The first interval with a step is drawn, and later ones as often as :data:`SHARE` permits. The page is
    replaced as a whole. If the training is interrupted or fails, its page states so and stays. An error of
    the page does not end the training.
    """
    spent, last, drawn = 0.0, None, -1

    def write(moment: Moment, ended: str = "") -> None:
        nonlocal spent, drawn
        began = time.perf_counter()
        if moment.so_far is None or not folder.is_dir():
            return
        now = time.strftime("%H:%M:%S on %d %B %Y")
        try:
            text = live(moment.so_far(), Status(moment, ended), now=now)
            with replacing(folder / PAGE) as draft:
                draft.write_text(text, encoding="utf-8")
        except OSError:  # the disk may be full; the training itself reports that
            pass
        spent, drawn = spent + time.perf_counter() - began, moment.step

    def callback(moment: Moment) -> None:
        nonlocal last
        if moment.so_far is None:
            return
        last = moment
        if moment.step and (drawn < 0 or spent <= SHARE * moment.seconds) and moment.done < 1:
            write(moment)

    try:
        yield callback
    except BaseException as error:
        if last is not None and last.step:
            write(
                last,
                "interrupted"
                if isinstance(error, KeyboardInterrupt)
                else " ".join(str(error).split()) or type(error).__name__,
            )
        raise
