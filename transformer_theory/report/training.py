"""A training on the page: its summary, the figures of the quantities that were measured during it, and the
page of a training that is still running.

The page of a running training is drawn at intervals and replaces itself in the browser. It leaves out what
takes long to draw, so that it costs little of the training's time; the page of the finished training
(:mod:`.html_page`) has everything.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..comparison.pooling import NETWORK, Aggregate, aggregate, data_name, unfinished
from ..core import format
from ..core.files import replacing
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import with_interval
from ..core.table import Table, grouped
from ..core.theory import Theory
from ..training.image.folder import PAGE
from ..training.image.progress_update import ProgressUpdate
from . import curve_figures, number_tables
from .curves import Curves, curves, on_timeline, positions, series, split_headline, timeline_series
from .html import inline, rendered
from .pictures import attention, sample_groups

SAMPLES = ("train_samples", "validation_samples", "test_samples")  # settings of a training run
SHARE = 0.04  # largest share of a training's time that is spent on drawing its page
REFRESH = 10  # seconds after which the browser loads the page again


@dataclass(frozen=True)
class TrainingSummary:
    """The summary of a stored training run. The kept network is the one with the best score.

    Attributes:
        score: label of the quantity that selects the kept network; None if it was not measured.
        kept: step of the kept network; None without a score.
        kept_score: score of the kept network, with the number of samples and an interval; None without a
            score.
        tests: measurements of the kept network on the test data, shares first; empty if the run has not
            finished.
        steps: number of training steps.
        checks: number of steps with measurements.
        seconds: time from the start to the last measurement; None if it was not measured.
        speed: median, minimum and maximum of the samples per second between measurements; None if they were
            not measured.
    """

    score: str | None
    kept: int | None
    kept_score: Measurement | None
    tests: tuple[Measurement, ...]
    steps: int
    checks: int
    seconds: float | None
    speed: tuple[float, float, float] | None

    @property
    def untrained(self) -> bool:
        """Whether the kept network is the untrained one, because no later measurement was as good as the
        first.
        """
        return self.kept == 0 and self.checks > 1


def training_summary(result: Result) -> TrainingSummary:
    """Summarises a result of ``train``.

    The setting "score" names the score. If this quantity was not measured on validation data, the score is
    the first quantity that was; shares come before quantities in other units.
    """
    rows = [row for row in result.table if row.kind == "network" and row.layer is None and not row.setting]
    validation = [
        row for row in rows if row.split == "validation" and row.value is not None and row.step is not None
    ]
    names = dict.fromkeys(row.quantity for row in sorted(validation, key=lambda row: row.unit != "share"))
    score = result.settings.get("score")
    score = score if score in names else next(iter(names), None)
    # If several networks have the best score, training keeps the last of them.
    kept = max(
        (row for row in validation if row.quantity == score),
        key=lambda row: (row.value, row.step),
        default=None,
    )
    tests = sorted(
        (row for row in rows if row.split == "test" and row.value is not None),
        key=lambda row: row.unit != "share",
    )
    steps = sorted({row.step for row in result.table if row.step is not None})
    times = [row.value for row in rows if row.unit == "s" and row.value is not None]
    speeds = [row.value for row in rows if row.quantity == "images per second" and row.value is not None]
    return TrainingSummary(
        score=None if kept is None else format.label(kept),
        kept=None if kept is None else kept.step,
        kept_score=None if kept is None else with_interval(kept),
        tests=tuple(map(with_interval, tests)),
        steps=steps[-1] if steps else 0,
        checks=len(steps),
        seconds=times[-1] if times else None,
        speed=(float(np.median(speeds)), min(speeds), max(speeds)) if speeds else None,
    )


def recipe(settings: dict[str, Any]) -> str:
    """Returns the name of the recipe and the settings in which the run differs from it."""
    from ..training.image.recipes import IMAGE_RECIPES, image_recipe

    name, network = settings.get("recipe"), settings.get("network")
    if name not in IMAGE_RECIPES or network is None:
        return str(name or "")
    defaults = dict(format.flatten(asdict(image_recipe(network, name=name))))
    changes = [
        f"{key} {text}" + (f" instead of {defaults[key]}" if defaults[key] not in ("", "None") else "")
        for key, text in format.flatten(settings)
        if defaults.get(key, text) != text
    ]
    return f"{name}{', but ' if changes else ''}{', '.join(changes)}"


def one_line(value: Any) -> str:
    """Formats a setting in one line; a nested setting becomes its name followed by its values."""
    if isinstance(value, dict):
        return ", ".join(
            filter(
                None,
                (
                    str(value.get("name") or ""),
                    *(f"{name} {text}" for name, text in format.flatten(value) if name != "name"),
                ),
            )
        )
    return "" if value is None else str(value)


# ---- the part of a page


def section(combined: Aggregate, result: Result, quantities: Sequence[Curves]) -> dict[str, Any]:
    """Returns the summary of a training run: test results, the kept network, key facts, the theories'
    headlines, and figures of layers.
    """
    summary, settings, record = training_summary(result), result.settings, result.provenance
    steps = sorted({int(step) for curve in quantities for step in curve.steps})
    three_steps = [steps[i] for i in positions(len(steps), 3)]  # first, middle, last
    layered = [curve for curve in quantities if curve.layers != (None,) and not curve.empty]
    headlines = [
        (theory.name, theory.in_networks.headline)
        for theory in combined.theories
        if theory.in_networks is not None
    ]
    # At most nine quantities: the figure has rows of three panels.
    by_layer = [
        curve for curve in layered if (curve.theory, curve.quantity) in headlines or curve.theory == NETWORK
    ][:9]
    titles = {NETWORK: "No theory measures this network"}
    titles |= {theory.name: theory.title for theory in combined.theories}
    missing = combined.select(kind=("in network", "network"), value=None)
    reasons = {
        reason: dict.fromkeys(titles[entry.row.theory] for entry in same)
        for reason, same in grouped(missing, lambda entry: entry.row.reason).items()
    }
    parameters, speed = record.get("parameters"), summary.speed
    duration = "" if summary.seconds is None else format.duration(summary.seconds)
    glance = {
        "network": network_name(result) + (f"; {parameters:,} parameters" if parameters else ""),
        "data": data_name(result),
        "objective": one_line(settings.get("objective")),
        "samples": ", ".join(
            f"{settings[key]:,} {key.partition('_')[0]}" for key in SAMPLES if key in settings
        ),
        "recipe": recipe(settings.get("settings") or settings),
        "steps": f"{summary.steps:,}",
        "time": " on ".join(filter(None, (duration, record.get("device")))),
        "speed": ""
        if speed is None
        else f"{speed[0]:,.0f} images per second, median ({speed[1]:,.0f} to {speed[2]:,.0f})",
    }
    return {
        "found": summary,
        "unfinished": unfinished(result),
        "reached": [large(row, "") for row in summary.tests],
        "glance": [(name, text) for name, text in glance.items() if text],
        "headlines": number_tables.headlines_in_training(combined.theories, quantities, summary.kept),
        "reasons": [(reason, ", ".join(names)) for reason, names in reasons.items()],
        "learning": inline(
            lambda: curve_figures.learning_of_run(quantities, summary.score, summary.kept),
            "learning",
            "Loss and accuracy over the training steps",
        ),
        "samples": sample_groups(result),
        "attention": inline(
            lambda: attention(result, network_name(result), images=4, layers=4),
            "attention",
            "Attention maps",
        ),
        "own": quantities_section(
            [curve for curve in layered if curve.theory == NETWORK],
            "own",
            "Attention and geometry",
            None,
            draw=True,
        ),
        "layers": inline(
            lambda: curve_figures.over_layers(by_layer, three_steps),
            "layers",
            "Quantities from the first layer to the last",
        ),
        "by_layer": number_tables.layer_table(by_layer, three_steps),
    }


def quantities_section(
    quantities: Sequence[Curves], name: str, title: str, theory: Theory | None, *, draw: bool
) -> dict[str, Any] | None:
    """Returns a table, and figures if ``draw``, of quantities measured during training; None if there are
    none.
    """
    table = number_tables.first_and_last(
        quantities, f"{name}-training", "Mean over layers and heads at the first and at the last step"
    )
    if table is None or not draw:
        return None if table is None else {"figure": None, "all": None, "table": table}
    headline, others = split_headline(quantities, theory)
    lines = inline(
        lambda: curve_figures.in_training(headline, others),
        f"{name}-lines",
        f"{title}: over the training steps",
    )
    maps = None
    if curve_figures.many_layers(quantities):
        draw_all = partial(curve_figures.every_quantity, quantities)
        maps = inline(draw_all, f"{name}-maps", f"{title}: by layer and step")
    return {"figure": lines or maps, "all": maps if lines else None, "table": table}


def large(row: Measurement, model: str, note: str = "") -> dict[str, Any]:
    """Returns a value in large type with its label, and the interval, the null and the note below it."""
    interval = (
        f"95 % interval {format.interval_text(row)} {row.interval_kind}" if row.interval is not None else ""
    )
    null = (
        f"null, {row.null.kind}: {format.of_row(row.null.median, row)}"
        if row.null is not None and row.null.draws
        else ""
    )
    label = f"{format.label(row)}{f', {row.n:,} samples' if row.n else ''}"
    return {
        "value": format.of_row(row.value, row),
        "model": model,
        "label": label,
        "below": [text for text in (interval, null, note) if text],
    }


def network_name(result: Result) -> str:
    """Returns the name of the trained network."""
    return next((row.model for row in result.table if row.model), "network")


# ---- the page of a running training


@dataclass(frozen=True)
class Status:
    """The state of a training on its page.

    Attributes:
        update: the last interval.
        ended: why the training has stopped; empty while it runs.
    """

    update: ProgressUpdate
    ended: str = ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and texts of the facts."""
        update = self.update
        facts = [
            ("step", f"{update.step:,}"),
            ("epoch", f"{update.epoch:.2f}"),
            ("done", f"{100 * update.done:.0f} %"),
            ("speed", "" if update.speed is None else f"{update.speed:,.0f} images per second"),
            ("time so far", format.clock(update.seconds)),
            ("time left", "" if update.left is None or self.ended else f"about {format.clock(update.left)}"),
        ]
        return [(name, text) for name, text in facts if text]


