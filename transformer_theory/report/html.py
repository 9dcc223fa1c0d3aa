"""HTML: pages from templates, cells, figures as inline SVG, and what a notebook shows of an object.

All text from data and rows is escaped; formulas become MathML. A page works offline and is complete without
its script. In a notebook formulas stay between dollars, since the notebook typesets them.

On a dark page a style sheet overrides the colours in inline SVG; the SVG itself keeps its light colours.
Neutral colours take the page's variables for paper, ink and rules. All other colours are mapped in the colour
space OKLab (Ottosson, 2020), which separates lightness L from hue. Greys are inverted. Data colours keep
their hue and become light enough to read: L' = 0.6 + 0.2 L for L < 0.75. The map is monotone, so that a scale
from dark to light stays one.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from ..core import format
from ..core.claims import CONTROL_TEXT, Claim, Verification
from ..core.math_text import mathml, paragraphs
from ..core.plotting import COLOURS, STYLE, style, svg
from ..core.result import Result
from ..core.sources import Source
from ..core.table import Table
from ..core.theory import Theory
from .tables import Cell, Code, Note, Piece, Plain, Strong, StrongNote, Verdict, pieces

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
SHEETS = ("page.css", "claims.css", "slider.css")
FORMATS = ("number", "of_row", "slug", "counted", "sentence_case")  # filters of the templates
SCRIPTS = ("claims.js", "slider.js", "downloads.js", "page.js")
MAX_ROWS = 10  # rows of a table that a notebook shows
# columns that a notebook shows if their values differ
COLUMNS = ("theory", "kind", "data", "model", "setting", "rung", "layer", "head", "step", "seed", "quantity")


@cache
def environment() -> "Environment":
    """Returns jinja's environment for the templates of this package, which it compiles once; what they print
    is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"cell": cell, "mathml": mathml, "paragraphs": paragraphs}
    made.filters |= {name: getattr(format, name) for name in FORMATS}
    made.globals |= {"badge": badge, "threshold": format.threshold, "sortable": sortable}
    return made


def rendered(template: str, context: dict[str, Any]) -> str:
    """Returns a complete HTML document, rendered from a template of this package.

    The content security policy of the page forbids requests and every script except its own, which it
    identifies by a SHA-256 digest.
    """
    script = _joined(SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (
        environment()
        .get_template(template)
        .render({"style": _joined(SHEETS), "script": script, "script_hash": digest, **context})
    )
    # The first </style> is that of the page: the figures, which have their own, come later.
    return _glyphs_once(page.replace("</style>", f"{dark_sheet(page)}</style>", 1))


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


# ---- figures

# Numbers of at least 1 with more than two decimals: 12.3456 becomes 12.34. Smaller numbers stay exact: they
# may be scale factors.
_LONG_DECIMALS = re.compile(r"(?<![\d.])([1-9]\d*\.\d\d)\d+")
# The definition of a glyph. matplotlib scales outlines of glyphs by 1/64 = 0.015625.
_GLYPH = re.compile(r'<path id="(?P<id>[^"]+)" (?P<outline>d="[^"]+" transform="scale\(0\.015625\)")/>\n?')


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


# ---- colours on a dark page

PAPER = "#15181c"  # --paper of page.css on a dark page
# The neutral colours of figures, and the variables of page.css that replace them.
NEUTRAL = {
    "#ffffff": "--paper",
    "#000000": "--ink",
    "#15181c": "--ink",
    STYLE["xtick.color"].lower(): "--soft",
    STYLE["grid.color"].lower(): "--rule",
    COLOURS["network"].lower(): "--soft",
    COLOURS["null"].lower(): "--edge",
}
GREY = 0.03  # chroma below which a colour is a grey
DARKEST, LIGHTEST = 0.21, 0.92  # lightness of the paper and of the ink on a dark page

_SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
_COLOUR = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})")
# Linear sRGB to the responses of the cones, and their cube roots to OKLab.
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def dark_sheet(page: str) -> str:
    """Returns the style sheet for all colours in the figures of a page, one rule per property and colour."""
    used = sorted({match for svg in _SVG.findall(page) for match in _COLOUR.findall(svg)})
    # No class of an ancestor: browsers do not see ancestors of a copy that <use> makes, such as a marker.
    rules = "\n".join(
        f'[style*="{name}: {colour}"] {{ {name}: {on_dark(colour)} !important; }}' for name, colour in used
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}\n}}\n" if rules else ""


def on_dark(colour: str) -> str:
    """Returns the colour that replaces ``#rrggbb`` on a dark page: a variable of the page's style, or another
    ``#rrggbb``.
    """
    if colour in NEUTRAL:
        return f"var({NEUTRAL[colour]})"
    lightness, *ab = _LAB @ np.cbrt(_CONES @ linear_rgb(colour))
    if np.hypot(*ab) < GREY:
        lightness = DARKEST + (LIGHTEST - DARKEST) * (1 - lightness) ** 0.7
    elif lightness < 0.75:
        lightness = 0.6 + 0.2 * lightness
    # A light colour may leave sRGB; reduce its chroma until it does not.
    for chroma in np.linspace(1, 0, 21):
        rgb = np.linalg.solve(
            _CONES, np.linalg.solve(_LAB, [lightness, *(chroma * part for part in ab)]) ** 3
        )
        if rgb.min() >= -1e-4 and rgb.max() <= 1 + 1e-4:
            break
    rgb = np.clip(rgb, 0, 1)
    encoded = np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{int(part):02x}" for part in np.round(255 * encoded))


