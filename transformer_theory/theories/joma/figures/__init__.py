"""Pictures, drawn from stored results alone; one file a picture."""

from .analysis import draw
from .invariant import invariant
from .linear_orbit import linear_orbit
from .two_phases import two_phases

__all__ = ["draw", "invariant", "linear_orbit", "two_phases"]
