"""The ladder of one theory: a row per rung, with its value beside the chance levels.

Dot: the value with its interval; filled if it is as predicted, hollow if not, red if it is the opposite. Grey
bar: the range of the first null; yellow: those of the further nulls that decide. Dashed: the number that the
theory predicts, where it gives one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..comparison.judged import RungResult
from ..core import format
from ..core.judgement import Judged, in_words
from ..core.measurement import Null
from ..core.plotting import blank, plain, style
from .judged_figures import (
    ALARM,
    DASHES,
    GREY,
    INK,
    NULL,
    RULE,
    SECOND,
    SECOND_EDGE,
    WIDTH,
    inches,
    shade,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, LEFT, RIGHT, WORDS = 1.36, 2.74, 5.24, 5.86  # inches from the left: rungs, plot, outcomes
ROW, LINE, GAP, AXIS = 0.185, 0.16, 0.08, 0.25  # inches: rows, lines of the key, gaps, labels of the axis
TITLE, SIZE, SMALL = 7.8, 7.0, 6.4  # font sizes, points
FIRST, FURTHER = 0.32, 0.19  # half the height of a bar, rows
GREY_BAR = {"facecolor": NULL, "edgecolor": NULL, "linewidth": 0.9}
YELLOW_BAR = {"facecolor": SECOND, "edgecolor": SECOND_EDGE, "linewidth": 0.9}
TONES = {"as predicted": shade(0.8), "opposite": ALARM}  # of dots and words; others are hollow and grey


@style()
def ladder(rungs: Sequence[RungResult]) -> "Figure | None":
    """Draws the rungs of one theory from top to bottom; None if there are no rungs.

    Args:
        rungs: the rungs of one quantity, in the order of the ladder.
    Raises:
        ValueError: the rungs belong to several theories or quantities.
    """
    if not rungs:
        return None
    found = dict.fromkeys(f"{cell.theory.name}: {cell.judged.row.quantity}" for cell in rungs)
    if len(found) > 1:
        raise ValueError(
            f"expected the rungs of one theory and quantity, got {'; '.join(found)}; draw each alone"
        )
    judged, lines = [cell.judged for cell in rungs], list(_lines(_key([cell.judged for cell in rungs])))
    head = LINE * (1 + len(lines)) + GAP
    height = head + ROW * len(rungs) + AXIS
    figure = blank(WIDTH, height)
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    page.set_axis_off()
    title = {"fontsize": TITLE, "weight": "bold", "color": INK, "va": "center"}
    page.text(0.02, LINE / 2 + 0.01, format.sentence_case(judged[0].row.quantity), **title)
    for number, items in enumerate(lines):
        for left, sign, text in items:
            _item(page, left, LINE * (number + 1.5) + 0.02, sign, text)
    _texts(page, rungs, head)
    place = (LEFT / WIDTH, AXIS / height, (RIGHT - LEFT) / WIDTH, ROW * len(rungs) / height)
    _plot(figure.add_axes(place), judged)
    return figure


def _key(judged: Sequence[Judged]) -> Iterator[tuple[str, str]]:
    """Yields the signs with their meaning."""
    measured = [each for each in judged if each.row.value is not None]
    seeds = max((each.seeds for each in measured), default=0)
    yield "dot", f"mean of {format.counted(seeds, 'seed')}, 95 % interval"
    numbers = [_number(each) is not None for each in measured]
    sides = {each.row.side for each in measured}
    beyond = f"{'right' if '>=' in sides else 'left'} of all bars"
    if not any(numbers) and sides in ({">="}, {"<="}):
        yield "", f"predicted: {beyond}"
    elif any(numbers):
        yield "dashed", "predicted" if all(numbers) else f"predicted; in other rows {beyond}"
    first = [each.row.null for each in measured if each.row.null is not None]
    further = [null for each in measured for null in each.further]
    if first:
        yield "first", f"range of {'a null' if further else 'the null'}: {_kinds(first)}"
    if further:
        yield "further", f"second null: {_kinds(further)}"


def _kinds(nulls: Iterable[Null]) -> str:
    return " or ".join(dict.fromkeys(in_words(null.kind) for null in nulls))


def _lines(items: Iterable[tuple[str, str]]) -> Iterator[list[tuple[float, str, str]]]:
    """Yields the lines of a key: left end, sign and text of each item."""
    line: list[tuple[float, str, str]] = []
    left = 0.03
    for sign, text in items:
        width = _width(sign) + inches(text, SMALL, "normal")
        if line and left + width > WIDTH - 0.05:
            yield line
            line, left = [], 0.03
        line.append((left, sign, text))
        left += width + 0.18
    if line:
        yield line


def _width(sign: str) -> float:
    """Returns the width of a sign and of the space behind it, inches."""
    return {"": 0.0, "dashed": 0.1}.get(sign, 0.24)


def _item(page: "Axes", left: float, y: float, sign: str, text: str) -> None:
    """Draws a sign of the key and its meaning."""
    if sign == "dot":
        page.plot((left, left + 0.18), (y, y), color=TONES["as predicted"], linewidth=1.2)
        page.plot([left + 0.09], [y], "o", markersize=4.4, color=TONES["as predicted"])
    elif sign == "dashed":
        page.plot([left + 0.02] * 2, (y - 0.06, y + 0.06), color=INK, linewidth=0.9, linestyle=DASHES)
    elif sign:
        bar = GREY_BAR if sign == "first" else YELLOW_BAR
        page.fill_between((left, left + 0.18), y - 0.04, y + 0.04, **bar)
    page.text(left + _width(sign), y, text, fontsize=SMALL, color=INK, va="center")


def _number(judged: Judged) -> float | None:
    """Returns the number that the theory predicts; None if it names a side alone."""
    return None if judged.row.basis == "own setting" else judged.row.predicted


def _plot(ax: "Axes", judged: Sequence[Judged]) -> None:
    """Draws values, intervals, nulls and predictions over a common axis."""
    from matplotlib.ticker import MaxNLocator

    for place, each in enumerate(judged):
        row = each.row
        if row.value is None:
            continue
        if row.null is not None:
            ax.fill_between((row.null.low, row.null.high), place - FIRST, place + FIRST, **GREY_BAR, zorder=2)
        for null in each.further:
            ax.fill_between((null.low, null.high), place - FURTHER, place + FURTHER, **YELLOW_BAR, zorder=3)
        if (predicted := _number(each)) is not None:
            ends = (place - 0.5, place + 0.5)
            ax.plot((predicted, predicted), ends, color=INK, linewidth=0.9, linestyle=DASHES, zorder=4)
        tone = TONES.get(each.outcome, GREY)
        if row.interval is not None:
            ax.plot(row.interval, (place, place), color=tone, linewidth=1.3, zorder=5)
        face = TONES.get(each.outcome, "white")
        ax.plot([row.value], [place], "o", markersize=4.4, mfc=face, mec=tone, mew=0.9, zorder=6)
    ax.patch.set_visible(False)  # the lines of the page run through
    ax.set_ylim(len(judged) - 0.5, -0.5)
    ax.margins(x=0.03)
    ax.set_yticks([])
    ax.grid(True, axis="x")
    ax.tick_params(axis="x", labelsize=SMALL, length=2)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    scale, unit = (100, "\N{NO-BREAK SPACE}%") if judged[0].row.unit == "share" else (1, "")
    ax.xaxis.set_major_formatter(lambda x, _: f"{scale * x:.6g}{unit}".replace("-", "\N{MINUS SIGN}"))
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def _texts(page: "Axes", rungs: Sequence[RungResult], top: float) -> None:
    """Writes columns and rungs at the left, values and outcomes at the right."""
    columns = set[str]()
    for place, cell in enumerate(rungs):
        y = top + ROW * (place + 0.5)
        large: dict[str, Any] = {"va": "center", "fontsize": SIZE, "color": INK}
        small: dict[str, Any] = {"va": "center", "fontsize": SMALL}
        if cell.column not in columns:
            page.plot((0, WIDTH), (y - ROW / 2,) * 2, color=RULE, linewidth=0.6, zorder=0)
            page.text(0.02, y, cell.column, color=GREY, **small)
            columns.add(cell.column)
        page.text(NAME, y, plain(cell.name), **large)
        judged, row = cell.judged, cell.judged.row
        if row.value is not None:
            page.text(WORDS - 0.08, y, format.of_row(row.value, row), ha="right", weight="bold", **large)
        differ = judged.outcome == "not significant" and judged.side  # beyond the nulls, but not in all seeds
        words = "not significant: seeds differ" if differ else judged.outcome
        page.text(WORDS, y, words, color=TONES.get(judged.outcome, GREY), **small)
