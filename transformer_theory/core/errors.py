"""Errors of solvers, and lists of names for the messages of errors."""

import difflib
import re
from collections.abc import Iterable

LIST_ALL = 8  # an error lists up to this many names
LIST_FIRST = 5  # and this many of a longer list


class Infeasible(ValueError):
    """No solution exists.

    Attributes:
        certificate: proves it; for a linear system, multipliers whose combination of the constraints is contradictory.
    """

    def __init__(self, message: str, certificate=None):
        super().__init__(message)
        self.certificate = certificate


class NotConverged(RuntimeError):
    """An iteration stopped before it met its tolerance.

    Attributes:
        state: the last iterate.
        residuals: its residuals.
    """

    def __init__(self, message: str, state=None, residuals=None):
        super().__init__(message)
        self.state, self.residuals = state, residuals


def nearest(name: str, names: Iterable[str], *, shown_by: str = "") -> str:
    """The end of an error message about an unknown name: the name that was probably meant, or else the known names.

    >>> "unknown theory 'crat'" + nearest("crat", ["crate", "joma"])
    "unknown theory 'crat'; did you mean 'crate'?"

    Names such as ``theory.name`` and ``theory/name`` are compared by the part after the theory, among the names of that theory if there are
    any. Of more than eight names, the five nearest are listed.

    Args:
        shown_by: a command that shows all names; named if there are too many to list.
    """
    names = list(names)
    theory, short = _parted(name)
    inside = [known for known in names if theory and _parted(known)[0] == theory]
    by_short_name = {_parted(known)[1]: known for known in inside or names}
    whole = [] if inside else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    close = whole or [by_short_name[match] for match in difflib.get_close_matches(short, by_short_name, n=1, cutoff=0.5)]
    if close:
        return f"; did you mean {close[0]!r}?"
    known = inside or names
    if len(known) <= LIST_ALL:
        return f"; there are: {', '.join(known)}"
    few = ", ".join(nearest_first(name, known)[:LIST_FIRST])
    return f"; the nearest of {len(known)} are: {few}{f'; {shown_by} shows all' if shown_by else ''}"


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """The names, those most like ``name`` first; the theory in front of a name is ignored."""
    short = _parted(name)[1]
    return sorted(names, key=lambda known: -difflib.SequenceMatcher(None, short, _parted(known)[1]).ratio())


def some(names: Iterable[str]) -> str:
    """The names in one line; of more than eight the first five, and how many there are.

    >>> some("abcdefghijkl")
    'a, b, c, d, e, ... (12)'
    """
    names = list(names)
    return ", ".join(names) if len(names) <= LIST_ALL else f"{', '.join(names[:LIST_FIRST])}, ... ({len(names)})"


def _parted(name: str) -> tuple[str, str]:
    """The theory (empty if the name has none) and the rest of the name."""
    *theory, short = re.split(r"[./]", name, maxsplit=1)
    return "".join(theory), short
