r"""Families of K classes that differ only in which tokens are distinct to them.

Every class has D distinct tokens; the D probabilities are the same for all classes. All classes share C
common tokens, whose probabilities are also the same for all classes. ``per_query`` classes share a query. Let
:math:`f` be the normalised features of a class. The overlaps of any two classes are equal, :math:`E_{nn'} =
E_0 = \sum_c f_c^2` over the common tokens; E has a zero diagonal, so its eigenvalues are :math:`(K-1) E_0`
and :math:`-E_0`. Training preserves the symmetry, so the flows need O(D + C) numbers for any K and M
(:mod:`.flow.symmetric`). Written out, a family has K (C + K D) probabilities.

Source: :cite:t:`tian2023scan` (Cor. 2 and the synthetic data).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import as_float64, converted, integers, number
from .closed_form import check_vocabulary
from .problem import SequenceClasses, WeakOverlap

MAX_ENTRIES = 20_000_000  # largest number of probabilities that written_out() creates


@dataclass(frozen=True, eq=False)
class SymmetricClasses:
    """A family of K classes, as described in the docstring of the module. Numpy arrays and float32 tensors
    are converted to float64.

    Attributes:
        classes: K, at least 2.
        vocab_size: M, at least K and at most 1e150.
        common: probabilities of the common tokens, positive, ``[C]``; C may be 0.
        distinct: probabilities of a class's distinct tokens, positive, ``[D]``, D at least 1; together with
            ``common`` they sum to one.
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
        check_vocabulary(self.vocab_size)
        for name in ("common", "distinct"):
            object.__setattr__(self, name, as_float64(name, getattr(self, name)))
        if self.classes < 2 or self.vocab_size < self.classes:
            raise ValueError(
                f"classes must be at least 2 and at most vocab_size, got {self.classes} and {self.vocab_size}"
            )
        if self.per_query < 1 or self.classes % self.per_query:
            raise ValueError(
                f"per_query must divide the {self.classes} classes, got {self.per_query}; pass 1 or "
                f"{self.classes}"
            )
        both = torch.cat([self.common, self.distinct])
        if not len(self.distinct) or not bool((both > 0).all()) or abs(float(both.sum()) - 1) > 1e-9:
            raise ValueError(
                f"common and distinct must be positive and sum to one, got sum {float(both.sum()):.9g}; "
                "divide by the sum"
            )

    @property
    def overlap(self) -> float:
        """E_0, the inner product of the features of any two classes at uniform attention."""
        return float((self.common**2).sum() / ((self.common**2).sum() + (self.distinct**2).sum()))

    def weak_overlap(self) -> WeakOverlap:
        """Computes both sides of Assumption 2 at uniform attention, from the two eigenvalues of E."""
        return WeakOverlap(
            (self.classes - 1) * self.overlap, self.overlap, 1 / self.classes, math.sqrt(6 / self.vocab_size)
        )

    def written_out(self) -> SequenceClasses:
        """Returns the classes with all probabilities. The common tokens come first, then the distinct ones of
        class 0, of class 1, ...

        Raises:
            ValueError: the family has more than ``MAX_ENTRIES`` probabilities.
        """
        K, D = self.classes, len(self.distinct)
        if K * (len(self.common) + K * D) > MAX_ENTRIES:
            raise ValueError(
                f"written_out() creates at most {MAX_ENTRIES:,} probabilities, {K} classes of {D} tokens "
                "have more; use the family"
            )
        distinct_blocks = torch.block_diag(*[self.distinct[None]] * K)  # [K, K D]
        P = torch.cat([self.common.expand(K, -1), distinct_blocks], dim=1)
        return SequenceClasses(P, torch.arange(K) // self.per_query, self.vocab_size)


@converted(float64=("weights",))
def alike(
    classes: int,
    *,
    vocab_size: int,
    weights: Float[Tensor, " D"],
    common_share: float,
    common: int = 1,
    per_query: int | None = None,
) -> SymmetricClasses:
    """Returns a family whose common tokens have the total probability ``common_share``.

    Args:
        classes: K.
        vocab_size: M.
        weights: relative probabilities of a class's distinct tokens, positive, with any sum, ``[D]``.
        common_share: probability of all common tokens together, in (0, 1), divided equally among them.
        common: C, at least 1.
        per_query: number of classes that share a query. None: all K.
    Raises:
        ValueError: see :class:`SymmetricClasses`; or a weight, the share or the number of common tokens is
            out of range.
    """
    integers(classes=classes, vocab_size=vocab_size)
    _check_weights(weights)
    if not 0 < number("common_share", common_share) < 1 or common < 1:
        raise ValueError(
            f"common_share must lie in (0, 1) and common be at least 1, got {common_share} and {common}"
        )
    if not bool((weights > 0).all()):
        raise ValueError("weights must be positive; leave out tokens that cannot occur")
    common_p = torch.full((common,), common_share / common, dtype=torch.float64)
    distinct_p = weights / weights.sum() * (1 - common_share)
    return SymmetricClasses(classes, vocab_size, common_p, distinct_p, per_query or classes)


@converted(float64=("weights",))
def with_overlap(
    classes: int, *, vocab_size: int, weights: Float[Tensor, " D"], overlap: float
) -> SymmetricClasses:
    """Returns a family with one common token and one query in which any two classes have the overlap
    :math:`E_0 = f_0^2`.

    Args:
        classes, vocab_size, weights: as in :func:`alike`.
        overlap: E_0, in (0, 1).
    Raises:
        ValueError: see :func:`alike`; or the overlap is out of range.
    """
    _check_weights(weights)
    if not 0 < number("overlap", overlap) < 1:
        raise ValueError(f"overlap must lie in (0, 1), got {overlap}; it is an inner product of unit vectors")
    # Let p be the common share and n = ||weights|| / sum(weights). Then E_0 = p^2 / (p^2 + (1 - p)^2 n^2),
    # and hence the odds of p are p / (1 - p) = n sqrt(E_0 / (1 - E_0)).
    norm = float(torch.linalg.vector_norm(weights) / weights.sum())
    odds = norm * math.sqrt(overlap / (1 - overlap))
    return alike(classes, vocab_size=vocab_size, weights=weights, common_share=odds / (1 + odds))


def _check_weights(weights: Tensor) -> None:
    if weights.ndim != 1 or not len(weights):
        raise ValueError(
            f"weights must be a vector [D] of one weight per distinct token, got shape {list(weights.shape)}"
        )
