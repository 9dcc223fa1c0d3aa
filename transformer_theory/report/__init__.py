"""From stored results to what people read: a page, LaTeX, Markdown, a bibliography, a table in the terminal.

    result = report.merged([Result.load("runs/digits"), Result.load("runs/digits-1")])  # seeds become mean and standard deviation
    files, _ = report.latex_folder(result)  # names and bytes

Everything is a pure function of the :class:`~transformer_theory.core.experiment.Result`; nothing is measured here.
"""

from collections.abc import Iterable
from pathlib import Path

from ..core.files import write_together
from ..core.result import Result
from ..core.theory import Theory
from .bibtex import bibtex
from .formulas import mathml
from .html import html
from .latex import latex
from .latex_folder import latex_folder
from .many import many
from .markdown import markdown
from .merged import merged
from .terminal import table
from .training import training_page
from .views import view

__all__ = [
    "bibtex",
    "html",
    "latex",
    "latex_folder",
    "many",
    "markdown",
    "mathml",
    "merged",
    "page",
    "table",
    "training_page",
    "view",
    "write",
]


TRAINING = "train"
_PAGES = {TRAINING: training_page, "compare": html}


def page(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    """The page that fits the results: of one training (:func:`training_page`), of one comparison (:func:`html`), or of any others and of
    several (:func:`many`).

    Raises:
        ValueError: there is no result.
    """
    several = (results,) if isinstance(results, Result) else tuple(results)
    if len(several) == 1 and several[0].name in _PAGES:
        return _PAGES[several[0].name](several[0], theories=theories)
    return many(several, theories=theories)


def write(result: Result, directory: str | Path, *, theories: Iterable[Theory] | None = None) -> Path:
    """Writes ``report.html``, ``references.bib`` and, of a comparison, ``table.tex`` into an existing folder.

    Args:
        result: of ``compare`` or ``train``, fresh or loaded.
        directory: an existing folder; files of these names are replaced, all or none.
        theories: records that give titles, statements and figures; the registry if None.
    Returns:
        The path of ``report.html``.
    Raises:
        ValueError: the folder does not exist.
        OSError: one of the files cannot be written; it says which.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"directory must be an existing folder, got {folder}; create it first")
    known = None if theories is None else tuple(theories)
    files = {"report.html": page(result, theories=known), "references.bib": bibtex(result, theories=known)}
    if result.name != TRAINING:
        files["table.tex"] = latex(result, theories=known)
    write_together({folder / name: text.encode() for name, text in files.items()})
    return folder / "report.html"
