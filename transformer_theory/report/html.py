"""Rendering of the page: templates, cells as HTML, figures as inline SVG.

Everything that comes from data or rows is escaped; formulas become MathML. The page works offline, and is complete without its script.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..core.plotting import style, svg
from ..core.sources import Source
from . import format
from .formulas import mathml, paragraphs
from .table_model import Cell, Code, Note, Piece, Plain, Strong, StrongNote, Verdict, pieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
SHEETS, SCRIPTS = ("page.css", "claims.css", "slider.css"), ("claims.js", "slider.js", "page.js")


def rendered(template: str, context: dict[str, Any]) -> str:
    """A complete HTML document from its template.

    The content security policy of the page allows no request, and no script but its own, which it names by its digest.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell": cell, "mathml": mathml, "paragraphs": paragraphs}
    environment.filters |= {name: getattr(format, name) for name in ("number", "amount", "slug", "several")}
    environment.globals |= {"badge": badge, "threshold": format.threshold, "sortable": sortable}
    script = _joined(SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _glyphs_once(
        environment.get_template(template).render({"style": _joined(SHEETS), "script": script, "script_hash": digest, **context})
    )


def _joined(names: Iterable[str]) -> Markup:
    """The concatenated files of the templates, not escaped."""
    return Markup("\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def cell(content: Cell) -> Markup:
    """A cell: names escaped, formulas as MathML, sources as links, notes in small type."""
    return Markup("").join(map(_piece, pieces(content)))


def _piece(piece: Piece) -> Markup:
    if isinstance(piece, Source):
        return Markup('<a href="{}">{}</a>').format(piece.url, piece.label) if piece.url else Markup("{}").format(piece.label)
    if isinstance(piece, StrongNote):
        return Markup('<strong class="note">{}</strong>').format(mathml(piece))
    if isinstance(piece, Note):
        return Markup('<span class="note">{}</span>').format(mathml(piece)) if piece else Markup("")
    if isinstance(piece, Strong):
        return Markup("<strong>{}</strong>").format(str(piece))
    if isinstance(piece, Verdict):
        return badge(piece)
    if isinstance(piece, Code):
        return Markup("<code>{}</code>").format(str(piece))
    return Markup("{}").format(str(piece)) if isinstance(piece, Plain) else mathml(piece)


def badge(name: str) -> Markup:
    """A verdict with its symbol, in its colours."""
    group, symbol = format.verdict_style(name)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(group, symbol, str(name))


def sortable(value: float | None) -> str:
    """A number as the page's script reads it; empty if there is none."""
    return "" if value is None or format.number(value) == format.NOTHING else repr(float(value))


def inline(draw: "Callable[[], Figure | None]", name: str, label: str) -> Markup | None:
    """A figure as SVG whose ids start with ``name`` and which screen readers call ``label``; None if there is nothing to draw.

    If drawing fails, the page shows the error in place of the figure.
    """
    try:
        with style():
            figure = draw()
            if figure is None:
                return None
            drawn = svg(figure, prefix=format.slug(name))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Markup('<p class="undrawn">This figure could not be drawn ({}).</p>').format(text)
    # Coordinates to a hundredth of a point, without indentation: the page is a tenth shorter and looks the same.
    drawn = re.sub(r"\n\s+", "\n", _FINE.sub(r"\1", drawn))
    return Markup(drawn.replace("<svg ", Markup('<svg role="img" aria-label="{}" ').format(label), 1))


def _glyphs_once(page: str) -> str:
    """The page with each glyph of the figures' font once, in the first figure that has it, which makes the page a third shorter."""
    first_id: dict[str, str] = {}  # of each outline
    replacement: dict[str, str] = {}  # of each id: the first id of the same outline

    def definition(glyph: re.Match) -> str:
        replacement[glyph["id"]] = first_id.setdefault(glyph["outline"], glyph["id"])
        return glyph[0] if replacement[glyph["id"]] == glyph["id"] else ""

    page = _GLYPH.sub(definition, page)
    page = re.sub(r"<defs>\s*</defs>\n?", "", page)
    return re.sub(r'(<use xlink:href="#)([^"]+)', lambda use: use[1] + replacement.get(use[2], use[2]), page)


_FINE = re.compile(r"(?<![\d.])([1-9]\d*\.\d\d)\d+")  # numbers from 1: smaller ones may be scales
_GLYPH = re.compile(r'<path id="(?P<id>[^"]+)" (?P<outline>d="[^"]+" transform="scale\(0\.015625\)")/>\n?')
