"""Pictures of rate reduction, drawn from the stored arrays alone."""

from .analysis import curve, draw, similarity, spectra
from .gaussians import gaussians
from .landscape import landscape
from .shifts import shifts

__all__ = ["curve", "draw", "gaussians", "landscape", "shifts", "similarity", "spectra"]
