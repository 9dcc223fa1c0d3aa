"""Formulas as MathML, made when the pages are, so that they render without a network; with the font that the report uses."""

import logging as standard
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging

from transformer_theory.report.formulas import mathml
from transformer_theory.report.mathfont import FAMILY, face

SHEET = "formulas.css"
RULES = f"""
math {{ font-family: "{FAMILY}", "STIX Two Math", "Cambria Math", math; font-size: 1.1em; }}
math[display="block"] {{ margin: 1rem 0; overflow-x: auto; overflow-y: hidden; }}
"""
# what LaTeX writes for the size of what follows or for spacing alone, and the converter does not read
PLAIN = re.compile(r"\\(?:[bB]ig[lrm]?(?=[\\|()\[\]])|limits\b|displaystyle\b)")

log = logging.getLogger(__name__)


def inline(translator: Any, node: nodes.Element) -> None:
    _append(translator, node, "$")


def block(translator: Any, node: nodes.Element) -> None:
    _append(translator, node, "$$")


def _append(translator: Any, node: nodes.Element, dollars: str) -> None:
    latex = PLAIN.sub("", node.astext())
    made = mathml(f"{dollars}{latex}{dollars}")
    if "<math" not in made:
        log.warning("a formula has no MathML: %s", latex, location=node)
    translator.body.append(made)
    raise nodes.SkipNode


def font(app: Any, error: Exception | None) -> None:
    """The glyphs that all pages need, in one style sheet."""
    if error is None and app.builder.format == "html":
        standard.getLogger("fontTools").setLevel(standard.WARNING)
        pages = "".join(page.read_text(encoding="utf-8") for page in sorted(Path(app.outdir).rglob("*.html")))
        (Path(app.outdir) / "_static" / SHEET).write_text(face(pages) + RULES, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_css_file(SHEET)
    app.connect("build-finished", font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
