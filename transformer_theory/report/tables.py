"""The table as data, and the table of judged rows: headlines, rungs, and quantities of one network.

The page, LaTeX, Markdown and the terminal print the same tables of columns, blocks of lines, and cells. A
cell is one of

* a text in which dollars enclose formulas;
* a :class:`Plain` text in which dollars have no meaning, used for names of data, networks and files;
* a :class:`~..core.sources.Source`;
* a tuple of these.

Every judged row has the columns :data:`JUDGED` and the cells of :func:`judged_cells`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..comparison.judged import Findings, Quantity, RungResult, by_theory, headlines, notable, quantities
from ..comparison.pooling import COMPARE, Aggregate
from ..core import format
from ..core.judgement import OUTCOMES, Judged
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.sources import Source
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.intervene import MEASURE
from .sentences import place, strength, subject

MAX_NOTABLE = 12  # quantities in the table of places that stand out
TOP = 3  # places that are named for each quantity


# ---- the table as data


class Plain(str):
    """A name, printed literally."""


class Code(Plain):
    """A command, a path or a checksum in typewriter type; a line may break inside it."""


class Note(str):
    """A remark in small type on a separate line."""


class StrongNote(Note):
    """A remark in bold."""


class Strong(Plain):
    """A number in bold."""


class Verdict(Plain):
    """The name of a verdict; the page shows it as a badge."""


Piece: TypeAlias = str | Source
Cell: TypeAlias = Piece | tuple[Piece, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: heading.
        share: share of the width of the table, in per cent.
        role: "n" for numbers, "cite" for sources, "on" for places.
    """

    head: str
    share: int
    role: Literal["", "n", "cite", "on"] = ""


@dataclass(frozen=True)
class Line:
    """A line of a table: one cell per column, or no cells; then a text that spans all columns, or an empty
    text.
    """

    cells: tuple[Cell, ...]
    below: Cell = ""


