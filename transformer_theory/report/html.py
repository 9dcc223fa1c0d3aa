"""The report: one HTML file made from a stored comparison alone, which needs no network and no script.

Everything that comes from the data or the rows is escaped; formulas become MathML, figures inline SVG.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from .. import citations
from ..experiment import Result
from ..plotting import style, svg
from ..theory import Theory
from ..timeline import Correlations, Series, changes, rank_correlations, sentences, series
from . import figures, mathfont, wording
from .formulas import mathml, paragraphs
from .views import ASSUMPTION, RAW, Line, checked, cite, findings, networks, on_timeline, summary, theories_of, view, view_of, views

TEMPLATES = Path(__file__).with_name("templates")
DRAWS = 1000  # bootstrap samples behind the intervals of the rank correlations


def html(result: Result, *, theories: Iterable[Theory] | None = None) -> str:
    """The page of a comparison: the same result gives the same bytes.

    Args:
        result: of ``compare``, fresh or loaded.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        A complete HTML document.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    known = theories_of(result, theories)
    group = on_timeline(result, known)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=wording.number,
        mathml=lambda text: mathml(wording.formulas(text)),
        paragraphs=paragraphs,
        slug=wording.slug,
        subject=wording.subject,
        prediction=wording.prediction,
    )
    environment.filters["quantity"] = _quantity
    environment.globals.update(
        badge=_badge, source=_source, verdict=wording.verdict, absent=wording.absent, beside_null=wording.beside_null
    )
    models = networks(result)
    lines = summary(result, known)
    context: dict[str, Any] = {
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "result": result,
        "data": result.params.get("data", "data"),
        "models": models,
        "summary": [(theory, *_lines(lines, theory), checked(result, theory)) for theory in known],
        "verdicts": [(name, meaning) for name, (_, _, meaning) in wording.VERDICTS.items() if name not in ("holds", "fails")],
        "timeline": _figure(figures.timeline([s for s in group if s.theory != "network" or "accuracy" in s.quantity]), "timeline"),
        "sentences": sentences([s for s in group if s.theory != "network"]),
        "correlations": [(model, _matrix([s for s in group if s.model == model])) for model in models],
        "sections": [_section(result, theory, models) for theory in known],
        "learning": _figure(figures.learning(result), "learning"),
        "attention": [(m, _figure(figures.attention(result, m), f"attention-{wording.slug(m)}")) for m in models],
        "features": _figure(figures.features(result, models), "features"),
        "network": _training(result, "network", models),
        "network_rows": [row for row in findings(result) if row["theory"] == "network"],
        "bibliography": _bibliography(result, known),
        "provenance": _flat(result.provenance),
        "params": _flat(result.params),
    }
    page = environment.get_template("report.html.j2").render(context)
    return page.replace("/* math font */", mathfont.face(page), 1)


def _lines(lines: Sequence[Line], theory: Theory) -> tuple[list[Line], list[Line]]:
    """The theory's lines of the summary: each by itself, and the readings in trained networks, which share quantity and prediction."""
    own = [line for line in lines if line.theory is theory]
    inside = [line for line in own if line.trained and line.row is not None and not wording.absent(line.row)]
    return [line for line in own if line not in inside], inside


def _figure(figure, name: str) -> Markup | None:
    return None if figure is None else Markup(svg(figure, prefix=wording.slug(name)))


def _badge(name: str) -> Markup:
    group, symbol = wording.kind(name)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(group, symbol, name)


def _quantity(text: str) -> Markup:
    """A quantity's name, with the mathematics that rows write as plain text set as formulas."""
    return mathml(wording.formulas(text))


def _source(text) -> Markup:
    """A link for a :class:`Source` or the text that a row stores; text that is not in the bibliography stays text."""
    found = cite(text) if isinstance(text, str | None) else text
    if found is None:
        return Markup("{}").format(text or "")
    return Markup('<a href="{}">{}</a>').format(found.url, found.label) if found.url else Markup("{}").format(found.label)


