"""Tables of measurements as they are, with their verdicts: a summary, the tables of each theory, the trained
networks, a training, and the provenance of the numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..comparison.pooling import NETWORK, Aggregate, Checked, Entry, result_label
from ..core import format
from ..core.claims import CONTROL_TEXT
from ..core.measurement import Measurement
from ..core.table import grouped
from ..core.theory import Theory
from .curves import Curves
from .tables import (
    Block,
    Cell,
    Code,
    Column,
    Line,
    Note,
    Piece,
    Plain,
    Strong,
    StrongNote,
    Table,
    Verdict,
    nulls_cell,
)

MAX_FIGURE_ROWS = 150  # largest number of rows of one experiment in a table
BASIS_TEXT = {
    "printed": "printed",
    "figure": "read off a figure",
    "recomputed": "recomputed",
    "own setting": "own setting",
}
LEGEND = (
    "The threshold that decides the verdict is in brackets. Measured: if there are several seeds, the mean "
    "with its 95 % interval. Null: the median of the quantity over draws from a case about which the "
    "theory says nothing. Not covered: the theorem's assumptions do not hold there, so it is not judged. A "
    "row has no verdict if it has no threshold."
)

NUMBERS = (
    Column("on", 26, "on"),
    Column("prediction (threshold)", 19),
    Column("measured", 19, "n"),
    Column("null", 12, "n"),
    Column("verdict", 12),
    Column("source", 12, "cite"),
)


# ---- theories


def summary(aggregate: Aggregate) -> Table:
    """Returns the table of all theories: headlines on each view of the data and in each trained network,
    experiments, and claims.
    """
    blocks = []
    for theory in aggregate.theories:
        lines = [line for entries in _headlines(aggregate, theory) for line in _headline_lines(entries)]
        lines += [Line((), (Plain(name), ": ", text)) for name, text in _experiment_counts(aggregate, theory)]
        if verified := aggregate.claims_of(theory):
            lines.append(Line((), f"Generated instances: {claims_text(verified)}"))
        if lines:
            blocks.append(
                Block(
                    (theory.title, " ", Note(theory.question)), tuple(lines), strong=True, theory=theory.name
                )
            )
    columns = (NUMBERS[0], Column("quantity", 23), *NUMBERS[1:])
    columns = tuple(
        replace(column, share=share) for column, share in zip(columns, (14, 23, 16, 13, 8, 13, 13))
    )
    return Table(
        "all", "The prediction of each theory, and the measurements.", columns, tuple(blocks), LEGEND
    )


def _headlines(aggregate: Aggregate, theory: Theory) -> Iterator[list[Entry]]:
    """Yields the entries of a theory's headline quantities: first those on data, or the reasons why they are
    missing; then those in trained networks.
    """
    found = aggregate.headlines(theory)
    # A view without a headline has a row with the reason.
    views = {(entry.row.data, entry.row.model) for entry in found if entry.row.kind == "on data"}
    on_data = (
        () if theory.on_data is None else aggregate.select(theory=theory.name, kind="on data", layer=None)
    )
    yield [
        entry
        for entry in on_data
        if entry in found or (entry.missing and (entry.row.data, entry.row.model) not in views)
    ]
    yield [entry for entry in found if entry.row.kind == "in network"]


def _headline_lines(entries: Sequence[Entry]) -> Iterator[Line]:
    """Yields one line per entry; a quantity, prediction or source that repeats the line above is omitted."""
    previous: tuple = ()
    for entry in entries:
        row = entry.row
        key = (row.quantity, format.prediction(row), row.source, row.reason)
        repeated = entry.missing and previous[3:] == key[3:]
        note = row.reason if entry.missing else entry.note if entry is entries[0] else ""
        quantity = tuple(
            filter(
                None, ("" if previous[:1] == key[:1] else format.label(row), Note("" if repeated else note))
            )
        )
        beside = format.relative_to_null(row)
        unexpected = format.unexpected_side(row)
        # State the side of the null if it is unexpected or no verdict implies it.
        remarks = (
            [(StrongNote if unexpected else Note)(f"{beside} its null")]
            if beside and (unexpected or not row.verdict)
            else []
        )
        cells: tuple[Cell, ...] = (
            Plain(entry.on),
            quantity,
            "" if previous == key or entry.missing else _prediction(entry),
            "" if entry.missing else measured(entry, strong=True),
            "" if entry.missing else _null(row),
            Verdict(format.NOT_MEASURED) if entry.missing else (*_verdicts(entry), *remarks),
            "" if previous == key or row.source is None else row.source,
        )
        previous = key
        yield Line(cells)


def _experiment_counts(aggregate: Aggregate, theory: Theory) -> Iterator[tuple[str, str]]:
    """Yields the name of each experiment with a text that counts its values and verdicts."""
    for name, entries in grouped(
        aggregate.select(theory=theory.name, kind=("figure", "rung")),
        lambda entry: experiment_of(aggregate, entry),
    ).items():
        counts: dict[str, int] = {}
        for entry in entries:
            for verdict in entry.verdicts:
                counts[verdict] = counts.get(verdict, 0) + 1
        judged = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield (
            name,
            f"{format.counted(len(entries), 'number')}{f': {judged}' if judged else ', none of them judged'}",
        )


def claims_text(claims: Sequence[Checked]) -> str:
    """Describes claims in a text: ``"19 claims, 5 seeds each: 19 consistent on every seed; every control
    fails as it must"``.
    """
    verifications = [checked.verification for checked in claims]
    span = format.span([len(verification.seeds) for verification in verifications])
    consistent = sum(
        verification.outcome == "consistent" and verification.consistent == len(verification.seeds)
        for verification in verifications
    )
    without_power = sum(verification.control != "fails" for verification in verifications)
    controls = (
        f"{format.counted(without_power, 'control')} did not fail, so these checks have no power"
        if without_power
        else "every control fails as it must"
    )
    plural = "" if span == "1" else "s"
    return (
        f"{format.counted(len(claims), 'claim')}, {span} seed{plural} each: {consistent} consistent on every "
        f"seed; {controls}"
    )


def numbers(entries: Sequence[Entry], name: str, caption: str, *, judged: bool = True) -> Table | None:
    """Returns a table of the page with one line per entry: quantity, place, prediction, value, null, verdict
    and source; None without entries.

    Args:
        judged: whether prediction, verdict and source are shown.
    """
    columns = (
        (Column("quantity", 30), *NUMBERS)
        if judged
        else (Column("quantity", 34), Column("on", 34, "on"), *NUMBERS[2:4])
    )
    lines, previous_note = [], ""
    places = {entry.on for entry in entries}
    for entry in entries:
        row = entry.row
        notes = dict.fromkeys((row.reason if entry.missing else "", entry.note))
        remarks = tuple(Note(text) for text in notes if text and text != previous_note)
        previous_note = entry.note
        quantity = (format.label(row), *remarks)
        on = Plain(entry.on if len(places) > 1 else "")  # a single place is in the caption
        cells = (quantity, on, measured(entry), _null(row))
        lines.append(
            Line(
                (*cells[:2], _prediction(entry), *cells[2:], _verdicts(entry), row.source or "")
                if judged
                else cells
            )
        )
    return Table(name, caption, columns, (Block("", tuple(lines)),)).without_empty() if lines else None


def of_theory(aggregate: Aggregate, theory: Theory) -> list[Table]:
    """Returns all tables of one theory for a paper: claims, measurements, assumptions and experiments. Empty
    tables are omitted.
    """
    candidates = (
        claims(aggregate, theory),
        _measured(aggregate, theory),
        _assumptions(aggregate, theory),
        _experiments(aggregate, theory),
    )
    return [table for table in candidates if table is not None]


def claims(aggregate: Aggregate, theory: Theory) -> Table | None:
    """Returns the claims of a theory with their statements; None if no claim was verified."""
    lines = []
    for checked in aggregate.claims_of(theory):
        verification = checked.verification
        interval = format.share_of_seeds(verification.interval).replace(" ", "\u00a0")
        counts = (
            f"{verification.consistent} of {verification.decided} {interval}"
            if verification.decided
            else f"0 of {len(verification.seeds)}"
        )
        below = [
            verification.statement,
            f" (Measured: {verification.measures}. Its control: "
            f"{verification.control_description.rstrip('.')}.)",
        ]
        below += [f" Corrected: {verification.corrects}"] if verification.corrects_published else []
        below += [f" Note: {checked.note}."] if checked.note else []
        worst = verification.worst
        control = "fails" if verification.control == "fails" else CONTROL_TEXT[verification.control]
        cells: tuple[Cell, ...] = (
            (Plain(verification.id.partition("/")[2]), " ", verification.source),
            Verdict(verification.outcome),
            counts,
            format.number(worst.value),
            format.threshold(worst.op, worst.threshold),
            f"{format.number(verification.worst_control.value)} {control}",
        )
        lines.append(Line(cells, tuple(below)))
    columns = (
        Column("claim", 28),
        Column("verdict", 12),
        Column("seeds [95 %]", 19),
        Column("worst seed", 13, "n"),
        Column("threshold", 14, "n"),
        Column("control", 14),
    )
    legend = (
        "Seeds: the number of consistent seeds, with the 95 % interval of their share (Clopper and "
        "Pearson). Worst seed: the value nearest to its threshold. Control: the same check with one "
        "assumption removed or the target replaced, which must fail; the value is the one nearest to "
        "passing. Consistency on all seeds does not prove a claim."
    )
    table = Table(
        f"{format.slug(theory.name)}-claims",
        f"{theory.title}: claims.",
        columns,
        (Block("", tuple(lines)),),
        legend,
    )
    return table if lines else None


def _measured(aggregate: Aggregate, theory: Theory) -> Table | None:
    """Returns the measurements of a theory on data and in networks, headlines first; None if there
    are none.
    """
    entries = aggregate.select(theory=theory.name, kind=("on data", "in network"))
    first = [entry for group in _headlines(aggregate, theory) for entry in group]
    entries = [*first, *(entry for entry in entries if entry not in first)]
    with_value = [entry for entry in entries if not entry.missing]
    blocks = [_block(same) for same in grouped(with_value, _heading).values()]
    reasons = [Line((), (Plain(entry.on), ": ", entry.row.reason)) for entry in entries if entry.missing]
    blocks += [Block("Not measured", tuple(reasons))] if reasons else []
    name, caption = f"{format.slug(theory.name)}-measured", f"{theory.title}: measurements."
    return Table(name, caption, _paper_columns(), tuple(blocks), LEGEND) if blocks else None


def _assumptions(aggregate: Aggregate, theory: Theory) -> Table | None:
    """Returns the assumptions of a theory with the measurements that decide whether they hold; None if there
    are none.
    """
    entries = aggregate.select(theory=theory.name, kind="assumption")
    blocks = [
        Block(heading, tuple(Line((Plain(entry.on), measured(entry), _verdicts(entry))) for entry in same))
        for heading, same in grouped(entries, _heading).items()
    ]
    columns = (Column("on", 46), Column("measured", 26, "n"), Column("the assumption", 28))
    caption = f"{theory.title}: its assumptions, whether they hold, and the number that decides."
    return (
        Table(f"{format.slug(theory.name)}-assumptions", caption, columns, tuple(blocks)) if entries else None
    )


def _experiments(aggregate: Aggregate, theory: Theory) -> Table | None:
    """Returns the experiments of a theory, one block per experiment; None if there are none.

    A long experiment is reduced to the values that have a prediction or a verdict.
    """
    entries = aggregate.select(theory=theory.name, kind=("figure", "rung"))
    blocks, omitted = [], 0
    for name, same in grouped(entries, lambda entry: experiment_of(aggregate, entry)).items():
        with_prediction = [
            entry
            for entry in same
            if entry.row.predicted is not None or entry.row.threshold is not None or entry.verdicts
        ]
        selection = (same if len(same) <= MAX_FIGURE_ROWS else with_prediction)[:MAX_FIGURE_ROWS]
        omitted += len(same) - len(selection)
        source = next((entry.row.source for entry in same if entry.row.source is not None), None)
        lines = tuple(Line((_with_place(entry), *_paper_cells(entry)[1:])) for entry in selection)
        blocks.append(Block((Plain(name), " ", source) if source else Plain(name), lines))
    rest = f" {omitted:,} further numbers, most of them without a prediction, are omitted." if omitted else ""
    columns = (Column("quantity", 36), *_paper_columns()[1:])
    name, caption = f"{format.slug(theory.name)}-experiments", f"{theory.title}: experiments.{rest}"
    return Table(name, caption, columns, tuple(blocks), LEGEND).without_empty() if entries else None


def _with_place(entry: Entry) -> Cell:
    """Returns the quantity followed by its place (network, setting, layer, ...) in parentheses."""
    where = format.place(entry.row, "model", "rung", "setting", "layer", "head", "step")
    return (format.label(entry.row), Plain(f" ({where})")) if where else format.label(entry.row)


def networks(aggregate: Aggregate) -> Table | None:
    """Returns the results of the trained networks that belong to no theory; None if there are none."""
    entries = sorted(aggregate.select(theory=NETWORK), key=lambda entry: entry.row.unit != "share")
    blocks = [
        Block(
            heading,
            tuple(
                Line((Plain(entry.on), measured(entry), _null(entry.row)), _reason(entry)) for entry in same
            ),
        )
        for heading, same in grouped(entries, _heading).items()
    ]
    columns = (Column("network", 48), Column("measured", 30, "n"), Column("null", 22, "n"))
    caption = "The trained networks: their results, and the measurements in them that belong to no theory."
    return Table("networks", caption, columns, tuple(blocks)) if entries else None


def _reason(entry: Entry) -> Cell:
    return Note(entry.row.reason) if entry.missing else ""


def _paper_columns() -> tuple[Column, ...]:
    return tuple(replace(column, share=share) for column, share in zip(NUMBERS[:5], (30, 22, 20, 13, 15)))


def _paper_cells(entry: Entry) -> tuple[Cell, ...]:
    return Plain(entry.on), _prediction(entry), measured(entry), _null(entry.row), _verdicts(entry)


def _block(entries: Sequence[Entry]) -> Block:
    """Returns the block of the entries of one quantity. A note that all entries share is shown once, under
    the heading.
    """
    notes = {entry.note for entry in entries}
    shared = notes.pop() if len(notes) == 1 else ""
    return Block(
        _heading(entries[0]),
        tuple(Line(_paper_cells(entry), "" if shared else Note(entry.note)) for entry in entries),
        shared,
    )


def _heading(entry: Entry) -> Cell:
    return (format.label(entry.row), " ", entry.row.source) if entry.row.source else format.label(entry.row)


def experiment_of(aggregate: Aggregate, entry: Entry) -> str:
    """Returns the name of the result that an entry comes from."""
    return aggregate.results[entry.results[0]].name


def _prediction(entry: Entry) -> str:
    """Formats a prediction: ``"→ 1 (≥ 0.990)"``. A reference value is followed by its origin: ``"0.871,
    printed"``.
    """
    row = entry.row
    text = format.prediction(row).replace("threshold:\u00a0", "")
    basis = BASIS_TEXT.get(row.basis)
    return text if basis is None or row.predicted is None else f"{text.removeprefix('→').strip()}, {basis}"


def measured(entry: Entry, *, strong: bool = False) -> Cell:
    """Returns the value with its interval; for several seeds, the mean with its interval and the number of
    seeds.
    """
    row = entry.row
    text = format.with_unit(row.value, row.unit, row.interval)
    value = Strong(text) if strong else text
    seeds = format.counted(entry.seeds, "seed") if len(entry.rows) > 1 else ""
    below = ", ".join(filter(None, (format.interval_text(row) if row.value is not None else "", seeds)))
    return (value, Note(below)) if below else value


def _null(row: Measurement) -> Cell:
    """Returns the nulls of a row and, if it has one, the p-value; a dash without draws."""
    p = () if row.p is None else (Note(f"p = {format.p_value(row.p)}"),)
    return (*nulls_cell(row), *p) or format.NOTHING


def _verdicts(entry: Entry) -> tuple[Piece, ...]:
    """Returns the verdicts of the rows, with counts if the rows differ."""
    counts = entry.verdicts
    # all rows have the same verdict, or no row has one
    if len(counts) <= 1 and sum(counts.values()) in (0, len(entry.rows)):
        return tuple(map(Verdict, counts))
    return tuple(
        piece
        for name, count in counts.items()
        for piece in (Verdict(name), f" {count} of {len(entry.rows)} ")
    )


# ---- a training


def first_and_last(curves: Sequence[Curves], name: str, caption: str) -> Table | None:
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
    return Table(name, caption, tuple(columns), (Block("", tuple(lines)),)).without_empty() if lines else None


def headlines_in_training(
    theories: Sequence[Theory], curves: Sequence[Curves], kept: int | None
) -> Table | None:
    """Returns a table of the theories' headlines at the first step, in the kept network and at the last step,
    with their nulls.

    None if no headline was measured.
    """
    measured = [
        (theory, theory.in_networks.side, curve)
        for theory in theories
        if theory.in_networks is not None
        for curve in curves
        if (curve.theory, curve.quantity) == (theory.name, theory.in_networks.headline) and not curve.empty
    ]
    blocks = []
    for theory, side, curve in measured:
        values, nulls = curve.values[-1], curve.nulls[-1]
        # Count the layers whose last value lies on the side of its null that the theory expects; above it
        # if it expects neither.
        comparable = np.isfinite(values) & np.isfinite(nulls)
        where, expected = ("below", values < nulls) if side == "<=" else ("above", values > nulls)
        half_step = curve.mean().crossing
        line = Line(
            (
                (curve.label, Note(curve.note)) if curve.note else curve.label,
                format.amount(curve.at(int(curve.steps[0])), curve.unit),
                format.amount(curve.at(kept), curve.unit),
                Strong(format.amount(curve.at(int(curve.steps[-1])), curve.unit)),
                format.amount(curve.at(int(curve.steps[-1]), "nulls"), curve.unit),
                f"{where} it in {int(expected[comparable].sum())} of {int(comparable.sum())} layers"
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
    return Table("in-training", caption, columns, tuple(blocks)) if blocks else None


def layer_table(curves: Sequence[Curves], steps: Sequence[int]) -> Table | None:
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
            numbers: list[Cell] = []
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
    return Table("by-layer", caption, tuple(columns), (Block("", tuple(lines)),)) if lines else None


# ---- provenance


def provenance(
    aggregate: Aggregate, folders: Sequence[str] = (), checksums: Sequence[Mapping[str, str]] = ()
) -> Table:
    """Returns the table of provenance, one block per result.

    Args:
        folders: folders of the results, in the order of the results; empty if the results are not stored.
        checksums: for each result, a mapping from file name to SHA-256; empty if the results are not stored.
    """
    blocks = []
    for index, result in enumerate(aggregate.results):
        pairs: list[tuple[str, str]] = [
            ("settings", Plain(", ".join(f"{name} {text}" for name, text in format.flatten(result.settings))))
        ]
        pairs += origin(result.provenance)
        pairs += [
            (f"sha256 of {name}", Code(digest))
            for name, digest in (checksums[index] if checksums else {}).items()
        ]
        heading = (
            f"{result_label(index)}: ",
            Plain(result.name),
            *((" in ", Code(folders[index])) if folders else ()),
        )
        blocks.append(Block(heading, tuple(Line((name, text)) for name, text in pairs if text), strong=True))
    caption = " ".join(
        ["Provenance of the numbers: a result is the output that one command has stored.", *aggregate.notes]
    )
    return Table("provenance", caption, (Column("entry", 22), Column("stored", 78)), tuple(blocks))


def origin(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the provenance of a result as pairs (name, text); the text is empty if the entry is missing."""
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    commit = str(record.get("commit") or "")
    changed = ", with uncommitted changes" if commit and record.get("dirty") else ""
    threads, seconds = record.get("threads"), record.get("seconds")
    machine = ", ".join(
        map(
            str,
            filter(
                None,
                (
                    record.get("machine"),
                    record.get("device"),
                    threads and format.counted(threads, "thread"),
                ),
            ),
        )
    )
    return [
        ("command", Code(record.get("command") or "")),
        ("date", Plain(record.get("date") or "")),
        ("machine", Plain(machine)),
        ("wall time", "" if seconds is None else format.duration(float(seconds))),
        ("versions", Plain(versions)),
        ("commit", Plain(commit + changed)),
        ("seed", "" if record.get("seed") is None else str(record["seed"])),
    ]
