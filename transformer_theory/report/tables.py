"""The tables of the report, as data (:mod:`.table_model`): of all theories, of one theory, of networks, and where the numbers come from."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.claims import CONTROL_TEXT
from ..core.measurement import Measurement
from ..core.theory import Theory
from . import format
from .aggregate import NETWORK, Aggregate, Checked, Entry, result_label
from .table_model import Block, Cell, Code, Column, Line, Note, Piece, Plain, Strong, StrongNote, Table, Verdict

MAX_FIGURE_ROWS = 150  # rows of an experiment in a table
BASIS_TEXT = {"printed": "printed", "figure": "read off a figure", "recomputed": "recomputed", "own setting": "own setting"}
LEGEND = (
    "In brackets the threshold that decides the verdict. Measured: over several seeds the mean with its 95 % interval. Null: the quantity "
    "where the theory says nothing, the median of the draws. Not covered: the theorem's assumptions do not hold there, so it is not "
    "judged. Without a verdict no threshold decides."
)


NUMBERS = (
    Column("on", 26, "on"),
    Column("prediction (threshold)", 19),
    Column("measured", 19, "n"),
    Column("null", 12, "n"),
    Column("verdict", 12),
    Column("source", 12, "cite"),
)


def summary(aggregate: Aggregate) -> Table:
    """Each theory with its headline on each view of the data, its headline in each trained network, its experiments and its claims."""
    blocks = []
    for theory in aggregate.theories:
        lines = [line for entries in headlines(aggregate, theory) for line in _headline_lines(entries)]
        lines += [Line((), (Plain(name), ": ", text)) for name, text in _experiment_counts(aggregate, theory)]
        if own := aggregate.claims_of(theory):
            lines.append(Line((), f"Generated instances: {claims_text(own)}"))
        if lines:
            blocks.append(Block((theory.title, " ", Note(theory.question)), tuple(lines), strong=True, theory=theory.name))
    columns = (NUMBERS[0], Column("quantity", 23), *NUMBERS[1:])
    columns = tuple(replace(column, share=share) for column, share in zip(columns, (14, 23, 16, 13, 8, 13, 13)))
    return Table("all", "What each theory predicts, and what was measured.", columns, tuple(blocks), LEGEND)


def headlines(aggregate: Aggregate, theory: Theory) -> Iterator[list[Entry]]:
    """The entries that stand for a theory: first on data, or the reasons why there are none; then in trained networks."""
    if theory.on_data is not None:
        own = aggregate.select(theory=theory.name, kind="on data", layer=None)
        shown = [entry for entry in own if entry.row.quantity == theory.on_data.headline]
        views = {(entry.row.data, entry.row.model) for entry in shown}  # a view without a headline has a reason
        yield [entry for entry in own if entry in shown or (entry.missing and (entry.row.data, entry.row.model) not in views)]
    if theory.in_networks is not None:
        yield aggregate.select(theory=theory.name, kind="in network", quantity=theory.in_networks.headline, layer=None, head=None)


def _headline_lines(entries: Sequence[Entry]) -> Iterator[Line]:
    """A line per entry; quantity, prediction and source stand in the first of equal ones only."""
    shown: tuple = ()
    for entry in entries:
        row = entry.row
        key = (row.quantity, format.prediction(row), row.source, row.reason)
        repeated = entry.missing and shown[3:] == key[3:]
        note = row.reason if entry.missing else entry.note if entry is entries[0] else ""
        quantity = tuple(filter(None, ("" if shown[:1] == key[:1] else format.label(row), Note("" if repeated else note))))
        beside = format.beside_null(row)
        unexpected = format.unexpected_side(row)
        remarks = [(StrongNote if unexpected else Note)(f"{beside} its null")] if beside and (unexpected or not row.verdict) else []
        cells: tuple[Cell, ...] = (
            Plain(entry.on),
            quantity,
            "" if shown == key or entry.missing else _prediction(entry),
            "" if entry.missing else measured(entry, strong=True),
            "" if entry.missing else null_text(row),
            Verdict(format.NOT_MEASURED) if entry.missing else (*_verdicts(entry), *remarks),
            "" if shown == key or row.source is None else row.source,
        )
        shown = key
        yield Line(cells)


def _experiment_counts(aggregate: Aggregate, theory: Theory) -> Iterator[tuple[str, str]]:
    for name, own in grouped(aggregate.select(theory=theory.name, kind=("figure", "rung")), lambda entry: experiment_of(aggregate, entry)):
        counts: dict[str, int] = {}
        for entry in own:
            for verdict in entry.verdicts:
                counts[verdict] = counts.get(verdict, 0) + 1
        judged = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield name, f"{format.several(len(own), 'number')}{f': {judged}' if judged else ', none of them judged'}"


def claims_text(claims: Sequence[Checked]) -> str:
    """``"19 claims, 5 seeds each: 19 consistent on every seed; every control fails as it must"``."""
    found = [checked.verification for checked in claims]
    seeds = sorted({len(one.seeds) for one in found})
    span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    held = sum(one.outcome == "consistent" and one.consistent == len(one.seeds) for one in found)
    weak = sum(one.control != "fails" for one in found)
    controls = (
        f"{format.several(weak, 'control')} did not fail, so these checks have no power" if weak else "every control fails as it must"
    )
    plural = "" if seeds == [1] else "s"
    return f"{format.several(len(claims), 'claim')}, {span} seed{plural} each: {held} consistent on every seed; {controls}"


def numbers(entries: Sequence[Entry], name: str, caption: str, *, judged: bool = True) -> Table:
    """A line per entry: quantity, place, prediction, value, null, verdict, source. The page shows these.

    Args:
        judged: show prediction, verdict and source.
    """
    columns = (Column("quantity", 30), *NUMBERS) if judged else (Column("quantity", 34), Column("on", 34, "on"), *NUMBERS[2:4])
    lines, before = [], ""
    places = {entry.on for entry in entries}
    for entry in entries:
        row = entry.row
        remarks = tuple(Note(text) for text in dict.fromkeys((row.reason if entry.missing else "", entry.note)) if text and text != before)
        before = entry.note
        quantity = (format.label(row), *remarks)
        on = Plain(entry.on if len(places) > 1 else "")  # a single place is in the caption
        cells = (quantity, on, measured(entry), null_text(row))
        lines.append(Line((*cells[:2], _prediction(entry), *cells[2:], _verdicts(entry), row.source or "") if judged else cells))
    return Table(name, caption, columns, (Block("", tuple(lines)),)).without_empty()


def of_theory(aggregate: Aggregate, theory: Theory) -> list[Table]:
    """All tables of one theory for a paper: claims, measurements, assumptions, experiments; empty ones are left out."""
    found = (claims(aggregate, theory), _measured(aggregate, theory), _assumptions(aggregate, theory), _experiments(aggregate, theory))
    return [table for table in found if table is not None]


def claims(aggregate: Aggregate, theory: Theory) -> Table | None:
    """The claims of a theory with their statements."""
    lines = []
    for checked in aggregate.claims_of(theory):
        one, low, high = checked.verification, *checked.verification.interval
        counts = f"{one.consistent} of {one.decided} [{low:.2f},\u00a0{high:.2f}]" if one.decided else f"0 of {len(one.seeds)}"
        below = [one.statement, f" (Measured: {one.measures}. Its control: {one.control_description.rstrip('.')}.)"]
        below += [f" Corrected: {one.corrects}"] if one.corrects else []
        below += [f" Note: {checked.note}."] if checked.note else []
        worst = one.worst
        cells: tuple[Cell, ...] = (
            (Plain(one.id.partition("/")[2]), " ", one.source),
            Verdict(one.outcome),
            counts,
            format.number(worst.value),
            format.threshold(worst.op, worst.threshold),
            f"{format.number(one.worst_control.value)} {'fails' if one.control == 'fails' else CONTROL_TEXT[one.control]}",
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
        "Seeds: how many of them are consistent, with the 95 % interval of the share (Clopper and Pearson). Worst seed: the value nearest "
        "to its threshold. Control: the same check with one assumption removed or the target replaced, which must fail; its value nearest "
        "to passing. A claim that is consistent on all seeds is not proved by that."
    )
    table = Table(f"{format.slug(theory.name)}-claims", f"{theory.title}: its claims.", columns, (Block("", tuple(lines)),), legend)
    return table if lines else None


def _measured(aggregate: Aggregate, theory: Theory) -> Table | None:
    own = aggregate.select(theory=theory.name, kind=("on data", "in network"))
    first = [entry for entries in headlines(aggregate, theory) for entry in entries]
    own = [*first, *(entry for entry in own if entry not in first)]
    blocks = [_block(same) for _, same in grouped([entry for entry in own if not entry.missing], _heading)]
    reasons = [Line((), (Plain(entry.on), ": ", entry.row.reason)) for entry in own if entry.missing]
    blocks += [Block("Not measured", tuple(reasons))] if reasons else []
    name, caption = f"{format.slug(theory.name)}-measured", f"{theory.title}: what was measured."
    return Table(name, caption, _paper_columns(), tuple(blocks), LEGEND) if blocks else None


def _assumptions(aggregate: Aggregate, theory: Theory) -> Table | None:
    own = aggregate.select(theory=theory.name, kind="assumption")
    blocks = [
        Block(heading, tuple(Line((Plain(entry.on), measured(entry), _verdicts(entry))) for entry in same))
        for heading, same in grouped(own, _heading)
    ]
    columns = (Column("on", 46), Column("measured", 26, "n"), Column("the assumption", 28))
    caption = f"{theory.title}: whether its assumptions hold, and the number behind the answer."
    return Table(f"{format.slug(theory.name)}-assumptions", caption, columns, tuple(blocks)) if own else None


def _experiments(aggregate: Aggregate, theory: Theory) -> Table | None:
    own = aggregate.select(theory=theory.name, kind=("figure", "rung"))
    blocks, left_out = [], 0
    for name, same in grouped(own, lambda entry: experiment_of(aggregate, entry)):
        compared = [entry for entry in same if entry.row.predicted is not None or entry.row.threshold is not None or entry.verdicts]
        shown = (same if len(same) <= MAX_FIGURE_ROWS else compared)[:MAX_FIGURE_ROWS]
        left_out += len(same) - len(shown)
        source = next((entry.row.source for entry in same if entry.row.source is not None), None)
        lines = tuple(Line((_with_place(entry), *_paper_cells(entry)[1:])) for entry in shown)
        blocks.append(Block((Plain(name), " ", source) if source else Plain(name), lines))
    rest = f" {left_out:,} further numbers, most of them without a prediction, are left out." if left_out else ""
    columns = (Column("quantity", 36), *_paper_columns()[1:])
    name, caption = f"{format.slug(theory.name)}-experiments", f"{theory.title}: experiments.{rest}"
    return Table(name, caption, columns, tuple(blocks), LEGEND).without_empty() if own else None


def _with_place(entry: Entry) -> Cell:
    where = format.place(entry.row, "model", "rung", "setting", "layer", "head", "step")
    return (format.label(entry.row), Plain(f" ({where})")) if where else format.label(entry.row)


def networks(aggregate: Aggregate) -> Table | None:
    """What the trained networks themselves reached; None if there is nothing."""
    own = sorted(aggregate.select(theory=NETWORK), key=lambda entry: entry.row.unit != "share")
    blocks = [
        Block(heading, tuple(Line((Plain(entry.on), measured(entry), null_text(entry.row)), _reason(entry)) for entry in same))
        for heading, same in grouped(own, _heading)
    ]
    columns = (Column("network", 48), Column("measured", 30, "n"), Column("null", 22, "n"))
    caption = "The trained networks: what they reached, and what was measured in them that belongs to no theory."
    return Table("networks", caption, columns, tuple(blocks)) if own else None


def _reason(entry: Entry) -> Cell:
    return Note(entry.row.reason) if entry.missing else ""


def _paper_columns() -> tuple[Column, ...]:
    return tuple(replace(column, share=share) for column, share in zip(NUMBERS[:5], (30, 22, 20, 13, 15)))


def _paper_cells(entry: Entry) -> tuple[Cell, ...]:
    return Plain(entry.on), _prediction(entry), measured(entry), null_text(entry.row), _verdicts(entry)


def _block(entries: Sequence[Entry]) -> Block:
    """The entries of one quantity; what all their notes say stands under the heading."""
    notes = {entry.note for entry in entries}
    shared = notes.pop() if len(notes) == 1 else ""
    return Block(_heading(entries[0]), tuple(Line(_paper_cells(entry), "" if shared else Note(entry.note)) for entry in entries), shared)


def _heading(entry: Entry) -> Cell:
    return (format.label(entry.row), " ", entry.row.source) if entry.row.source else format.label(entry.row)


def experiment_of(aggregate: Aggregate, entry: Entry) -> str:
    """Name of the result that an entry comes from."""
    return aggregate.results[entry.results[0]].name


def grouped(entries: Iterable[Entry], key: Callable[[Entry], Hashable]) -> list[tuple[Any, list[Entry]]]:
    """Entries with one key together, in order of appearance."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.items())


