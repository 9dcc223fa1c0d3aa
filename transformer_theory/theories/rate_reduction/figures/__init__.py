"""Pictures of rate reduction, drawn from the stored arrays alone."""

from .analysis import curve, draw, similarity, spectra
from .gaussians import gaussians
from .landscape import landscape

__all__ = ["curve", "draw", "gaussians", "landscape", "similarity", "spectra"]
