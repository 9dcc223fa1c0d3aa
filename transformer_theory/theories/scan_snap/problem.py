r"""Sequence classes: the data of scan-and-snap, and what its theorems assume about them.

A sequence is made of contextual tokens and, last, a query token m; the token that follows it is its class n. Given the class, the
contextual tokens are drawn independently from :math:`P(l \mid n)`, and the query is :math:`m = \psi(n)`. Attention sees the query's row
z of logits, weighs token l of class n by :math:`c_n(l) \propto P(l \mid n) e^{z_l}`, and the decoder reads :math:`f_n = c_n / \|c_n\|_2`.

A token is *distinct* if it occurs in one class only, *common* if it occurs in several. The classes interact through their overlaps
:math:`E = F^\top F - I`, :math:`F = [f_1, \dots, f_K]`; Assumption 2 of the paper wants them weak, but not too weak:
:math:`|\lambda_1(E)| < 1/K` and :math:`|\lambda_i(E)| \ge \sqrt{6/M}` for all i. For equal overlaps this needs :math:`M > 6 K^2 (K-1)^2`.

Source: :cite:t:`tian2023scan`. Here classes are rows: ``conditional[n, l]`` is P(l | n), and ``features()`` is F transposed.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...data.bridges import one_hot
from ...data.ids import count_of_tokens, sequence_ids
from ...data.tokens import TokenData

LONGEST = 2**53  # contextual tokens a sequence: counts are exact in float64 up to here


@dataclass(frozen=True, eq=False)
class SequenceClasses:
    r"""K classes of sequences over S contextual tokens.

    Attributes:
        conditional: :math:`P(l \mid n)`, rows sum to one, float64, ``[K, S]``.
        query: :math:`\psi(n)`, number of the query token of class n, ``0 <= query < Q``, int64, ``[K]``.
        vocab_size: M, number of next tokens that the decoder chooses from (at least K, and 2).
        share: probability of each class, positive, sums to one, float64, ``[K]``; equal if not given, as in the paper.

    Raises:
        ValueError: a shape or type does not fit, a row is no probability vector, a query is negative, or the vocabulary is too small.
    """

    conditional: Float[Tensor, "K S"]
    query: Int[Tensor, " K"]
    vocab_size: int
    share: Float[Tensor, " K"] | None = None

    def __post_init__(self):
        P = _doubles(self.conditional, "conditional")
        if P.ndim != 2 or 0 in P.shape:
            raise ValueError(f"conditional must have shape [classes, tokens] with at least one of each, got {list(P.shape)}")
        if not bool(torch.isfinite(P).all()) or bool((P < 0).any()):
            raise ValueError("conditional must hold finite probabilities, got a negative, infinite or NaN entry; check the estimate")
        total = P.sum(dim=1)
        if bool((total == 0).any()):
            empty = int((total == 0).nonzero()[0])
            raise ValueError(f"every class needs a token that can occur, class {empty} has none; drop that class")
        if bool(((total - 1).abs() > 1e-9).any()):
            worst = int((total - 1).abs().argmax())
            raise ValueError(f"rows of conditional must sum to one, class {worst} sums to {float(total[worst]):.9g}; divide by the sum")
        query = self.query
        if not isinstance(query, Tensor) or query.shape != (len(P),) or query.dtype != torch.int64 or bool((query < 0).any()):
            raise ValueError(f"query must name one query token a class: an int64 tensor [{len(P)}], at least 0, got {query}")
        object.__setattr__(self, "vocab_size", count_of_tokens(self.vocab_size))
        if self.vocab_size < len(P):
            raise ValueError(f"vocab_size must hold the {len(P)} classes, got {self.vocab_size}; enlarge it")
        if self.share is None:
            object.__setattr__(self, "share", torch.full((len(P),), 1 / len(P), dtype=torch.float64))
        share = _doubles(self.weights, "share")
        if share.shape != (len(P),) or not bool((share > 0).all()) or abs(float(share.sum()) - 1) > 1e-9:
            raise ValueError(f"share must hold {len(P)} positive probabilities that sum to one, got {share.tolist()}; divide by the sum")

    @property
    def classes(self) -> int:
        """K."""
        return len(self.conditional)

    @property
    def tokens(self) -> int:
        """S, the number of contextual tokens."""
        return self.conditional.shape[1]

    @property
    def queries(self) -> int:
        """Q, the number of query tokens."""
        return int(self.query.max()) + 1

    @property
    def weights(self) -> Float[Tensor, " K"]:
        """:attr:`share`, never None."""
        assert self.share is not None
        return self.share

    def distinct(self) -> Bool[Tensor, "K S"]:
        """Whether a token occurs in this class and in no other."""
        support = self.conditional > 0
        return support & (support.sum(dim=0) == 1)

    def common(self) -> Bool[Tensor, " S"]:
        """Whether a token occurs in several classes."""
        return (self.conditional > 0).sum(dim=0) > 1

    def attended(self, logits: Float[Tensor, "*t Q S"]) -> Float[Tensor, "*t K S"]:
        r"""c: the share of attention of each token in an infinitely long sequence of each class, :math:`\propto P(l \mid n) e^{z_l}`."""
        return torch.softmax(self.conditional.log() + logits[..., self.query, :], dim=-1)

    def features(self, logits: Float[Tensor, "*t Q S"] | None = None) -> Float[Tensor, "*t K S"]:
        """f: attended tokens of each class with Euclidean norm one; attention is uniform if no logits are given."""
        c = self.conditional if logits is None else self.attended(logits)
        return c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)

    def overlap(self, logits: Float[Tensor, "Q S"] | None = None) -> Float[Tensor, "K K"]:
        """E: inner products of the features of different classes, zero on the diagonal."""
        f = self.features(logits)
        return (f @ f.T).fill_diagonal_(0.0)

    def weak_overlap(self) -> "WeakOverlap":
        """Assumption 2 at uniform attention."""
        size = torch.linalg.eigvalsh(self.overlap()).abs()
        return WeakOverlap(float(size.max()), float(size.min()), 1 / self.classes, math.sqrt(6 / self.vocab_size))

    def sample_counts(
        self, batch: int, *, context: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch S"], Int[Tensor, " batch"]]:
        r"""Sequences as counts of their contextual tokens, which is all that the model sees.

        Classes are drawn by their shares, then multinomial counts by halving (:mod:`.dynamics.multinomial`): exact, at a cost that does not
        grow with length.

        Args:
            batch: number of sequences.
            context: contextual tokens a sequence, :math:`T - 1` in the paper.
        Returns:
            Counts, rows sum to ``context``, and the class of each sequence.
        Raises:
            ValueError: batch or context below 1, or a context above 2**53.
        """
        check_sizes(batch, context)
        n = torch.multinomial(self.weights, batch, replacement=True, generator=generator)
        # not at the top of the file: the package of training needs these classes
        from .dynamics.multinomial import Multinomial

        numbers = np.random.Generator(np.random.Philox(int(torch.randint(2**63 - 1, (1,), generator=generator))))
        source = Multinomial(self.conditional.numpy(), context, tabled=0)
        counts = torch.from_numpy(source.draw(n.numpy(), numbers)).double()
        return counts, n

    def sample(self, n: int, *, seq: int, generator: torch.Generator) -> TokenData:
        """n sequences of ``seq`` tokens (query last) for any theory: one-hot tokens, ids (context, then queries), next ids, labels.

        Raises:
            ValueError: n below 1 or seq below 2.
        """
        if n < 1 or seq < 2:
            raise ValueError(f"n must be at least 1 and seq at least 2 (a contextual token and the query), got {n} and {seq}")
        labels = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        context = torch.multinomial(self.conditional[labels], seq - 1, replacement=True, generator=generator)
        ids = torch.cat([context, self.tokens + self.query[labels, None]], dim=1)
        size = self.tokens + self.queries + self.classes
        return TokenData(
            one_hot(ids, size),
            labels=labels,
            ids=ids,
            next_id=self.tokens + self.queries + labels,
            vocab_size=size,
            name="sequence classes",
        )

    @classmethod
    def from_ids(
        cls, ids: Int[Tensor, "n context"], query_ids: Int[Tensor, " n"], next_ids: Int[Tensor, " n"], vocab_size: int
    ) -> "SequenceClasses":
        """Classes estimated from data by counting, see :func:`count_sequences`; the query of a class is its most frequent one.

        Raises:
            ValueError: see :func:`count_sequences`.
        """
        found = count_sequences(ids, query_ids, next_ids, vocab_size)
        P = found.conditional()
        pairs = torch.zeros(len(found.next_ids), len(found.query_ids), dtype=torch.long)
        pairs.index_put_((found.target, found.query), torch.ones_like(found.target), accumulate=True)
        return cls(P, pairs.argmax(1), vocab_size, found.shares())


def check_sizes(batch: int, context: int) -> None:
    """Raises ValueError unless that many sequences of that many contextual tokens can be drawn as counts.

    Source: textbook.
    """
    if batch < 1 or not 1 <= context <= LONGEST:
        raise ValueError(f"batch and context must be at least 1, context at most 2**53, got {batch} and {context}")


def _doubles(values: Tensor, name: str) -> Tensor:
    """The values, if they are a float64 tensor."""
    if not isinstance(values, Tensor):
        raise ValueError(f"{name} must be a float64 tensor, got {type(values).__name__}; convert it with torch.as_tensor")
    if values.dtype != torch.float64:
        raise ValueError(f"{name} must be float64, got {values.dtype}; convert it with .double()")
    return values


@dataclass(frozen=True)
class WeakOverlap:
    """Assumption 2: the largest size of an eigenvalue of E lies below ``upper`` = 1/K, the smallest is at least ``lower`` = sqrt(6/M)."""

    largest: float
    smallest: float
    upper: float
    lower: float

    @property
    def holds(self) -> bool:
        """Whether both bounds are met."""
        return self.largest < self.upper and self.smallest >= self.lower


@dataclass(frozen=True, eq=False)
class CountedSequences:
    """Sequences of data as the model sees them.

    Attributes:
        counts: how often each contextual token occurs in each sequence, float64, ``[n, S]``.
        query: number of its query token, ``[n]``.
        target: number of its next token (its class), ``[n]``.
        token_ids, query_ids, next_ids: ids in the vocabulary that these numbers stand for, sorted, ``[S]``, ``[Q]``, ``[K]``.
        vocab_size: M.
    """

    counts: Float[Tensor, "n S"]
    query: Int[Tensor, " n"]
    target: Int[Tensor, " n"]
    token_ids: Int[Tensor, " S"]
    query_ids: Int[Tensor, " Q"]
    next_ids: Int[Tensor, " K"]
    vocab_size: int

    def conditional(self) -> Float[Tensor, "K S"]:
        """P(l | n) by counting."""
        total = torch.zeros(len(self.next_ids), len(self.token_ids), dtype=torch.float64).index_add_(0, self.target, self.counts)
        return total / total.sum(dim=1, keepdim=True)

    def shares(self) -> Float[Tensor, " K"]:
        """Share of each class among the sequences."""
        return torch.bincount(self.target, minlength=len(self.next_ids)).double() / len(self.target)


def count_sequences(
    ids: Int[Tensor, "n context"], query_ids: Int[Tensor, " n"], next_ids: Int[Tensor, " n"], vocab_size: int
) -> CountedSequences:
    """Counts of contextual tokens; tokens, queries and next tokens that occur are numbered from zero.

    Args:
        ids: contextual tokens, the query not among them.
        query_ids, next_ids: the query of each sequence, and the token that follows it.
        vocab_size: all ids lie in ``[0, vocab_size)``.
    Raises:
        ValueError: ids that are no whole numbers or lie outside the vocabulary, lengths that differ, no sequence or no contextual token.
    """
    ids, query_ids, next_ids, vocab_size = sequence_ids(ids, query_ids, next_ids, vocab_size)
    token_ids, context = ids.unique(return_inverse=True)
    queries, query = query_ids.unique(return_inverse=True)
    nexts, target = next_ids.unique(return_inverse=True)
    counts = torch.zeros(len(ids), len(token_ids), dtype=torch.float64)
    counts.scatter_add_(1, context, torch.ones_like(context, dtype=torch.float64))
    return CountedSequences(counts, query, target, token_ids, queries, nexts, vocab_size)


def synthetic(
    classes: int = 2, *, per_query: int = 1, common: int = 10, distinct: int = 10, vocab_size: int | None = None
) -> SequenceClasses:
    """The paper's synthetic data: each class mixes common tokens of weight 1 with its own of weights 0.1 .. 1, then normalises.

    Tokens are numbered: the common ones, then the distinct ones of class 0, of class 1, ...

    Args:
        classes: K, a multiple of ``per_query``.
        per_query: classes that share a query.
        common, distinct: number of common tokens, and of distinct tokens a class (at least 1).
        vocab_size: M; tokens, queries and next tokens if not given.
    Raises:
        ValueError: a number is too small or does not divide.
    """
    if classes < 1 or per_query < 1 or classes % per_query or common < 0 or distinct < 1:
        came = f"classes={classes}, per_query={per_query}, common={common}, distinct={distinct}"
        raise ValueError(f"classes must be a positive multiple of per_query, common at least 0 and distinct at least 1, got {came}")
    own = torch.linspace(0.1, 1.0, distinct, dtype=torch.float64) if distinct > 1 else torch.ones(1, dtype=torch.float64)
    weight = torch.cat([torch.ones(classes, common, dtype=torch.float64), torch.block_diag(*[own[None]] * classes)], dim=1)
    P = weight / weight.sum(dim=1, keepdim=True)
    return SequenceClasses(P, torch.arange(classes) // per_query, vocab_size or P.shape[1] + classes // per_query + classes)


def single_common(weights: Float[Tensor, "K D"], common_share: Float[Tensor, " K"] | float, *, vocab_size: int) -> SequenceClasses:
    """One common token (number 0), one query, and D distinct tokens a class with the given weights (normalised a class).

    Args:
        weights: of the distinct tokens, positive.
        common_share: P(common | n), a class or for all, in (0, 1).
        vocab_size: M.
    Raises:
        ValueError: a weight is not positive, or a share lies outside (0, 1).
    """
    K = len(weights)
    share = torch.as_tensor(common_share, dtype=torch.float64).expand(K)
    if bool((weights <= 0).any()) or bool(((share <= 0) | (share >= 1)).any()):
        raise ValueError("weights must be positive and common_share in (0, 1); leave tokens that cannot occur out")
    own = weights / weights.sum(dim=1, keepdim=True) * (1 - share)[:, None]
    return SequenceClasses(
        torch.cat([share[:, None], torch.block_diag(*own.split(1))], dim=1), torch.zeros(K, dtype=torch.long), vocab_size
    )
