"""Synthetic data with known properties. Each sampler states closed-form facts about its data, with which
measurements can be checked.

* :func:`subspace_mixture`: classes are orthogonal subspaces, the data model of rate reduction and CRATE
  (:cite:t:`yu2020learning`);
* :func:`separable_tokens`: one token of each sequence can be selected by a linear score with a known margin
  (:cite:t:`tarzanagh2023transformers`);
* :func:`sequence_classes`: common tokens, and distinct tokens that occur in one class only
  (:cite:t:`tian2023scan`);
* :func:`noise_like`: noise of the shape of a data set, in which tokens, words and labels are independent.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.sources import Source
from ..core.validation import integers, positive
from ..maths.linalg import orthonormalise
from .bridges import one_hot
from .tokens import TokenData


@dataclass(frozen=True, eq=False)
class SubspaceMixture:
    """Tokens of class k near the span of ``bases[k]``.

    Attributes:
        data: sequences with labels.
        bases: orthonormal columns, orthogonal across classes, ``[classes, dim, rank]``.
    """

    data: TokenData
    bases: Float[Tensor, "classes dim rank"]


@dataclass(frozen=True, eq=False)
class SeparableTokens:
    r"""Sequences in each of which :math:`W = v u^\top / m` selects one token, with margin exactly one.

    Attributes:
        data: sequences with labels 0 or 1.
        selected: position of the selected token, ``[n]``.
        key_direction: v, a unit vector: :math:`(x_a - x_t)^\top v = m` for the selected token a and every
            other token t, ``[dim]``.
        query_direction: u, a unit vector: :math:`u^\top z = 1` for every query z, ``[dim]``.
        head: w, a unit vector orthogonal to v: :math:`\pm w^\top x` is 1 for the selected token and 0 for the
            others (the label is the sign), ``[dim]``.
        margin: m, the margin along v.
    """

    data: TokenData
    selected: Int[Tensor, " n"]
    key_direction: Float[Tensor, " dim"]
    query_direction: Float[Tensor, " dim"]
    head: Float[Tensor, " dim"]
    margin: float

    @property
    def norm_bound(self) -> float:
        """1 / m, the Frobenius norm of W, an upper bound on the norm of the max-margin solution."""
        return 1 / self.margin


@dataclass(frozen=True, eq=False)
class SequenceClasses:
    """Sequences of discrete tokens whose distribution depends on the next token.

    Attributes:
        data: one-hot tokens, ids, next_id and labels; the last token of every sequence is the same query
            token.
        conditional: P(token | class) of the contextual tokens; rows sum to one, ``[classes, vocab_size]``.
        common: number of common tokens, ids ``0 .. common - 1``. The distinct tokens of class k start at
            ``common + k * distinct``.
    """

    data: TokenData
    conditional: Float[Tensor, "classes vocab"]
    common: int


def subspace_mixture(
    n: int, *, seq: int, dim: int, classes: int, rank: int, noise: float = 0.0, generator: torch.Generator
) -> SubspaceMixture:
    r"""Draws sequences of tokens from the subspace of their class, :math:`x = U_k a + \sigma \epsilon`.

    Here :math:`a \sim N(0, I / p)` and :math:`\epsilon \sim N(0, I / d)`, so that :math:`E \|x\|^2 = 1 +
    \sigma^2`. Class sizes differ by at most one. Without noise :math:`U_k U_k^\top x = x` and tokens of
    different classes are orthogonal.

    Args:
        n, seq, dim: shape of the tokens.
        classes, rank: number of subspaces, and dimension p of each.
        noise: standard deviation :math:`\sigma`.
        generator: source of the random numbers.
    Raises:
        ValueError: the subspaces do not fit (``classes * rank > dim``), or a size is not positive.
    """
    integers(n=n, seq=seq, dim=dim, classes=classes, rank=rank)
    if classes * rank > dim:
        raise ValueError(
            f"classes * rank must not exceed dim for orthogonal subspaces, got {classes} * {rank} > {dim}; "
            "enlarge dim"
        )
    if not noise >= 0:
        raise ValueError(f"noise must be at least 0, got {noise}; it is a standard deviation")
    frame = _orthonormal(dim, classes * rank, generator)
    bases = frame.reshape(dim, classes, rank).transpose(0, 1).contiguous()  # [classes, dim, rank]
    labels = torch.arange(n) % classes
    coefficients = torch.randn(n, seq, rank, generator=generator, dtype=torch.float64) / rank**0.5
    tokens = torch.einsum("ndp,nsp->nsd", bases[labels], coefficients)
    tokens = tokens + noise * torch.randn(n, seq, dim, generator=generator, dtype=torch.float64) / dim**0.5
    data = TokenData(tokens, labels=labels, name="subspace mixture", sources=(Source("yu2020learning"),))
    return SubspaceMixture(data, bases)


def separable_tokens(
    n: int, *, seq: int, dim: int, margin: float = 1.0, generator: torch.Generator
) -> SeparableTokens:
    r"""Draws sequences in which a known W selects one token with a known margin, and a known head maps that
    token to the label.

    All tokens are standard normal noise orthogonal to v and w; :math:`m v \pm w` is added to the selected
    token. Queries are :math:`u` plus standard normal noise orthogonal to u. Hence :math:`W = v u^\top / m`
    scores the selected token above the others of its sequence by exactly one, and all other tokens have the
    same value for the head, as the theorems on local convergence assume.

    Args:
        n, seq, dim: shape of the tokens; dim is at least 3.
        margin: m, the margin along v.
        generator: source of the random numbers.
    Raises:
        ValueError: dim is below 3, or a size or the margin is not positive.
    """
    integers(n=n, seq=seq, dim=dim)
    if dim < 3:
        raise ValueError(f"dim must be at least 3 (margin, head and noise), got {dim}; enlarge it")
    positive(margin=margin)
    key, head = _orthonormal(dim, 2, generator).T.contiguous()
    direction = _orthonormal(dim, 1, generator)[:, 0]
    selected = torch.randint(seq, (n,), generator=generator)
    labels = torch.randint(2, (n,), generator=generator)
    tokens = torch.randn(n, seq, dim, generator=generator, dtype=torch.float64)
    tokens = tokens - (tokens @ key)[..., None] * key - (tokens @ head)[..., None] * head
    tokens[torch.arange(n), selected] += margin * key + (2 * labels - 1)[:, None] * head
    query = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    query = query - (query @ direction)[:, None] * direction + direction
    data = TokenData(
        tokens,
        labels=labels,
        query=query,
        name="separable tokens",
        sources=(Source("tarzanagh2023transformers"),),
    )
    return SeparableTokens(data, selected, key, direction, head, float(margin))


def sequence_classes(
    n: int,
    *,
    seq: int,
    classes: int,
    common: int,
    distinct: int,
    common_share: float = 0.5,
    generator: torch.Generator,
) -> SequenceClasses:
    r"""Draws contextual tokens from :math:`P(\cdot | k)`: common tokens with probability c, distinct tokens
    of class k with probability 1 - c. Both groups are uniform.

    Vocabulary: common tokens, ``classes * distinct`` distinct tokens, one query token (the last token of
    every sequence), then the next tokens (the k-th follows sequences of class k). Tokens are one-hot. Rows of
    the conditional have inner product :math:`c^2 / \text{common}` across classes and :math:`c^2 /
    \text{common} + (1 - c)^2 / \text{distinct}` with themselves.

    Args:
        n, seq: number and length of the sequences, the query token included (seq at least 2).
        classes: number of classes.
        common: number of common tokens; 0 if and only if ``common_share`` is 0.
        distinct: number of distinct tokens per class.
        common_share: c, total probability of the common tokens.
        generator: source of the random numbers.
    Raises:
        ValueError: a size is not positive, ``common_share`` lies outside [0, 1), or only one of ``common``
            and ``common_share`` is zero.
    """
    integers(n=n, classes=classes, distinct=distinct)
    if seq < 2:
        raise ValueError(f"seq must be at least 2 (a contextual token and the query), got {seq}; enlarge it")
    if common < 0 or not 0 <= common_share < 1 or (common == 0) != (common_share == 0):
        actual = f"common={common}, common_share={common_share}"
        raise ValueError(
            f"common_share must lie in (0, 1) with common tokens and be 0 without, got {actual}; change one "
            "of them"
        )
    query_token = common + classes * distinct
    vocab_size = query_token + 1 + classes
    conditional = torch.zeros(classes, vocab_size, dtype=torch.float64)
    conditional[:, :common] = common_share / max(common, 1)
    for k in range(classes):
        conditional[k, common + k * distinct : common + (k + 1) * distinct] = (1 - common_share) / distinct
    labels = torch.arange(n) % classes
    ids = torch.full((n, seq), query_token)
    ids[:, :-1] = torch.multinomial(conditional[labels], seq - 1, replacement=True, generator=generator)
    data = TokenData(
        one_hot(ids, vocab_size),
        labels=labels,
        ids=ids,
        next_id=query_token + 1 + labels,
        vocab_size=vocab_size,
        name="sequence classes",
        sources=(Source("tian2023scan"),),
    )
    return SequenceClasses(data, conditional, common)


def _orthonormal(dim: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draws uniformly random orthonormal vectors as columns, [dim, columns]."""
    return orthonormalise(torch.randn(dim, columns, generator=generator, dtype=torch.float64))


