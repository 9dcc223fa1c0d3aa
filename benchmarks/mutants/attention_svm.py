"""Mutants of attention_svm."""

from . import Mutant

MUTANTS: tuple[Mutant, ...] = ()
