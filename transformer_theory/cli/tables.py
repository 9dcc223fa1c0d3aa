"""Results as tables for a terminal: whole names, which are there to be copied, at any width from 80 columns on."""

from collections.abc import Iterable, Sequence

from rich.columns import Columns
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..core import experiment
from ..core.claims import CONTROL_WORDS, Claim
from ..core.experiment import Experiment
from ..core.measurement import BASIS_WORDS, Row
from ..core.sources import Source
from ..core.theory import Theory
from ..core.verification import Summary
from ..report import wording
from ..report.terminal import judged

NUMBERS = ("measured", "reference", "null")
NOT_JUDGED = "not judged"  # a row without a verdict: a number stands beside another, and no line decides


def catalogue(theories: Iterable[Theory]) -> Group:
    """Each theory with its question, and the names of its claims and experiments in as many columns as fit."""
    parts = []
    for theory in theories:
        parts += [Text(theory.name, style="bold"), Padding(Text(theory.question), (0, 0, 0, 2))]
        for title, names in (("claims", [c.id for c in theory.claims]), ("experiments", [kind.name for kind in theory.experiments])):
            shown = Columns([Text(name) for name in names], column_first=True, equal=True, padding=(0, 2))
            parts += [Padding(Text(title, style="dim"), (0, 0, 0, 2)), Padding(shown, (0, 0, 0, 4))]
        parts.append(Text())
    return Group(*parts[:-1])


def about(named: Theory | Claim | type[Experiment]) -> Group:
    """What a theory, a claim or an experiment is, in its own words; formulas as LaTeX between dollars."""
    if isinstance(named, Theory):
        parts = [_item(named.name, named.question), _wrapped(named.statement), Text("it assumes", style="dim")]
        parts += [_wrapped(f"- {text}") for text in named.assumptions]
        parts += [Text(), Text("claims", style="dim"), *(_item(claim.id, claim.statement) for claim in named.claims)]
        parts += [Text(), Text("experiments", style="dim"), *(_item(kind.name, summary(kind)) for kind in named.experiments)]
        sources: tuple[Source, ...] = named.sources
    elif isinstance(named, Claim):
        parts = [_item(named.id, named.statement), Text("it assumes", style="dim")]
        parts += [_wrapped(f"- {text}") for text in named.assumptions]
        parts += [Text("its control, which must fail,", style="dim"), _wrapped(named.control_says)]
        if named.corrects:
            parts += [Text("it corrects", style="dim"), _wrapped(named.corrects)]
        sources = (named.source,)
    else:
        parts, sources = [_item(named.name, summary(named))], named.sources
    return Group(*parts, Text(f"sources: {', '.join(source.label for source in sources)}", style="dim"))


def summary(kind: type[Experiment]) -> str:
    """The first paragraph of an experiment's docstring as plain text."""
    return experiment.summary(kind).replace("`", "")


def _item(name: str, text: str) -> Group:
    return Group(Text(name, style="bold"), _wrapped(text))


def _wrapped(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2))


def verdicts(found: Sequence[Summary], console: Console) -> Table:
    """A line for each claim where that fits the console, else a few: the source under the claim, the seeds under the verdict."""
    table = _line_each(found)
    unbound = console.options.update(width=10_000)
    return table if console.measure(table, options=unbound).maximum <= console.width else _lines_each(found)


def _line_each(found: Sequence[Summary]) -> Table:
    table = Table("claim", "verdict", "seeds", "95 % interval", "measured", "line", "control", "source", box=None, padding=(0, 2, 0, 0))
    for one in found:
        numbers = (Text(text) for text in (*_counted(one), *_measured(one)))
        table.add_row(one.id, judged(one.verdict), *numbers, _control(one), Text(_label(one)))
    return table


def _lines_each(found: Sequence[Summary]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)  # the longest name leaves room for one space between columns
    for name in ("claim\n  source", "verdict\nseeds, interval", "measured\nline"):
        table.add_column(name, no_wrap=True)
    table.add_column("control")
    for one in found:
        name = Text(f"{one.id}\n  {_label(one)}")
        said = judged(one.verdict).append(f"\n{' '.join(_counted(one))}", style="default")
        table.add_row(name, said, "\n".join(_measured(one)), _control(one))
    return table


def _label(one: Summary) -> str:
    return one.source.label if one.source else ""


def _counted(one: Summary) -> tuple[str, str]:
    """Consistent seeds of all, and the interval of their share among those decided."""
    low, high = one.interval
    return f"{one.consistent}/{one.seeds}", f"[{low:.2f}, {high:.2f}]"


def _measured(one: Summary) -> tuple[str, str]:
    """The value of the worst seed, and the line that decides."""
    worst, bound = ("none" if number is None else f"{number:.3g}" for number in (one.worst, one.bound))
    return worst, f"{one.op} {bound}"


def _control(one: Summary) -> Text:
    return Text(CONTROL_WORDS[one.control], style="" if one.control == "fails" else "red")


def measurements(rows: Sequence[Row]) -> Table:
    """Each measurement, the number it stands beside and what that is, its null, the line that decides and the verdict.

    Columns that would be empty are left out. A row's places (step, layer, ...) follow its quantity.
    """
    cells = {name: [_CELLS[name](row) for row in rows] for name in _CELLS}
    cells = {name: column for name, column in cells.items() if name == "measured" or any(column)}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("quantity", min_width=20)
    for name in cells:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=name in (*NUMBERS, "line"))
    for row, *values in zip(rows, *cells.values()):
        table.add_row(_place(row), *values)
    return table


def _place(row: Row) -> Text:
    places = ", ".join(f"{name} {row.get(name)}" for name in ("model", "layer", "head", "step", "seed") if row.get(name) is not None)
    return Text(f"{row['quantity']} ({places})" if places else row["quantity"])


def _number(value: float | None) -> Text:
    return Text("none" if value is None else f"{value:.6g}")


def _reference(row: Row) -> Text:
    """What is predicted, unless it is the line itself."""
    return Text() if row.get("predicted") is None or _is_line(row) else _number(row.get("predicted"))


def _basis(row: Row) -> Text:
    return Text(BASIS_WORDS[row["basis"]] if "basis" in row and _reference(row) else "")


def _is_line(row: Row) -> bool:
    """Whether the theory names no other number than the line: a bound, or the tolerance of a check."""
    return "op" in row and row.get("basis", "theory") == "theory" and row.get("predicted") == row.get("bound")


def _line(row: Row) -> Text:
    bound = row.get("bound")
    return Text() if bound is None or "op" not in row else Text(f"{row['op']} {bound:.6g}")


def _null(row: Row) -> Text:
    null = row.get("null")
    return Text() if null is None else _number(null)


def stands_beside(row: Row) -> bool:
    """Whether there is a number or a line to compare the measurement with, or a verdict."""
    return bool({"predicted", "bound", "verdict"} & row.keys())


def _verdict(row: Row) -> Text:
    name, _ = wording.verdict(row)
    return judged(name) if name else Text(NOT_JUDGED if stands_beside(row) else "", style="dim")


_CELLS = {
    "measured": lambda row: _number(row["value"]),
    "reference": _reference,
    "which is": _basis,
    "null": _null,
    "line": _line,
    "verdict": _verdict,
}
