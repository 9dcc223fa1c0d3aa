r"""Sequence classes: the data of scan-and-snap, and the assumptions of its theorems about them.

A sequence consists of contextual tokens and a final query token m. The token that follows the sequence is its
class n. Given the class, the contextual tokens are independent draws from :math:`P(l \mid n)`, and the query
is :math:`m = \psi(n)`. With the query's row z of logits, attention weighs token l of class n by :math:`c_n(l)
\propto P(l \mid n) e^{z_l}`. The decoder's input is :math:`f_n = c_n / \|c_n\|_2`.

A token is *distinct* if it occurs in one class only, *common* if it occurs in several. The classes interact
through their overlaps :math:`E = F^\top F - I`, :math:`F = [f_1, \dots, f_K]`. Assumption 2 of the paper
bounds them from above and below: :math:`|\lambda_1(E)| < 1/K` and :math:`|\lambda_i(E)| \ge \sqrt{6/M}` for
all i. For equal overlaps this needs :math:`M > 6 K^2 (K-1)^2`.

In the code classes are rows: ``conditional[n, l]`` is P(l | n), and ``features()`` is F transposed. Source:
:cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import as_float64, as_int64, converted, integers
from ...data.bridges import one_hot
from ...data.ids import count_of_tokens, sequence_ids
from ...data.tokens import TokenData
from .multinomial import draw_counts

MAX_CONTEXT = 2**53  # contextual tokens per sequence: counts are exact in float64 up to here
SUM_ATOL = 1e-9  # largest distance to 1 of a sum of probabilities


@dataclass(frozen=True, eq=False)
class SequenceClasses:
    r"""K classes of sequences over S contextual tokens.

    Numpy arrays and float32 tensors are accepted and converted to the dtypes below.

    Attributes:
        conditional: :math:`P(l \mid n)`, rows with sum one, float64, ``[K, S]``.
        query: :math:`\psi(n)`, the number of the query token of class n, ``0 <= query < Q``; int64, ``[K]``.
        vocab_size: M, the number of next tokens that the decoder chooses from; at least K, and at least 2.
        share: probability of each class, positive, summing to one; float64, ``[K]``. None: equal shares, as
            in the paper.

    Raises:
        ValueError: shapes do not fit, a row is not a probability vector, a query is negative, or the
            vocabulary is too small.
        TypeError: ``conditional`` or ``share`` does not hold real numbers, or ``query`` integers.
    """

    conditional: Float[Tensor, "K S"]
    query: Int[Tensor, " K"]
    vocab_size: int
    share: Float[Tensor, " K"] | None = None

    def __post_init__(self):
        P = as_float64("conditional", self.conditional)
        object.__setattr__(self, "conditional", P)
        if P.ndim != 2 or 0 in P.shape:
            raise ValueError(
                "conditional must have shape [classes, tokens] with at least one of each, got "
                f"{list(P.shape)}"
            )
        if not bool(torch.isfinite(P).all()) or bool((P < 0).any()):
            raise ValueError(
                "conditional must hold finite probabilities, got a negative, infinite or NaN entry; check "
                "the estimate"
            )
        total = P.sum(dim=1)
        if bool((total == 0).any()):
            empty = int((total == 0).nonzero()[0])
            raise ValueError(
                f"every row of conditional must have a positive entry, row {empty} is zero; drop that class"
            )
        if bool(((total - 1).abs() > SUM_ATOL).any()):
            worst = int((total - 1).abs().argmax())
            raise ValueError(
                f"rows of conditional must sum to one, row {worst} sums to {float(total[worst]):.9g}; "
                "divide by the sum"
            )
        query = as_int64("query", self.query)
        object.__setattr__(self, "query", query)
        if query.shape != (len(P),) or bool((query < 0).any()):
            raise ValueError(
                f"query must hold one query token per class, {len(P)} integers of at least 0, got "
                f"{query.tolist()}"
            )
        object.__setattr__(self, "vocab_size", count_of_tokens(self.vocab_size))
        if self.vocab_size < len(P):
            raise ValueError(f"vocab_size must hold the {len(P)} classes, got {self.vocab_size}; enlarge it")
        if self.share is None:
            object.__setattr__(self, "share", torch.full((len(P),), 1 / len(P), dtype=torch.float64))
        share = as_float64("share", self.share)
        object.__setattr__(self, "share", share)
        if share.shape != (len(P),) or not bool((share > 0).all()) or abs(float(share.sum()) - 1) > SUM_ATOL:
            raise ValueError(
                f"share must hold {len(P)} positive probabilities that sum to one, got {share.tolist()}; "
                "divide by the sum"
            )

    @property
    def classes(self) -> int:
        """K, the number of classes."""
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
        """Marks, for each class, the tokens that occur in it and in no other class."""
        support = self.conditional > 0
        return support & (support.sum(dim=0) == 1)

    def common(self) -> Bool[Tensor, " S"]:
        """Marks the tokens that occur in several classes."""
        return (self.conditional > 0).sum(dim=0) > 1

    @converted(float64=("logits",))
    def attended(self, logits: Float[Tensor, "*t Q S"]) -> Float[Tensor, "*t K S"]:
        r"""Returns c, the attention to each token in infinitely long sequences of each class, :math:`\propto
        P(l \mid n) e^{z_l}`.
        """
        # Work in the log domain: e^z would overflow, and log P = -inf gives exactly zero attention to tokens
        # that cannot occur.
        return torch.softmax(self.conditional.log() + logits[..., self.query, :], dim=-1)

    def features(self, logits: Float[Tensor, "*t Q S"] | None = None) -> Float[Tensor, "*t K S"]:
        """Returns f, the attended tokens of each class, scaled to Euclidean norm one. Without logits,
        attention is uniform.
        """
        c = self.conditional if logits is None else self.attended(logits)
        return c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)

    def overlap(self, logits: Float[Tensor, "Q S"] | None = None) -> Float[Tensor, "K K"]:
        """Returns E, the inner products of the features of different classes, with a diagonal of zeros."""
        f = self.features(logits)
        return (f @ f.T).fill_diagonal_(0.0)

    def weak_overlap(self) -> "WeakOverlap":
        """Measures both sides of Assumption 2 at uniform attention."""
        size = torch.linalg.eigvalsh(self.overlap()).abs()
        return WeakOverlap(
            float(size.max()), float(size.min()), 1 / self.classes, math.sqrt(6 / self.vocab_size)
        )

    def sample_counts(
        self, batch: int, *, context: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch S"], Int[Tensor, " batch"]]:
        r"""Draws sequences and returns the counts of their contextual tokens, which are all that the model
        uses of a sequence.

        Classes are drawn by their shares and counts from a multinomial law (:mod:`.multinomial`); the cost
        does not grow with length.

        Args:
            batch: number of sequences.
            context: contextual tokens per sequence, :math:`T - 1` in the paper.
            generator: source of the classes and the counts.
        Returns:
            Counts, whose rows sum to ``context``, and the class of each sequence.
        Raises:
            ValueError: ``batch`` or ``context`` is below 1, or ``context`` is above 2**53.
            TypeError: one of them is not an integer.
        """
        check_sizes(batch, context)
        n = torch.multinomial(self.weights, batch, replacement=True, generator=generator)
        return draw_counts(self.conditional, n[None], context=context, generator=generator)[0], n

    def sample(self, n: int, *, seq: int, generator: torch.Generator) -> TokenData:
        """Draws n sequences of ``seq`` tokens, the query last, as a data set that any theory can read.

        Ids number the contextual tokens first, then the queries, then the next tokens. Tokens are one-hot;
        labels are the classes.

        Raises:
            ValueError: ``n`` is below 1, or ``seq`` is below 2.
            TypeError: one of them is not an integer.
        """
        integers(n=n, seq=seq)
        if seq < 2:
            raise ValueError(f"seq must be at least 2, a contextual token and the query, got {seq}")
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


def check_sizes(batch: int, context: int) -> None:
    """Checks a number of sequences and their number of contextual tokens.

    Raises:
        ValueError: one is below 1, or the context exceeds 2**53, above which counts are not exact.
        TypeError: one is not an integer.
    """
    integers(batch=batch, context=context)
    if context > MAX_CONTEXT:
        raise ValueError(f"context must be at most 2**53, got {context}")


@dataclass(frozen=True)
class WeakOverlap:
    """Both sides of Assumption 2: ``largest < upper`` and ``smallest >= lower``.

    Attributes:
        largest, smallest: absolute eigenvalues of E.
        upper, lower: their bounds, 1/K and sqrt(6/M).
    """

    largest: float
    smallest: float
    upper: float
    lower: float

    @property
    def holds(self) -> bool:
        """Whether both bounds hold."""
        return self.largest < self.upper and self.smallest >= self.lower


@dataclass(frozen=True, eq=False)
class CountedSequences:
    """Sequences of a data set as counts.

    The contextual tokens, the queries and the next tokens that occur are numbered from zero, each kind
    separately.

    Attributes:
        counts: occurrences of each contextual token in each sequence, float64, ``[n, S]``.
        query: number of each sequence's query token, ``[n]``.
        target: number of each sequence's next token, which is its class, ``[n]``.
        token_ids, query_ids, next_ids: id in the vocabulary of each number, increasing, ``[S]``, ``[Q]``,
            ``[K]``.
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
        """Returns P(l | n), estimated by counting."""
        return estimate_conditional(self.counts, self.target, len(self.next_ids))

    def shares(self) -> Float[Tensor, " K"]:
        """Returns the share of each class among the sequences."""
        return torch.bincount(self.target, minlength=len(self.next_ids)).double() / len(self.target)


