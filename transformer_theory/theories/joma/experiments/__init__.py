"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .invariant import Invariant
from .linear_orbit import LinearOrbit
from .two_phases import TwoPhases

EXPERIMENTS = (Invariant, LinearOrbit, TwoPhases)

__all__ = ["EXPERIMENTS", "Invariant", "LinearOrbit", "TwoPhases"]
