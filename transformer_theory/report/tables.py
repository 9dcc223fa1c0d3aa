"""What the tables for papers and notes say, whatever they are written in: cells of words, formulas, names and sources.

A cell is a string, in which dollars enclose formulas; a :class:`Plain` string, in which nothing is a formula (names of data, networks and
files, which are the user's); a :class:`~..citations.Source`; or a tuple of these. :mod:`.latex` and :mod:`.markdown` set them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..core.claims import CONTROL_WORDS
from ..core.measurement import BASIS_WORDS
from ..core.notes import is_share, shared, without
from ..core.sources import Source
from ..core.theory import Theory
from . import wording
from .located import IN_LAYER
from .merged import Entry, Merged

MANY = 150  # rows of an experiment that a table shows, at most


class Plain(str):
    """A name: shown as it is, letter by letter."""


class Code(Plain):
    """A command, a path or a checksum: in the typewriter face, and broken where it has to be."""


Piece: TypeAlias = str | Source  # a Plain is a str too
Cell: TypeAlias = Piece | tuple[Piece, ...]


@dataclass(frozen=True)
class Column:
    """Its heading, its share of the width in per cent, and where its text stands."""

    head: str
    share: int
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Line:
    """A cell for each column, and what stands below them over the whole width."""

    cells: tuple[Cell, ...]
    below: Cell = ""


@dataclass(frozen=True)
class Block:
    """Lines under a heading, with what a note says of all of them; a strong heading is that of blocks that follow, too."""

    heading: Cell
    lines: tuple[Line, ...] = ()
    note: Cell = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; ``name`` is made of small letters and hyphens."""

    name: str
    caption: Cell
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]


NUMBERS = (
    Column("on", 28),
    Column("prediction (line)", 19),
    Column("measured", 17, "right"),
    Column("n", 4, "right"),
    Column("null", 12, "right"),
    Column("verdict", 20),
)
LEGEND = (
    "In brackets the line that decides the verdict. Measured: mean and, over several runs, standard deviation; n: runs with a number. "
    "Null: what the quantity reads where the theory says nothing. Outside assumptions: the theorem's assumptions do not hold there, so it "
    "is not judged. Without a verdict: no line decides, the numbers stand beside each other."
)


def overall(merged: Merged) -> Table:
    """Each theory with its claims, its answer on each data set and network, its reading in each trained network, and its experiments; of
    verifications alone a line a theory."""
    if all(entry.kind == "claim" for entry in merged.entries):
        return _all_claims(merged)
    blocks = []
    for theory in merged.theories:
        answers = merged.select(theory=theory.name, kind="prediction", quantity=theory.answer)
        inside = merged.select(theory=theory.name, kind="reading", quantity=theory.order_parameter + wording.TRAINED)
        blocks.append(Block(theory.title, (Line((), claims_told(merged, theory)),), strong=True))
        for own in (answers, inside):
            if own:
                blocks.append(Block(_headed(own[0]), tuple(Line(_numbers(entry)) for entry in own)))
        if not answers and (silent := merged.select(theory=theory.name, kind="absent")):
            blocks.append(_silent(silent))
        if told := list(_experiments_told(merged, theory)):
            blocks.append(Block("", tuple(Line((), line) for line in told)))
    caption = (
        "What each theory predicts, and what was measured. Claims are checked on instances that meet their assumptions, each beside a "
        f"control that must fail. {LEGEND}"
    )
    return Table("all", caption, NUMBERS, tuple(blocks))


def _all_claims(merged: Merged) -> Table:
    columns = (
        Column("theory", 40),
        Column("claims", 10, "right"),
        Column("consistent on every seed", 20, "right"),
        Column("seeds each", 14, "right"),
        Column("controls that fail", 16, "right"),
    )
    lines = []
    for theory in merged.theories:
        own = merged.select(theory=theory.name, kind="claim")
        failing = sum(1 for entry in own if entry.claim is not None and entry.claim.control == "fails")
        lines.append(Line((theory.title, str(len(own)), str(sum(entry.holds for entry in own)), _seeds(own), str(failing))))
    caption = (
        "Claims of each theory, checked on instances that meet their assumptions, a seed an instance, each beside a control that must "
        "fail: the same check with one assumption removed or the target replaced. A claim that is consistent on all seeds is not proved "
        "by that."
    )
    return Table("all", caption, columns, (Block("", tuple(lines)),))