def estimate_conditional(
    counts: Float[Tensor, "n S"], target: Int[Tensor, " n"], classes: int
) -> Float[Tensor, "K S"]:
    """Estimates P(l | n) by the counts of the tokens of a class, divided by their sum. Classes without a
    sequence get NaN.

    Args:
        counts: counts of the contextual tokens of each sequence, ``[n, S]``.
        target: class of each sequence, ``[n]``.
        classes: K.
    """
    total = counts.new_zeros(classes, counts.shape[1]).index_add_(0, target, counts)
    return total / total.sum(dim=1, keepdim=True)


def count_sequences(
    ids: Int[np.ndarray, "n context"] | Int[Tensor, "n context"],
    query_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    next_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    vocab_size: int,
) -> CountedSequences:
    """Counts the contextual tokens of each sequence.

    Args:
        ids: contextual tokens without the query, ``[n, context]``.
        query_ids, next_ids: the query of each sequence, and the token that follows it, ``[n]``.
        vocab_size: M; all ids lie in ``[0, M)``.
    Raises:
        ValueError: ids are not integers or lie outside the vocabulary, lengths differ, or there is no
            sequence or no contextual token.
    """
    ids, query_ids, next_ids, vocab_size = sequence_ids(ids, query_ids, next_ids, vocab_size)
    token_ids, context = ids.unique(return_inverse=True)
    queries, query = query_ids.unique(return_inverse=True)
    next_tokens, target = next_ids.unique(return_inverse=True)
    counts = torch.zeros(len(ids), len(token_ids), dtype=torch.float64)
    counts.scatter_add_(1, context, torch.ones_like(context, dtype=torch.float64))
    return CountedSequences(counts, query, target, token_ids, queries, next_tokens, vocab_size)


