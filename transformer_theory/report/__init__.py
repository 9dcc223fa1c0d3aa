"""From a stored comparison to what people read: a page, a LaTeX table, a bibliography, a table in the terminal.

Everything is a pure function of the :class:`~transformer_theory.experiment.Result`; nothing is measured here.
"""

from collections.abc import Iterable
from pathlib import Path

from ..experiment import Result
from ..files import replacing
from ..theory import Theory
from .bibtex import bibtex
from .formulas import mathml
from .html import html
from .latex import latex
from .terminal import table
from .views import view

__all__ = ["bibtex", "html", "latex", "mathml", "table", "view", "write"]


def write(result: Result, directory: str | Path, *, theories: Iterable[Theory] | None = None) -> Path:
    """Writes ``report.html``, ``table.tex`` and ``references.bib`` into an existing folder.

    Args:
        result: of ``compare``, fresh or loaded.
        directory: an existing folder; files of these names are replaced.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        The path of ``report.html``.
    Raises:
        ValueError: the folder does not exist.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"directory must be an existing folder, got {folder}; create it first")
    known = None if theories is None else tuple(theories)
    files = {
        "report.html": html(result, theories=known),
        "table.tex": latex(result, theories=known),
        "references.bib": bibtex(result, theories=known),
    }
    for name, text in files.items():
        with replacing(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")
    return folder / "report.html"
