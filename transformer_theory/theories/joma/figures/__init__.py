"""Pictures, drawn from stored results alone; one file a picture."""

from .analysis import draw
from .hierarchy import hierarchy
from .invariant import invariant
from .linear_orbit import linear_orbit
from .lower_layer import lower_layer
from .relatives import relatives
from .two_phases import two_phases

__all__ = ["draw", "hierarchy", "invariant", "linear_orbit", "lower_layer", "relatives", "two_phases"]
