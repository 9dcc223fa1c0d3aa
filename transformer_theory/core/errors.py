"""Errors that say what was expected, what came, and what to do."""

import difflib
import re
from collections.abc import Iterable

LIST_ALL = 8  # an error lists up to this many names
LIST_FIRST = 5  # and this many of a longer list


class Infeasible(ValueError):
    """No solution exists. ``certificate`` proves it (for a linear system: multipliers whose combination is contradictory)."""

    def __init__(self, message: str, certificate=None):
        super().__init__(message)
        self.certificate = certificate


class NotConverged(RuntimeError):
    """An iteration stopped before its tolerance. ``state`` is the last iterate, ``residuals`` what is left."""

    def __init__(self, message: str, state=None, residuals=None):
        super().__init__(message)
        self.state, self.residuals = state, residuals


def nearest(name: str, names: Iterable[str], *, shown_by: str = "") -> str:
    """The end of an error message about an unknown name: the one that is meant, or what there is, of many names the nearest few.

    >>> "unknown theory 'crat'" + nearest("crat", ["crate", "joma"])
    "unknown theory 'crat'; did you mean 'crate'?"

    Of ``theory.name`` and ``theory/name`` what follows the theory is compared, among the names of that theory if there is one.

    Args:
        shown_by: what shows all the names, named where they are too many to be listed.
    """
    names = list(names)
    theory, short = _parted(name)
    inside = [known for known in names if theory and _parted(known)[0] == theory]
    last = {_parted(known)[1]: known for known in inside or names}
    whole = [] if inside else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    close = whole or [last[found] for found in difflib.get_close_matches(short, last, n=1, cutoff=0.5)]
    if close:
        return f"; did you mean {close[0]!r}?"
    known = inside or names
    if len(known) <= LIST_ALL:
        return f"; there are: {', '.join(known)}"
    few = ", ".join(nearest_first(name, known)[:LIST_FIRST])
    return f"; the nearest of {len(known)} are: {few}{f'; {shown_by} shows all' if shown_by else ''}"


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """The names, those most like ``name`` first; the theory in front of either does not count."""
    short = _parted(name)[1]
    return sorted(names, key=lambda known: -difflib.SequenceMatcher(None, short, _parted(known)[1]).ratio())


def some(names: Iterable[str]) -> str:
    """The names in a line; of many the first few, and how many there are.

    >>> some("abcdefghijkl")
    'a, b, c, d, e, ... (12)'
    """
    names = list(names)
    return ", ".join(names) if len(names) <= LIST_ALL else f"{', '.join(names[:LIST_FIRST])}, ... ({len(names)})"


def _parted(name: str) -> tuple[str, str]:
    """The theory, empty if none is named, and the rest."""
    *theory, short = re.split(r"[./]", name, maxsplit=1)
    return "".join(theory), short
