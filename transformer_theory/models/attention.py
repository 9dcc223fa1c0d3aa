r"""Attention as mathematics: scores, weights, and what comes out, in parts that one exchanges by passing another function.

.. math::
    S = \text{score}(Q, K) \in R^{q\times k}, \qquad A = \text{normalise}(S), \qquad \text{out} = A V.

* *score* compares queries with keys: :func:`dot`, :func:`scaled_dot`, :func:`negative_magnitude`, :func:`positional`, :func:`combined`.
* *normalise* turns scores into weights: :func:`softmax`, :func:`hardmax`, :func:`linear`, :func:`relu_over_n`, :func:`uniform`,
  :func:`straight_through_gumbel`.
* *allowed* says which keys a query may see: :func:`all_keys` (self- and cross-attention) or :func:`causal`.
* Parametrisations turn tokens into queries and keys: :class:`Combined` (one matrix), :class:`Factored` (W_K, W_Q), :class:`Tied` (one
  basis, as in CRATE). Each has the score :math:`x^\top W z` of key token x and query token z, and ``bilinear()`` is W.

Tokens are rows, ``[*batch, tokens, dim]``; heads ``[*batch, heads, tokens, head_dim]``. These are definitions in plain tensor operations,
in the dtype of their input; networks use torch's fused kernel, which computes ``attend(Q, K, V)`` with the defaults.
Source: :cite:t:`vaswani2017attention`. Notation: docs/notation.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Queries = Float[Tensor, "*batch q d"]
Keys = Float[Tensor, "*batch k d"]
Scores = Float[Tensor, "*batch q k"]
Mask = Bool[Tensor, "*#batch q k"]
Score = Callable[[Tensor, Tensor], Tensor]
Normaliser = Callable[[Tensor, Tensor], Tensor]

# scores: (queries [*batch, q, d], keys [*batch, k, d]) -> [*batch, q, k]


def dot(queries: Queries, keys: Keys) -> Scores:
    r""":math:`s_{ij} = \langle q_i, k_j\rangle`, ``[*batch, q, k]``. Source: :cite:t:`vaswani2017attention`."""
    return queries @ keys.mT


def scaled_dot(queries: Queries, keys: Keys) -> Scores:
    r""":math:`s_{ij} = \langle q_i, k_j\rangle / \sqrt d`, ``[*batch, q, k]``. Source: :cite:t:`vaswani2017attention`."""
    return dot(queries * queries.shape[-1] ** -0.5, keys)


def negative_magnitude(queries: Queries, keys: Keys) -> Scores:
    r""":math:`s_{ij} = -|\langle q_i, k_j\rangle|`: a query finds the keys orthogonal to it, ``[*batch, q, k]``.

    Source: :cite:t:`perez2021attention`.
    """
    return -dot(queries, keys).abs()


def positional(table: Float[Tensor, "*heads q k"]) -> Score:
    r"""The score that looks at positions only: :math:`s_{ij} = t_{ij}`, whatever the tokens are.

    Args:
        table: score of key position j for query position i, ``[*heads, q, k]``; longer than the sequences if need be (the start is used).
    Returns:
        a score function for at most q queries and k keys, broadcast over the batch; it raises ValueError for longer ones.
    Source: :cite:t:`vaswani2017attention`.
    """

    def score(queries: Queries, keys: Keys) -> Float[Tensor, "..."]:
        q, k = queries.shape[-2], keys.shape[-2]
        if q > table.shape[-2] or k > table.shape[-1]:
            raise ValueError(f"the table of positional scores must cover {q} queries and {k} keys, got {list(table.shape)}; extend it")
        own = table[..., :q, :k]
        return own.expand(torch.broadcast_shapes(own.shape, (*queries.shape[:-1], k)))

    return score


def combined(*scores: Score) -> Score:
    r"""The sum of score functions, e.g. ``combined(scaled_dot, positional(table))`` for tokens and positions.

    Args:
        scores: one at least.
    Returns:
        a score function, ``[*batch, q, k]``.
    Raises:
        ValueError: none is given.
    Source: :cite:t:`vaswani2017attention`.
    """
    if not scores:
        raise ValueError("combined needs at least one score function, got none")

    def score(queries: Queries, keys: Keys) -> Float[Tensor, "..."]:
        total = scores[0](queries, keys)
        for other in scores[1:]:
            total = total + other(queries, keys)
        return total

    return score


# normalisers: (scores [*batch, q, k], allowed [q, k], broadcast) -> weights [*batch, q, k], zero where not allowed


def softmax(scores: Scores, allowed: Mask) -> Scores:
    r""":math:`a_{ij} = e^{s_{ij}} / \sum_l e^{s_{il}}` over the allowed keys, ``[*batch, q, k]``.

    Source: :cite:t:`vaswani2017attention`.
    """
    return scores.masked_fill(~allowed, -math.inf).softmax(-1)


def hardmax(scores: Scores, allowed: Mask, *, tolerance: float = 0.0) -> Scores:
    r"""Equal weight on every allowed key whose score is within ``tolerance`` of the largest, none on the others, ``[*batch, q, k]``.

    Ties are averaged. Rounding breaks ties that are exact in theory, so give a tolerance (in units of the scores) where ties matter:
    ``functools.partial(hardmax, tolerance=1e-9)``. The gradient is zero.

    Raises:
        ValueError: the tolerance is negative.
    Source: :cite:t:`perez2021attention`.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, in units of the scores, got {tolerance}")
    scores = scores.masked_fill(~allowed, -math.inf)
    winners = (scores >= scores.amax(-1, keepdim=True) - tolerance).to(scores.dtype)
    return winners / winners.sum(-1, keepdim=True)


