"""Reports on stored results: a page, LaTeX, Markdown, a bibliography, and tables for the terminal.

    results = [Result.load("runs/digits"), Result.load("runs/digits-1")]
    text = report.page(results)  # results that differ only in their seed are combined
    files, failed = report.latex_folder(report.aggregate(results))  # contents by file name; errors of figures

All outputs are pure functions of :class:`~transformer_theory.core.result.Result`; nothing is measured here.
:meth:`.Result.report`, :meth:`.Result.plot` and the display of objects in a notebook call :func:`write_page`,
:func:`plot` and :func:`to_html`.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

from markupsafe import Markup

from ..comparison.pooling import TRAIN, aggregate, data_name
from ..core import format
from ..core.files import atomic_directory, write_together
from ..core.math_text import mathml
from ..core.reading import read_json
from ..core.result import Result, jsonable
from ..core.theory import Theory
from ..theories import list_theories as load_theories
from . import terminal
from .figures import MAX_NAME, checked_result, draw, of_all, plot
from .html import to_html
from .html_page import page
from .md import markdown
from .origins import bibtex, stored_results
from .tex import latex, latex_folder

__all__ = [
    "aggregate",
    "bibtex",
    "latex",
    "latex_folder",
    "load_theories",
    "markdown",
    "mathml",
    "page",
    "plot",
    "stored_results",
    "terminal",
    "to_html",
    "write",
    "write_networks",
    "write_page",
]


FOLDER = Path("runs")  # where pages are stored that get no folder
HEIGHT = 640  # pixels of a page below a cell


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


def write_networks(results: Sequence[Result], directory: Path) -> None:
    """Writes the page of networks that were measured one by one, their LaTeX and BibTeX, and the figure as
    wide as a page and as a column of a paper, in PDF and SVG, into an existing folder.

    Raises:
        OSError: one of the files cannot be written; the message names it.
    """
    texts = {"report.html": page(results), "references.bib": bibtex(results), "table.tex": latex(results)}
    files = {name: text.encode() for name, text in texts.items()} | draw([*of_all(aggregate(results))]).files
    write_together({directory / name: contents for name, contents in files.items()})


class Page(os.PathLike[str]):
    """A page on the disk. ``open``, ``Path`` and ``str`` take it for its path; a notebook shows the page.

    Attributes:
        path: path of the page.
    """

    def __init__(self, path: Path):
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        # The frame holds the page itself, since notebooks serve no files of arbitrary folders. In the frame,
        # the page's script cannot reach the notebook. Its links to its own sections need the base: they would
        # otherwise lead to the notebook.
        text = self.path.read_text(encoding="utf-8").replace("<head>", '<head><base href="about:srcdoc">', 1)
        sandbox = "allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"
        size = f'width="100%" height="{HEIGHT}"'
        frame = (
            f'<iframe srcdoc="{Markup.escape(text)}" sandbox="{sandbox}" title="report" {size} '
            'loading="lazy"></iframe>'
        )
        return f"<p><code>{Markup.escape(str(self.path))}</code></p>{frame}"


def write_page(
    result: Result, directory: "str | os.PathLike[str] | None" = None, *, overwrite: bool = False
) -> Page:
    """Stores a result with its page, see :meth:`.Result.report`.

    Raises:
        FileExistsError: the folder holds something else, and ``overwrite`` is False or it is not a stored
            result.
        PermissionError: the folder is not writable.
    """
    folder = _free_folder(result) if directory is None else Path(directory)
    if holds(folder, result):
        return Page(write(result, folder))
    with atomic_directory(folder, overwrite=overwrite) as draft:
        result.write_into(draft)
        write(result, draft)
    return Page(folder / "report.html")


def _free_folder(result: Result) -> Path:
    """Returns the first of ``runs/name``, ``runs/name-2``, ... that does not exist or holds this very
    result.
    """
    name = format.slug(data_name(result))[:MAX_NAME].strip("-") or "result"
    candidates = (FOLDER / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in candidates if not os.path.lexists(folder) or holds(folder, result))


def holds(folder: Path, result: Result) -> bool:
    """Returns whether a folder holds this very result: the same settings, measurements and run."""
    try:
        head = read_json(folder / "result.json")
        run = (result.name, jsonable(result.settings), jsonable(result.provenance))
        if (head["name"], head["settings"], head["provenance"]) != run:
            return False
        stored = Result.load(folder)
    except (ValueError, KeyError, TypeError, OSError):  # no folder, or another file
        return False
    # JSON: NaN differs from NaN
    evidence = ([verification.to_json() for verification in one.verifications] for one in (stored, result))
    return stored.table == result.table and next(evidence) == next(evidence)
