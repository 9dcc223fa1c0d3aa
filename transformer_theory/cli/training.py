"""``train`` and ``evaluate``: networks on images, with a table of progress while they learn."""

import argparse
import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.notes import is_share, percent
from .terminal import NAME, console, progress_line

if TYPE_CHECKING:
    from ..training.loop import Moment

INTERRUPTED = 130
WIDTH = 80  # columns of the table of progress, at most
WORDS = 9  # characters after which a title of it goes on in the next line
FIRST, ROWS = 5, 30  # intervals that are shown: the first ones, then so many over the whole training


def train_network(options: argparse.Namespace) -> int:
    """Trains a network on images and stores it with its page.

    Raises:
        ValueError: data, settings or folder that do not fit.
        FileExistsError: the folder holds something and is not to be replaced.
    """
    from .. import report
    from ..compare import choose
    from ..core.result import Result
    from ..data.image_sets import images as read_images
    from ..training.augment import Augmentation
    from ..training.checkpoint import stored_run
    from ..training.folder import BEST, LAST, clear
    from ..training.image_recipes import recipe
    from ..training.loop import train
    from ..training.objectives import OBJECTIVES, CrossEntropy
    from ..training.processes import Hardware
    from ..training.settings import Settings

    if options.resume and options.overwrite:
        raise ValueError("--resume goes on with a training and --overwrite removes it, got both; leave one out")
    if hasattr(options, "minutes") and hasattr(options, "epochs"):
        raise ValueError("--minutes stands in place of --epochs, got both; leave one out")
    folder = options.out or Path("runs") / options.network
    run = stored_run(folder / LAST) if options.resume else None
    images = read_images(options.data, size=options.size, say=None if _first_process() else lambda line: None)
    settings = recipe(options.network, name=options.recipe, image_size=images[0].size)
    if run is not None:  # options that are not given are as they were
        settings = Settings.from_stored({**run["settings"], "network": options.network})
    kind = OBJECTIVES[options.objective or (run["objective"]["name"] if run else CrossEntropy.name)]
    objective = kind(**({} if run is None else _own(run["objective"], kind)) | _given(options, kind))
    changes = replace(settings.changes, **_given(options, Augmentation))
    settings = replace(settings, changes=changes, **_given(options, Settings))
    hardware = Hardware(device=options.device, precision=options.precision, strategy=options.strategy, compile=options.compile)
    asked = options.theories.split(",") if options.theories else None if run is None else run["theories"]
    theories = () if asked in (["none"], []) else choose(asked)
    if options.overwrite and not options.resume and _first_process():
        clear(folder)
    at_work = False

    def follow(moment: "Moment") -> None:
        nonlocal at_work
        at_work = True
        tell(moment)

    try:
        with progress_table(objective.score) as tell:
            result = train(
                images,
                settings,
                folder,
                objective=objective,
                theories=theories,
                hardware=hardware,
                resume=options.resume,
                tell=follow,
            )
    except KeyboardInterrupt:
        stored = (folder / LAST).exists()
        hint = f"{folder} holds the training up to its last interval, --resume goes on with it" if stored else "nothing was written"
        if _first_process():
            print(f"{NAME}: interrupted; {hint}", file=sys.stderr)
        return INTERRUPTED
    if _first_process():
        if not at_work:
            print(f"{folder} holds a training that has ended; what it reached:")
        told = {row["quantity"]: row["value"] for row in result.table if row["quantity"].startswith("test")}
        _tell_measured(told, len(images[1]))
        print(f"network: {folder / BEST}, of step {next(row.get('step') for row in result.table if row['quantity'] in told)}")
        with progress_line() as progress:
            progress("writing the report")
            page = report.write(Result.load(folder), folder)  # what is reported is what is stored
        print(f"report: {page}")
    return 0


def evaluate_network(options: argparse.Namespace) -> int:
    """What a trained network makes of test images, class by class.

    Raises:
        ValueError: a file that is no trained network, or images that do not fit it.
        FileNotFoundError: there is none.
    """
    from ..data.image_sets import images
    from ..training.evaluate import evaluate
    from ..training.folder import network_file

    network_file(options.network)  # before images are read
    train, test = images(options.data, size=options.size)
    measured, classes = evaluate(options.network, train, test)
    _tell_measured(measured, len(test))
    if classes:
        console().print(_class_table(classes))
    else:
        print("no table of classes: the network tells none, what is right is told by a classifier fitted to its features")
    return 0


