"""Mutants of scan_snap."""

from . import Mutant

MUTANTS: tuple[Mutant, ...] = ()