def claims_told(merged: Merged, theory: Theory) -> str:
    """``"Claims: 19 of 19 consistent on every seed (5 seeds each); every control fails as it must"``."""
    own = merged.select(theory=theory.name, kind="claim")
    if not own:
        return "Claims: none was verified here"
    held = sum(entry.holds for entry in own)
    weak = sum(1 for entry in own if entry.claim is not None and entry.claim.control != "fails")
    controls = f"{_count(weak, 'control')} did not fail, so there is no power" if weak else "every control fails as it must"
    seeds = f"{_seeds(own)} seed{'' if _seeds(own) == '1' else 's'} each"
    return f"Claims: {held} of {len(own)} consistent on every seed ({seeds}); {controls}"


def _seeds(claims: Sequence[Entry]) -> str:
    """``"100"``, or ``"3 to 100"`` where they differ."""
    seeds = sorted({entry.claim.seeds for entry in claims if entry.claim is not None})
    return " to ".join(str(number) for number in dict.fromkeys([*seeds[:1], *seeds[-1:]]))


def _experiments_told(merged: Merged, theory: Theory) -> Iterator[Cell]:
    for name, own in _by(merged.select(theory=theory.name, kind="experiment"), lambda entry: _experiment(merged, entry)):
        counts: dict[str, int] = {}
        for entry in own:
            if verdict := wording.verdict(entry.row)[0]:
                counts[verdict] = counts.get(verdict, 0) + 1
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield "Experiment ", Plain(name), f": {_count(len(own), 'number')}, {told or 'none of them judged'}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def of_theory(merged: Merged, theory: Theory) -> list[Table]:
    """All that there is of one theory: claims, measurements, assumptions, experiments; what there is none of is left out."""
    found = (_claims(merged, theory), _measured(merged, theory), _assumptions(merged, theory), _experiments(merged, theory))
    return [table for table in found if table is not None]


def _claims(merged: Merged, theory: Theory) -> Table | None:
    own = merged.select(theory=theory.name, kind="claim")
    statements = {claim.id: claim for claim in theory.claims}
    lines = []
    for entry in own:
        found, known = entry.claim, statements.get(entry.quantity)
        if found is None:
            continue
        low, high = found.interval
        source = Source.find(entry.source)
        name = Plain(entry.quantity.rpartition("/")[2])
        line = f"{'≤' if found.op == '<=' else '≥'}\u00a0{wording.number(found.bound)}"
        counts = f"{found.consistent} of {found.seeds} [{low:.2f},\u00a0{high:.2f}]" if found.decided else f"0 of {found.seeds}"
        control = f"{wording.number(found.control_value)} {'fails' if found.control == 'fails' else CONTROL_WORDS[found.control]}"
        below = [known.statement] if known else []
        below += [f" (Its control: {known.control_says.rstrip('.')}.)"] if known else []
        below += [f" Corrected: {known.corrects}"] if known and known.corrects else []
        below += [f" Note: {'; '.join(filter(None, (entry.subject, entry.note)))}."] if entry.subject or entry.note else []
        cells: tuple[Cell, ...] = (
            (name, " ", source) if source else name,
            entry.verdict,
            counts,
            wording.number(found.worst),
            line,
            control,
        )
        lines.append(Line(cells, tuple(below)))
    if not lines:
        return None
    columns = (
        Column("claim", 28),
        Column("verdict", 11),
        Column("seeds [95 %]", 19),
        Column("worst seed", 13, "right"),
        Column("line", 15, "right"),
        Column("control", 14),
    )
    caption = (
        f"{theory.title}: its claims. Seeds: how many of them are consistent, with the 95 % interval of the share (Clopper and Pearson). "
        "Worst seed: the value nearest to its line. Control: the same check with one assumption removed or the target replaced, which must "
        "fail; its value nearest to passing. A claim that is consistent on all seeds is not proved by that."
    )
    return Table(f"{wording.slug(theory.name)}-claims", caption, columns, (Block("", tuple(lines)),))


def _measured(merged: Merged, theory: Theory) -> Table | None:
    own = merged.select(theory=theory.name, kind=("prediction", "reading"))
    rank = {theory.answer: 0, theory.order_parameter + wording.TRAINED: 1, theory.order_parameter + IN_LAYER: 2}
    own.sort(key=lambda entry: rank.get(entry.quantity, 3))
    blocks = [_block(_headed(same[0]), same, _numbers) for _, same in _by(own, lambda entry: (entry.quantity, entry.source))]
    if silent := merged.select(theory=theory.name, kind="absent"):
        blocks.append(_silent(silent))
    if not blocks:
        return None
    return Table(f"{wording.slug(theory.name)}-measured", f"{theory.title}: what was measured. {LEGEND}", NUMBERS, tuple(blocks))


