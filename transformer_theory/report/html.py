"""Renders the page from templates, cells as HTML and figures as inline SVG.

All text from data and rows is escaped; formulas become MathML. The page works offline and is complete without
its script.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..core import format
from ..core.plotting import style, svg
from ..core.sources import Source
from . import dark
from .math_text import mathml, paragraphs
from .table_model import Cell, Code, Note, Piece, Plain, Strong, StrongNote, Verdict, pieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
SHEETS, SCRIPTS = (
    ("page.css", "claims.css", "slider.css"),
    ("claims.js", "slider.js", "downloads.js", "page.js"),
)


def rendered(template: str, context: dict[str, Any]) -> str:
    """Returns a complete HTML document, rendered from a template of this package.

    The content security policy of the page forbids requests and every script except its own, which it
    identifies by a SHA-256 digest.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "mathml": mathml, "paragraphs": paragraphs}
    environment.filters |= {name: getattr(format, name) for name in ("number", "amount", "slug", "several")}
    environment.globals |= {"badge": badge, "threshold": format.threshold, "sortable": sortable}
    script = _joined(SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(
        {"style": _joined(SHEETS), "script": script, "script_hash": digest, **context}
    )
    # The first </style> is that of the page: the figures, which have their own, come later.
    return _glyphs_once(page.replace("</style>", f"{dark.sheet(page)}</style>", 1))


def _joined(names: Iterable[str]) -> Markup:
    """Concatenates files of the template folder and marks the text as safe, so that it is not escaped."""
    return Markup("\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def cell(content: Cell) -> Markup:
    """Renders a cell: names are escaped, formulas become MathML, sources become links, and notes are set in
    small type.
    """
    return Markup("").join(map(_piece, pieces(content)))


def _piece(piece: Piece) -> Markup:
    if isinstance(piece, Source):
        return (
            Markup('<a href="{}">{}</a>').format(piece.url, piece.label)
            if piece.url
            else Markup("{}").format(piece.label)
        )
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
    """Returns the HTML of a verdict with its symbol and colours."""
    group, symbol = format.verdict_style(name)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(
        group, symbol, str(name)
    )


def sortable(value: float | None) -> str:
    """Returns a number as the sort key for the page's script; empty if there is no number."""
    return "" if value is None or format.number(value) == format.NOTHING else repr(float(value))


def inline(draw: "Callable[[], Figure | None]", name: str, label: str) -> Markup | None:
    """Returns a figure as inline SVG; None if there is nothing to draw. If drawing fails, returns a paragraph
    with the error instead.

    Args:
        draw: function that makes the figure; it returns None if there is nothing to draw.
        name: prefix of all ids in the figure, and the name of its downloads; it must be unique on the page.
        label: description for screen readers.
    """
    try:
        with style():
            figure = draw()
            if figure is None:
                return None
            source = svg(figure, prefix=format.slug(name))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Markup('<p class="undrawn">This figure could not be drawn ({}).</p>').format(text)
    # Cut coordinates to a hundredth of a point and remove indentation: the page is a tenth shorter and looks
    # the same.
    source = re.sub(r"\n\s+", "\n", _LONG_DECIMALS.sub(r"\1", source))
    return Markup(
        source.replace(
            "<svg ",
            Markup('<svg role="img" aria-label="{}" data-name="{}" ').format(label, format.slug(name)),
            1,
        )
    )


def _glyphs_once(page: str) -> str:
    """Removes repeated glyph definitions, which makes the page a third shorter.

    Each figure defines the glyphs of its text. Only the first definition of an outline on the page is kept;
    all uses refer to it.
    """
    first_id: dict[str, str] = {}  # for each outline, the id of its first definition
    replacement: dict[str, str] = {}  # for each id, the first id with the same outline

    def definition(glyph: re.Match) -> str:
        replacement[glyph["id"]] = first_id.setdefault(glyph["outline"], glyph["id"])
        return glyph[0] if replacement[glyph["id"]] == glyph["id"] else ""

    page = _GLYPH.sub(definition, page)
    page = re.sub(r"<defs>\s*</defs>\n?", "", page)  # left empty by the removed definitions
    return re.sub(r'(<use xlink:href="#)([^"]+)', lambda use: use[1] + replacement.get(use[2], use[2]), page)


# Numbers of at least 1 with more than two decimals: 12.3456 becomes 12.34. Smaller numbers stay exact: they
# may be scale factors.
_LONG_DECIMALS = re.compile(r"(?<![\d.])([1-9]\d*\.\d\d)\d+")
# The definition of a glyph. matplotlib scales outlines of glyphs by 1/64 = 0.015625.
_GLYPH = re.compile(r'<path id="(?P<id>[^"]+)" (?P<outline>d="[^"]+" transform="scale\(0\.015625\)")/>\n?')
