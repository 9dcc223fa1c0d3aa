"""Mutants of JoMA."""

from . import Mutant

MUTANTS = (
    Mutant(
        "theories.joma.invariants.conserved",
        "- ratio * form.factor",
        "+ ratio * form.factor",
        "flipped sign",
        "the conserved quantity with the sign of its second term flipped",
    ),
)
