"""The summary of a stored training run, and tables of the quantities that were measured during training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..core import format
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import with_interval
from ..core.theory import Theory
from . import table_model
from .curves import Curves
from .table_model import Block, Column, Line, Note, Plain, Strong


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
    from ..training.recipes import IMAGE_RECIPES, image_recipe

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
                    value.get("name"),
                    *(f"{name} {text}" for name, text in format.flatten(value) if name != "name"),
                ),
            )
        )
    return "" if value is None else str(value)


def first_and_last(curves: Sequence[Curves], name: str, caption: str) -> table_model.Table | None:
    """Returns a table of means over layers and heads: first value, last value and last null of each quantity
    and network; None if empty.
    """
    curves = [curve for curve in curves if not curve.empty]
    models = list(dict.fromkeys(curve.model for curve in curves))
    columns = [
        Column("quantity", 40),
        Column("network", 15, "on"),
        *(Column(heading, 11, "n") for heading in ("first", "last", "null")),
    ]
    columns += [Column("source", 12, "cite")]
    lines, previous = [], None
    # Lines of one quantity follow one another, in the order in which the quantities first appear.
    for curve in sorted(curves, key=lambda curve: [other.label for other in curves].index(curve.label)):
        first, last = int(curve.steps[0]), int(curve.steps[-1])
        remark = (
            (Note(curve.note),) if curve.note and (previous is None or previous.note != curve.note) else ()
        )
        numbers = [
            format.with_unit(curve.at(step, what), curve.unit)
            for step, what in ((first, "values"), (last, "values"), (last, "nulls"))
        ]
        repeated = previous is not None and previous.label == curve.label
        lines.append(
            Line(
                (
                    "" if repeated else (curve.label, *remark),
                    Plain(curve.model if len(models) > 1 else ""),
                    *numbers,
                    curve.source or "",
                )
            )
        )
        previous = curve
    return (
        table_model.Table(name, caption, tuple(columns), (Block("", tuple(lines)),)).without_empty()
        if lines
        else None
    )


def headlines_in_training(
    theories: Sequence[Theory], curves: Sequence[Curves], kept: int | None
) -> table_model.Table | None:
    """Returns a table of the theories' headlines at the first step, in the kept network and at the last step,
    with their nulls.

    None if no headline was measured.
    """
    blocks = []
    for theory in theories:
        in_networks = theory.in_networks
        for curve in curves if in_networks is not None else ():
            if (
                in_networks is None
                or (curve.theory, curve.quantity) != (theory.name, in_networks.headline)
                or curve.empty
            ):
                continue
            values, nulls = curve.values[-1], curve.nulls[-1]
            # Count the layers whose last value lies on the side of its null that the theory expects; above it
            # if it expects neither.
            comparable = np.isfinite(values) & np.isfinite(nulls)
            side, expected = (
                ("below", values < nulls) if in_networks.side == "<=" else ("above", values > nulls)
            )
            half_step = curve.mean().crossing
            line = Line(
                (
                    (curve.label, Note(curve.note)) if curve.note else curve.label,
                    format.amount(curve.at(int(curve.steps[0])), curve.unit),
                    format.amount(curve.at(kept), curve.unit),
                    Strong(format.amount(curve.at(int(curve.steps[-1])), curve.unit)),
                    format.amount(curve.at(int(curve.steps[-1]), "nulls"), curve.unit),
                    f"{side} it in {int(expected[comparable].sum())} of {int(comparable.sum())} layers"
                    if comparable.any()
                    else "no null",
                    format.NOTHING if half_step is None else f"step {half_step:,}",
                )
            )
            blocks.append(
                Block((theory.title, " ", Note(theory.question)), (line,), strong=True, theory=theory.name)
            )
    headings = (
        ("quantity", 34),
        ("first", 10),
        ("kept", 10),
        ("last", 10),
        ("null", 10),
        ("last value against its null", 14),
        ("half of the change", 12),
    )
    columns = tuple(
        Column(heading, share, "n" if 1 <= i <= 4 else "") for i, (heading, share) in enumerate(headings)
    )
    caption = "Each theory's headline in this training"
    return table_model.Table("in-training", caption, columns, tuple(blocks)) if blocks else None


def by_layer(curves: Sequence[Curves], steps: Sequence[int]) -> table_model.Table | None:
    """Returns a table with the value and the null of each quantity in each layer at the given steps; None if
    it would be empty.
    """
    columns = [Column("quantity", 30), Column("layer", 8, "n")]
    columns += [
        Column(f"{heading}, step {step:,}", 10, "n") for step in steps for heading in ("value", "null")
    ]
    lines = []
    for curve in curves:
        rows = {int(step): row for row, step in enumerate(curve.steps)}
        for position, layer in enumerate(curve.layers):
            numbers: list[table_model.Cell] = []
            for step in steps:
                row = rows.get(step)  # None if the quantity was not measured at this step
                value, spread, null = (
                    (np.nan,) * 3
                    if row is None
                    else (
                        curve.values[row, position],
                        curve.spread[row, position],
                        curve.nulls[row, position],
                    )
                )
                text = format.amount(float(value), curve.unit)
                numbers += [
                    (text, Note(f"± {format.amount(float(spread), curve.unit)}"))
                    if np.isfinite(spread)
                    else text
                ]
                numbers += [format.amount(float(null), curve.unit)]
            lines.append(Line((curve.label if not position else "", str(layer), *numbers)))
    caption = "Value (± standard deviation over heads) and null"
    return (
        table_model.Table("by-layer", caption, tuple(columns), (Block("", tuple(lines)),)) if lines else None
    )
