"""Infinitely many, infinitely long sequences: four dynamics, each with a name of its own.

*Exact* (:func:`exact_flow`): gradient flow. *Modified* (:func:`modified_flow`): with Lemma 3's decoder. *Lemma 4* (:func:`lemma4_flow`):
that decoder in closed form, so only attention moves. *Closed form* (:mod:`..closed_form`): one common token, all classes alike.

When M >> K the exact flow is many times slower around t0' than the others: the term that Lemma 3 drops is of the order of the overlap E,
and so is everything that moves attention. For classes that are all alike :mod:`.symmetric` has the first three flows at a cost that does
not depend on K. Source: :cite:t:`tian2023scan`.
"""

from .general import exact_flow, lemma4_flow, lemma4_velocity, modified_flow
from .integrate import CLOSED, EXACT, LEMMA4, MODIFIED, DrivenFlow, Flow
from .symmetric import SymmetricFlow, symmetric_exact_flow, symmetric_lemma4_flow, symmetric_modified_flow

__all__ = [
    "CLOSED",
    "EXACT",
    "LEMMA4",
    "MODIFIED",
    "DrivenFlow",
    "Flow",
    "SymmetricFlow",
    "exact_flow",
    "lemma4_flow",
    "lemma4_velocity",
    "modified_flow",
    "symmetric_exact_flow",
    "symmetric_lemma4_flow",
    "symmetric_modified_flow",
]
