"""The figures of a result, for a notebook or an interpreter."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from ..core.plotting import style, svg
from ..core.result import Result
from ..core.theory import Theory
from .aggregate import aggregate
from .figures import Picture, of_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    return f'<figure><img alt="{title}" src="data:image/svg+xml;base64,{data}"><figcaption>{title}</figcaption></figure>'


def _with_namespace(text: str) -> str:
    """Returns an ``<svg>`` element that stands alone as a file."""
    return text if "xmlns=" in text[: text.index(">")] else text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def figures(result: Result, *, theories: Iterable[Theory] | None = None) -> Figures:
    """Returns the figures of a result, which a notebook shows: ``figures(result)``, or one of them, ``figures(result)["timeline"]``.

    Names are those of the command ``report --figures``, without the name of the data.

    Args:
        result: result of ``compare``, ``train`` or an experiment, new or loaded from a folder.
        theories: theories that draw the figures; the registry if None.
    """
    known = aggregate([result], theories=None if theories is None else tuple(theories)).theories
    return Figures(replace(picture, name=picture.name or result.name) for picture in of_result(result, known))
