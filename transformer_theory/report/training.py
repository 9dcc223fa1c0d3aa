"""Tables of quantities that were measured during training, and the summary of a stored training run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import with_interval
from ..core.theory import Theory
from . import format, table_model
from .table_model import Block, Column, Line, Note, Plain, Strong
from .timeline import Curves


@dataclass(frozen=True)
class TrainingSummary:
    """The summary of a stored training run. The kept network is the one with the best score.

    Attributes:
        score: label of the quantity by which the kept network was chosen; None if it was not measured.
        kept: step of the kept network.
        kept_score: its score, with the number of samples and an interval.
        tests: measurements of the kept network on the test data, shares first; empty if the training has not finished.
        steps: number of training steps.
        checks: number of times that the network was measured.
        seconds: time from the start to the last measurement.
        speed: samples per second between measurements: median, smallest and largest.
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
        """Whether the kept network is the untrained one, because no later measurement was as good as the first."""
        return self.kept == 0 and self.checks > 1


def training_summary(result: Result) -> TrainingSummary:
    """The summary of a result of ``train``. The score is the setting "score", by default the first share on validation data."""
    rows = [row for row in result.table if row.kind == "network" and row.layer is None and not row.setting]
    validation = [row for row in rows if row.split == "validation" and row.value is not None and row.step is not None]
    names = dict.fromkeys(row.quantity for row in sorted(validation, key=lambda row: row.unit != "share"))
    score = result.settings.get("score")
    score = score if score in names else next(iter(names), None)
    # Of several networks with the best score, training keeps the last.
    kept = max((row for row in validation if row.quantity == score), key=lambda row: (row.value, row.step), default=None)
    tests = sorted((row for row in rows if row.split == "test" and row.value is not None), key=lambda row: row.unit != "share")
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


def first_and_last(own: Sequence[Curves], name: str, caption: str) -> table_model.Table | None:
    """For each quantity and network: the mean over layers and heads at the first and last step, and the last null; None if empty."""
    own = [one for one in own if not one.empty]
    models = list(dict.fromkeys(one.model for one in own))
    columns = [Column("quantity", 40), Column("network", 15, "on"), *(Column(head, 11, "n") for head in ("first", "last", "null"))]
    columns += [Column("source", 12, "cite")]
    lines, before = [], None
    for one in sorted(own, key=lambda one: [other.label for other in own].index(one.label)):
        first, last = int(one.steps[0]), int(one.steps[-1])
        remark = (Note(one.note),) if one.note and (before is None or before.note != one.note) else ()
        numbers = [format.with_unit(one.at(step, what), one.unit) for step, what in ((first, "values"), (last, "values"), (last, "nulls"))]
        repeated = before is not None and before.label == one.label
        lines.append(
            Line(("" if repeated else (one.label, *remark), Plain(one.model if len(models) > 1 else ""), *numbers, one.source or ""))
        )
        before = one
    return table_model.Table(name, caption, tuple(columns), (Block("", tuple(lines)),)).without_empty() if lines else None


def headlines_in_training(theories: Sequence[Theory], own: Sequence[Curves], kept: int | None) -> table_model.Table | None:
    """For each theory: its headline at the first step, in the kept network and at the last step, and its null; None if there is none."""
    blocks = []
    for theory in theories:
        inside = theory.in_networks
        for one in own if inside is not None else ():
            if inside is None or (one.theory, one.quantity) != (theory.name, inside.headline) or one.empty:
                continue
            values, nulls = one.values[-1], one.nulls[-1]
            # Count the layers whose last value lies on the side of its null that the theory expects.
            both = np.isfinite(values) & np.isfinite(nulls)
            expected = (values > nulls if inside.side == ">=" else values < nulls)[both]
            side = "above" if inside.side == ">=" else "below"
            half_step = one.mean().crossing
            line = Line(
                (
                    (one.label, Note(one.note)) if one.note else one.label,
                    format.amount(one.at(int(one.steps[0])), one.unit),
                    format.amount(one.at(kept), one.unit),
                    Strong(format.amount(one.at(int(one.steps[-1])), one.unit)),
                    format.amount(one.at(int(one.steps[-1]), "nulls"), one.unit),
                    f"{side} it in {int(expected.sum())} of {int(both.sum())} layers" if both.any() else "no null",
                    format.NOTHING if half_step is None else f"step {half_step:,}",
                )
            )
            blocks.append(Block((theory.title, " ", Note(theory.question)), (line,), strong=True, theory=theory.name))
    heads = (
        ("quantity", 34),
        ("first", 10),
        ("kept", 10),
        ("last", 10),
        ("null", 10),
        ("last value beside its null", 14),
        ("half of the change", 12),
    )
    columns = tuple(Column(head, share, "n" if 1 <= at <= 4 else "") for at, (head, share) in enumerate(heads))
    caption = "Each theory's headline in this training"
    return table_model.Table("in-training", caption, columns, tuple(blocks)) if blocks else None


def by_layer(own: Sequence[Curves], steps: Sequence[int]) -> table_model.Table | None:
    """Each quantity of layers, from the first layer to the last, with its null at the given steps; None if there is none."""
    columns = [Column("quantity", 30), Column("layer", 8, "n")]
    columns += [Column(f"{head}, step {step:,}", 10, "n") for step in steps for head in ("value", "null")]
    lines = []
    for one in own:
        rows = {int(step): at for at, step in enumerate(one.steps)}
        for position, layer in enumerate(one.layers):
            numbers: list[table_model.Cell] = []
            for step in steps:
                at = rows.get(step)
                value, spread, null = (
                    (np.nan,) * 3 if at is None else (one.values[at, position], one.spread[at, position], one.nulls[at, position])
                )
                text = format.amount(float(value), one.unit)
                numbers += [(text, Note(f"± {format.amount(float(spread), one.unit)}")) if np.isfinite(spread) else text]
                numbers += [format.amount(float(null), one.unit)]
            lines.append(Line((one.label if not position else "", str(layer), *numbers)))
    caption = "Value (± standard deviation over heads) and null"
    return table_model.Table("by-layer", caption, tuple(columns), (Block("", tuple(lines)),)) if lines else None
