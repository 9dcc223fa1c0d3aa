"""A result in a notebook or an interpreter: its figures by name, one figure, and its page.

:meth:`.Result.plot` and :meth:`.Result.report` call :func:`plot` and :func:`report`.
"""

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import format
from ..core.errors import nearest
from ..core.files import atomic_directory
from ..core.plotting import style, svg
from ..core.result import Result, jsonable
from ..core.theory import Theory
from . import write
from .aggregate import aggregate, checked_result, data_name
from .figures import MAX_NAME, Picture, of_all, of_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path("runs")  # where pages are stored that get no folder
HEIGHT = 640  # pixels of a page below a cell


class Figures(Mapping[str, "Figure"]):
    """The figures of a result by name; each is drawn when it is asked for, and a notebook shows all of them.

    Figures with nothing to draw, such as a timeline without training, are left out.
    """

    def __init__(self, drawings: Iterable[Picture]):
        self._pictures = {picture.name: picture for picture in drawings}
        self._drawn: dict[str, Figure | None] = {}

    def _figure(self, name: str) -> "Figure | None":
        if name not in self._drawn:
            with style():
                self._drawn[name] = self._pictures[name].draw()
        return self._drawn[name]

    def __getitem__(self, name: str) -> "Figure":
        figure = self._figure(name) if name in self._pictures else None
        if figure is None:
            raise KeyError(f"there is no figure {name!r}; there are: {', '.join(self._pictures)}")
        return figure

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._pictures if self._figure(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Figures({', '.join(self._pictures)})"

    def _repr_html_(self) -> str:
        return "".join(_shown(self[name], self._pictures[name].title) for name in self)


def _shown(figure: "Figure", title: str) -> str:
    """Returns a figure as an image with its title. In an image the ids of several figures cannot collide."""
    data = base64.b64encode(_with_namespace(svg(figure)).encode()).decode()
    title = escape(title)
    return (
        f'<figure><img alt="{title}" '
        f'src="data:image/svg+xml;base64,{data}"><figcaption>{title}</figcaption></figure>'
    )


def _with_namespace(text: str) -> str:
    """Returns an ``<svg>`` element that stands alone as a file."""
    return (
        text
        if "xmlns=" in text[: text.index(">")]
        else text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )


def figures(result: Result, *, theories: Iterable[Theory] | None = None) -> Figures:
    """Returns the figures of a result, which a notebook shows: ``figures(result)``, or one of them,
    ``figures(result)["timeline"]``.

    Names are those of the command ``report --figures``, without the name of the data. The first sums the
    result up: the matrix of findings of a comparison, the map of a reach, the layers of a probed model, the
    learning curves of a training.

    Args:
        result: result of ``compare``, ``reach``, ``train``, a probe or an experiment, new or loaded from a
            folder.
        theories: theories that draw the figures; the registry if None.
    Raises:
        ValueError: this is no result.
    """
    checked_result(result)
    combined = aggregate([result], theories=None if theories is None else tuple(theories))
    drawings = [*of_all(combined), *of_result(result, combined.theories)]
    return Figures(replace(picture, name=picture.name or result.name) for picture in drawings)


def plot(result: Result, name: str | None = None) -> "Figure":
    """Draws one figure of a result, see :meth:`.Result.plot`.

    Raises:
        ValueError: the result has no such figure, or none at all.
    """
    available = figures(result)
    if name is None:
        if (first := next(iter(available), None)) is None:
            content = "has no rows" if not result.table else "holds nothing that a figure shows"
            raise ValueError(
                f"there is nothing to draw: the result {result.name!r} {content}; result.to_pandas() has "
                "its numbers"
            )
        return available[first]
    try:
        return available[name]
    except KeyError:
        known = list(available)
        raise ValueError(
            f"there is no figure {name!r}{nearest(name, known) if known else ', nor any other'}"
        ) from None


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
            f'<iframe srcdoc="{escape(text)}" sandbox="{sandbox}" title="report" {size} '
            'loading="lazy"></iframe>'
        )
        return f"<p><code>{escape(str(self.path))}</code></p>{frame}"


def report(
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
    """Returns the first of ``runs/name``, ``runs/name-2``, ... that does not exist or holds this very result."""
    name = format.slug(data_name(result))[:MAX_NAME].strip("-") or "result"
    candidates = (FOLDER / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in candidates if not os.path.lexists(folder) or holds(folder, result))


def holds(folder: Path, result: Result) -> bool:
    """Returns whether a folder holds this very result: the same settings, measurements and run."""
    try:
        head = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        run = (result.name, jsonable(result.settings), jsonable(result.provenance))
        if (head["name"], head["settings"], head["provenance"]) != run:
            return False
        stored = Result.load(folder)
    except (ValueError, KeyError, TypeError, OSError):  # no folder, or another file
        return False
    # JSON: NaN differs from NaN
    evidence = ([verification.to_json() for verification in one.verifications] for one in (stored, result))
    return stored.table == result.table and next(evidence) == next(evidence)