def linear_rgb(colour: str) -> np.ndarray:
    """Decodes ``#rrggbb`` to linear sRGB, three numbers in [0, 1]."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


# ---- notebooks


def to_html(record: Claim | Verification | Theory | Table | Result) -> str:
    """Returns what a notebook shows of an object: a few lines, and the first rows of a table."""
    match record:
        case Theory():
            name = Markup("<strong>{}</strong> (<code>{}</code>)").format(record.title, record.name)
            sources = "; ".join(source.label for source in record.sources)
            return _lines(
                [name, Markup("<em>{}</em>").format(record.question), ", ".join(record.parts), sources]
            )
        case Claim():
            return _claim(record)
        case Verification():
            return _claim(record) + _verification(record)
        case Table():
            return _rows(record, len(record))
        case _:
            return _result(record)


def _claim(claim: Claim | Verification) -> Markup:
    """Returns a claim's statement, what it measures, its threshold, its control and its source."""
    name = Markup("<strong><code>{}</code></strong>").format(claim.id)
    limit = claim if isinstance(claim, Claim) else claim.worst
    measures = f"measures: {claim.measures}; threshold: {format.threshold(limit.op, limit.threshold)}"
    texts = [measures, f"control: {claim.control_description}", claim.source.label]
    return _lines([name, claim.statement, *texts])


def _verification(verification: Verification) -> Markup:
    """Returns one line with the outcome of the check and of the control."""
    worst, control = verification.worst, verification.worst_control
    columns = {
        "verdict": verification.verdict,
        "seeds": f"{verification.consistent} of {verification.decided}",
        "95 % interval": format.bounds(verification.interval),
        "measured": format.number(worst.value),
        "threshold": format.threshold(worst.op, worst.threshold),
        "control": f"{format.number(control.value)}: control {CONTROL_TEXT[verification.control]}",
    }
    return _table(list(columns), [list(columns.values())])


def _result(result: Result) -> Markup:
    """Returns what a result holds and the first rows of its table, or its verifications if it has no other
    rows.
    """
    counts = (
        ("measurement", len(result.table)),
        ("array", len(result.arrays)),
        ("claim", len(result.verifications)),
    )
    held = ", ".join(format.counted(count, noun) for noun, count in counts if count) or "empty"
    settings = [
        f"{name}: {text[:60]}{'…' * (len(text) > 60)}" for name, text in format.flatten(result.settings)
    ]
    calls = Markup("<code>plot()</code> draws a figure, <code>report()</code> writes its page.")
    lines = [Markup("<strong>{}</strong>: {}").format(result.name, held), ", ".join(settings)]
    lines += [calls] if result.table else []
    rows = result.table.where(lambda row: row.kind != "claim")
    if result.verifications and not rows:
        outcomes = [
            (one.id, one.outcome, f"{one.consistent} of {one.decided}")
            for one in result.verifications[:MAX_ROWS]
        ]
        return _lines(lines) + _table(("claim", "outcome", "consistent seeds"), outcomes)
    # Rows on data tell most, then those without a step, then those of the last step.
    last = max((row.step for row in rows if row.step is not None), default=None)
    on_data, without_step = rows.select(kind="on data"), rows.select(step=None)
    return _lines(lines) + _rows(on_data or without_step or rows.select(step=last), len(result.table))


def _rows(table: Table, total: int) -> Markup:
    """Returns the first rows of a table, with the columns whose values differ, and the number of all rows."""
    rows = table[:MAX_ROWS]
    if not rows:
        return Markup("")
    columns = [name for name in COLUMNS if name == "quantity" or len(set(rows.column(name)) - {None, ""}) > 1]
    head = [*columns, "value", "prediction", "null", "verdict"]
    cells = []
    for row in rows:
        prediction, null = format.prediction(row), row.null
        cells.append(
            [
                *("" if (value := getattr(row, name)) is None else str(value) for name in columns),
                row.reason if row.value is None else format.with_unit(row.value, row.unit, row.interval),
                "" if prediction == format.NOTHING else prediction,
                f"{format.of_row(null.median, row)} ({format.counted(len(null.draws), 'draw')})"
                if null is not None and null.draws
                else "",
                row.verdict or "",
            ]
        )
    used = [
        i for i, name in enumerate(head) if name in ("quantity", "value") or any(line[i] for line in cells)
    ]
    rest = Markup("<p>{} of {:,} measurements; <code>to_pandas()</code> has all rows and columns.</p>")
    shown = _table([head[i] for i in used], [[line[i] for i in used] for line in cells])
    return shown + (rest.format(len(rows), total) if total > len(rows) else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    top = Markup("").join(Markup("<th>{}</th>").format(name) for name in head)
    cell = Markup('<td style="text-align: left">{}</td>')
    lines = (Markup("").join(cell.format(text) for text in row) for row in rows)
    body = Markup("").join(Markup("<tr>{}</tr>").format(line) for line in lines)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(top, body)


def _lines(lines: Iterable[str]) -> Markup:
    """Returns texts as the lines of one paragraph."""
    return Markup("<p>{}</p>").format(Markup("<br>").join(filter(None, lines)))
