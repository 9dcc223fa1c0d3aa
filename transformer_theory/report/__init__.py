"""From stored results to what people read: a page, LaTeX, Markdown, a bibliography, tables in the terminal.

    results = [Result.load("runs/digits"), Result.load("runs/digits-1")]  # results that differ in their seed become mean and interval
    text = report.page(results)
    files, failed = report.latex_folder(report.aggregate(results))  # names and bytes

Everything is a pure function of the :class:`~transformer_theory.core.result.Result`; nothing is measured here.
"""

from collections.abc import Iterable
from pathlib import Path

from ..core.files import write_together
from ..core.result import Result
from ..core.theory import Theory
from . import terminal
from .aggregate import TRAIN, aggregate, stored_results
from .bibtex import bibtex
from .formulas import mathml
from .latex import latex
from .latex_folder import latex_folder
from .markdown import markdown
from .page import page

__all__ = ["aggregate", "bibtex", "latex", "latex_folder", "markdown", "mathml", "page", "stored_results", "terminal", "write"]


def write(result: Result, directory: str | Path, *, theories: Iterable[Theory] | None = None) -> Path:
    """Writes ``report.html``, ``references.bib`` and, of any result but a training, ``table.tex`` into an existing folder.

    Args:
        result: fresh or loaded.
        directory: an existing folder; files of these names are replaced, all or none.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        The path of ``report.html``.
    Raises:
        ValueError: the folder does not exist.
        OSError: one of the files cannot be written; the message names it.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"directory must be an existing folder, got {folder}; create it first")
    known = None if theories is None else tuple(theories)
    files = {"report.html": page(result, theories=known), "references.bib": bibtex(result, theories=known)}
    if result.name != TRAIN:
        files["table.tex"] = latex(result, theories=known)
    write_together({folder / name: text.encode() for name, text in files.items()})
    return folder / "report.html"