@dataclass(frozen=True)
class Block:
    """Lines under a heading.

    Attributes:
        heading: text above the lines; empty without a heading.
        lines: the lines.
        note: text below the heading.
        strong: whether the heading is in bold; a strong heading also covers the blocks that follow it.
        theory: name of a theory; the heading links to its section on the page. Empty without a link.
    """

    heading: Cell
    lines: tuple[Line, ...] = ()
    note: Cell = ""
    strong: bool = False
    theory: str = ""

    @property
    def title(self) -> tuple[Piece, ...]:
        """The words of the heading."""
        return tuple(piece for piece in pieces(self.heading) if not isinstance(piece, Source | Note))

    @property
    def beside(self) -> list[Source | Note]:
        """The sources and notes of the heading."""
        return [piece for piece in pieces(self.heading) if isinstance(piece, Source | Note)]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: identifier of lower-case letters, digits and hyphens.
        caption: text above the table.
        columns: the columns.
        blocks: the lines, in blocks.
        legend: explanation of the columns, printed after the caption in LaTeX and Markdown; the page explains
            them elsewhere.
        whole: whether it stays on one page of a paper.
    """

    name: str
    caption: Cell
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    legend: str = ""
    whole: bool = False

    @property
    def lines(self) -> list[Line]:
        """The lines of all blocks."""
        return [line for block in self.blocks for line in block.lines]

    def without_empty(self) -> "Table":
        """Removes columns that are empty in every line. The first column stays, and their width is added to
        it.
        """
        lines = [line for line in self.lines if line.cells]
        indices = [
            i
            for i in range(len(self.columns))
            if i == 0 or any(line.cells[i] not in ("", format.NOTHING, ()) for line in lines)
        ]
        first, *rest = (self.columns[i] for i in indices)
        columns = (replace(first, share=100 - sum(column.share for column in rest)), *rest)
        select = lambda line: replace(line, cells=tuple(line.cells[i] for i in indices) if line.cells else ())  # noqa: E731
        blocks = tuple(replace(block, lines=tuple(map(select, block.lines))) for block in self.blocks)
        return replace(self, columns=columns, blocks=blocks)


def pieces(cell: Cell) -> tuple[Piece, ...]:
    """Returns the pieces of a cell; an empty cell has no pieces."""
    return cell if isinstance(cell, tuple) else (cell,) if cell else ()


# ---- judged rows

JUDGED = (
    Column("on", 17, "on"),
    Column("value", 14, "n"),
    Column("prediction", 13, "n"),
    Column("nulls", 20, "n"),
    Column("effect", 10, "n"),
    Column("p (q)", 10, "n"),
    Column("outcome", 16),
)


def judged_cells(what: Cell, judged: Judged, about: str = "") -> tuple[Cell, ...]:
    """Returns the cells of a judged row, one per column of :data:`JUDGED`.

    Args:
        what: what was measured, and where.
        judged: the row.
        about: remark below the value; if empty, the number of seeds.
    """
    row = judged.row
    if row.value is None:
        return what, format.NOTHING, "", "", "", "", (judged.outcome, Note(judged.reason))
    seeds = format.counted(judged.seeds, "seed") if judged.seeds > 1 else ""
    below = ", ".join(filter(None, (format.interval_text(row), about or seeds)))
    value = (Strong(format.of_row(row.value, row)), *([Note(below)] if below else []))
    predicted = "" if row.predicted is None else format.amount(row.predicted, row.unit)
    effect = "" if judged.effect is None else format.effect(judged.effect)
    if effect and row.basis == "own setting":
        effect += "×"
    ends = judged.effect_interval
    interval = f"[{', '.join(map(format.effect, ends))}]" if ends is not None else ""
    p = "" if row.p is None else format.p_value(row.p)
    p += f" ({format.p_value(judged.q)})" if judged.q is not None else ""
    # the scope "any data" is itself the reason why there is no test
    scope = judged.scope if judged.scope in ("any data", "training") else ""
    reason = "" if judged.scope == "any data" else judged.reason
    remarks = [text for text in (scope, reason, judged.remark) if text]
    return (
        what,
        value,
        predicted,
        (*nulls_cell(row), *_noise(judged)),
        (effect, Note(interval)) if interval else effect,
        p,
        (judged.words, *map(Note, remarks)),
    )


def nulls_cell(row: Measurement) -> tuple[Piece, ...]:
    """Returns the nulls of a row: the median of the first one, then the kind and the range of each."""
    pieces: list[Piece] = []
    for number, null in enumerate(row.nulls):
        if null.draws and number == 0:
            ends = format.bounds((null.low, null.high), row.unit, row.interval)
            spread = f"{null.kind}{f', {ends}' if len(null.draws) > 1 else ''}"
            if null.value is not None and format.of_row(null.value, row) != format.of_row(row.value, row):
                spread += f"; on its inputs the value is {format.of_row(null.value, row)}"
            pieces += [format.of_row(null.median, row), Note(spread)]
        elif null.draws:
            pieces.append(Note(format.null_text(row, null)))
    return tuple(pieces)


def _noise(judged: Judged) -> tuple[Note, ...]:
    noise = judged.on_noise
    return () if noise is None else (Note(f"on noise {format.of_row(noise, judged.row)}"),)


OF_CHANGES = "the mean difference over sequences, changed less unchanged,"


def judged_legend(judged: Sequence[Judged], value: str = "the mean over seeds") -> str:
    """Explains the columns of judged rows, and the outcomes that occur in them."""
    tests = format.counted(sum(one.q is not None for one in judged), "test")
    met = {one.outcome for one in judged}
    return (
        f"Value: {value} with its 95 % interval. Nulls: the median of the first, then kind and "
        "range of each. Effect: 0 is the median of the null, 1 the prediction or, without one, the bound of "
        f"the quantity. {tests}; q is the p-value adjusted for the false discovery rate in its family "
        "(Benjamini and Hochberg). "
        + " ".join(
            f"{format.sentence_case(outcome)}: {meaning}."
            for outcome, meaning in OUTCOMES.items()
            if outcome in met
        )
    )


def findings(found: Findings, absent: Sequence[Theory] = (), changed: Sequence[Judged] = ()) -> Table | None:
    """Returns the headlines of the theories in every place, a block per theory; None if nothing was found.

    Args:
        found: the headlines.
        absent: theories of the comparison of which no headline was measured; they are named in the last line.
        changed: judged interventions; the line of a network says how many of its theory are as predicted.
    """
    if not found:
        return None
    several = len({finding.data for finding in found.all}) > 1
    by_place = grouped(changed, lambda each: (each.row.theory, each.row.model))
    blocks = []
    for theory in found.theories:
        lines, before = [], ""
        for finding in found.of(theory):
            quantity = finding.judged.row.quantity
            what = Plain(f"{finding.data}: {finding.where}" if several else finding.where)
            below = () if quantity == before else (Note(quantity),)
            if finding.view == "network":
                below += _changes(by_place.get((theory.name, finding.model), ()))
            before = quantity
            lines.append(Line(judged_cells((what, *below), finding.judged)))
        blocks.append(Block(title_of(theory), tuple(lines), strong=True, theory=theory.name))
    if absent:
        listed = tuple(piece for theory in absent for piece in ("; ", *title_of(theory)))[1:]
        blocks.append(Block("", (Line((), ("Not measured on these data: ", *listed)),), strong=True))
    one_by_one = all(finding.view == "network" and finding.judged.seeds <= 1 for finding in found.all)
    value = "the mean over layers and heads" if one_by_one else "the mean over seeds"
    legend = judged_legend([finding.judged for finding in found.all], value)
    caption = "Headlines of the theories on the data and in the networks."
    return Table("findings", caption, JUDGED, tuple(blocks), legend).without_empty()


def absent(aggregate: Aggregate, found: Findings) -> list[Theory]:
    """Returns the theories that a comparison evaluated and of which no headline was measured."""
    compared = {
        name
        for result in aggregate.results
        if result.name == COMPARE
        for name in result.settings.get("theories") or ()
    }
    return [
        theory for theory in aggregate.theories if theory.name in compared and theory not in found.theories
    ]


def title_of(theory: Theory, *, short: bool = False) -> tuple[Piece, ...]:
    """Returns the title of a theory, or its part before the colon, with its first source."""
    sources = [source for source in theory.sources[:1] if source.known]
    title = theory.short_title if short else theory.title
    return (title, *(piece for source in sources for piece in (" ", source)))


def outcomes(changed: Sequence[Judged]) -> Counter[str]:
    """Counts the outcomes of the interventions that were tested."""
    return Counter(each.outcome for each in changed if each.q is not None)


def reach(rungs: Sequence[RungResult]) -> Table | None:
    """Returns the rungs of all theories, a block per theory; None if there are none."""
    if not rungs:
        return None
    blocks = []
    for own in by_theory(rungs):
        theory, quantity = own[0].theory, own[0].judged.row.quantity
        lines = []
        for rung in own:
            covered = "covered by the theorem" if rung.covered else ""
            relaxes = f"relaxes {rung.relaxes}" if rung.relaxes else ""
            notes = (rung.quantity, relaxes, rung.column, covered)
            what = (Plain(rung.name), Note("; ".join(filter(None, notes))))
            lines.append(Line(judged_cells(what, rung.judged)))
        heading = (*title_of(theory), Note(quantity))
        blocks.append(Block(heading, tuple(lines), strong=True, theory=theory.name))
    columns = (replace(JUDGED[0], head="rung"), *JUDGED[1:])
    legend = (
        "Rungs are cumulative up to the column “depth”: each keeps what the rungs above relax. Trained "
        "networks have recipes of their own. ×: the effect is relative to the first rung. "
        + judged_legend([rung.judged for rung in rungs])
    )
    return Table("reach", "The reach of the theories.", columns, tuple(blocks), legend).without_empty()


# ---- one network


def of_network(result: Result, theories: Sequence[Theory]) -> Table:
    """Returns the headlines of a network as a table that stands alone, with the first source of
    each theory.
    """
    chosen = headlines(quantities(result, theories), theories)
    sources = {theory.short_title: theory.sources[:1] for theory in theories}
    table = network_headlines([each for each in chosen if each.rows])
    lines = [
        replace(line, cells=((Strong(f"{line.cells[0]} "), *sources[str(line.cells[0])]), *line.cells[1:]))
        for line in table.lines
    ]
    tests = sum(each.judged.q is not None for each in chosen)
    tested = f"q controls the false discovery rate over {format.counted(tests, 'test')}. " if tests else ""
    legend = (
        "Value: the mean over all heads or layers, with the smallest and the largest. Nulls: median, kind "
        "and "
        "range of the quantity's own null, and networks with random weights. Effect: 0 is the median of the "
        f"null, 1 the prediction or bound. {tested}Heads or layers beyond chance: on the predicted side of "
        "their own null with p ≤ .05, by chance one in twenty."
    )
    caption = Plain(f"Headlines of theories in {subject(result)}.")
    return replace(
        table, name="all", caption=caption, blocks=tuple(Block("", (line,)) for line in lines), legend=legend
    )


_PLACES = Column("heads or layers beyond copies", 16)
_FURTHER = Column("further nulls", 13)


def _columns(*first: Column) -> tuple[Column, ...]:
    """Returns the columns of judged rows behind the given ones, with the number of places beyond chance."""
    shares = (15, 13, 8, 17, 7, 8, 13)
    judged = tuple(replace(column, share=share) for column, share in zip(JUDGED, shares))
    heads = {"on": "quantity", "p (q)": "adjusted p"}
    judged = tuple(replace(column, head=heads.get(column.head, column.head)) for column in judged)
    own = (*first, replace(judged[0], role=""), *judged[1:], _PLACES)
    return (replace(own[0], share=100 - sum(column.share for column in own[1:])), *own[1:])


def network_headlines(chosen: Sequence[Quantity], changed: Sequence[Judged] = ()) -> Table:
    """Returns one line per theory, in the order of the sentences.

    Args:
        chosen: the headlines.
        changed: judged interventions in this network.
    """
    ordered = sorted(chosen, key=strength)
    by_theory = grouped(changed, lambda each: each.row.theory)
    lines = [
        Line(
            (
                _titled(Strong(each.short_title), _changes(by_theory.get(each.theory, ()))),
                *_cells(each),
                _further(each.judged),
            )
        )
        for each in ordered
    ]
    caption = "The headline of each theory in this network."
    columns = (*_columns(Column("theory", 0)), _FURTHER)
    return Table("own-headlines", caption, columns, (Block("", tuple(lines)),)).without_empty()


def _titled(title: Strong, notes: tuple[Note, ...]) -> Cell:
    return (title, *notes) if notes else title


def _changes(changed: Sequence[Judged]) -> tuple[Note, ...]:
    """Returns the number of interventions of a theory that are as predicted, as a note; none without any."""
    count = outcomes(changed)
    if not count:
        return ()
    opposite = f", {count['opposite']} opposite" if count["opposite"] else ""
    return (Note(f"interventions: {count['as predicted']} of {count.total()} as predicted{opposite}"),)


def _further(judged: Judged) -> Cell:
    """Says which nulls behind the first one bear the outcome out, give as much, or contradict it."""
    kinds: dict[str, list[str]] = {"agree": [], "give as much": [], "contradict": []}
    for kind, side in judged.against:
        if side is not None:
            kinds["give as much" if not side else "agree" if side == judged.side else "contradict"].append(
                kind
            )
    return "; ".join(f"{word}: {', '.join(same)}" for word, same in kinds.items() if same)


def in_network(found: Sequence[Quantity], theory: Theory) -> dict[str, Any]:
    """Returns the table of a theory's quantities, and the reasons of those that were not measured."""
    own = [each for each in found if each.theory == theory.name]
    missing = grouped((each for each in own if not each.rows), lambda each: each.judged.reason)
    slug = f"own-{format.slug(theory.name)}"
    return {
        "table": network_quantities(own, slug, f"{theory.title}: quantities in this network"),
        "reasons": [(", ".join(each.label for each in same), reason) for reason, same in missing.items()],
    }


