"""The state of a training that callbacks get: for terminals, pages and loggers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core.format import clock, number, plain_percent
from ...core.measurement import Measurement
from ...core.result import Result
from ...core.table import Table
from ..objectives import LOSS

SPEED, SECONDS, LEARNING_RATE = "images per second", "seconds", "learning rate"  # quantities


@dataclass(frozen=True)
class ProgressUpdate:
    """The state of a training, for callbacks.

    Attributes:
        step: number of steps so far.
        epoch: number of epochs so far, with a fraction.
        done: completed share of the training, in [0, 1].
        seconds: training time so far, without interruptions.
        speed: images per second since the previous interval, without measurements; None before the first
            step.
        loss: loss of the last step; at an interval the mean loss since the previous interval; None before the
            first step.
        measured: rows of the objective on the validation images, at an interval; otherwise None.
        so_far: function that returns the result so far, with all rows and sample images, at an interval and
            when a training is resumed; otherwise None.
    """

    step: int
    epoch: float
    done: float
    seconds: float
    speed: float | None
    loss: float | None
    measured: Table | None = None
    so_far: Callable[[], Result] | None = None

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end, at the speed so far; None at the beginning."""
        return self.seconds * (1 - self.done) / self.done if self.done else None

    def __str__(self) -> str:
        """Returns the update in words: ``"step 350, epoch 1.00, validation accuracy 41.20 %, 2,100 images/s,
        3:20 left"``.
        """
        texts = [f"step {self.step:,}", f"epoch {self.epoch:.2f}"]
        for row in self.measured or ():
            if row.layer is None and not row.at and row.value is not None:
                share = row.unit == "share"
                value = plain_percent(row.value) if share else number(row.value, 4)
                texts.append(f"{row.split} {row.quantity} {value}")
        texts += [] if self.speed is None else [f"{self.speed:,.0f} images/s"]
        texts += [] if self.left is None else [f"{clock(self.left)} left"]
        return ", ".join(texts)


def general_rows(update: ProgressUpdate, rate: float, *, model: str) -> list[Measurement]:
    """Returns the rows of an interval that do not depend on the objective: time, training loss, learning rate
    and speed.

    Args:
        update: the interval, with the rows of the objective.
        rate: learning rate of the last step.
        model: name of the network.
    """
    row = Measurement("network", "network", SECONDS, update.seconds, unit="s", model=model, step=update.step)
    if update.loss is None or update.speed is None:
        return [row]
    unit = next((one.unit for one in update.measured or () if one.quantity == LOSS), "")
    return [
        replace(row, quantity=LOSS, value=update.loss, unit=unit, split="train"),
        replace(row, quantity=LEARNING_RATE, value=rate, unit=""),
        replace(row, quantity=SPEED, value=update.speed, unit=""),
        row,
    ]
