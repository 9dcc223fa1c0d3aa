"""The commands ``train`` and ``evaluate``, for networks on images, and the progress table of ``train``."""

import argparse
import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.format import amount, clock, plain_percent, with_unit
from ..core.measurement import Measurement
from .terminal import console, progress_line

if TYPE_CHECKING:
    from ..training.image.progress_update import ProgressUpdate

INTERRUPTED = 130
WIDTH = 80  # largest width of the progress table, characters
WRAP = 9  # width at which column titles wrap, characters
FIRST = 5  # number of intervals at the start that always have a row in the table
ROWS = 30  # later intervals: at most one row for each of this many equal parts of the training


def train_network(options: argparse.Namespace) -> int:
    """Trains a network on images and stores it with its page.

    Raises:
        ValueError: options contradict one another, or the data, the settings or the folder do not fit.
        FileExistsError: the folder is not empty, and neither --overwrite nor --resume was given.
    """
    from .. import report
    from ..core.metric import Metric
    from ..core.result import Result
    from ..data.image_sets import images as read_images
    from ..models.stored import BEST
    from ..report.training import live_page
    from ..theories import choose, objectives
    from ..training.augment import Augmentation
    from ..training.image.checkpoint import stored_run
    from ..training.image.folder import LAST
    from ..training.image.loggers import KINDS
    from ..training.image.loop import train
    from ..training.image.processes import Hardware
    from ..training.image.recipes import image_recipe
    from ..training.image.seeds import seed_folder
    from ..training.image.settings import Settings
    from ..training.image.transfer import fitting, read
    from ..training.objectives import CrossEntropy

    _check_combinations(options)
    folder = options.out or Path("runs") / options.network
    # All seeds of a training have the same stored settings, so they can be read from any of its folders.
    folders = [folder] if options.seeds is None else [seed_folder(folder, seed) for seed in options.seeds]
    resume = options.resume or options.extend
    last = next((path / LAST for path in folders if (path / LAST).exists()), folders[0] / LAST)
    run = stored_run(last) if options.extend or (resume and last.exists()) else None
    images = read_images(
        options.data, size=options.size, progress=None if _first_process() else lambda line: None
    )
    settings = image_recipe(options.network, name=options.recipe, image_size=images[0].size)
    if options.weights and run is None:  # sizes that are omitted are those of the weights
        settings = replace(
            settings,
            **fitting(
                read(options.weights, weights_set=options.weights_set),
                options.network,
                heads=getattr(options, "heads", None),
            ),
        )
    if run is not None:  # options that are omitted keep their values from the stored run
        settings = Settings.from_stored({**run["settings"], "network": options.network})
    kind = objectives()[options.objective or (run["objective"]["name"] if run else CrossEntropy.name)]
    objective = kind(
        **({} if run is None else _stored_values(run["objective"], kind)) | _field_options(options, kind)
    )
    augmentation = replace(settings.augmentation, **_field_options(options, Augmentation))
    settings = replace(settings, augmentation=augmentation, **_field_options(options, Settings))
    hardware = Hardware(
        device=options.device, precision=options.precision, strategy=options.strategy, compile=options.compile
    )
    requested = options.theories.split(",") if options.theories else None if run is None else run["theories"]
    theories = () if requested in (["none"], []) else choose(requested)
    started = False

    def metrics() -> list[Metric]:
        return [
            metric for theory in theories if theory.in_networks for metric in theory.in_networks.metrics()
        ]

    def callback(update: "ProgressUpdate") -> None:
        nonlocal started
        started = True
        show(update)
        if draw is not None:
            draw(update)

    arguments: dict[str, Any] = {
        "objective": objective,
        "metrics": metrics,
        "theories": [theory.name for theory in theories],
        "sources": [source for theory in theories for source in theory.sources],
        "hardware": hardware,
        "weights": options.weights,
        "weights_set": options.weights_set,
        "resume": resume,
        "extend": options.extend,
        "overwrite": options.overwrite,
        "loggers": [kind for kind in KINDS if getattr(options, kind)],
    }
    try:
        if options.seeds is not None:
            return _train_seeds(images, settings, folder, options.seeds, options.workers, arguments)
        with (
            progress_table(objective.score) as show,
            live_page(folder) if _first_process() else contextlib.nullcontext() as draw,
        ):
            result = train(images, settings, folder, callback=callback, **arguments)
    except KeyboardInterrupt:
        stored = any((path / LAST).exists() for path in folders)
        hint = (
            f"{folder} contains the training up to its last interval; --resume continues it"
            if stored
            else "nothing was written"
        )
        if _first_process():
            raise KeyboardInterrupt(hint) from None  # while it is handled, no further signal is raised
        return INTERRUPTED
    if _first_process():
        if not started:
            print(f"{folder} contains a finished training:")
        test_rows = result.select(theory="network", split="test", layer=None)
        _print_measurements(test_rows)
        print(f"network: {folder / BEST}, of step {test_rows[0].step}")
        with progress_line() as progress:
            progress("writing the report")
            # from the stored files, as the command `report` does
            page = report.write(Result.load(folder), folder)
        print(f"report: {page}")
    return 0