def linear(scores: Scores, allowed: Mask) -> Scores:
    r"""No normalisation: :math:`a_{ij} = s_{ij}`, zero where not allowed, ``[*batch, q, k]``. Rows are no distributions.

    Source: :cite:t:`katharopoulos2020transformers`.
    """
    return scores.masked_fill(~allowed, 0.0)


def relu_over_n(scores: Scores, allowed: Mask) -> Scores:
    r""":math:`a_{ij} = \max(s_{ij}, 0) / n_i` with the number :math:`n_i` of allowed keys, ``[*batch, q, k]``. Rows are no distributions.

    Source: :cite:t:`bai2023transformers`.
    """
    return linear(scores, allowed).relu() / allowed.sum(-1, keepdim=True).to(scores.dtype)


def uniform(scores: Scores, allowed: Mask) -> Scores:
    r""":math:`a_{ij} = 1 / n_i` on the :math:`n_i` allowed keys: the average, whatever the scores, ``[*batch, q, k]``. Source: textbook."""
    share = allowed.to(scores.dtype) / allowed.sum(-1, keepdim=True).to(scores.dtype)
    return share.expand_as(scores)


def straight_through_gumbel(*, generator: torch.Generator, temperature: float = 1.0) -> Normaliser:
    r"""A normaliser that draws one key a query with the probabilities of softmax, and has the gradient of a softmax.

    Forward: one-hot at :math:`\arg\max_j (s_{ij} + g_{ij})`, g independent standard Gumbel. Backward: of
    :math:`\text{softmax}((s + g) / \tau)`.

    Args:
        generator: draws g, on the device of the scores.
        temperature: :math:`\tau > 0` of the backward pass (no unit).
    Returns:
        a normaliser, ``[*batch, q, k]`` to the same shape; every call draws anew.
    Raises:
        ValueError: the temperature is not positive.
    Source: :cite:t:`jang2017categorical`.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")

    def normalise(scores: Scores, allowed: Mask) -> Scores:
        exponential = torch.empty_like(scores, requires_grad=False).exponential_(generator=generator)
        noisy = softmax((scores - exponential.log()) / temperature, allowed)
        chosen = torch.zeros_like(noisy).scatter(-1, noisy.argmax(-1, keepdim=True), 1.0)
        return chosen + (noisy - noisy.detach())

    return normalise


# masks


def all_keys(queries: int, keys: int) -> Bool[Tensor, "q k"]:
    """Every query sees every key: self-attention of encoders, cross-attention. [queries, keys]. Source: :cite:t:`vaswani2017attention`."""
    return torch.ones(queries, keys, dtype=torch.bool)


def causal(queries: int, keys: int) -> Bool[Tensor, "q k"]:
    """Query i sees keys 0..i, [queries, keys]; the first query is aligned with the first key, as in torch's ``is_causal``.

    Source: :cite:t:`vaswani2017attention`.
    """
    return all_keys(queries, keys).tril()


# attention


def attention_weights(
    queries: Queries, keys: Keys, *, score: Score = scaled_dot, normalise: Normaliser = softmax, allowed: Mask | None = None
) -> Scores:
    r"""Attention weights :math:`A = \text{normalise}(\text{score}(Q, K))`.

    Args:
        queries: ``[*batch, q, d]``.
        keys: ``[*batch, k, d]``; the same tokens for self-attention, others for cross-attention.
        score: ``(queries, keys) -> [*batch, q, k]``, e.g. :func:`scaled_dot`.
        normalise: ``(scores, allowed) -> weights``, e.g. :func:`softmax`.
        allowed: which keys a query may see, ``[*batch, q, k]`` (broadcast), e.g. :func:`causal`; all if not given.
    Returns:
        ``[*batch, q, k]``, no unit; distributions unless the normaliser is :func:`linear` or :func:`relu_over_n`.
    Raises:
        ValueError: widths or mask do not fit, there is no key, or a query may see none.
    Source: :cite:t:`vaswani2017attention`.
    """
    if queries.ndim < 2 or keys.ndim < 2 or queries.shape[-1] != keys.shape[-1]:
        raise ValueError(f"queries [*batch, q, d] and keys [*batch, k, d] must share d, got {list(queries.shape)} and {list(keys.shape)}")
    q, k = queries.shape[-2], keys.shape[-2]
    if k == 0:
        raise ValueError("attention needs at least one key, got none")
    if allowed is None:
        allowed = all_keys(q, k)
    elif allowed.dtype != torch.bool or allowed.ndim < 2 or allowed.shape[-2:] != (q, k):
        raise ValueError(f"allowed must be a boolean mask [*batch, {q}, {k}], got {allowed.dtype} {list(allowed.shape)}; True is visible")
    elif not bool(allowed.any(-1).all()):
        blind = allowed.logical_not().all(-1).nonzero()[0].tolist()
        raise ValueError(f"every query must see at least one key, got none for the query at {blind}; its attention is undefined")
    return normalise(score(queries, keys), allowed.to(queries.device))


def attend(
    queries: Queries,
    keys: Keys,
    values: Float[Tensor, "*batch k v"],
    *,
    score: Score = scaled_dot,
    normalise: Normaliser = softmax,
    allowed: Mask | None = None,
) -> Float[Tensor, "*batch q v"]:
    r"""Attention :math:`A V` with the weights of :func:`attention_weights`, which has the other arguments.

    Args:
        values: one for each key, ``[*batch, k, v]``.
    Returns:
        ``[*batch, q, v]``, in units of the values.
    Raises:
        ValueError: shapes do not fit, there is no key, or a query may see none.
    Source: :cite:t:`vaswani2017attention`.
    """
    if values.ndim < 2 or values.shape[-2] != keys.shape[-2]:
        raise ValueError(f"values must hold one row a key, {keys.shape[-2]}, got {list(values.shape)}")
    return attention_weights(queries, keys, score=score, normalise=normalise, allowed=allowed) @ values


# parametrisations: tokens [*batch, tokens, dim] become queries and keys; matrices may carry a dimension of heads in front


@dataclass(frozen=True)
class Combined:
    r"""One matrix for both: :math:`s = x^\top W z`; keys are the tokens x themselves, queries are :math:`W z`.

    Attributes:
        W: ``[dim, dim]`` or ``[heads, dim, dim]``.
    Source: :cite:t:`tarzanagh2023transformers`.
    """

    W: Float[Tensor, "*heads d_x d_z"]

    def queries(self, tokens: Float[Tensor, "*batch q d"]) -> Float[Tensor, "..."]:
        """W z of each token, ``[*batch, (heads,) q, dim]``."""
        return _project(tokens, self.W.mT)

    def keys(self, tokens: Float[Tensor, "*batch k d"]) -> Float[Tensor, "..."]:
        """The tokens, ``[*batch, (heads,) k, dim]``."""
        return tokens if self.W.ndim == 2 else tokens.unsqueeze(-3).expand(*tokens.shape[:-2], len(self.W), *tokens.shape[-2:])

    def bilinear(self) -> Float[Tensor, "*heads d_x d_z"]:
        """W, with score(key token x, query token z) = x^T W z, ``[(heads,) dim, dim]``."""
        return self.W


@dataclass(frozen=True)
class Factored:
    r"""Two matrices: :math:`s = \text{scale}\,\langle K^\top x, Q^\top z\rangle`, so :math:`W = \text{scale}\, K Q^\top`.

    Attributes:
        K, Q: W_K and W_Q, ``[dim, head_dim]`` or ``[heads, dim, head_dim]``.
        scale: of the scores, often 1 / sqrt(head_dim); it is put on the queries.
    Source: :cite:t:`vaswani2017attention`.
    """

    K: Float[Tensor, "*heads d_x p"]
    Q: Float[Tensor, "*heads d_z p"]
    scale: float = 1.0

    def queries(self, tokens: Float[Tensor, "*batch q d"]) -> Float[Tensor, "..."]:
        """scale Q^T z of each token, ``[*batch, (heads,) q, head_dim]``."""
        return _project(tokens, self.scale * self.Q)

    def keys(self, tokens: Float[Tensor, "*batch k d"]) -> Float[Tensor, "..."]:
        """K^T x of each token, ``[*batch, (heads,) k, head_dim]``."""
        return _project(tokens, self.K)

    def bilinear(self) -> Float[Tensor, "*heads d_x d_z"]:
        """W = scale K Q^T, with score(key token x, query token z) = x^T W z, ``[(heads,) dim, dim]``."""
        return self.scale * self.K @ self.Q.mT


@dataclass(frozen=True)
class Tied:
    r"""One basis for keys and queries: :math:`s = \text{scale}\,\langle U^\top x, U^\top z\rangle`, so W is symmetric and semidefinite.

    Attributes:
        U: ``[dim, head_dim]`` or ``[heads, dim, head_dim]``.
        scale: of the scores; it is put on the queries.
    Source: :cite:t:`yu2023white`.
    """

    U: Float[Tensor, "*heads d p"]
    scale: float = 1.0

    def queries(self, tokens: Float[Tensor, "*batch q d"]) -> Float[Tensor, "..."]:
        """scale U^T z of each token, ``[*batch, (heads,) q, head_dim]``."""
        return _project(tokens, self.scale * self.U)

    def keys(self, tokens: Float[Tensor, "*batch k d"]) -> Float[Tensor, "..."]:
        """U^T x of each token, ``[*batch, (heads,) k, head_dim]``."""
        return _project(tokens, self.U)

    def bilinear(self) -> Float[Tensor, "*heads d d"]:
        """W = scale U U^T, with score(key token x, query token z) = x^T W z, ``[(heads,) dim, dim]``."""
        return self.scale * self.U @ self.U.mT


Parametrisation = Combined | Factored | Tied


def token_scores(
    tokens: Float[Tensor, "*batch k d"], parameters: Parametrisation, *, query_tokens: Float[Tensor, "*batch q d_z"] | None = None
) -> Float[Tensor, "..."]:
    r"""Scores :math:`x_j^\top W z_i` of key tokens x for query tokens z under a parametrisation.

    Args:
        tokens: x, ``[*batch, k, dim]``.
        parameters: :class:`Combined`, :class:`Factored` or :class:`Tied`.
        query_tokens: z, ``[*batch, q, dim]``; the same tokens if not given (self-attention).
    Returns:
        ``[*batch, (heads,) q, k]``, no unit.
    Raises:
        ValueError: a token's width does not fit the parameters.
    Source: :cite:t:`tarzanagh2023transformers`.
    """
    asking = tokens if query_tokens is None else query_tokens
    W = parameters.bilinear()
    for name, given, width in (("tokens", tokens, W.shape[-2]), ("query_tokens", asking, W.shape[-1])):
        if given.ndim < 2 or given.shape[-1] != width:
            raise ValueError(f"{name} must have shape [*batch, tokens, {width}] to fit the parameters, got {list(given.shape)}")
    return dot(parameters.queries(asking), parameters.keys(tokens))


def _project(tokens: Tensor, matrix: Tensor) -> Tensor:
    """tokens times matrix [dim, p] or, for each head, [heads, dim, p]."""
    return tokens @ matrix if matrix.ndim == 2 else tokens.unsqueeze(-3) @ matrix
