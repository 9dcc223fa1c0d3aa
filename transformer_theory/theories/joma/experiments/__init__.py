"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .hierarchy import HierarchyLearning
from .invariant import Invariant
from .linear_orbit import LinearOrbit
from .relatives import Relatives
from .two_phases import TwoPhases

EXPERIMENTS = (Invariant, LinearOrbit, TwoPhases, Relatives, HierarchyLearning)

__all__ = ["EXPERIMENTS", "HierarchyLearning", "Invariant", "LinearOrbit", "Relatives", "TwoPhases"]