def _check_combinations(options: argparse.Namespace) -> None:
    """Checks the options that depend on one another.

    Raises:
        ValueError: options contradict one another, or one requires another that is missing.
    """
    if options.overwrite and (options.resume or options.extend):
        flag = "--resume" if options.resume else "--extend"
        raise ValueError(f"{flag} continues a training and --overwrite removes it, got both; leave one out")
    if hasattr(options, "minutes") and hasattr(options, "epochs"):
        raise ValueError("--minutes replaces --epochs, got both; leave one out")
    if options.extend and not (hasattr(options, "minutes") or hasattr(options, "epochs")):
        raise ValueError("--extend needs the new length, got neither --epochs nor --minutes; add one")
    if options.seeds is not None and hasattr(options, "seed"):
        raise ValueError("--seeds trains on several seeds and --seed on one, got both; leave one out")
    if options.weights_set is not None and options.weights is None:
        raise ValueError("--weights-set names a part of the file --weights, got no --weights; add it")
    if options.workers is not None and options.seeds is None:
        raise ValueError(
            "--workers shares the seeds of --seeds, got no --seeds; add it, or leave out --workers"
        )
    if options.seeds is not None and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(
            "--seeds starts its own processes, got it under torchrun; leave out torchrun, or train one "
            "--seed at a time"
        )


def _train_seeds(
    images: Any,
    settings: Any,
    folder: Path,
    seeds: tuple[int, ...],
    workers: int | str | None,
    arguments: dict[str, Any],
) -> int:
    """Trains on several seeds, and prints the mean of each quantity and the seeds that failed. Returns the
    exit code.
    """
    from .. import report
    from ..core.parallel import progress_listener
    from ..core.result import Result
    from ..training.image.seeds import Outcome, seed_folder, train_seeds

    with progress_line() as progress, progress_listener(progress):
        progress(f"training on seeds {', '.join(map(str, seeds))}")

        def report_seed(outcome: Outcome) -> None:
            progress(f"seed {outcome.seed}: {outcome.failure or 'done'}")

        result = train_seeds(
            images, settings, folder, seeds, workers=workers, progress=report_seed, **arguments
        )
        for seed in sorted(
            {row.seed for row in result.table if row.seed is not None and row.value is not None}
        ):
            progress(f"writing the report of seed {seed}")
            report.write(Result.load(seed_folder(folder, seed)), seed_folder(folder, seed))
    failed = {row.seed: row.reason for row in result.table.select(quantity="training")}
    print(f"mean over {len(seeds) - len(failed)} seeds, interval of Student's t:")
    _print_measurements(result.table.where(lambda row: row.seed is None and row.layer is None))
    print(f"networks: {folder}/seed-*; summary: {folder}")
    for seed, reason in failed.items():
        print(f"seed {seed} failed: {reason}", file=sys.stderr)
    return 1 if failed else 0


