"""``train`` and ``evaluate``: networks on images, with a table of progress while they learn."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import NAME, console

if TYPE_CHECKING:
    from ..training.loop import Moment

INTERRUPTED = 130


def train_network(options: argparse.Namespace) -> int:
    """Trains a network on images and stores it with its page.

    Raises:
        ValueError: data, settings or folder that do not fit.
        FileExistsError: the folder holds something and is not to be replaced.
    """
    from .. import report
    from ..compare import choose
    from ..data.image_sets import images as read_images
    from ..experiment import Result
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
    images = read_images(options.data)
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
    try:
        with progress_table() as tell:
            result = train(
                images,
                settings,
                folder,
                objective=objective,
                theories=theories,
                hardware=hardware,
                resume=options.resume,
                tell=tell,
            )
    except KeyboardInterrupt:
        stored = (folder / LAST).exists()
        hint = f"{folder} holds the training up to its last interval, --resume goes on with it" if stored else "nothing was written"
        if _first_process():
            print(f"{NAME}: interrupted; {hint}", file=sys.stderr)
        return INTERRUPTED
    if _first_process():
        told = {row["quantity"]: row["value"] for row in result.table if row["quantity"].startswith("test")}
        _tell_measured(told, len(images[1]))
        print(f"network: {folder / BEST}, of step {next(row.get('step') for row in result.table if row['quantity'] in told)}")
        print(f"report: {report.write(Result.load(folder), folder)}")  # what is reported is what is stored
    return 0


def evaluate_network(options: argparse.Namespace) -> int:
    """What a trained network makes of test images, class by class.

    Raises:
        ValueError: a file that is no trained network, or images that do not fit it.
    """
    from ..data.image_sets import images
    from ..training.evaluate import evaluate

    train, test = images(options.data)
    measured, classes = evaluate(options.network, train, test)
    _tell_measured(measured, len(test))
    if classes:
        console().print(_class_table(classes))
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
        if "accuracy" in quantity:
            told = interval(value, n)  # nothing where the share is not one of n images
            print(f"{quantity}: {value:.2%} of {n} images{f' ({told})' if told else ''}")
        else:
            print(f"{quantity}: {value:.4g}")


def _class_table(classes):
    from rich.table import Table

    table = Table(box=None, header_style="dim")
    table.add_column("class")
    for title in ("images", "right", "taken for it", "most often taken for"):
        table.add_column(title, justify="right")
    for line in classes:
        table.add_row(line.name, str(line.images), f"{line.right:.1%}", f"{line.precision:.1%}", line.confused or "")
    return table


@contextlib.contextmanager
def progress_table() -> Iterator[Any]:
    """Shows a training: a line an interval and, on a terminal, a moving one with the step, the time left and the loss. On stderr; of
    several processes only the first shows."""
    if not _first_process():
        yield lambda moment: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    lines = _Lines()
    if not sys.stderr.isatty():
        yield lambda moment: lines.show(moment, lambda text: print(text, file=sys.stderr, flush=True))
        return
    with Progress(BarColumn(24), TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def tell(moment: "Moment") -> None:
            lines.show(moment, lambda text: bar.console.print(text, highlight=False, markup=False))
            loss = "" if moment.loss is None else f"loss {moment.loss:.4f}  "
            speed = "" if moment.speed is None else f"{moment.speed:,.0f} img/s  "
            left = "" if moment.left is None else f"{clock(moment.left)} left"
            bar.update(task, completed=moment.done, description=f"step {moment.step}  {loss}{speed}{left}")

        yield tell


class _Lines:
    """The table of intervals, a line at a time; its columns are those that the objective measures."""

    def __init__(self):
        self.columns: list[str] = []

    def show(self, moment: "Moment", write) -> None:
        if moment.measured is None:
            return
        if not self.columns:
            self.columns = list(moment.measured)
            titles = ["epoch", "step", "loss", *self.columns, "img/s", "time", "left"]
            self.widths = [max(8, len(title)) for title in titles]
            write("  ".join(title.rjust(width) for title, width in zip(titles, self.widths)))
        cells = [
            f"{moment.epoch:.2f}",
            str(moment.step),
            "" if moment.loss is None else f"{moment.loss:.4f}",
            *(f"{value:.2%}" if "accuracy" in name else f"{value:.4f}" for name, value in moment.measured.items()),
            "" if moment.speed is None else f"{moment.speed:,.0f}",
            clock(moment.seconds),
            "" if moment.left is None else clock(moment.left),
        ]
        write("  ".join(cell.rjust(width) for cell, width in zip(cells, self.widths)))


def clock(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
