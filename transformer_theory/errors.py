"""Errors that say what was expected, what came, and what to do."""

import difflib
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
    """The end of an error message about an unknown name: ``"; did you mean 'crate'?"`` or the list of what there is."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names)}"