def evaluate_network(options: argparse.Namespace) -> int:
    """Prints the test accuracy of a trained network and a table of its classes.

    Raises:
        ValueError: the file is not a trained network, or the images do not fit it.
        FileNotFoundError: the file does not exist.
    """
    from ..data.image_sets import images
    from ..models.stored import network_file
    from ..theories import objectives
    from ..training.image.evaluate import evaluate

    network_file(options.network)  # reading the images takes long, so report a wrong path first
    train, test = images(options.data, size=options.size)
    rows, classes = evaluate(options.network, train, test, objectives=objectives())
    _print_measurements(rows)
    if classes:
        console().print(_class_table(classes))
    else:
        print(
            "no table of classes: the network is not a classifier; a classifier fitted to its features has "
            "the accuracy above"
        )
    return 0


def _stored_values(stored: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Returns the stored settings of an objective; empty if the settings of another objective were stored."""
    return (
        {field.name: stored[field.name] for field in fields(kind) if field.name in stored}
        if stored.get("name") == kind.name
        else {}
    )


def _field_options(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Returns the values of the fields of a dataclass that the command line sets; omitted fields
    are absent.
    """
    values = {
        field.name: getattr(options, field.name, None) for field in fields(kind) if field.name != "network"
    }
    return {name: value for name, value in values.items() if value is not None}


def _first_process() -> bool:
    """Whether this is the process that writes and prints: the only one or, under torchrun, the one of
    rank 0.
    """
    return int(os.environ.get("RANK", 0)) == 0


def _print_measurements(rows: Iterable[Measurement]) -> None:
    """Prints one line per quantity and layer, with the confidence interval if the row has one."""
    for row in rows:
        layer = "" if row.layer is None else f", layer {row.layer}"
        name = f"{row.split} {row.quantity}{layer}" + (f" ({row.setting})" if row.setting else "")
        if row.value is None:
            print(f"{name}: none, {row.reason}")
            continue
        # ordinary spaces, for output that users may search
        shown = [row.value, *(row.interval or ())]
        value, *ends = (with_unit(number, row.unit, row.interval).replace("\u00a0", " ") for number in shown)
        if ends:
            seeds = row.interval_kind == "over seeds"
            of = f", {row.n} seeds" if seeds else f" of {row.n or 0:,} images"
            print(f"{name}: {value}{of}, 95 % interval {ends[0]} to {ends[1]}")
        else:
            print(f"{name}: {value}")


def _class_table(classes):
    """Formats the recall, the precision and the most frequent confusion of each class."""
    from rich.table import Table

    table = Table(box=None, header_style="dim")
    table.add_column("class")
    for title in ("images", "recall", "precision", "most often confused with"):
        table.add_column(title, justify="right")
    for line in classes:
        table.add_row(
            line.name,
            str(line.images),
            plain_percent(line.recall),
            plain_percent(line.precision),
            line.confused or "",
        )
    return table


@contextlib.contextmanager
def progress_table(score: str = "") -> Iterator[Callable[["ProgressUpdate"], None]]:
    """Shows the progress of training on stderr: a table with one row per interval and, on a terminal, a
    status line that is updated.

    Lines have at most 80 characters. A long training has fewer rows than intervals. If there are several
    processes, only the first prints.

    Args:
        score: quantity by which the best network is selected; it always has a column.
    Yields:
        A function that shows one update of the progress.
    """
    if not _first_process():
        yield lambda update: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    table = _ProgressTable(score)
    if not sys.stderr.isatty():
        yield lambda update: table.show(update, lambda text: print(text, file=sys.stderr, flush=True))
        return
    with Progress(
        BarColumn(10), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("starting", total=1.0)
        last = ""  # text of the last measured score, for the status line

        def show(update: "ProgressUpdate") -> None:
            nonlocal last
            table.show(update, lambda text: bar.console.print(text, highlight=False, markup=False))
            if update.measured is not None and score in (rows := _by_quantity(update.measured)):
                last = f"validation {score} {_value_text(rows[score])}  "
            loss = "" if update.loss is None else f"loss {update.loss:.4f}  "
            speed = "" if update.speed is None else f"{update.speed:,.0f} img/s  "
            left = "" if update.left is None else f"{clock(update.left)} left"
            bar.update(
                task, completed=update.done, description=f"step {update.step}  {loss}{last}{speed}{left}"
            )

        yield show


class _ProgressTable:
    """The progress table, written row by row. It has a column for each of the objective's quantities that
    fits into the width.
    """

    def __init__(self, score: str):
        self.score = score
        self.columns: list[str] | None = None  # None until the first row
        # number of rows written, and the part of the training to which the last row belongs
        self.count, self.part = 0, -1

    def show(self, update: "ProgressUpdate", write: Callable[[str], None]) -> None:
        """Writes a row for an update that has measurements; the first row follows the column titles. Skips
        rows of a long training.
        """
        if update.measured is None:
            return
        measurements = _by_quantity(update.measured)
        if self.columns is None:
            self.columns = self._select(list(measurements))
            titles = [
                _title(name)
                for name in [
                    "epoch",
                    "step",
                    "train loss",
                    *map(_validation, self.columns),
                    "img/s",
                    "time",
                    "left",
                ]
            ]
            self.widths = [_width(title) for title in titles]
            # A title is a list of lines. Empty lines above the shorter titles align all of them with the
            # bottom of the header.
            height = max(map(len, titles))
            for header in zip(*([""] * (height - len(title)) + title for title in titles)):
                write(self._line(list(header)))
        # After the first intervals, write one row for each of ROWS equal parts of the training.
        part = int(ROWS * update.done)
        if self.count >= FIRST and part == self.part:
            return
        self.count, self.part = self.count + 1, part
        cells = [
            f"{update.epoch:.2f}",
            str(update.step),
            "" if update.loss is None else f"{update.loss:.4f}",
            *(_value_text(measurements[name]) for name in self.columns),
            "" if update.speed is None else f"{update.speed:,.0f}",
            clock(update.seconds),
            "" if update.left is None else clock(update.left),
        ]
        write(self._line(cells))

    def _line(self, cells: list[str]) -> str:
        return " ".join(cell.rjust(width) for cell, width in zip(cells, self.widths)).rstrip()

    def _select(self, names: list[str]) -> list[str]:
        """Returns the quantities whose columns fit next to the fixed columns, in the original order; the
        score takes precedence.
        """
        # Columns are separated by one blank: five between the six fixed columns, one more for each further
        # column.
        space = (
            WIDTH
            - 5
            - sum(_width(_title(name)) for name in ("epoch", "step", "train loss", "img/s", "time", "left"))
        )
        selection = []
        # a stable sort: the score, then the others in order
        for name in sorted(names, key=lambda name: name != self.score):
            space -= 1 + _width(_title(_validation(name)))
            if space < 0:
                break
            selection.append(name)
        return [name for name in names if name in selection]


def _validation(name: str) -> str:
    return f"validation {name}"


def _title(name: str) -> list[str]:
    """Wraps a column title into lines."""
    return textwrap.wrap(name, WRAP, break_long_words=False)


def _width(title: list[str]) -> int:
    """Returns the width of a column, wide enough for its title and for a number of seven characters."""
    return max(7, *map(len, title))


def _by_quantity(table: Iterable[Measurement]) -> dict[str, Measurement]:
    """Returns the measurements of the whole network by quantity; rows with a setting are omitted."""
    return {row.quantity: row for row in table if row.layer is None and not row.at}


def _value_text(row: Measurement) -> str:
    return "none" if row.value is None else amount(row.value, row.unit).replace("\u00a0", " ")