def synthetic(
    classes: int = 2,
    *,
    per_query: int = 1,
    common: int = 10,
    distinct: int = 10,
    vocab_size: int | None = None,
) -> SequenceClasses:
    """Returns the paper's synthetic data: all common tokens, with weight 1, and each class's distinct tokens,
    with weights 0.1 to 1.

    Each class's weights are divided by their sum. The common tokens come first, then the distinct ones of
    class 0, of class 1, ...

    Args:
        classes: K, a multiple of ``per_query``.
        per_query: number of classes that share a query.
        common, distinct: number of common tokens, and number of distinct tokens per class (at least 1).
        vocab_size: M. None: the sum of the numbers of tokens, queries and next tokens.
    Raises:
        ValueError: a number is too small, or ``per_query`` does not divide ``classes``.
    """
    if classes < 1 or per_query < 1 or classes % per_query or common < 0 or distinct < 1:
        sizes = f"classes={classes}, per_query={per_query}, common={common}, distinct={distinct}"
        raise ValueError(
            "classes must be a positive multiple of per_query, common at least 0 and distinct at least 1, "
            f"got {sizes}"
        )
    distinct_weights = (
        torch.linspace(0.1, 1.0, distinct, dtype=torch.float64)
        if distinct > 1
        else torch.ones(1, dtype=torch.float64)
    )
    # [K, common + K distinct]: ones for the common tokens, then one block of distinct tokens per class on the
    # diagonal.
    distinct_blocks = torch.block_diag(*[distinct_weights[None]] * classes)
    weight = torch.cat([torch.ones(classes, common, dtype=torch.float64), distinct_blocks], dim=1)
    P = weight / weight.sum(dim=1, keepdim=True)
    return SequenceClasses(
        P, torch.arange(classes) // per_query, vocab_size or P.shape[1] + classes // per_query + classes
    )


@converted(float64=("weights", "common_share"))
def single_common(
    weights: Float[Tensor, "K D"],
    common_share: Float[Tensor, " K"] | Float[Tensor, ""] | float,
    *,
    vocab_size: int,
) -> SequenceClasses:
    """Returns classes with one common token (number 0), one query, and D distinct tokens each.

    Args:
        weights: weights of the distinct tokens, positive, ``[K, D]``; each row is divided by its sum.
        common_share: P(common token | n) in (0, 1): one number for all classes, or ``[K]``.
        vocab_size: M.
    Raises:
        ValueError: a weight is not positive, or a share lies outside (0, 1).
    """
    if weights.ndim != 2:
        raise ValueError(f"weights must have shape [K, D], a row for each class, got {list(weights.shape)}")
    K = len(weights)
    share = torch.as_tensor(common_share).expand(K)
    if bool((weights <= 0).any()) or bool(((share <= 0) | (share >= 1)).any()):
        raise ValueError(
            "weights must be positive and common_share in (0, 1); leave out tokens that cannot occur"
        )
    distinct = weights / weights.sum(dim=1, keepdim=True) * (1 - share)[:, None]  # [K, D]
    return SequenceClasses(
        torch.cat([share[:, None], torch.block_diag(*distinct.split(1))], dim=1),
        torch.zeros(K, dtype=torch.long),
        vocab_size,
    )
