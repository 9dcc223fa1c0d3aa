"""Runs that repeat what the papers show, and some that look further; one file a run."""

from .gaussians import ReduNetGaussians
from .landscape import Landscape

EXPERIMENTS = (ReduNetGaussians, Landscape)

__all__ = ["EXPERIMENTS", "Landscape", "ReduNetGaussians"]
