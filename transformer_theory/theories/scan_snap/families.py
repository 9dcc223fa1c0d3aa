r"""Families of classes that are all alike, so that a handful of numbers stands for any number of them.

Every class has the same D probabilities of its own distinct tokens, and every class has the same C common tokens with the same
probabilities; ``per_query`` classes share a query. All overlaps are then equal, :math:`E_{nn'} = E_0 = \sum_c f_c^2`, and the eigenvalues
of E are :math:`(K-1) E_0` and :math:`-E_0`. Training keeps the symmetry, so flows need O(D + C) numbers for any K and M
(:mod:`.flow.symmetric`), where K classes in full hold K (C + K D) probabilities.

Source: :cite:t:`tian2023scan` (Cor. 2 is about such classes; its synthetic data are such).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .problem import SequenceClasses, WeakOverlap

MOST_ENTRIES = 20_000_000  # probabilities that a family may be written out into


@dataclass(frozen=True, eq=False)
class SymmetricClasses:
    """K classes that differ by the names of their distinct tokens only.

    Attributes:
        classes: K, at least 2.
        vocab_size: M, at least K.
        common: probabilities of the common tokens in every class, positive, ``[C]``; C may be 0.
        distinct: probabilities of a class's own tokens, positive, ``[D]``, at least one; with the common ones they sum to one.
        per_query: number of classes that share a query; it divides K.

    Raises:
        ValueError: a number is out of range, or the probabilities are not positive or do not sum to one.
    """

    classes: int
    vocab_size: int
    common: Float[Tensor, " C"]
    distinct: Float[Tensor, " D"]
    per_query: int

    def __post_init__(self):
        if self.classes < 2 or self.vocab_size < self.classes:
            raise ValueError(f"classes must be at least 2 and at most vocab_size, got {self.classes} and {self.vocab_size}")
        if self.per_query < 1 or self.classes % self.per_query:
            raise ValueError(f"per_query must divide the {self.classes} classes, got {self.per_query}; pass 1 or {self.classes}")
        both = torch.cat([self.common, self.distinct])
        if not len(self.distinct) or not bool((both > 0).all()) or abs(float(both.sum()) - 1) > 1e-9:
            raise ValueError(f"common and distinct must be positive and sum to one, got sum {float(both.sum()):.9g}; divide by the sum")

    @property
    def overlap(self) -> float:
        """E_0, the inner product of the features of any two classes at uniform attention."""
        return float((self.common**2).sum() / ((self.common**2).sum() + (self.distinct**2).sum()))

    def weak_overlap(self) -> WeakOverlap:
        """Assumption 2 at uniform attention, from the two eigenvalues of E."""
        return WeakOverlap((self.classes - 1) * self.overlap, self.overlap, 1 / self.classes, math.sqrt(6 / self.vocab_size))

    def written_out(self) -> SequenceClasses:
        """The classes one by one: the common tokens, then the distinct ones of class 0, of class 1, ...

        Raises:
            ValueError: that takes more than twenty million probabilities.
        """
        K, D = self.classes, len(self.distinct)
        if K * (len(self.common) + K * D) > MOST_ENTRIES:
            raise ValueError(f"only {MOST_ENTRIES:,} probabilities are written out, {K} classes of {D} tokens need more; keep the family")
        own = torch.block_diag(*[self.distinct[None]] * K)
        P = torch.cat([self.common.expand(K, -1), own], dim=1)
        return SequenceClasses(P, torch.arange(K) // self.per_query, self.vocab_size)


def alike(
    classes: int, *, vocab_size: int, weights: Float[Tensor, " D"], common_share: float, common: int = 1, per_query: int | None = None
) -> SymmetricClasses:
    """A family by the share of its common tokens.

    Args:
        classes: K.
        vocab_size: M.
        weights: of a class's distinct tokens, positive, of any sum.
        common_share: probability of all common tokens together, in (0, 1); each has the same part of it.
        common: C, at least 1.
        per_query: classes that share a query; all if None.
    Raises:
        ValueError: see :class:`SymmetricClasses`; a weight, the share or the number of common tokens is out of range.
    """
    if not 0 < common_share < 1 or common < 1:
        raise ValueError(f"common_share must lie in (0, 1) and common be at least 1, got {common_share} and {common}")
    if not bool((weights > 0).all()):
        raise ValueError("weights must be positive; leave tokens that cannot occur out")
    each = torch.full((common,), common_share / common, dtype=torch.float64)
    own = weights.double() / weights.double().sum() * (1 - common_share)
    return SymmetricClasses(classes, vocab_size, each, own, per_query or classes)


def with_overlap(classes: int, *, vocab_size: int, weights: Float[Tensor, " D"], overlap: float) -> SymmetricClasses:
    """A family with one common token, one query and a given overlap :math:`E_0 = f_0^2` of any two classes.

    Args:
        classes, vocab_size, weights: as in :func:`alike`.
        overlap: in (0, 1).
    Raises:
        ValueError: see :func:`alike`; the overlap is out of range.
    """
    if not 0 < overlap < 1:
        raise ValueError(f"overlap must lie in (0, 1), got {overlap}; it is an inner product of unit vectors")
    norm = float(torch.linalg.vector_norm(weights.double()) / weights.double().sum())
    odds = norm * math.sqrt(overlap / (1 - overlap))
    return alike(classes, vocab_size=vocab_size, weights=weights, common_share=odds / (1 + odds))


def smallest_vocabulary(classes: int) -> float:
    """6 K² (K - 1)²: Assumption 2 holds for some equal overlaps only if M is larger.

    Raises:
        ValueError: fewer than 2 classes.
    """
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    return 6.0 * (classes * (classes - 1)) ** 2