def _assumptions(merged: Merged, theory: Theory) -> Table | None:
    own = merged.select(theory=theory.name, kind="assumption")
    cells = lambda entry: (Plain(entry.subject), _value(entry), str(entry.n), entry.told)  # noqa: E731
    blocks = [_block(_headed(same[0]), same, cells) for _, same in _by(own, lambda entry: (entry.quantity, entry.source))]
    columns = (Column("on", 44), Column("measured", 22, "right"), Column("n", 6, "right"), Column("the assumption", 28))
    caption = f"{theory.title}: whether its assumptions hold, and the number behind the answer."
    return Table(f"{wording.slug(theory.name)}-assumptions", caption, columns, tuple(blocks)) if own else None


def _experiments(merged: Merged, theory: Theory) -> Table | None:
    own = merged.select(theory=theory.name, kind="experiment")
    blocks, left_out = [], 0
    for name, same in _by(own, lambda entry: _experiment(merged, entry)):
        beside = [entry for entry in same if entry.predicted is not None or entry.bound is not None or entry.verdict]
        shown = (same if len(same) <= MANY else beside)[:MANY]
        left_out += len(same) - len(shown)
        source = Source.find(next((entry.source for entry in same if entry.source), ""))
        heading = (Plain(name), " ", source) if source else Plain(name)
        blocks.append(_block(heading, shown, lambda entry, name=name: _numbers(entry, _of_experiment(entry, name))))
    rest = f" {left_out:,} further numbers, most of them beside no prediction, are left out here." if left_out else ""
    columns = (Column("quantity", 33), *NUMBERS[1:2], Column("measured", 17, "right"), *NUMBERS[3:5], Column("verdict", 14))
    caption = f"{theory.title}: experiments. {LEGEND}{rest}"
    return _without_empty(Table(f"{wording.slug(theory.name)}-experiments", caption, columns, tuple(blocks))) if own else None


def _without_empty(table: Table) -> Table:
    """The table without columns that have nothing in any line; the first column has their width."""
    lines = [line for block in table.blocks for line in block.lines if line.cells]
    kept = [at for at in range(len(table.columns)) if not at or any(line.cells[at] not in ("", wording.NOTHING) for line in lines)]
    first, *rest = (table.columns[at] for at in kept)
    columns = (replace(first, share=100 - sum(column.share for column in rest)), *rest)
    cut = [
        replace(block, lines=tuple(replace(line, cells=tuple(line.cells[at] for at in kept) if line.cells else ()) for line in block.lines))
        for block in table.blocks
    ]
    return replace(table, columns=columns, blocks=tuple(cut))


def _of_experiment(entry: Entry, name: str) -> Cell:
    where = entry.subject.removeprefix(name).removeprefix(", ")
    return (entry.quantity, Plain(f" ({where})")) if where else (entry.quantity,)


def _experiment(merged: Merged, entry: Entry) -> str:
    return merged.results[entry.runs[0]].name


def networks(merged: Merged) -> Table | None:
    """What the trained networks themselves reached; None if there is nothing."""
    own = merged.select(theory="network", kind=("network", "reading", "absent"))
    shares = [same for _, same in _by(own, lambda entry: entry.quantity)]
    shares.sort(key=lambda same: not is_share(same[0].quantity))
    blocks = []
    for same in shares:
        if same[0].kind == "absent":
            blocks.append(_silent(same))
        else:
            cells = lambda entry: (Plain(entry.subject), _value(entry), str(entry.n), wording.amount(entry.null, entry.quantity))  # noqa: E731
            blocks.append(_block(same[0].quantity, same, cells))
    columns = (Column("network", 48), Column("measured", 26, "right"), Column("n", 6, "right"), Column("null", 20, "right"))
    caption = "The trained networks: what they reached, and what was read in them that belongs to no theory. n: runs with a number."
    return Table("networks", caption, columns, tuple(blocks)) if own else None


def _block(heading: Cell, entries: Sequence[Entry], cells: Callable[[Entry], tuple[Cell, ...]]) -> Block:
    """A line an entry; what all their notes say stands under the heading, the rest of a note under its line."""
    said = shared(entry.note for entry in entries)
    return Block(heading, tuple(Line(cells(entry), without(entry.note, said)) for entry in entries), said)


