"""Errors that say what was expected, what came, and what to do."""

import difflib
import re
from collections.abc import Iterable


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


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message about an unknown name: ``"; did you mean 'crate'?"`` or the list of what there is.

    Of ``room.name`` and ``room/name`` it is what follows the room that is compared, among the names of that room if there is one.
    """
    names = list(names)
    room, short = _parted(name)
    inside = [known for known in names if room and _parted(known)[0] == room]
    last = {_parted(known)[1]: known for known in inside or names}
    whole = [] if inside else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    close = whole or [last[found] for found in difflib.get_close_matches(short, last, n=1, cutoff=0.5)]
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(inside or names)}"


def _parted(name: str) -> tuple[str, str]:
    """The room, nothing if none is named, and what follows it."""
    *room, short = re.split(r"[./]", name, maxsplit=1)
    return "".join(room), short
