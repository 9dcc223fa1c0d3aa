"""What a paper takes from results: one table, one figure and one list of sentences, for a column and for a
page.

A table has one line per theory, so that it stays on a page. Which one it is depends on the results: several
networks side by side, the headlines of a comparison or of one network, the reach, or the claims; otherwise
the headlines of the theories as they were measured.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..comparison.judged import (
    Findings,
    Quantity,
    RungResult,
    by_theory,
    findings,
    headlines,
    is_of_one_network,
    quantities,
    rung_results,
)
from ..comparison.pooling import Aggregate
from ..core import format
from ..core.judgement import Judged
from ..core.math_text import literal
from ..core.table import grouped
from ..core.theory import Theory
from . import interventions, side_by_side
from .sentences import HALF, TESTED, joined, network_statements, statements, subject
from .tables import Block, Cell, Column, Line, Note, Piece, Plain, Strong, Table, outcomes, title_of

COLUMN, PAGE = "column", "page"  # the two widths
MAX_STATEMENTS = 3  # about theories
MAX_LINES = 24  # of a table without theories
RULE_OF_P = "as predicted: beyond the null on the predicted side, false discovery rate at most 5 %"


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a paper.

    Attributes:
        column, page: the table, as wide as a column and as a page.
        sentences: the sentences, with formulas between dollars.
    """

    column: Table
    page: Table
    sentences: list[str]


def parts(combined: Aggregate) -> Parts:
    """Returns what a paper takes from the results."""
    found, rungs = findings(combined), rung_results(combined)
    changed = interventions.found_in(combined.results)
    side = side_by_side.of(found, changed)
    of_claims = _claims_sentences(combined)
    if side is not None:
        predicted = [
            sum(each.judged.outcome == "as predicted" for each in found.of(theory))
            for theory in found.theories
        ]
        ordered = sorted(zip(predicted, side_by_side.statements(side)), key=lambda pair: -pair[0])
        said = [pair for _, pair in ordered[:MAX_STATEMENTS]]
        return Parts(_networks(side), side_by_side.table(side), [*map(_sentence, said), *of_claims])
    if found:
        narrow, wide = _headlines(found)
        said = statements(found, most=MAX_STATEMENTS)
        return Parts(narrow, wide, [*map(_sentence, said), *of_claims])
    if len(combined.results) == 1 and is_of_one_network(combined.results[0]):
        every = quantities(combined.results[0], combined.theories)
        chosen = headlines(every, combined.theories)
        said = [f"{title}: {text}." for title, text, _ in network_statements(chosen, every)]
        narrow, wide = _one_network([each for each in chosen if each.rows], combined)
        return Parts(narrow, wide, said)
    if rungs:
        narrow, wide = _reach(rungs, combined)
        return Parts(narrow, wide, [*reach_sentences(rungs), *of_claims])
    if combined.claims:
        narrow, wide = _claims(combined)
        return Parts(narrow, wide, of_claims)
    narrow, wide = _measured(combined)
    return Parts(narrow, wide, [])


def _sentence(said: tuple[str, str]) -> str:
    title, text = said
    return f"{title}: {text}."


def _table(width: str, caption: str, columns: Sequence[Column], lines: Sequence[Line], legend: str) -> Table:
    """Returns a table that stays whole; the first column takes the width that the others leave."""
    first, *rest = columns
    first = Column(first.head, 100 - sum(column.share for column in rest), first.role)
    return Table(width, caption, (first, *rest), (Block("", tuple(lines)),), legend, whole=True)


# ---- several networks


def _networks(side: side_by_side.SideBySide) -> Table:
    """Returns how many networks have each headline as predicted, and how many interventions."""
    lines = []
    changed = grouped(side.changed, lambda each: each.row.theory)
    for theory in side.found.theories:
        own = side.found.of(theory)
        measured = [each for each in own if each.judged.row.value is not None]
        count = Counter(each.judged.outcome for each in measured)
        causal = outcomes(changed.get(theory.name, ()))
        cells: tuple[Cell, ...] = (
            title_of(theory, short=True),
            f"{count['as predicted']} of {len(measured)}",
            str(count["opposite"]) if count["opposite"] else "",
            f"{causal['as predicted']} of {causal.total()}" if causal else "",
        )
        lines.append(Line(cells))
    columns = (
        Column("theory", 0),
        Column("as predicted", 20, "n"),
        Column("opposite", 14, "n"),
        Column("interventions", 22, "n"),
    )
    caption = f"Headlines of the theories in {format.counted(len(side.networks), 'network')}."
    legend = (
        "As predicted: the number of networks that lie on the predicted side of their own randomised copies, "
        "of those measured. Interventions: those that change the outputs as predicted, of those tested."
    )
    return _table(COLUMN, caption, columns, lines, legend).without_empty()