def _drawn(theory: Theory, part: Result, name: str) -> Markup:
    """The theory's figure. One that cannot be drawn must not cost the reader the whole page: the reason stands in its place."""
    with style():
        try:
            return Markup(svg(theory.draw(part), prefix=wording.slug(name)))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Markup('<p class="undrawn">This figure could not be drawn ({}).</p>').format(reason)


def _section(result: Result, theory: Theory, models: Sequence[str]) -> dict[str, Any]:
    parts = []
    for name in views(result) or [RAW]:
        rows = [row for row in findings(result) if row["theory"] == theory.name and view_of(row) == name]
        measured = [row for row in rows if not row["quantity"].startswith(ASSUMPTION)]
        reasons = [row for row in measured if wording.absent(row)]
        if not rows:
            continue
        parts.append(
            {
                "view": name,
                "rows": sorted((row for row in measured if not wording.absent(row)), key=lambda row: row["quantity"] != theory.answer),
                "answer": next((row for row in measured if row["quantity"] == theory.answer and not wording.absent(row)), None),
                "reasons": reasons,
                "assumptions": [(row["quantity"].removeprefix(ASSUMPTION), row) for row in rows if row["quantity"].startswith(ASSUMPTION)],
                "figure": None if len(reasons) == len(measured) else _drawn(theory, view(result, name), f"{theory.name}-{name}"),
            }
        )
    return {"theory": theory, "parts": parts, "claims": checked(result, theory), "training": _training(result, theory.name, models)}


def _training(result: Result, theory: str, models: Sequence[str]) -> list[tuple[str, list[tuple[str, Series | None]]]]:
    """For each quantity read during training: its series in each network."""
    own = [s for s in series(result) if s.theory == theory]
    found = {(s.quantity, s.model): s for s in own}
    return [(quantity, [(m, found.get((quantity, m))) for m in models]) for quantity in dict.fromkeys(s.quantity for s in own)]


def _matrix(group: Sequence[Series]) -> dict[str, Any] | None:
    """Cells of the matrix of rank correlations: below the diagonal the values, above it their changes between checkpoints."""
    if len(group) < 2:
        return None
    levels = rank_correlations(group, generator=torch.Generator().manual_seed(0), draws=DRAWS)
    moves = rank_correlations(changes(group), generator=torch.Generator().manual_seed(0), draws=DRAWS)
    size = range(len(group))
    cells = [[None if i == j else _cell(levels if i > j else moves, i, j) for j in size] for i in size]
    return {"names": levels.names, "cells": cells, "checkpoints": levels.checkpoints}


def _cell(found: Correlations, i: int, j: int) -> dict[str, Any]:
    value, low, high = found.values[i][j], found.low[i][j], found.high[i][j]
    clear = low is not None and high is not None and (low > 0 or high < 0)
    short = lambda x: f"{x:+.2f}".replace("-", "−")  # noqa: E731
    return {
        "value": wording.NOTHING if value is None else short(value),
        "interval": "" if low is None or high is None else f"{short(low)} … {short(high)}",
        "sign": "up" if (value or 0) > 0 else "down",
        "strength": 0 if value is None else round(abs(value) * (45 if clear else 16)),
        "sure": clear,
    }


def _bibliography(result: Result, known: Sequence[Theory]) -> list[dict[str, str]]:
    from .bibtex import keys

    fields = ("title", "journal", "booktitle", "url", "author")
    found = []
    for key in keys(result, known):
        entry = {name: citations.field(key, name) for name in fields}
        names = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
        found.append(
            {**entry, "key": key, "year": citations.year(key), "author": ", ".join(names), "venue": entry["journal"] or entry["booktitle"]}
        )
    return found


def _flat(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A nested record as lines: lists joined, one level of names prefixed."""
    lines = []
    for name, value in record.items():
        if isinstance(value, dict):
            lines += [(f"{name}: {inner}", str(v)) for inner, v in value.items()]
        else:
            lines.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return lines
