"""Reports on stored results: a page, LaTeX, Markdown, a bibliography, and tables for the terminal.

    results = [Result.load("runs/digits"), Result.load("runs/digits-1")] # results that differ only in their
    seed are combined text = report.page(results)
    files, failed = report.latex_folder(report.aggregate(results))  # contents by file name; errors of figures

All outputs are pure functions of :class:`~transformer_theory.core.result.Result`; nothing is measured here.
"""

from collections.abc import Iterable
from pathlib import Path

from ..core.files import write_together
from ..core.result import Result
from ..core.theory import Theory
from . import terminal
from .aggregate import TRAIN, aggregate, checked_result
from .latex import latex, latex_folder
from .markdown import markdown
from .math_text import mathml
from .origins import bibtex, stored_results
from .page import page

__all__ = [
    "aggregate",
    "bibtex",
    "latex",
    "latex_folder",
    "markdown",
    "mathml",
    "page",
    "stored_results",
    "terminal",
    "write",
]


def write(result: Result, directory: str | Path, *, theories: Iterable[Theory] | None = None) -> Path:
    """Writes ``report.html``, ``references.bib`` and, except for a training run, ``table.tex`` into an
    existing folder.

    Args:
        result: result to report on, new or loaded from a folder.
        directory: existing folder. Files of these names are replaced; if one of them cannot be written, none
            is written.
        theories: theories that provide titles, statements and figures; the registry if None.
    Returns:
        The path of ``report.html``.
    Raises:
        ValueError: this is no result, or the folder does not exist.
        OSError: one of the files cannot be written; the message names it.
    """
    checked_result(result)
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"directory must be an existing folder, got {folder}; create it first")
    known = None if theories is None else tuple(theories)
    files = {"report.html": page(result, theories=known), "references.bib": bibtex(result, theories=known)}
    if result.name != TRAIN:
        files["table.tex"] = latex(result, theories=known)
    write_together({folder / name: text.encode() for name, text in files.items()})
    return folder / "report.html"
