"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .hierarchy import HierarchyLearning
from .invariant import Invariant
from .linear_orbit import LinearOrbit
from .lower_layer import LowerLayer
from .relatives import Relatives
from .two_phases import TwoPhases

EXPERIMENTS = (Invariant, LinearOrbit, TwoPhases, LowerLayer, Relatives, HierarchyLearning)

__all__ = ["EXPERIMENTS", "HierarchyLearning", "Invariant", "LinearOrbit", "LowerLayer", "Relatives", "TwoPhases"]