def network_quantities(own: Sequence[Quantity], name: str, caption: str) -> Table | None:
    """Returns a table with one line per quantity that was measured; None if there are none."""
    lines = tuple(Line(_cells(each)) for each in own if each.rows)
    return Table(name, caption, _columns(), (Block("", lines),)).without_empty() if lines else None


def _cells(quantity: Quantity) -> tuple[Cell, ...]:
    """Returns the cells of a quantity: its name with what it is and the remark that its places share, the
    judged mean, and the places beyond chance.
    """
    notes = {each.note for each in quantity.rows}
    texts = (quantity.meaning, notes.pop() if not quantity.headline and len(notes) == 1 else "")
    name = (quantity.label, *(Note(text) for text in texts if text))
    values = [each.value for each in quantity.rows if each.value is not None]
    spread = format.bounds((min(values), max(values)), quantity.mean.unit) if len(values) > 1 else ""
    about = ", ".join(filter(None, (spread, quantity.places)))
    cells = list(judged_cells(name, quantity.judged, about))
    if quantity.mean.null is None and any(each.null is not None for each in quantity.rows):
        cells[3] = "differs by place"
    if quantity.mean.p is not None:  # the p-values of other quantities than headlines are not adjusted
        cells[5] = "" if quantity.judged.q is None else format.p_value(quantity.judged.q)
    if quantity.mean.p is not None and quantity.judged.q is None:
        cells[6] = ""
    return (*cells, _beyond(quantity))


