"""Mutants of rate_reduction."""

from . import Mutant

MUTANTS: tuple[Mutant, ...] = ()
