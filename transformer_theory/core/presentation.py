"""The hook through which the objects of the core show themselves: as HTML in a notebook, as a figure, as a
page.

The core imports none of the layers above it, so the package sets the hook at its import.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure


class Presentation(Protocol):
    """What shows the objects of the core: :mod:`transformer_theory.report`."""

    def to_html(self, record: Any) -> str:
        """Returns a claim, a verification, a theory, a table or a result as HTML for a notebook."""
        ...

    def plot(self, result: Any, name: str | None) -> "Figure":
        """Draws one figure of a result, see :meth:`.Result.plot`."""
        ...

    def write_page(
        self, result: Any, directory: "str | PathLike[str] | None", *, overwrite: bool
    ) -> "PathLike[str]":
        """Stores a result with its page, see :meth:`.Result.report`."""
        ...

    def load_theories(self) -> None:
        """Imports all theories, whose records set their colours (:func:`.plotting.set_colour`)."""
        ...


_presentation: Callable[[], Presentation] | None = None


def present_with(presentation: Callable[[], Presentation]) -> None:
    """Sets what :func:`presenting` returns; it is called at first use, so that nothing is imported before."""
    global _presentation
    _presentation = presentation


def presenting() -> Presentation:
    """Returns what shows the objects of the core."""
    assert _presentation is not None, "transformer_theory/__init__.py sets it"
    return _presentation()
