"""What the pages share: the environment of their templates, figures as inline SVG, rank correlations as a matrix, bibliography.

Everything that comes from the data or the rows is escaped; formulas become MathML.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup

from ..core import sources as citations
from ..core.notes import is_share
from ..core.plotting import svg
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import figures, mathfont, wording
from .formulas import mathml, paragraphs
from .timeline import Correlations, Series, changes, rank_correlations, sentences
from .views import networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
SHEETS, SCRIPTS = ("report.css", "claims.css", "film.css"), ("claims.js", "film.js", "page.js")
JPEGS = "JPEG copy"  # ends the name of such data
COPY = (
    "The images are a copy compressed as JPEGs, not the files of the data set: "
    "numbers on them stand beside one another, not beside published ones."
)
DRAWS = 1000  # bootstrap samples behind the intervals of the rank correlations


def rendered(template: str, context: dict[str, Any], *styles: str) -> str:
    """A page from its template: a complete HTML document that needs no network, and no script to be whole.

    The page has one script of its own, which its policy names by its digest; a browser runs no other and fetches nothing.

    Args:
        template: name of the file.
        context: what it shows.
        styles: names of further style sheets, after the one of all pages.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=wording.number,
        amount=wording.amount,
        spaced=wording.spaced,
        mathml=lambda text: mathml(wording.formulas(text)),
        paragraphs=paragraphs,
        slug=wording.slug,
        subject=wording.subject,
        split_subject=wording.split_subject,
        prediction=wording.prediction,
    )
    environment.filters["quantity"] = _quantity
    environment.globals.update(
        badge=_badge,
        source=_source,
        verdict=wording.verdict,
        absent=wording.absent,
        beside_null=wording.beside_null,
        missed=wording.missed,
    )
    script = _joined(SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(
        {"style": _joined((*SHEETS, *styles)), "script": script, "script_hash": digest, **context}
    )
    return _glyphs_once(page).replace("/* math font */", mathfont.face(page), 1)


def _joined(names: Iterable[str]) -> Markup:
    """Files of the templates as they are."""
    return Markup("\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def shared(result: Result, known: Sequence[Theory], group: Sequence[Series]) -> dict[str, Any]:
    """What the template parts that all pages include show: the timeline of these series, sources and provenance."""
    models = networks(result)
    moving = any(s.theory != "network" for s in group)  # learning curves alone are drawn elsewhere
    drawn = [s for s in group if s.theory != "network" or is_share(s.quantity)]
    return {
        "result": result,
        "data": result.params.get("data", "data"),
        "copy": COPY if JPEGS in result.params.get("data", "") else "",
        "models": models,
        "timeline": inline(figures.timeline(drawn), "timeline", "The theories' order parameters over the training steps")
        if moving
        else None,
        "sentences": sentences([s for s in group if s.theory != "network"]),
        "correlations": [(model, _matrix([s for s in group if s.model == model])) for model in models],
        "bibliography": bibliography(result, known),
        "provenance": flat(result.provenance),
        "params": flat(result.params),
    }


def inline(figure: "Figure | None", name: str, label: str) -> Markup | None:
    """A figure as SVG whose ids start with ``name`` and which is called ``label`` by what reads the page aloud; None of none."""
    if figure is None:
        return None
    named = Markup('<svg role="img" aria-label="{}" ').format(label)
    return Markup(_light(svg(figure, prefix=wording.slug(name))).replace("<svg ", named, 1))


def _light(drawn: str) -> str:
    """An SVG with coordinates to a hundredth of a point and without indentation, which is a tenth shorter."""
    return re.sub(r"\n\s+", "\n", _FINE.sub(r"\1", drawn))


def _glyphs_once(page: str) -> str:
    """The page with each glyph of the figures' font once, in the first figure that has it; the others refer to it. A third shorter."""
    first: dict[str, str] = {}  # outline -> id
    known: dict[str, str] = {}  # id -> id of the same outline

    def kept(glyph: re.Match) -> str:
        known[glyph["id"]] = first.setdefault(glyph["outline"], glyph["id"])
        return glyph[0] if known[glyph["id"]] == glyph["id"] else ""

    page = _GLYPH.sub(kept, page)
    page = re.sub(r"<defs>\s*</defs>\n?", "", page)
    return re.sub(r'(<use xlink:href="#)([^"]+)', lambda use: use[1] + known.get(use[2], use[2]), page)


_FINE = re.compile(r"(?<![\d.])([1-9]\d*\.\d\d)\d+")  # numbers from 1: smaller ones may be scales
_GLYPH = re.compile(r'<path id="(?P<id>[^"]+)" (?P<outline>d="[^"]+" transform="scale\(0\.015625\)")/>\n?')


def undrawn(error: Exception) -> Markup:
    """What stands in the place of a figure that cannot be drawn."""
    return Markup('<p class="undrawn">This figure could not be drawn ({}).</p>').format(f"{type(error).__name__}: {error}")


def _badge(name: str) -> Markup:
    group, symbol = wording.kind(name)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(group, symbol, name)


def _quantity(text: str) -> Markup:
    """A quantity's name, with the mathematics that rows write as plain text set as formulas."""
    return mathml(wording.formulas(text))


def _source(text) -> Markup:
    """A link for a :class:`Source` or the text that a row stores; text that is not in the bibliography stays text."""
    found = Source.find(text) if isinstance(text, str | None) else text
    if found is None:
        return Markup("{}").format(text or "")
    return Markup('<a href="{}">{}</a>').format(found.url, found.label) if found.url else Markup("{}").format(found.label)


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


def bibliography(result: Result, known: Sequence[Theory]) -> list[dict[str, str]]:
    """The literature behind a result, as the page lists it."""
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


def flat(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A nested record as lines: lists joined, names prefixed by those above them."""
    lines = []
    for name, value in record.items():
        if isinstance(value, dict):
            lines += [(f"{name}: {inner}", text) for inner, text in flat(value)]
        else:
            lines.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return lines
