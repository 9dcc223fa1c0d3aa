"""The four dynamics of infinitely many, infinitely long sequences.

*Exact* (:func:`exact_flow`): gradient flow. *Modified* (:func:`modified_flow`): Lemma 3's decoder replaces
the exact one. *Lemma 4* (:func:`lemma4_flow`): Lemma 3's decoder is known in closed form, so only attention
moves. *Closed form* (:mod:`..closed_form`): one common token, all classes alike.

Where M >> K, attention moves many times more slowly around t0' in the exact flow than in the others: the term
that Lemma 3 drops is of the order of the overlap E, and so is the force on attention. For classes that are
all alike, :mod:`.symmetric` integrates the first three flows at a cost that does not depend on K. Source:
:cite:t:`tian2023scan`.
"""

from .general import exact_flow, lemma4_flow, modified_flow
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
    "modified_flow",
    "symmetric_exact_flow",
    "symmetric_lemma4_flow",
    "symmetric_modified_flow",
]
