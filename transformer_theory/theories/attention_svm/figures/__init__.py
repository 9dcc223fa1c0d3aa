"""The figures of the room, pure functions of a stored result; one file a figure."""

from .data import draw
from .global_convergence import global_convergence
from .local_convergence import local_convergence

__all__ = ["draw", "global_convergence", "local_convergence"]
