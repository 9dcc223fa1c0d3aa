r"""Stored trainings side by side: at equal steps, at equal time and at equal parameters, each stated as what it is.

Networks that were trained on the same images can be compared in three ways, and what is equal in one differs in the others:

* *equal steps*: the readings at the largest step at which all runs were read;
* *equal time*: the values after as many seconds of training as the shortest run took; between two readings on the straight line from one to
  the other, never beyond the last. Seconds are those of the steps: what readings took is left out. A row warns
  of a run whose speed varied by more than a factor of 1.5: something else may have been at work on the machine;
* *equal parameters*: the networks that were kept, if none has over 5 % more parameters than another.

Each row's note tells the rest: step, seconds, images seen, parameters, and how much of its training a run had done: before the end the
learning rate has not fallen yet. There is one run each, so what another seed would give is not known.
Source: none, this is bookkeeping.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..core.measurement import Row
from ..core.notes import is_share, percent
from .compared import Compared, interval
from .objectives import OBJECTIVES

WITHIN = 0.05  # of the fewest parameters: counts that are called equal
UNEVEN = 1.5  # times the least speed of a run: steps are alike, so more tells of something else on the machine
LOSS = "held-out loss"


@dataclass(frozen=True)
class Run:
    """One training of several.

    Attributes:
        name: of its network.
        params: of its result: settings, objective and data.
        table: of its result; the rows of theory "network" are read.
        provenance: of its result.
        parameters: that are trained.
    """

    name: str
    params: dict[str, Any]
    table: Sequence[Row]
    provenance: dict[str, Any]
    parameters: int

    @property
    def score(self) -> str:
        """The measure by which its best network was chosen."""
        return OBJECTIVES[self.params["objective"]["name"]].score

    @cached_property
    def images(self) -> tuple[int, int]:
        """Numbers of images that were trained on and held out."""
        n = int(self.params["images"].split()[0])
        trained = math.floor(n * (1 - self.params["settings"]["held_out"]) + 1e-9)
        return trained, n - trained

    @property
    def batch(self) -> int:
        """Images a step."""
        return min(self.params["settings"]["batch_size"], self.images[0])

    def curve(self, quantity: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and finite values of a measure, ``[readings]`` each, steps increasing."""
        read = {
            row["step"]: row["value"] for row in self.table if row["theory"] == "network" and row["quantity"] == quantity and "step" in row
        }
        read = {step: value for step, value in sorted(read.items()) if value is not None and math.isfinite(value)}
        return np.array(list(read), dtype=np.int64), np.array(list(read.values()), dtype=np.float64)

    @cached_property
    def kept(self) -> int | None:
        """Step of its best network, of equals the later, which was kept; None if nothing was measured."""
        steps, values = self.curve(self.score)
        return int(steps[values == values.max()][-1]) if len(steps) else None

    @cached_property
    def clock(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, from 0 on, and the seconds of training until each, ``[readings]``."""
        steps, speed = self.curve("images per second")
        steps = np.concatenate([[0], steps])
        return steps, np.concatenate([[0.0], np.cumsum(np.diff(steps) * self.batch / speed)])

    @cached_property
    def uneven(self) -> str:
        """A warning if its speed varied by more than :data:`UNEVEN`; else empty."""
        _, speed = self.curve("images per second")
        if not len(speed) or speed.max() <= UNEVEN * speed.min():
            return ""
        return f"its speed varied from {speed.min():,.0f} to {speed.max():,.0f} images a second, so its seconds may not be its own"

    def seconds(self, step: float) -> float:
        """Of training until a step; NaN where no clock was kept."""
        return float(np.interp(step, *self.clock, right=np.nan))

    def done(self, step: float) -> float:
        """Share of the training that was planned."""
        settings = self.params["settings"]
        if settings["minutes"] is None:
            return step / max(1, settings["epochs"] * (self.images[0] // self.batch))
        at, seconds = self.curve("seconds")
        return min(1.0, float(np.interp(step, at, seconds)) / (60 * settings["minutes"])) if len(at) else math.nan

    def told(self, step: float) -> str:
        """Where it stands at a step, in words."""
        seconds = self.seconds(step)
        time = "" if math.isnan(seconds) else f", {seconds:,.{0 if seconds >= 10 else 1}f} s"
        seen = f"{step * self.batch:,.0f} images seen, {self.parameters:,} parameters"
        return f"step {step:,.0f}{time}, {seen}, {percent(self.done(step), 0)} of its training"


def runs_of(networks: Sequence[Compared]) -> list[Run]:
    """The runs of the networks, each under the name of the network that has it."""
    return [Run(one.name, one.run.params, one.run.table, one.run.provenance, one.parameters) for one in networks if one.run is not None]


def side_by_side(runs: Sequence[Run]) -> list[Row]:
    """Rows "<measure> at equal steps", "... at equal time" and "... at equal parameters", one a run, ``model`` its name.

    What cannot be compared gives a row that says why: trained on other images, nothing measured in common, nothing at a common step.

    Args:
        runs: with names that differ; of fewer than two there is nothing to say.
    """
    if len(runs) < 2:
        return []
    if len({run.params["images"] for run in runs}) > 1:
        told = ", ".join(f"{run.name} on {run.params['data']} ({run.params['images']})" for run in runs)
        return [_refused("held-out measures side by side", f"the runs were trained on different images: {told}")]
    if len({run.score for run in runs}) > 1:
        told = ", ".join(f"{run.name} by its {run.score}" for run in runs)
        return [_refused("held-out measures side by side", f"the objectives measure different things: {told}")]
    measures = [runs[0].score, LOSS]
    return [
        row | {"note": f"{row['note']}{_differing(runs)}"} if "note" in row else row  # pyright: ignore[reportReturnType]
        for measure in measures
        for compare in (_equal_steps, _equal_time, _equal_parameters)
        for row in compare(runs, measure)
    ]


def _equal_steps(runs: Sequence[Run], measure: str) -> Iterator[Row]:
    quantity = f"{measure} at equal steps"
    curves = [run.curve(measure) for run in runs]
    common = set.intersection(*(set(steps.tolist()) for steps, _ in curves)) - {0}
    if not common:
        yield _refused(quantity, f"no step after the first at which all were read: {_list(runs, [_ends(steps) for steps, _ in curves])}")
        return
    step = max(common)
    for run, (steps, values) in zip(runs, curves):
        yield _row(run, quantity, float(values[steps == step][0]), step)


def _equal_time(runs: Sequence[Run], measure: str) -> Iterator[Row]:
    quantity = f"{measure} at equal time"
    curves = []
    for run in runs:
        steps, values = run.curve(measure)
        timed = np.isin(steps, run.clock[0])
        curves.append((steps[timed], values[timed], np.interp(steps[timed], *run.clock)))
    shortest = min((float(seconds[-1]) if len(seconds) else 0.0) for _, _, seconds in curves)
    if shortest <= 0 or any(seconds[0] > shortest for _, _, seconds in curves):
        yield _refused(quantity, "no second of training at which all were read")
        return
    for run, (steps, values, seconds) in zip(runs, curves):
        step = float(np.interp(shortest, seconds, steps))
        yield _row(run, quantity, float(np.interp(shortest, seconds, values)), step, run.uneven, between=step not in steps)


def _equal_parameters(runs: Sequence[Run], measure: str) -> Iterator[Row]:
    quantity = f"{measure} at equal parameters"
    counts = [run.parameters for run in runs]
    if max(counts) > (1 + WITHIN) * min(counts):
        yield _refused(quantity, f"the counts differ by more than {percent(WITHIN, 0)}: {_list(runs, [f'{count:,}' for count in counts])}")
        return
    curves = [run.curve(measure) for run in runs]
    if missing := [run.name for run, (steps, _) in zip(runs, curves) if run.kept not in steps]:
        yield _refused(quantity, f"{missing[0]} was not read where its network was kept")
        return
    for run, (steps, values) in zip(runs, curves):
        yield _row(run, quantity, float(values[steps == run.kept][0]), run.kept or 0, "chosen on these images")


def _row(run: Run, quantity: str, value: float, step: float, *also: str, between: bool = False) -> Row:
    notes = [run.told(step), f"{run.images[1]:,} held-out images"]
    if between:
        notes.append("between two readings")
    elif is_share(quantity):
        notes.append(interval(value, run.images[1]))
    return Row(theory="network", quantity=quantity, value=value, model=run.name, note=", ".join(filter(None, [*notes, *also])))


def _refused(quantity: str, reason: str) -> Row:
    return Row(theory="network", quantity=quantity, value=None, verdict=f"not applicable: {reason}")


def _differing(runs: Sequence[Run]) -> str:
    """What else is not equal between the runs, for the end of a note; empty if nothing is."""
    told = {
        "seeds": [run.params["settings"]["seed"] for run in runs],
        "shares held out": [run.params["settings"]["held_out"] for run in runs],
        "precisions": [run.params["precision"] for run in runs],
        "machines": [_machine(run.provenance) for run in runs],
    }
    differ = [f"{name}: {_list(runs, values)}" for name, values in told.items() if len(set(values)) > 1]
    split = ["so the held-out images differ"] if {"seeds", "shares held out"} & {text.partition(":")[0] for text in differ} else []
    return "".join(f"; {text}" for text in [*differ, *split])


def _machine(provenance: dict[str, Any]) -> str:
    words = {"device": "{}", "machine": "{}", "threads": "threads {}", "processes": "processes {}"}
    return " / ".join(text.format(provenance[name]) for name, text in words.items() if name in provenance)


def _list(runs: Sequence[Run], values: Sequence[Any]) -> str:
    return ", ".join(f"{run.name} {value}" for run, value in zip(runs, values))


def _ends(steps: np.ndarray) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if len(steps) else "none"