# ---- headlines


def _headlines(found: Findings) -> tuple[Table, Table]:
    """Returns the headline of each theory on the raw tokens, and the number of networks with its headline as
    predicted.
    """
    data = list(dict.fromkeys(column[0] for column in found.columns if column[1] != "network"))
    networks = {column[2] for column in found.columns if column[1] == "network"}
    narrow, wide = [], []
    for theory in found.theories:
        own = found.of(theory)
        on_data = next((each.judged for each in own if each.view == "raw tokens"), None)
        inside = [each.judged for each in own if each.view == "network" and each.judged.row.value is not None]
        count = sum(each.outcome == "as predicted" for each in inside)
        share = f"{count} of {len(inside)}" if inside else ""
        title = title_of(theory, short=True)
        narrow.append(Line((title, *_value(on_data), share)))
        wide.append(Line((title, *_wide(on_data), share)))
    columns = (
        Column("theory", 0),
        Column("value", 18, "n"),
        Column("null", 17, "n"),
        Column("networks", 17, "n"),
    )
    wider = (Column("theory", 0), *WIDE, Column("networks as predicted", 12, "n"))
    where = f"on the raw tokens of {data[0]}" if data else "on data"
    caption = f"Headlines of the theories {where} and in {format.counted(len(networks), 'trained network')}."
    legend = (
        f"Value: the mean over seeds, with ✓ if it is as predicted, ✗ if opposite ({RULE_OF_P}). Null: the "
        "median of its draws. Networks: those with the theory's quantity as predicted, of those measured."
    )
    return (
        _table(COLUMN, caption, columns, narrow, legend).without_empty(),
        _table(PAGE, caption, wider, wide, legend).without_empty(),
    )


WIDE = (
    Column("quantity", 22),
    Column("value", 14, "n"),
    Column("null", 10, "n"),
    Column("p (q)", 10, "n"),
    Column("outcome", 13),
)


def _value(judged: Judged | None) -> tuple[Piece, Piece]:
    """Returns the cells of value and null; empty without a value."""
    if judged is None or judged.row.value is None:
        return "", ""
    row = judged.row
    sign = {"as predicted": "✓\u00a0", "opposite": "✗\u00a0"}.get(judged.outcome, "")
    null = format.null_median(row)
    return Strong(f"{sign}{format.of_row(row.value, row)}"), null


def _wide(judged: Judged | None) -> tuple[Cell, ...]:
    """Returns the cells of :data:`WIDE`."""
    if judged is None or judged.row.value is None:
        reason = "" if judged is None else judged.reason
        return "", "", "", "", (Note(reason) if reason else "")
    row, (value, null) = judged.row, _value(judged)
    interval = format.interval_text(row)
    p = "" if row.p is None else format.p_value(row.p)
    p += f" ({format.p_value(judged.q)})" if judged.q is not None else ""
    words = "any data" if judged.scope == "any data" else judged.outcome
    return row.quantity, (value, Note(interval)) if interval else value, null, p, words


def _one_network(chosen: Sequence[Quantity], combined: Aggregate) -> tuple[Table, Table]:
    """Returns the headline of each theory in one network."""
    theories = {theory.name: theory for theory in combined.theories}
    titles = [title_of(theories[each.theory], short=True) for each in chosen]
    narrow = [Line((title, *_value(each.judged))) for title, each in zip(titles, chosen)]
    wide = [Line((title, *_wide(each.judged))) for title, each in zip(titles, chosen)]
    caption = f"Headlines of theories in {literal(subject(combined.results[0]))}."
    legend = (
        "Value: the mean over all heads or layers, with ✓ if it is as predicted, ✗ if opposite "
        f"({RULE_OF_P}). Null: the median of the randomised copies, or of the quantity's own null."
    )
    columns = (Column("theory", 0), Column("value", 22, "n"), Column("null", 20, "n"))
    return (
        _table(COLUMN, caption, columns, narrow, legend).without_empty(),
        _table(PAGE, caption, (Column("theory", 0), *WIDE), wide, legend).without_empty(),
    )


# ---- the reach


