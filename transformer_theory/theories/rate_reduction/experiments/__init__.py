"""Runs that repeat what the papers show, and some that look further; one file a run."""

from .gaussians import ReduNetGaussians
from .label_corruption import LabelCorruption
from .landscape import Landscape
from .on_data import ReduNetDigits, ReduNetIris
from .shifts import Shifts

EXPERIMENTS = (ReduNetGaussians, ReduNetIris, ReduNetDigits, Shifts, Landscape, LabelCorruption)

__all__ = ["EXPERIMENTS", "LabelCorruption", "Landscape", "ReduNetDigits", "ReduNetGaussians", "ReduNetIris", "Shifts"]
