"""Several networks side by side: the headline of each theory in each network, as a table and as a figure that
fits a column or a page of a paper.

A cell shows the mark of the outcome and the value; below it stands how many interventions are as predicted,
of those that were tested. In the figure the cell of a headline that is as predicted is shaded by the effect,
from pale (0) to dark (1 and more). Marks and shades are legible without colours.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comparison.judged import Finding, Findings
from ..core import format
from ..core.judgement import Judged
from ..core.plotting import blank, plain, style
from ..core.table import grouped
from ..core.theory import Theory
from .judged_figures import ALARM, DARK, GREY, INK, MARKS, PAPER_COLUMN, RULE, WIDTH, shade
from .sentences import joined, span
from .tables import Block, Cell, Column, Line, Note, Plain, Strong, Table, outcomes, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREDICTED, MISSING = "\N{CHECK MARK}", "\N{EN DASH}"  # marks
MEANING = f"{PREDICTED}\u00a0as predicted, beyond copies of equal scale and every other null that decides"
FIRST = 24  # share of the width of the table that the theories take, per cent


@dataclass(frozen=True, eq=False)
class SideBySide:
    """The headlines of theories in several networks that were measured one by one.

    Attributes:
        found: the headlines, one per theory and network.
        changed: judged interventions in the networks.
    """

    found: Findings
    changed: Sequence[Judged] = ()

    @property
    def networks(self) -> list[str]:
        """The names of the networks, in order."""
        return [model for *_, model in self.found.columns]

    def at(self, theory: Theory, network: str) -> Finding | None:
        """Returns the headline of a theory in a network; None if there is none."""
        return self.found.at(theory, ("", "network", network))

    @property
    def reasons(self) -> dict[str, list[Finding]]:
        """The headlines without a value, by the reason, in the order of the cells."""
        empty = (
            each
            for theory in self.found.theories
            for network in self.networks
            if (each := self.at(theory, network)) is not None and each.judged.row.value is None
        )
        return grouped(empty, lambda each: each.judged.reason)

    def interventions(self) -> dict[tuple[str, str], str]:
        """Returns, by theory and network, how many interventions are as predicted: ``"2 of 3"``."""
        places = grouped(self.changed, lambda each: (each.row.theory, each.row.model))
        counts = {place: outcomes(own) for place, own in places.items()}
        return {
            place: f"{count['as predicted']} of {count.total()}"
            for place, count in counts.items()
            if count.total()
        }


def of(found: Findings, changed: Sequence[Judged] = ()) -> SideBySide | None:
    """Returns the headlines of several networks; None if there are others, on data or in one network."""
    one_by_one = all(each.view == "network" and not each.data for each in found.all)
    side = SideBySide(found, changed)
    return side if one_by_one and len(side.networks) > 1 else None


def mark_of(judged: Judged) -> str:
    """Returns the mark of an outcome; empty for a headline without a value."""
    return PREDICTED if judged.outcome == "as predicted" else MARKS.get(judged.outcome, ("", ""))[0].strip()


def table(side: SideBySide) -> Table:
    """Returns the table, theories by networks. The reasons of empty cells are numbered in its last lines."""
    right, reasons = side.interventions(), list(side.reasons)
    lines = []
    for theory in side.found.theories:
        cells: list[Cell] = [title_of(theory, short=True)]
        for network in side.networks:
            each = side.at(theory, network)
            cells.append("" if each is None else _cell(each, right.get((theory.name, network)), reasons))
        lines.append(Line(tuple(cells)))
    said = [
        Line((), f"{number}. {reason}: {_places(places)}.")
        for number, (reason, places) in enumerate(side.reasons.items(), 1)
    ]
    share = (100 - FIRST) // max(1, len(side.networks))
    columns = tuple(Column(Plain(name), share, "n") for name in side.networks)
    first = Column("theory", 100 - share * len(columns))
    return Table(
        "networks-side-by-side",
        "Headlines of the theories in networks that were measured one by one.",
        (first, *columns),
        (Block("", (*lines, *said)),),
        legend(side),
        whole=True,
    )


def _cell(each: Finding, right: str | None, reasons: Sequence[str]) -> Cell:
    judged = each.judged
    below = (Note(right),) if right else ()
    if judged.row.value is None:
        return (f"{format.NOTHING} ({1 + reasons.index(judged.reason)})", *below)
    mark = mark_of(judged)
    return (Strong(f"{mark}\u00a0{format.of_row(judged.row.value, judged.row)}".strip()), *below)


def _places(places: Sequence[Finding]) -> str:
    """Returns the cells in words: ``"Chains of thought in MiniLM, decoder; Routing in MiniLM"``."""
    by_theory = grouped(places, lambda each: each.theory.short_title)
    return "; ".join(
        f"{title} in {', '.join(each.model for each in own)}" for title, own in by_theory.items()
    )


def legend(side: SideBySide) -> str:
    """Explains the marks that occur and the second lines, and counts the empty cells."""
    below = "Second line: interventions as predicted, of those tested. " if side.changed else ""
    empty = sum(len(places) for places in side.reasons.values())
    without = f"{empty} of {len(side.found.all)} cells are empty, for the numbered reasons. " if empty else ""
    marks = "; ".join([MEANING, *_marks(side)])
    return f"{marks}. {below}{without}Each network is compared with its own copies, not with the others."


def _marks(side: SideBySide) -> list[str]:
    """Returns the marks that occur, each with its meaning."""
    met = {each.judged.outcome for each in side.found.all}
    return [f"{mark.strip()}\u00a0{meaning}" for outcome, (mark, meaning) in MARKS.items() if outcome in met]


# ---- sentences

VERBS = {">=": "raises", "<=": "lowers"}
FEW = 3  # networks that are named; of more the number is


def statements(side: SideBySide) -> list[tuple[str, str]]:
    """Returns pairs (title of a theory, what was found in the networks), without full stops."""
    said = []
    for theory in side.found.theories:
        count = outcomes([each for each in side.changed if each.row.theory == theory.name])
        causal = f"; interventions as predicted: {count['as predicted']} of {count.total()}" if count else ""
        said.append((theory.title, f"{_statement(side.found.of(theory))}{causal}"))
    return said


def _statement(cells: Sequence[Finding]) -> str:
    """Says what was found of the headline of a theory."""
    by_outcome = grouped(cells, lambda each: each.judged.outcome)
    missing = by_outcome.pop("not measured", [])
    without = f"not measured in {_named(missing)}" if missing else ""
    measured = [each for each in cells if each.judged.row.value is not None]
    if not measured:
        return without
    row = measured[0].judged.row
    if row.side not in VERBS:
        return "; ".join(filter(None, (_unpredicted(measured), without)))
    predicted = by_outcome.pop("as predicted", [])
    count = f"{len(predicted) or 'none'} of {format.counted(len(cells), 'network')}"
    parts = [f"training {VERBS[row.side]} the {row.quantity}, as predicted, in {count}"]
    for outcome, own in by_outcome.items():
        words = {"matched by a second null": "give as much", "nulls conflict": "say the opposite"}.get(
            outcome
        )
        kinds = {each.judged.nulls for each in own}
        nulls = joined(next(iter(kinds))) if words and len(kinds) == 1 else "further nulls"
        parts.append(f"{f'{nulls} {words}' if words else outcome} in {_named(own)}")
    return "; ".join(filter(None, (*parts, without)))


def _unpredicted(cells: Sequence[Finding]) -> str:
    """Says where a quantity lies beside copies if the theory predicts no side."""
    row = cells[0].judged.row
    values = span([each.judged.row.value for each in cells], row)
    above, below = [], []
    for each in cells:
        null, value = each.judged.row.null, each.judged.compared
        if null is not None and null.draws and value is not None:
            above += [each] if value > max(null.draws) else []
            below += [each] if value < min(null.draws) else []
    sides = [
        f"{word} all copies in {_named(own)}" for word, own in (("above", above), ("below", below)) if own
    ]
    found = f" and lies {joined(sides)}" if sides else ""
    where = format.counted(len(cells), "network")
    return f"the {row.quantity}, for which no side is predicted, is {values} in {where}{found}"


def _named(cells: Sequence[Finding]) -> str:
    """Returns the names of few networks, or the number of many."""
    names = [each.model for each in cells]
    return joined(names) if len(names) <= FEW else format.counted(len(names), "network")


# ---- the figure


@dataclass(frozen=True)
class _Sizes:
    """Sizes in inches, and font sizes in points."""

    width: float
    label: float
    row: float
    header: float
    font: float
    small: float
    letters: int  # of a line of a title


PAGE = _Sizes(WIDTH, 1.62, 0.31, 0.5, 6.8, 6.0, 30)
COLUMN = _Sizes(PAPER_COLUMN, 1.26, 0.2, 1.05, 6.4, 6.0, 26)
LINE = 0.105  # height of a line of the legend, inches
SLANT = 90  # of the names of networks in a column, degrees
PAD = 0.015


@style()
def figure(side: SideBySide, *, column: bool = False) -> "Figure | None":
    """Draws the headlines, a row per theory and a column per network.

    Args:
        side: the headlines.
        column: whether the figure is as wide as a column of a paper instead of a page; its cells then show
            marks and shades alone, and the names of the networks are upright.
    """
    sizes = COLUMN if column else PAGE
    theories, networks = side.found.theories, side.networks
    width = (sizes.width - sizes.label) / len(networks)
    words = textwrap.wrap(_words(side, column), round(sizes.width / 0.0455))
    height = sizes.header + sizes.row * len(theories) + LINE * (len(words) + 1)
    drawn = blank(sizes.width, height)
    ax = drawn.add_axes((0, 0, 1, 1), xlim=(0, sizes.width), ylim=(height, 0))
    ax.set_axis_off()
    names = {"fontsize": sizes.small, "color": INK, "va": "bottom", "linespacing": 1.0}
    for number, network in enumerate(networks):
        place = sizes.label + width * (number + 0.5), sizes.header - 0.04
        if column:
            ax.text(*place, textwrap.fill(plain(network), 24), rotation=SLANT, ha="center", **names)
        else:
            filled = textwrap.fill(plain(network), max(8, round(width / 0.047)), break_long_words=False)
            ax.text(*place, filled, ha="center", **names)
    right = side.interventions()
    for number, theory in enumerate(theories):
        top = sizes.header + sizes.row * number
        ax.plot((0, sizes.width), (top, top), color=RULE, linewidth=0.6)
        title = textwrap.fill(theory.short_title, sizes.letters)
        size = sizes.font if "\n" not in title else sizes.small
        ax.text(0.02, top + sizes.row / 2, title, fontsize=size, color=INK, va="center", linespacing=0.95)
        for index, network in enumerate(networks):
            each = side.at(theory, network)
            if each is not None:
                below = "" if column else right.get((theory.name, network), "")
                _tile(ax, each, (sizes.label + width * index, top), width, sizes, below)
    ax.plot((0, sizes.width), (height - LINE * (len(words) + 0.6),) * 2, color=RULE, linewidth=0.6)
    ax.text(
        0.02,
        height - LINE * (len(words) + 0.3),
        "\n".join(words),
        fontsize=sizes.small,
        color=GREY,
        va="top",
        linespacing=1.15,
    )
    return drawn


def _tile(
    ax: "Axes", each: Finding, corner: tuple[float, float], width: float, sizes: _Sizes, below: str
) -> None:
    """Draws one headline: its shade, its mark, and on a page its value with the interventions below it."""
    from matplotlib.patches import Rectangle

    left, top = corner
    judged, tone = each.judged, INK
    if judged.outcome == "as predicted":
        share = 1.0 if judged.effect is None else min(1.0, max(0.0, judged.effect))
        place = (left + PAD, top + PAD), width - 2 * PAD, sizes.row - 2 * PAD
        ax.add_patch(Rectangle(*place, facecolor=shade(share), edgecolor="none", zorder=1))
        tone = "white" if share > DARK else INK
    elif judged.outcome == "opposite":
        tone = ALARM
    elif judged.outcome in ("not tested", "too few draws", "not measured"):
        tone = GREY
    value = judged.row.value
    words = mark_of(judged) if value is not None else MISSING
    if sizes is PAGE and value is not None:
        words = f"{words} {format.of_row(value, judged.row)}".strip()
    middle, texts = left + width / 2, {"ha": "center", "va": "center", "color": tone, "zorder": 2}
    ax.text(
        middle, top + sizes.row * (0.34 if below else 0.5), words, fontsize=sizes.font, weight="bold", **texts
    )
    if below:
        ax.text(middle, top + sizes.row * 0.74, below, fontsize=sizes.small, **texts)


def _words(side: SideBySide, column: bool) -> str:
    """Returns the legend of the figure."""
    below = "" if column or not side.changed else " Below: interventions as predicted, of those tested."
    shaded = f"{PREDICTED}\u00a0as predicted, darker with the effect (0 to 1)"
    return f"{'; '.join([shaded, *_marks(side), f'{MISSING}{chr(0xA0)}not measured'])}.{below}"