@dataclass(frozen=True, eq=False)
class _Extent:
    """How far one theory reaches.

    Attributes:
        rungs: rungs with the ladder's quantity that were tested.
        count: number of rungs at the beginning that are as predicted, one after the other.
    """

    rungs: Sequence[RungResult]
    count: int

    @classmethod
    def of(cls, rungs: Sequence[RungResult]) -> "_Extent":
        tested = [rung for rung in rungs if rung.judged.outcome in TESTED and not rung.quantity]
        broken = (i for i, rung in enumerate(tested) if rung.judged.outcome != "as predicted")
        return cls(tested, next(broken, len(tested)))

    @property
    def predicted(self) -> int:
        return sum(rung.judged.outcome == "as predicted" for rung in self.rungs)

    @property
    def last(self) -> RungResult | None:
        """The last rung before the first that is not as predicted; None if there is none."""
        return self.rungs[self.count - 1] if self.count else None

    @property
    def end(self) -> RungResult | None:
        """The first rung that is not as predicted; None if all are."""
        return self.rungs[self.count] if self.count < len(self.rungs) else None


def _reach(rungs: Sequence[RungResult], combined: Aggregate) -> tuple[Table, Table]:
    """Returns how far each theory reaches, with its claims if they were verified."""
    narrow, wide = [], []
    for own in by_theory(rungs):
        extent, theory = _Extent.of(own), own[0].theory
        count = f"{extent.predicted} of {len(extent.rungs)}"
        last = extent.last
        up_to: Cell = format.NOTHING if last is None else Plain(last.name)
        ends = ("", "") if last is None else (extent.rungs[0].number, last.number)
        then: Cell = "" if extent.end is None else (Plain(extent.end.name), f": {extent.end.judged.outcome}")
        title = title_of(theory, short=True)
        narrow.append(Line((title, count, up_to, ends[1])))
        claims = combined.claims_of(theory)
        wide.append(Line((title, _of_claims(combined, theory) if claims else "", count, *ends, up_to, then)))
    caption = "How far the theories reach as their assumptions are relaxed."
    rule = (
        "Rungs: those as predicted, beyond every null that decides at a false discovery rate of at most "
        "5 %, of those tested. "
    )
    end = (
        "Up to: the last rung before the first that is not as predicted. Effect there: 0 is the median of "
        "the null, 1 the prediction (×: relative to the first rung)."
    )
    columns = (Column("theory", 0), Column("rungs", 15, "n"), Column("up to", 31), Column("effect", 11, "n"))
    wider = (
        Column("theory", 0),
        Column("claims", 9, "n"),
        Column("rungs", 10, "n"),
        Column("first", 7, "n"),
        Column("last", 7, "n"),
        Column("up to", 16),
        Column("first rung that is not as predicted", 27),
    )
    numbers = (
        "Claims: those consistent on every decided seed, of those verified. First, last: the effect on the "
        "first rung and on the one of “up to”. "
    )
    return (
        _table(COLUMN, caption, columns, narrow, rule + end),
        _table(PAGE, caption, wider, wide, rule + numbers + end).without_empty(),
    )


def reach_sentences(rungs: Sequence[RungResult]) -> list[str]:
    """Returns the theories by the column in which they stop to be as predicted, a sentence each, and those
    that turn to the opposite side.
    """
    extents = {own[0].theory.short_title: _Extent.of(own) for own in by_theory(rungs)}
    tested = {title: extent for title, extent in extents.items() if extent.rungs}
    everywhere = [f"{title}{_smallest(extent)}" for title, extent in tested.items() if extent.end is None]
    said = [f"As predicted on every rung that was tested: {joined(everywhere)}."] if everywhere else []
    ending = {title: extent.end for title, extent in tested.items() if extent.end is not None}
    ends = [
        f"“{column}”: {joined(titles)}"
        for column, titles in grouped(ending, lambda title: ending[title].column).items()
    ]
    if ends:
        said.append(f"Not as predicted for the first time on a rung of {'; '.join(ends)}.")
    opposite = {
        title: [rung for rung in extent.rungs if rung.judged.outcome == "opposite"]
        for title, extent in tested.items()
    }
    turned = [
        f"{title} ({len(found)} of {len(tested[title].rungs)} rungs)"
        for title, found in opposite.items()
        if found
    ]
    if turned:
        said.append(f"On the side opposite to the prediction: {joined(turned)}.")
    return said