def _silent(entries: Sequence[Entry]) -> Block:
    return Block("Not measured", tuple(Line((), (Plain(entry.subject), ": ", *_why(entry))) for entry in entries))


def _headed(entry: Entry) -> Cell:
    source = Source.find(entry.source)
    return (entry.quantity, " ", source) if source else (entry.quantity,)


def _numbers(entry: Entry, on: Cell | None = None) -> tuple[Cell, ...]:
    subject = on if on is not None else Plain(entry.subject)
    null = wording.amount(entry.null, entry.quantity)
    return subject, _prediction(entry), _value(entry), str(entry.n), null, entry.told


def _prediction(entry: Entry) -> str:
    """``"→ 1 (≥ 0.990)"``; a number that no theory says of exactly this quantity is told with where it comes from: ``"0.871, printed"``."""
    told = wording.prediction(entry.row).replace("line:\u00a0", "")
    if entry.basis not in ("printed", "figure", "recomputed") or entry.predicted is None:
        return told
    return f"{told.removeprefix('→').strip()}, {BASIS_WORDS[entry.basis]}"


def _value(entry: Entry) -> str:
    """``"0.998 ± 0.001"``; shares of images in per cent: ``"97.40 ± 0.42 %"``."""
    if entry.spread is None or entry.value is None:
        return wording.amount(entry.value, entry.quantity)
    if is_share(entry.quantity) and 0 <= entry.value <= 1:
        return f"{100 * entry.value:.2f} ± {wording.percent(entry.spread)}"
    return f"{wording.number(entry.value)} ± {wording.number(entry.spread, 2)}"


def _why(entry: Entry) -> tuple[str, ...]:
    """Why there is no number."""
    name, reason = wording.verdict(entry.row)
    return (f"{name}, {reason}" if name and reason else reason or entry.note or name or "no number",)


def _by(entries: Iterable[Entry], key: Callable[[Entry], Hashable]) -> list[tuple[Any, list[Entry]]]:
    """Entries with one key together, in order of appearance."""
    found: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return list(found.items())


def provenance(merged: Merged, folders: Sequence[str] = (), checksums: Sequence[Mapping[str, str]] = ()) -> Table:
    """Where the numbers come from, a block for each result.

    Args:
        folders: where the results are stored, in their order.
        checksums: for each result those of its files, by their names.
    """
    blocks = []
    for run, result in enumerate(merged.results):
        told: list[tuple[str, str]] = [("parameters", Plain(_flat(result.params))), *_origin(result.provenance)]
        told += [(f"sha256 of {name}", Code(digest)) for name, digest in (checksums[run] if checksums else {}).items()]
        heading = (f"{merged.label(run)}: ", Plain(result.name), *((" in ", Code(folders[run])) if folders else ()))
        blocks.append(Block(heading, tuple(Line((name, text)) for name, text in told if text), strong=True))
    caption = " ".join(["Where the numbers come from: a result is what one command has stored.", *merged.notes])
    return Table("provenance", caption, (Column("what", 22), Column("stored", 78)), tuple(blocks))


def _origin(record: dict) -> list[tuple[str, str]]:
    """What a result says of the run that measured it, as pairs of words; empty where it says nothing."""
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    commit = str(record.get("commit") or "")
    changed = ", with changes that were not committed" if commit and record.get("dirty") else ""
    threads = record.get("threads")
    machine = ", ".join(map(str, filter(None, (record.get("machine"), record.get("device"), threads and _count(threads, "thread")))))
    seconds = record.get("seconds")
    return [
        ("command", Code(record.get("command") or "")),
        ("date", Plain(record.get("date") or "")),
        ("machine", Plain(machine)),
        ("wall time", "" if seconds is None else wording.clock(float(seconds))),
        ("versions", Plain(versions)),
        ("commit", Plain(commit + changed)),
        ("seed", "" if record.get("seed") is None else str(record["seed"])),
    ]


def _flat(params: dict, above: str = "") -> str:
    """``"data digits, steps 600, ..."``; of long lists how many there are."""
    told = []
    for name, value in params.items():
        if isinstance(value, dict):
            told.append(_flat(value, above if name == "settings" else f"{above}{name} "))
        elif isinstance(value, list | tuple):
            told.append(f"{above}{name} {' '.join(map(str, value)) if len(value) <= 12 else f'({len(value)} of them)'}")
        else:
            told.append(f"{above}{name} {value}")
    return ", ".join(filter(None, told))
