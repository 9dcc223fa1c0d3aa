"""Mutants of crate."""

from . import Mutant

MUTANTS: tuple[Mutant, ...] = ()