def _beyond(quantity: Quantity) -> Cell:
    if not quantity.tested or len(quantity.rows) < 2:
        return ""
    places = "; ".join(place(row, beside_chance=False) for row in quantity.beyond[:TOP])
    return Plain(f"{len(quantity.beyond)} of {quantity.tested}"), *([Note(places)] if places else [])


def interventions(found: Sequence[Judged], theories: Sequence[Theory]) -> Table:
    """Returns one line per intervention and network, in blocks of one theory each. The value is the change of
    the measure that the line names.

    Args:
        found: judged interventions.
        theories: theories with their titles.
    """
    titles = {theory.name: title_of(theory) for theory in theories}
    several = len({each.row.model for each in found}) > 1
    blocks = []
    for theory, own in grouped(found, lambda each: each.row.theory).items():
        lines, before = [], ""
        for each in sorted(
            own, key=lambda each: [other.row.quantity for other in own].index(each.row.quantity)
        ):
            name = each.row.quantity if each.row.quantity != before else ""
            before = each.row.quantity
            below = ", ".join(filter(None, (each.row.model * several, str(each.row.at.get(MEASURE, "")))))
            lines.append(Line(judged_cells((Plain(name), Note(below)), each)))
        blocks.append(Block(titles.get(theory, theory), tuple(lines), strong=True, theory=theory))
    caption = "Change of the outputs of a network when its forward pass is changed as a theory says."
    legend = judged_legend(found, OF_CHANGES)
    return Table("interventions", caption, JUDGED, tuple(blocks), legend).without_empty()


def standing_out(found: Sequence[Quantity]) -> Table | None:
    """Returns a table of the :func:`~..comparison.judged.notable` quantities; None if there are none."""
    lines = []
    for each in notable(found)[:MAX_NOTABLE]:
        matched = each.judged.outcome in ("matched by a second null", "nulls conflict")
        lines.append(
            Line(
                (
                    (each.label, Note(each.short_title), *([Note(each.judged.words)] if matched else [])),
                    Plain(f"{len(each.beyond)} of {each.tested}"),
                    Plain("; ".join(place(row) for row in each.beyond[:TOP])),
                )
            )
        )
    if not lines:
        return None
    columns = (
        Column("quantity", 36),
        Column("beyond copies", 14, "n"),
        Column("farthest from their copies", 50),
    )
    return Table("own-places", "Heads and layers that stand out.", columns, (Block("", tuple(lines)),))