def _prediction(entry: Entry) -> str:
    """``"→ 1 (≥ 0.990)"``; a number that is not the theory's own value is shown with where it comes from: ``"0.871, printed"``."""
    row = entry.row
    text = format.prediction(row).replace("threshold:\u00a0", "")
    basis = BASIS_TEXT.get(row.basis)
    return text if basis is None or row.predicted is None else f"{text.removeprefix('→').strip()}, {basis}"


def measured(entry: Entry, *, strong: bool = False) -> Cell:
    """The value; over several seeds the mean, its interval and their number."""
    row = entry.row
    text = format.with_unit(row.value, row.unit)
    value = Strong(text) if strong else text
    if len(entry.rows) == 1:
        return value if row.interval is None or row.value is None else (value, Note(format.bounds(row.interval, row.unit)))
    seeds = format.several(entry.seeds, "seed")
    return (value, Note(", ".join(filter(None, (format.bounds(row.interval, row.unit), seeds)))))


def null_text(row: Measurement) -> Cell:
    """The median of the null, the range of its draws and, if there is one, the p-value."""
    if row.null is None or not row.null.draws:
        return format.NOTHING
    spread = format.bounds((row.null.low, row.null.high), row.unit) if len(row.null.draws) > 1 else "one draw"
    remarks = [Note(spread)] if row.p is None else [Note(spread), Note(f"p = {format.number(row.p, 2)}")]
    return (format.amount(row.null.median, row.unit), *remarks)


