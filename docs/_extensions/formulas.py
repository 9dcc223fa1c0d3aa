"""Formulas as MathML, made together with the pages, so that they render without a network."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging

from transformer_theory.core.math_text import mathml

SHEET = "formulas.css"
RULES = """
math { font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", math; font-size: 1.1em; }
math[display="block"] { margin: 1rem 0; overflow-x: auto; overflow-y: hidden; }
"""
# LaTeX commands of size and position, which the converter does not know
PLAIN = re.compile(r"\\(?:[bB]ig[lrm]?(?=[\\|()\[\]])|limits\b|displaystyle\b)")
TEXT = re.compile(r"\\text\{[^{}]*\}")

log = logging.getLogger(__name__)


def inline(translator: Any, node: nodes.Element) -> None:
    """A formula within the text."""
    _append(translator, node, "$")


def block(translator: Any, node: nodes.Element) -> None:
    """A formula on a line of its own."""
    _append(translator, node, "$$")


def _append(translator: Any, node: nodes.Element, dollars: str) -> None:
    latex = PLAIN.sub("", node.astext())
    # the converter reads no escapes in a text
    latex = TEXT.sub(lambda text: text[0].replace(r"\_", "_"), latex)
    made = mathml(f"{dollars}{latex}{dollars}")
    if "<math" not in made:
        log.warning("a formula has no MathML: %s", latex, location=node)
    translator.body.append(made)
    raise nodes.SkipNode


def style_sheet(app: Any, error: Exception | None) -> None:
    """Writes the style of formulas beside the pages."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / SHEET).write_text(RULES, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Registers the renderer that ``html_math_renderer`` names."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_css_file(SHEET)
    app.connect("build-finished", style_sheet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
