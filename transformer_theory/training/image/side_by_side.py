r"""Comparison of stored trainings at equal steps, equal time and equal numbers of parameters.

Networks that were trained on the same images can be compared in three ways; none of them makes everything
equal:

* *equal steps*: the measurements at the largest step at which all runs were measured;
* *equal time*: the values after the training time of the shortest run, linearly interpolated between two
  measurements and never extrapolated. Time is that of the steps, without measurements. A note warns if the
  speed of a run varied by more than a factor of 1.5, since other programs on the machine may have slowed it;
* *equal parameters*: the stored networks, if the largest number of parameters exceeds the smallest by at most
  5 %.

The note of each row states step, seconds, images seen, parameters, and the completed share of the training;
the learning rate reaches zero only at the end. Each network has one run, so the variation over seeds is
unknown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...core.measurement import Measurement
from ...core.statistics import with_interval
from ...core.table import Table
from ..objectives import LOSS
from .evaluate import StoredNetwork
from .progress_update import SECONDS, SPEED

EQUAL_PARAMETERS_RTOL = 0.05  # relative to the smallest number of parameters
# largest normal ratio between speeds of a run; all steps cost the same, so a larger ratio has an outside
# cause
UNEVEN_SPEED = 1.5
EQUAL_STEPS, EQUAL_TIME, EQUAL_PARAMETERS = "equal steps", "equal time", "equal parameters"
COMPARISON = "comparison of runs"  # quantity of a row that states why runs cannot be compared


@dataclass(frozen=True)
class Run:
    """One of several trainings.

    Attributes:
        name: name of the network.
        settings: settings of the run's result.
        table: table of the run's result; only rows of theory "network" are used.
        provenance: provenance of the run's result.
        parameters: number of trainable parameters.
    """

    name: str
    settings: dict[str, Any]
    table: Table
    provenance: dict[str, Any]
    parameters: int

    @property
    def score(self) -> str:
        """Quantity that selects the best network."""
        return self.settings["score"]

    @property
    def batch(self) -> int:
        """Images per step."""
        return min(self.settings["settings"]["batch_size"], self.settings["train_samples"])

    def curve(self, quantity: str, split: str = "validation") -> tuple[np.ndarray, np.ndarray]:
        """Returns the increasing steps and the finite values of a quantity, ``[checkpoints]`` each."""
        rows = self.table.select(theory="network", quantity=quantity, split=split, layer=None)
        rows = rows.where(lambda row: not row.at)
        values = {row.step: row.value for row in rows if row.step is not None and row.value is not None}
        values = dict(sorted(values.items()))
        return np.array(list(values), dtype=np.int64), np.array(list(values.values()), dtype=np.float64)

    @cached_property
    def best_step(self) -> int | None:
        """Step of the best network, which is stored; of several with equal scores the last. None without
        measurements.
        """
        steps, values = self.curve(self.score)
        return int(steps[values == values.max()][-1]) if len(steps) else None

    @cached_property
    def clock(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from 0 on, and the training time until each in seconds, ``[1 + checkpoints]``."""
        steps, speed = self.curve(SPEED, "")
        steps = np.concatenate([[0], steps])
        return steps, np.concatenate([[0.0], np.cumsum(np.diff(steps) * self.batch / speed)])

    @cached_property
    def warning(self) -> str:
        """Warning if the speed varied by more than a factor of :data:`UNEVEN_SPEED`; otherwise empty."""
        _, speed = self.curve(SPEED, "")
        if not len(speed) or speed.max() <= UNEVEN_SPEED * speed.min():
            return ""
        return (
            f"speed varied from {speed.min():,.0f} to {speed.max():,.0f} images per second, so other work "
            "may have slowed the run"
        )

    def seconds(self, step: float) -> float:
        """Returns the training time until a step, in seconds; NaN beyond the last measured step."""
        return float(np.interp(step, *self.clock, right=np.nan))

    def done(self, step: float) -> float:
        """Returns the completed share of the planned training at a step."""
        settings = self.settings["settings"]
        if settings["minutes"] is None:
            return step / max(1, settings["epochs"] * (self.settings["train_samples"] // self.batch))
        steps, seconds = self.curve(SECONDS, "")
        return (
            min(1.0, float(np.interp(step, steps, seconds)) / (60 * settings["minutes"]))
            if len(steps)
            else math.nan
        )

    def state(self, step: float) -> str:
        """Describes the training at a step, for a note."""
        seconds = self.seconds(step)
        time = "" if math.isnan(seconds) else f", {seconds:,.{0 if seconds >= 10 else 1}f} s"
        images = f"{step * self.batch:,.0f} images seen, {self.parameters:,} parameters"
        return f"step {step:,.0f}{time}, {images}, {100 * self.done(step):.0f} % of its training"


def runs_of(networks: Sequence[StoredNetwork]) -> list[Run]:
    """Returns the runs of the networks, each under the name of its network; networks without a run are left
    out.
    """
    return [
        Run(network.name, run.settings, run.table, run.provenance, network.parameters)
        for network in networks
        if (run := network.run) is not None
    ]


def side_by_side(runs: Sequence[Run]) -> list[Measurement]:
    """Returns rows of score and loss per run, with the setting "equal steps", "equal time" or "equal
    parameters".

    If runs cannot be compared, a row without a value states the reason: different images, no common quantity,
    no common step.

    Args:
        runs: runs with different names; the column ``model`` holds them. Fewer than two runs give no rows.
    """
    if len(runs) < 2:
        return []
    if len({run.settings["images"] for run in runs}) > 1:
        text = ", ".join(f"{run.name} on {run.settings['data']} ({run.settings['images']})" for run in runs)
        return [_no_comparison(COMPARISON, "", f"the runs were trained on different images: {text}")]
    if len({run.score for run in runs}) > 1:
        text = ", ".join(f"{run.name} by its {run.score}" for run in runs)
        return [_no_comparison(COMPARISON, "", f"the objectives measure different quantities: {text}")]
    differences = _differences(runs)
    return [
        replace(row, note=f"{row.note}{differences}") if row.note else row
        for quantity in (runs[0].score, LOSS)
        for compare in (_equal_steps, _equal_time, _equal_parameters)
        for row in compare(runs, quantity)
    ]


def _equal_steps(runs: Sequence[Run], quantity: str) -> Iterator[Measurement]:
    """Yields the values at the largest common step."""
    curves = [run.curve(quantity) for run in runs]
    common = set.intersection(*(set(steps.tolist()) for steps, _ in curves)) - {0}
    if not common:
        ends = _list(
            runs, [f"steps {steps[0]} to {steps[-1]}" if len(steps) else "none" for steps, _ in curves]
        )
        yield _no_comparison(quantity, EQUAL_STEPS, f"no common step after the first: {ends}")
        return
    step = max(common)
    for run, (steps, values) in zip(runs, curves):
        yield _row(run, quantity, EQUAL_STEPS, float(values[steps == step][0]), step)


def _equal_time(runs: Sequence[Run], quantity: str) -> Iterator[Measurement]:
    """Yields the values at the training time of the shortest run."""
    curves = []
    for run in runs:
        steps, values = run.curve(quantity)
        has_time = np.isin(steps, run.clock[0])
        curves.append((steps[has_time], values[has_time], np.interp(steps[has_time], *run.clock)))
    shortest = min((float(seconds[-1]) if len(seconds) else 0.0) for _, _, seconds in curves)
    if shortest <= 0 or any(seconds[0] > shortest for _, _, seconds in curves):
        yield _no_comparison(quantity, EQUAL_TIME, "no time of training at which all runs were measured")
        return
    for run, (steps, values, seconds) in zip(runs, curves):
        step = float(np.interp(shortest, seconds, steps))
        value = float(np.interp(shortest, seconds, values))
        yield _row(run, quantity, EQUAL_TIME, value, step, run.warning, interpolated=step not in steps)


def _equal_parameters(runs: Sequence[Run], quantity: str) -> Iterator[Measurement]:
    """Yields the values of the stored networks."""
    counts = [run.parameters for run in runs]
    if max(counts) > (1 + EQUAL_PARAMETERS_RTOL) * min(counts):
        numbers = _list(runs, [f"{count:,}" for count in counts])
        reason = (
            f"the numbers of parameters differ by more than {100 * EQUAL_PARAMETERS_RTOL:.0f} %: {numbers}"
        )
        yield _no_comparison(quantity, EQUAL_PARAMETERS, reason)
        return
    curves = [run.curve(quantity) for run in runs]
    if missing := [run.name for run, (steps, _) in zip(runs, curves) if run.best_step not in steps]:
        yield _no_comparison(
            quantity, EQUAL_PARAMETERS, f"{missing[0]} was not measured at the step of its stored network"
        )
        return
    for run, (steps, values) in zip(runs, curves):
        value = float(values[steps == run.best_step][0])
        yield _row(run, quantity, EQUAL_PARAMETERS, value, run.best_step or 0, "chosen on these images")


def _row(
    run: Run,
    quantity: str,
    setting: str,
    value: float,
    step: float,
    note: str = "",
    *,
    interpolated: bool = False,
) -> Measurement:
    unit = run.table.select(theory="network", quantity=quantity, split="validation")[0].unit
    row = Measurement(
        theory="network",
        kind="network",
        quantity=quantity,
        value=value,
        unit=unit,
        at={"compared at": setting},
        split="validation",
        n=run.settings["validation_samples"],
        model=run.name,
        note=", ".join(
            filter(None, [run.state(step), "between two measurements" if interpolated else "", note])
        ),
    )
    return row if interpolated else with_interval(row)


def _no_comparison(quantity: str, setting: str, reason: str) -> Measurement:
    return Measurement(
        "network", "network", quantity, None, at={"compared at": setting}, split="validation", reason=reason
    )


def _differences(runs: Sequence[Run]) -> str:
    """Describes further differences between the runs, for the end of a note; empty if there are none."""
    split = {
        "seeds": [run.settings["settings"]["seed"] for run in runs],
        "validation shares": [run.settings["settings"]["validation_share"] for run in runs],
    }
    others = {
        "precisions": [run.settings["precision"] for run in runs],
        "machines": [_machine(run.provenance) for run in runs],
    }
    texts = [
        f"{name}: {_list(runs, values)}"
        for name, values in {**split, **others}.items()
        if len(set(values)) > 1
    ]
    if any(len(set(values)) > 1 for values in split.values()):
        texts.append("so the validation images differ")
    return "".join(f"; {text}" for text in texts)


def _machine(provenance: dict[str, Any]) -> str:
    """Describes device, machine, threads and processes of a run."""
    formats = {"device": "{}", "machine": "{}", "threads": "threads {}", "processes": "processes {}"}
    return " / ".join(text.format(provenance[name]) for name, text in formats.items() if name in provenance)


def _list(runs: Sequence[Run], values: Sequence[Any]) -> str:
    """Lists the runs' names with their values."""
    return ", ".join(f"{run.name} {value}" for run, value in zip(runs, values))