def live(result: Result, status: Status, *, now: str = "") -> str:
    """Returns the page of a running or interrupted training, a complete HTML document.

    Args:
        result: the result so far.
        status: state of the training.
        now: time at which the page is drawn, as text.
    """
    known = aggregate(Result(result.name, result.settings, Table())).theories
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
    quantities, summary, model = curves(small), training_summary(small), network_name(small)
    context: dict[str, Any] = {
        "title": f"{model} learns {data_name(result)}",
        "model": model,
        "data": data_name(result),
        "status": status,
        "now": now,
        "refresh": 0 if status.ended else REFRESH,
        "learning": inline(
            lambda: curve_figures.learning_of_run(quantities, summary.score, summary.kept),
            "learning",
            "Loss and accuracy over the steps",
        ),
        "timeline": inline(
            lambda: curve_figures.timeline(timeline_series(on_timeline(series(quantities), known))),
            "timeline",
            "The theories' headlines",
        ),
        "samples": sample_groups(result),
        "attention": inline(
            lambda: attention(result, model, images=3, layers=4),
            "attention",
            "Attention on validation images",
        ),
    }
    return rendered("live.html.j2", context)


@contextmanager
def live_page(folder: Path) -> Iterator[Callable[[ProgressUpdate], None]]:
    """Yields a callback of :func:`~..training.image.loop.train` that writes the page of the training into its
    folder.

    The first interval with a step is drawn, and later ones as often as :data:`SHARE` permits. The page is
    replaced as a whole. If the training is interrupted or fails, its page states so and stays. An error of
    the page does not end the training.
    """
    spent, last, drawn = 0.0, None, -1

    def write(update: ProgressUpdate, ended: str = "") -> None:
        nonlocal spent, drawn
        began = time.perf_counter()
        if update.so_far is None or not folder.is_dir():
            return
        now = time.strftime("%H:%M:%S on %d %B %Y")
        try:
            text = live(update.so_far(), Status(update, ended), now=now)
            with replacing(folder / PAGE) as draft:
                draft.write_text(text, encoding="utf-8")
        except OSError:  # the disk may be full; the training itself reports that
            pass
        spent, drawn = spent + time.perf_counter() - began, update.step

    def callback(update: ProgressUpdate) -> None:
        nonlocal last
        if update.so_far is None:
            return
        last = update
        if update.step and (drawn < 0 or spent <= SHARE * update.seconds) and update.done < 1:
            write(update)

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