def _verdicts(entry: Entry) -> tuple[Piece, ...]:
    """The verdicts of the rows, with counts where they differ."""
    found = entry.verdicts
    if len(found) <= 1 and sum(found.values()) in (0, len(entry.rows)):
        return tuple(map(Verdict, found))
    return tuple(piece for name, count in found.items() for piece in (Verdict(name), f" {count} of {len(entry.rows)} "))


def provenance(aggregate: Aggregate, folders: Sequence[str] = (), checksums: Sequence[Mapping[str, str]] = ()) -> Table:
    """Where the numbers come from, a block per result.

    Args:
        folders: where the results are stored, in their order.
        checksums: for each result those of its files, by their names.
    """
    blocks = []
    for index, result in enumerate(aggregate.results):
        pairs: list[tuple[str, str]] = [("settings", Plain(", ".join(f"{name} {text}" for name, text in format.flatten(result.settings))))]
        pairs += origin(result.provenance)
        pairs += [(f"sha256 of {name}", Code(digest)) for name, digest in (checksums[index] if checksums else {}).items()]
        heading = (f"{result_label(index)}: ", Plain(result.name), *((" in ", Code(folders[index])) if folders else ()))
        blocks.append(Block(heading, tuple(Line((name, text)) for name, text in pairs if text), strong=True))
    caption = " ".join(["Where the numbers come from: a result is what one command has stored.", *aggregate.notes])
    return Table("provenance", caption, (Column("what", 22), Column("stored", 78)), tuple(blocks))


def origin(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The provenance of a result as pairs of texts; empty where it states nothing."""
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    commit = str(record.get("commit") or "")
    changed = ", with changes that were not committed" if commit and record.get("dirty") else ""
    threads, seconds = record.get("threads"), record.get("seconds")
    machine = ", ".join(
        map(str, filter(None, (record.get("machine"), record.get("device"), threads and format.several(threads, "thread"))))
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