def noise_like(data: TokenData, generator: torch.Generator) -> TokenData:
    """Returns noise of the shape of a data set: whatever a theory finds in it holds for any data, or by
    chance.

    Tokens have independent Gaussian entries with the root mean square of the data. The query stays at its
    position; a query outside the sequence is Gaussian too. The words of each position are permuted over the
    sequences, independently of the other positions, which keeps their frequencies. Labels and next tokens are
    permuted, which keeps the sizes of the classes. There are no images.
    """
    n, seq, dim = data.tokens.shape
    assert data.query is not None
    position = data.query_position
    tokens = data.tokens.square().mean().sqrt() * torch.randn(
        n, seq, dim, dtype=torch.float64, generator=generator
    )
    query = data.query.square().mean().sqrt() * torch.randn(n, dim, dtype=torch.float64, generator=generator)
    order = torch.randperm(n, generator=generator)
    ids = data.ids
    if ids is not None:
        ids = ids.gather(0, torch.rand(n, seq, dtype=torch.float64, generator=generator).argsort(0))
    return replace(
        data,
        tokens=tokens,
        query=query if position is None else tokens[:, position],
        ids=ids,
        labels=None if data.labels is None else data.labels[order],
        next_id=None if data.next_id is None else data.next_id[order],
        images=None,
        name=f"noise of the shape of {data.name}",
        sources=(),
    )
