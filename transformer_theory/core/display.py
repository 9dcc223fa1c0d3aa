"""Short texts and HTML of claims, theories, tables and results, for an interpreter and for notebooks.

Notebooks call ``_repr_html_``; all text is escaped, and formulas between dollars are left to the notebook,
which typesets them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from .format import several

if TYPE_CHECKING:
    from .claims import Claim, Verification
    from .measurement import Measurement, Table
    from .result import Result
    from .theory import Theory

MAX_ROWS = 10  # rows of a table that a notebook shows
# shown if they differ
COLUMNS = ("theory", "kind", "data", "model", "setting", "rung", "layer", "head", "step", "seed", "quantity")
CONTROL = {
    "fails": "control fails as it must",
    "passes": "control passes: no power",
    "inconclusive": "control inconclusive",
}


def fields_text(record: Any) -> str:
    """Returns ``Name(field=value, ...)`` of a dataclass instance, with the fields that do not have their
    default values.
    """
    values = ((field.name, getattr(record, field.name), field.default) for field in fields(record))
    return f"{type(record).__name__}({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"


def theory_text(theory: "Theory") -> str:
    """Returns the name of a theory and what it contributes: ``Theory('crate', 15 claims, 8 experiments, on
    data, in networks)``.
    """
    return f"Theory({', '.join([repr(theory.name), *_parts(theory)])})"


def _parts(theory: "Theory") -> list[str]:
    counts = (
        ("claim", len(theory.claims)),
        ("rung", len(theory.ladder.rungs) if theory.ladder else 0),
        ("experiment", len(theory.experiments)),
    )
    parts = [several(count, noun) for noun, count in counts if count]
    parts += ["on data"] if theory.on_data is not None else []
    return parts + (["in networks"] if theory.in_networks is not None else [])


def theory_html(theory: "Theory") -> str:
    """Returns a theory's title, question, parts and sources."""
    lines = [
        f"<strong>{escape(theory.title)}</strong> (<code>{escape(theory.name)}</code>)",
        f"<em>{escape(theory.question)}</em>",
    ]
    lines += [escape(", ".join(_parts(theory))), escape("; ".join(source.label for source in theory.sources))]
    return _lines(lines)


def claim_html(claim: "Claim | Verification") -> str:
    """Returns a claim's statement, what it measures, its control and its source."""
    control = f"control: {claim.control_description}"
    lines = [
        f"<strong><code>{escape(claim.id)}</code></strong>",
        *map(escape, (claim.statement, f"measures: {claim.measures}", control)),
    ]
    return _lines([*lines, escape(claim.source.label)])


def verification_html(verification: "Verification") -> str:
    """Returns the claim and one line with the outcome of the check and of the control."""
    low, high = verification.interval
    worst, control = verification.worst, verification.worst_control
    head = ("verdict", "seeds", "95 % interval", "measured", "threshold", "control")
    seeds = f"{verification.consistent} of {verification.decided}"
    outcome = f"{_number(control.value)}: {CONTROL[verification.control]}"
    row = (
        verification.verdict,
        seeds,
        f"{low:.2f} … {high:.2f}",
        _number(worst.value),
        f"{worst.op} {_number(worst.threshold)}",
        outcome,
    )
    return claim_html(verification) + html_table(head, [row])


def table_html(table: "Table", *, of: int | None = None) -> str:
    """Returns the first rows of a table, with the columns whose values differ, and the number of further
    rows.

    Args:
        table: the table.
        of: number of rows of the table from which these were selected; None: all are here.
    """
    rows = table[:MAX_ROWS]
    columns = [name for name in COLUMNS if name == "quantity" or len(set(rows.column(name)) - {None, ""}) > 1]
    head = [*columns, "value", "prediction", "null", "verdict"]
    cells = [
        [*("" if (value := getattr(row, name)) is None else str(value) for name in columns), *_numbers(row)]
        for row in rows
    ]
    used = [
        i for i, name in enumerate(head) if name in ("quantity", "value") or any(line[i] for line in cells)
    ]
    total = len(table) if of is None else of
    rest = (
        f"<p>{len(rows)} of {total:,} measurements; <code>to_pandas()</code> has all rows and columns.</p>"
        if total > len(rows)
        else ""
    )
    return html_table([head[i] for i in used], [[line[i] for i in used] for line in cells]) + rest


def _numbers(row: "Measurement") -> list[str]:
    """Returns value, prediction, null and verdict of a row."""
    value = (
        row.reason
        if row.value is None
        else f"{_number(row.value)} {row.unit if row.unit != 'share' else ''}".strip()
    )
    predicted = "" if row.predicted is None else f"→ {_number(row.predicted)}"
    limit = "" if row.op is None or row.threshold is None else f"{row.op} {_number(row.threshold)}"
    null = (
        ""
        if row.null is None or not row.null.draws
        else f"{_number(row.null.median)} ({several(len(row.null.draws), 'draw')})"
    )
    return [value, " ".join(filter(None, (predicted, limit))), null, row.verdict or ""]


def result_html(result: "Result") -> str:
    """Returns what a result holds and the first rows of its table, or its verifications if it has no other
    rows.
    """
    counts = (
        ("measurement", len(result.table)),
        ("array", len(result.arrays)),
        ("claim", len(result.verifications)),
    )
    settings = ", ".join(f"{name}: {_short(value)}" for name, value in result.settings.items())
    lines = [
        f"<strong>{escape(result.name)}</strong>: "
        f"{', '.join(several(count, noun) for noun, count in counts if count) or 'empty'}"
    ]
    lines += [escape(settings)] if settings else []
    lines += (
        ["<code>plot()</code> draws a figure, <code>report()</code> writes its page."] if result.table else []
    )
    rows = result.table.where(lambda row: row.kind != "claim")
    last = max((row.step for row in rows if row.step is not None), default=None)
    for telling in (
        lambda row: row.kind == "on data",
        lambda row: row.step is None,
        lambda row: row.step == last,
    ):
        if chosen := rows.where(telling):
            rows = chosen
            break
    if result.verifications and not rows:
        outcomes = [
            (one.id, one.outcome, f"{one.consistent} of {one.decided}")
            for one in result.verifications[:MAX_ROWS]
        ]
        return _lines(lines) + html_table(("claim", "outcome", "consistent seeds"), outcomes)
    return _lines(lines) + (table_html(rows, of=len(result.table)) if rows else "")


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns an HTML table of escaped texts."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    cell = '<td style="text-align: left">{}</td>'
    lines = ("".join(cell.format(escape(text)) for text in row) for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _lines(lines: Iterable[str]) -> str:
    """Returns HTML lines as one paragraph."""
    return f"<p>{'<br>'.join(filter(None, lines))}</p>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if math.isfinite(value) else str(value)


def _short(value: Any) -> str:
    """Returns a setting as text, cut at 60 characters."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