def _own(stored: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The stored values of an objective, if they are of this one."""
    return {field.name: stored[field.name] for field in fields(kind) if field.name in stored} if stored.get("name") == kind.name else {}


def _given(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """The fields of a record that were given as options."""
    return {field.name: getattr(options, field.name) for field in fields(kind) if hasattr(options, field.name) and field.name != "network"}


def _first_process() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def _tell_measured(measured: dict[str, Any], n: int) -> None:
    from ..training.compared import interval

    for quantity, value in measured.items():
        if is_share(quantity):
            told = interval(value, n)  # nothing where the share is not one of n images
            print(f"{quantity}: {percent(value)} of {n:,} images{f' ({told})' if told else ''}")
        else:
            print(f"{quantity}: {value:.4g}")


def _class_table(classes):
    from rich.table import Table

    table = Table(box=None, header_style="dim")
    table.add_column("class")
    for title in ("images", "recall", "precision", "most often taken for"):
        table.add_column(title, justify="right")
    for line in classes:
        table.add_row(line.name, str(line.images), percent(line.right), percent(line.precision), line.confused or "")
    return table


@contextlib.contextmanager
def progress_table(score: str = "") -> Iterator[Callable[["Moment"], None]]:
    """Shows a training: a line for some tens of intervals and, on a terminal, a moving one with the step, the time left, the loss and the
    score. On stderr, at most 80 columns wide; of several processes only the first shows.

    Args:
        score: what the best network is chosen by; of all that is measured it is the last to be left out for want of width.
    """
    if not _first_process():
        yield lambda moment: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    lines = _Lines(score)
    if not sys.stderr.isatty():
        yield lambda moment: lines.show(moment, lambda text: print(text, file=sys.stderr, flush=True))
        return
    with Progress(BarColumn(10), TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        last = ""  # score

        def tell(moment: "Moment") -> None:
            nonlocal last
            lines.show(moment, lambda text: bar.console.print(text, highlight=False, markup=False))
            if moment.measured and score in moment.measured:
                last = f"held-out {_shown(score, moment.measured[score])}  "
            loss = "" if moment.loss is None else f"loss {moment.loss:.4f}  "
            speed = "" if moment.speed is None else f"{moment.speed:,.0f} img/s  "
            left = "" if moment.left is None else f"{clock(moment.left)} left"
            bar.update(task, completed=moment.done, description=f"step {moment.step}  {loss}{last}{speed}{left}")

        yield tell


class _Lines:
    """The table of intervals, a line at a time; its columns are those of what the objective measures that there is room for."""

    def __init__(self, score: str):
        self.score = score
        self.columns: list[str] | None = None
        self.shown, self.part = 0, -1

    def show(self, moment: "Moment", write: Callable[[str], None]) -> None:
        if moment.measured is None:
            return
        if self.columns is None:
            self.columns = self._fitting(list(moment.measured))
            titles = [_title(name) for name in ["epoch", "step", "loss", *self.columns, "img/s", "time", "left"]]
            self.widths = [_width(title) for title in titles]
            height = max(map(len, titles))
            for words in zip(*([""] * (height - len(title)) + title for title in titles)):
                write(self._line(list(words)))
        part = int(ROWS * moment.done)
        if self.shown >= FIRST and part == self.part:
            return
        self.shown, self.part = self.shown + 1, part
        cells = [
            f"{moment.epoch:.2f}",
            str(moment.step),
            "" if moment.loss is None else f"{moment.loss:.4f}",
            *(_shown(name, moment.measured[name]) for name in self.columns),
            "" if moment.speed is None else f"{moment.speed:,.0f}",
            clock(moment.seconds),
            "" if moment.left is None else clock(moment.left),
        ]
        write(self._line(cells))

    def _line(self, cells: list[str]) -> str:
        return " ".join(cell.rjust(width) for cell, width in zip(cells, self.widths)).rstrip()

    def _fitting(self, names: list[str]) -> list[str]:
        room = WIDTH - 5 - sum(_width(_title(name)) for name in ("epoch", "step", "loss", "img/s", "time", "left"))
        chosen = []
        for name in sorted(names, key=lambda name: name != self.score):  # the others stay in their order
            room -= 1 + _width(_title(name))
            if room < 0:
                break
            chosen.append(name)
        return [name for name in names if name in chosen]


def _title(name: str) -> list[str]:
    return textwrap.wrap(name, WORDS, break_long_words=False)


def _width(title: list[str]) -> int:
    return max(7, *map(len, title))


def _shown(name: str, value: float) -> str:
    return percent(value) if is_share(name) else f"{value:.4f}" if abs(value) < 100 else f"{value:.5g}"


def clock(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
