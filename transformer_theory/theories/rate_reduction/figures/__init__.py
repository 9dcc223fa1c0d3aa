"""Pictures of rate reduction, drawn from the stored arrays alone."""

from .analysis import curve, draw, similarity, spectra
from .gaussians import gaussians
from .label_corruption import label_corruption
from .landscape import landscape
from .shifts import shifts

__all__ = ["curve", "draw", "gaussians", "label_corruption", "landscape", "shifts", "similarity", "spectra"]
