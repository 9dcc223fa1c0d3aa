"""Errors that solvers raise, and texts for error messages about names."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
CATALOGUE = "`transformer-theory list`"  # the command that shows all names
LIST_ALL = 8  # length of the longest list of names that a message shows in full
LIST_FIRST = 5  # number of names that a message shows of a longer list


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, at most 200 characters; empty if it has none."""
    return (str(error).strip().splitlines() or [""])[0][:200]


def reason(error: BaseException) -> str:
    """Returns an error's message on one line, or its name if it has none. A message of the operating system
    loses its number and path.
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


class Infeasible(ValueError):
    """No solution exists.

    Attributes:
        certificate: proof of infeasibility; for a linear system, multipliers whose combination of the
            constraints is a contradiction.
    """

    def __init__(self, message: str, certificate=None):
        super().__init__(message)
        self.certificate = certificate


class NotConverged(RuntimeError):
    """An iteration stopped before it met its tolerance.

    Attributes:
        state: last iterate.
        residuals: residuals of the last iterate.
    """

    def __init__(self, message: str, state=None, residuals=None):
        super().__init__(message)
        self.state, self.residuals = state, residuals


def nearest(name: str, names: Iterable[str], *, shown_by: str = "") -> str:
    """Returns the end of an error message about an unknown name: the most similar known name, or the known
    names if none is similar.

    >>> "unknown theory 'crat'" + nearest("crat", ["crate", "joma"])
    "unknown theory 'crat'; did you mean 'crate'?"

    If ``name`` has the form ``theory.name`` or ``theory/name``, only the part after the theory is compared,
    and only with names of the same theory if there are any. If more than eight names are known, the five most
    similar are listed.

    Args:
        name: the unknown name.
        names: the known names.
        shown_by: command that shows all names, for a list that is too long.
    """
    names = list(names)
    theory, short = _split_theory(name)
    same_theory = [known for known in names if theory and _split_theory(known)[0] == theory]
    by_short_name = {_split_theory(known)[1]: known for known in same_theory or names}
    # The theory itself may be misspelt, so without names of that theory the full name is compared first.
    full_match = [] if same_theory else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    close = full_match or [
        by_short_name[match] for match in difflib.get_close_matches(short, by_short_name, n=1, cutoff=0.5)
    ]
    if close:
        return f"; did you mean {close[0]!r}?"
    known = same_theory or names
    if len(known) <= LIST_ALL:
        return f"; there are: {', '.join(known)}"
    if not same_theory and shown_by:  # names that are not similar would be noise
        return f"; none of the {len(known)} known names is similar; {shown_by} shows them"
    first = ", ".join(nearest_first(name, known)[:LIST_FIRST])
    return f"; the nearest of {len(known)} are: {first}{f'; {shown_by} shows all' if shown_by else ''}"


def named(kind: str, name: str, known: Mapping[str, T], *, shown_by: str = CATALOGUE) -> T:
    """Returns what has a name.

    Args:
        kind: what the names are of, such as "theory".
        name: the name.
        known: everything by its name.
        shown_by: see :func:`nearest`.
    Raises:
        ValueError: the name is unknown; the message suggests the nearest one.
    """
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known, shown_by=shown_by)}")
    return known[name]


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names, most similar to ``name`` first; the theory in front of a name is ignored."""
    short = _split_theory(name)[1]
    return sorted(
        names, key=lambda known: -difflib.SequenceMatcher(None, short, _split_theory(known)[1]).ratio()
    )


def abbreviated_list(names: Iterable[str]) -> str:
    """Returns the names in one line; if there are more than eight, only the first five and the total number.

    >>> abbreviated_list("abcdefghijkl")
    'a, b, c, d, e, ... (12)'
    """
    names = list(names)
    return (
        ", ".join(names) if len(names) <= LIST_ALL else f"{', '.join(names[:LIST_FIRST])}, ... ({len(names)})"
    )


def _split_theory(name: str) -> tuple[str, str]:
    """Splits "theory.name" or "theory/name" into theory and name; the theory is empty if there is no
    separator.
    """
    *theory, short = re.split(r"[./]", name, maxsplit=1)
    return "".join(theory), short
