"""Logs of a training for TensorBoard and spreadsheets, through the loggers of Lightning Fabric.

Each interval is one record: the mean of each quantity over layers and heads, the median of the null of this
mean, losses, learning rate and speed. The table of measurements remains the only source. A record is written
before the checkpoint of its interval, so a log never lacks one. When a training is resumed, the CSV file is
written anew from the table, and TensorBoard drops what lies after the checkpoint (``purge_step``). So a log
holds each step once.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.measurement import Measurement
from ...core.statistics import over_heads
from .folder import CSV, TENSORBOARD

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

KINDS = ("csv", "tensorboard")
STEP_LOSS = "training/loss of each step"


def check(kinds: Sequence[str]) -> None:
    """Checks the names of loggers.

    Raises:
        ValueError: a name is unknown, or tensorboard is not installed.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"loggers must be among {', '.join(KINDS)}, got {kind!r}")
    if "tensorboard" in kinds:
        try:
            import tensorboard  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "a log for TensorBoard needs its package, got none; pip install tensorboard, or omit it"
            ) from error


def present(folder: Path) -> list[str]:
    """Returns the loggers whose files a folder holds; a resumed training continues them."""
    places = {"csv": folder / CSV, "tensorboard": folder / TENSORBOARD}
    return [kind for kind, place in places.items() if place.exists()]


def record(rows: Sequence[Measurement]) -> dict[str, float]:
    """Returns the numbers of one interval by name, ``"theory/quantity"`` or ``"split/quantity"``."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.value is not None and not row.at:
            group = row.split if row.theory == "network" and row.layer is None else row.theory
            groups.setdefault(f"{group or 'training'}/{row.quantity}", []).append(row)
    values: dict[str, float] = {}
    for name, mean in ((name, over_heads(group)) for name, group in groups.items()):
        assert mean.value is not None
        values[name] = mean.value
        if mean.null is not None and mean.null.draws:
            values[f"{name}, null"] = mean.null.median
    return values


class Logs:
    """The logs of one training; without loggers all methods do nothing.

    Args:
        folder: folder of the training.
        kinds: names out of :data:`KINDS`.
    """

    def __init__(self, folder: Path, kinds: Sequence[str]):
        self.folder, self.kinds = folder, tuple(dict.fromkeys(kinds))
        self._loggers: dict[str, Logger] = {}

    def begin(self, rows: Sequence[Measurement], step: int | None) -> None:
        """Opens the logs.

        Args:
            rows: rows of the table up to the checkpoint.
            step: step of the checkpoint; None for a new training.
        Raises:
            OSError: the logs cannot be written.
        """
        with self._writing():
            for kind in self.kinds:
                old = (self.folder / (CSV if kind == "csv" else TENSORBOARD)).exists()
                self._loggers[kind] = self._opened(kind, step)
                # the file is written anew, or the log was asked for after the training had begun
                if kind == "csv" or not old:
                    self._write({kind: self._loggers[kind]}, rows)

    def _opened(self, kind: str, step: int | None) -> "Logger":
        if kind == "csv":
            from lightning_fabric.loggers.csv_logs import CSVLogger

            (self.folder / CSV).unlink(missing_ok=True)
            with warnings.catch_warnings():
                # the folder holds the training itself
                warnings.filterwarnings("ignore", message="Experiment logs directory")
                logger = CSVLogger(self.folder, name="", version="")
                assert logger.experiment is not None  # the property creates the file's writer, which warns
            return logger
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        purge: dict[str, Any] = {} if step is None else {"purge_step": step + 1}
        logger = TensorBoardLogger(
            self.folder, name=TENSORBOARD, version="", default_hp_metric=False, **purge
        )
        assert logger.experiment is not None  # creates the file
        return logger

    def step(self, step: int, loss: float) -> None:
        """Adds the loss of a single step to TensorBoard's log."""
        if "tensorboard" in self._loggers:
            with self._writing():
                self._loggers["tensorboard"].log_metrics({STEP_LOSS: loss}, step)

    def interval(self, rows: Sequence[Measurement]) -> None:
        """Adds the rows of one interval, or of several, and writes them to the disk.

        Raises:
            OSError: the logs cannot be written.
        """
        with self._writing():
            self._write(self._loggers, rows)

    def _write(self, loggers: "Mapping[str, Logger]", rows: Sequence[Measurement]) -> None:
        by_step: dict[int, list[Measurement]] = {}
        for row in rows:
            if row.step is not None and row.split != "test":
                by_step.setdefault(row.step, []).append(row)
        for logger in loggers.values() if by_step else ():
            for step, group in by_step.items():
                logger.log_metrics(record(group), step)
            logger.save()

    def end(self, rows: Sequence[Measurement], settings: Mapping[str, Any]) -> None:
        """Adds settings and test results to TensorBoard's table of hyperparameters, and closes the logs."""
        with self._writing():
            if "tensorboard" in self._loggers:
                self._loggers["tensorboard"].log_hyperparams(
                    dict(settings), record(rows), rows[0].step if rows else 0
                )  # pyright: ignore[reportCallIssue]
            self.close()

    def close(self) -> None:
        """Closes the files."""
        loggers, self._loggers = self._loggers, {}
        for logger in loggers.values():
            logger.finalize("")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            # Fabric turns an error of the disk into one of the value
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            text = f"cannot write the log of {self.folder} ({cause.strerror or cause})"
            raise OSError(
                f"{text}; free its disk, or choose another --out; --resume continues from the last checkpoint"
            ) from error