def _smallest(extent: _Extent) -> str:
    """Names the smallest effect, if it is so small that "as predicted" alone would mislead."""
    known = [rung for rung in extent.rungs if rung.judged.effect is not None]
    least = min(known, key=lambda rung: rung.judged.effect or 0.0, default=None)
    if least is None or least.judged.effect is None or least.judged.effect >= HALF:
        return ""
    return f" (effect {least.number} at “{least.name}”)"


# ---- claims


def _of_claims(combined: Aggregate, theory: Theory) -> str:
    """Returns how many claims of a theory are consistent: ``"37 of 37"``."""
    claims = combined.claims_of(theory)
    consistent = sum(checked.verification.outcome == "consistent" for checked in claims)
    return f"{consistent} of {len(claims)}"


def _claims(combined: Aggregate) -> tuple[Table, Table]:
    """Returns the numbers of claims of each theory."""
    narrow, wide = [], []
    for theory in combined.theories:
        claims = [checked.verification for checked in combined.claims_of(theory)]
        if not claims:
            continue
        seeds = [len(claim.seeds) for claim in claims]
        undecided = sum(claim.undecided for claim in claims)
        title = title_of(theory, short=True)
        consistent = _of_claims(combined, theory)
        corrections = str(sum(claim.corrects_published for claim in claims) or "")
        fails = f"{sum(claim.control == 'fails' for claim in claims)} of {len(claims)}"
        narrow.append(Line((title, consistent, corrections)))
        wide.append(Line((title, consistent, format.span(seeds), str(undecided or ""), fails, corrections)))
    caption = "Claims of the theories on instances that were drawn at random."
    legend = (
        "Consistent: claims that are consistent on every decided seed, of those verified; this proves none. "
        "Corrections: claims that correct a published text."
    )
    more = " Controls fail: the same check with one assumption removed or the target replaced."
    columns = (Column("theory", 0), Column("consistent", 24, "n"), Column("corrections", 20, "n"))
    wider = (
        Column("theory", 0),
        Column("consistent", 14, "n"),
        Column("seeds", 12, "n"),
        Column("undecided seeds", 12, "n"),
        Column("controls fail", 14, "n"),
        Column("corrections", 12, "n"),
    )
    return (
        _table(COLUMN, caption, columns, narrow, legend).without_empty(),
        _table(PAGE, caption, wider, wide, legend + more).without_empty(),
    )


def _claims_sentences(combined: Aggregate) -> list[str]:
    """Returns what was found of all claims; empty without any."""
    claims = [checked.verification for checked in combined.claims]
    if not claims:
        return []
    span = format.span([len(claim.seeds) for claim in claims])
    consistent = sum(claim.verdict == "consistent" for claim in claims)
    undecided = sum(claim.undecided for claim in claims)
    fails = sum(claim.control == "fails" for claim in claims)
    text = (
        f"{consistent} of {format.counted(len(claims), 'claim')} are consistent on every decided seed, with "
        f"{span} seeds each; the controls of {fails} fail as they must"
    )
    if undecided:
        text += f"; {format.counted(undecided, 'seed')} {'was' if undecided == 1 else 'were'} not decided"
    return [f"{text}."]


# ---- other results


def _measured(combined: Aggregate) -> tuple[Table, Table]:
    """Returns the first numbers of the results, headlines of theories first."""
    first = [entry for theory in combined.theories for entry in combined.headlines(theory)]
    entries = [*first, *(entry for entry in combined.entries if entry not in first)]
    entries = [entry for entry in entries if not entry.missing][:MAX_LINES]
    narrow, wide = [], []
    for entry in entries:
        row = entry.row
        value = Strong(format.of_row(row.value, row))
        interval = format.interval_text(row)
        source = (" ", row.source) if row.source is not None and row.source.known else ()
        label: Cell = (format.label(row), *source)
        narrow.append(Line((label, value)))
        null = format.null_median(row)
        cell = (value, Note(interval)) if interval else value
        wide.append(Line((label, Plain(entry.on), format.prediction(row), cell, null)))
    more = len([entry for entry in combined.entries if not entry.missing]) - len(entries)
    legend = f"{more:,} further numbers are in the appendix and in the macros." if more else ""
    columns = (Column("quantity", 0), Column("value", 24, "n"))
    wider = (
        Column("quantity", 0),
        Column("on", 26),
        Column("prediction (threshold)", 16),
        Column("value", 14, "n"),
        Column("null", 10, "n"),
    )
    caption = "Measurements."
    return (
        _table(COLUMN, caption, columns, narrow, legend),
        _table(PAGE, caption, wider, wide, legend).without_empty(),
    )
