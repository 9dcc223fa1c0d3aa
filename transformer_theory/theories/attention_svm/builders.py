r"""The constraints which state that attention selects given tokens: one builder per kind of attention.

====================================  ==================================================================================
cross-attention                       :func:`constraints`: one query per input
self-attention                        :func:`self_attention`: the query is the token at a fixed position
prompt                                :func:`prompt`: one query for all inputs, absorbed into the weights (z = 1)
causal, sequence to sequence          :func:`causal`, :func:`sequence_to_sequence`: many queries per input, one W
several tokens per input              :func:`multi_token`: the chosen tokens score alike, the others less
token-priority graph                  :func:`graph_svm`: tokens of one strongly connected component score alike
====================================  ==================================================================================

Problem (Att-SVM) is that of :cite:t:`tarzanagh2023transformers`, prompts are those of :cite:t:`tarzanagh2023maxmargin`, graphs those of
:cite:t:`li2024mechanics`. Notation: docs/notation.md.
"""

from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted, integers
from .constraint_set import Constraints
from .graph import PriorityGraph, check_graph
from .validation import as_bool, check_positions, check_real, check_shape, check_tokens


@converted(float64=("tokens", "query"), int64=("select",))
def constraints(
    tokens: Float[Tensor, "*trials n T d"], query: Float[Tensor, "*trials n d_z"], select: Int[Tensor, "*trials n"]
) -> Constraints:
    r"""The constraints :math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1` of a selection, n (T-1) of them.

    A token that equals the selected one gives the contradiction 0 >= 1, so the selection is infeasible: see :func:`distinct_constraints`.

    >>> from transformer_theory import attention_svm
    >>> tokens = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)  # one input of two tokens in the plane
    >>> query, select = torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([0])  # the first token is to be selected
    >>> constraints = attention_svm.constraints(tokens, query, select)
    >>> attention_svm.frobenius_max_margin(constraints).W  # u z^T / (|u|^2 |z|^2), u the difference of the tokens
    tensor([[0.0000, 0.5000],
            [0.0000, 0.0000]], dtype=torch.float64)

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        query: z, ``[*trials, n, d_z]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        One constraint for each input and each token that is not selected, in this order; none for T = 1.
    Raises:
        TypeError: an argument that is no tensor or array of the right kind.
        ValueError: no input, a shape that does not fit, a value that is not finite, or a position outside 0..T-1.
    """
    check_tokens(tokens, query)
    *trials, n, T, d = tokens.shape
    check_positions("select", select, tokens.shape[:-2], T)
    other = _others(select, T)
    shape = (*trials, n * (T - 1))
    selected = tokens.gather(-2, select[..., None, None].expand(*select.shape, 1, d))
    difference = (selected - tokens.gather(-2, other[..., None].expand(*other.shape, d))).reshape(*shape, d)
    queries = query[..., None, :].expand(*other.shape, query.shape[-1]).reshape(*shape, query.shape[-1])
    inputs = torch.arange(n)[:, None].expand(other.shape).reshape(shape)
    return Constraints(difference, queries, input=inputs, token=other.reshape(shape))


def distinct_constraints(tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]) -> Constraints:
    """:func:`constraints` of a single problem without those of tokens that equal the selected one.

    Equal tokens get equal attention for any W, and averaging them changes nothing, so they count as one token. Real data need this: the
    blank corners of an image are equal.

    Args:
        tokens, query, select: as for :func:`constraints`, of a single problem.
    Returns:
        At most n (T-1) constraints, none of them on a difference of zero.
    Raises:
        TypeError, ValueError: as :func:`constraints`.
    """
    every = constraints(tokens, query, select)
    return every.take((every.difference != 0).any(-1).nonzero().squeeze(-1))


@converted(float64=("tokens",), int64=("select",))
def self_attention(tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"], *, position: int = 0) -> Constraints:
    r"""The constraints :math:`(x_{i,a_i} - x_{i,t})^\top W x_{i,k} \ge 1` of a selection: the query is the input's own token k.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
        position: k, the same for all inputs; negative numbers count from the end. The paper takes the first token.
    Returns:
        :func:`constraints` with these queries, n (T-1) of them; ``position`` holds k.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or the position is no integer or is outside -T..T-1.
    """
    _check_own_tokens(tokens)
    T = tokens.shape[-2]
    integers(minimum=-T, position=position)
    if position >= T:
        raise ValueError(f"position must lie in [-{T}, {T}), got {position}")
    pairs = constraints(tokens, tokens[..., position, :], select)
    return replace(pairs, position=torch.full(pairs.difference.shape[:-1], position % T))


@converted(float64=("keys",))
def prompt(keys: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"]) -> Constraints:
    r"""The constraints :math:`(k_{i,a_i} - k_{i,t})^\top p \ge 1` on a prompt p, which is W with a single column (z = 1).

    Args:
        keys: k, ``[*trials, n, T, d]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        n (T-1) constraints on a matrix ``[d, 1]``, whose column is p.
    Raises:
        TypeError, ValueError: as :func:`constraints`.
    """
    check_real("keys", keys, "[..., n, T, d]", max(3, keys.ndim))
    return constraints(keys, keys.new_ones(*keys.shape[:-2], 1), select)


@converted(float64=("tokens", "queries"), int64=("select",))
def sequence_to_sequence(
    tokens: Float[Tensor, "*trials n T d"],
    queries: Float[Tensor, "*trials n q d_z"],
    select: Int[Tensor, "*trials n q"],
    *,
    allowed: Bool[Tensor, "n q T"] | None = None,
) -> Constraints:
    r"""The constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W z_{ik} \ge 1` for every query k of every input i and every allowed t.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        queries: z, ``[*trials, n, q, d_z]``; in self-attention the tokens themselves.
        select: position a_ik of the token that query k of input i selects, ``[*trials, n, q]``.
        allowed: which tokens a query may attend to, ``[n, q, T]``, the same in all trials; all by default.
    Returns:
        One constraint for each input, query and allowed token that is not selected, in this order; ``position`` holds k.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or a selected token is not allowed.
    """
    _check_own_tokens(tokens)
    check_real("queries", queries, "[..., n, q, d_z]", tokens.ndim)
    *trials, n, T, d = tokens.shape
    q = queries.shape[-2]
    check_shape("queries", queries, (*trials, n, q, queries.shape[-1]), "[..., n, q, d_z]")
    check_positions("select", select, (*trials, n, q), T)
    # Each pair (input, query) acts as one input.
    pairs = constraints(
        tokens[..., None, :, :].expand(*trials, n, q, T, d).reshape(*trials, n * q, T, d),
        queries.reshape(*trials, n * q, -1),
        select.reshape(*trials, n * q),
    )
    shape = (*trials, n * q * (T - 1))
    pair = torch.arange(n * q).repeat_interleave(T - 1).expand(shape)
    pairs = replace(pairs, input=pair // q, position=pair % q)
    if allowed is None:
        return pairs
    allowed = as_bool("allowed", allowed, (n, q, T))
    forbidden = (~allowed.expand(*trials, n, q, T).gather(-1, select[..., None]).squeeze(-1)).nonzero()
    if len(forbidden):
        *_, i, k = forbidden[0].tolist()
        raise ValueError(f"select must hold allowed tokens, but query {k} of input {i} may not attend to the token it selects")
    # Selected tokens are allowed, so every trial has the same number of constraints on allowed tokens, and the result is a batch.
    permitted = allowed.reshape(n * q, T)[pair, pairs.token]

    def rows(name: str) -> Tensor:
        value = getattr(pairs, name)
        return value[permitted].reshape(*trials, int(allowed.sum()) - n * q, *value.shape[len(shape) :])

    return Constraints(**{field.name: rows(field.name) for field in fields(Constraints)})


@converted(float64=("tokens",))
def causal(tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n T"]) -> Constraints:
    r"""The constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W x_{i,k} \ge 1` for every position k and every t <= k.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        select: position a_ik <= k of the token that token k selects, ``[*trials, n, T]``.
    Returns:
        :func:`sequence_to_sequence` with the tokens as queries, n T (T-1) / 2 constraints.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or a position k selects a later one.
    """
    _check_own_tokens(tokens)
    n, T = tokens.shape[-3:-1]
    return sequence_to_sequence(tokens, tokens, select, allowed=causal_mask(T).expand(n, T, T))


def causal_mask(T: int) -> Bool[Tensor, "T T"]:
    """Which positions t a query at position k may attend to, ``[T, T]``: t <= k.

    Raises:
        TypeError, ValueError: T is no integer of at least 1.
    """
    integers(T=T)
    return torch.ones(T, T, dtype=torch.bool).tril()


@converted(float64=("tokens", "query", "logits"))
def multi_token(
    tokens: Float[Tensor, "*trials n T d"],
    query: Float[Tensor, "*trials n d_z"],
    chosen: Bool[Tensor, "*trials n T"],
    *,
    logits: Float[Tensor, "*trials n T"] | None = None,
) -> Constraints:
    r"""The constraints that the chosen tokens of an input score alike, and above all others, so that they share its attention.

    .. math:: (x_{i,r_i} - x_{i,t})^\top W z_i = \ell_{i,r_i} - \ell_{i,t} \ \ (t \text{ chosen}), \qquad
        (x_{i,r_i} - x_{i,t})^\top W z_i \ge 1 \ \ (t \text{ not chosen}),

    where the reference r_i is the first chosen token of input i. Equations with one reference make all chosen tokens equal, so there are
    n (T-1) constraints however many tokens are chosen. This is problem (Gen-SVM) of :cite:t:`tarzanagh2023transformers`.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        query: z, ``[*trials, n, d_z]``.
        chosen: which tokens share the attention, ``[*trials, n, T]``; at least one per input.
        logits: :math:`\ell`, the required scores of the chosen tokens up to a constant per input, ``[*trials, n, T]``: the logarithms of
            their attention, for the finite part of the weights. Default: equal scores, for the direction. Entries of tokens that are not
            chosen are ignored.
    Returns:
        n (T-1) constraints, of which ``equality`` marks the equations.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or an input without a chosen token, or a logit of a chosen token that is not finite.
    """
    check_tokens(tokens, query)
    chosen = as_bool("chosen", chosen, tokens.shape[:-1])
    if not bool(chosen.any(-1).all()):
        raise ValueError(f"chosen must name at least one token of each input, got none for input {int((~chosen.any(-1)).nonzero()[0, -1])}")
    reference = chosen.int().argmax(-1)
    pairs = constraints(tokens, query, reference)
    m, other = pairs.difference.shape[:-1], _others(reference, tokens.shape[-2])
    equality = chosen.gather(-1, other).reshape(m)
    if logits is None:
        return replace(pairs, equality=equality, rhs=(~equality).double())
    check_shape("logits", logits, chosen.shape)
    level = logits.masked_fill(~chosen, 0.0)
    check_real("logits of chosen tokens", level, "[..., n, T]", tokens.ndim - 1)
    rhs = (level.gather(-1, reference[..., None]) - level.gather(-1, other)).reshape(m)
    return replace(pairs, equality=equality, rhs=torch.where(equality, rhs, 1.0))


@converted(float64=("embeddings",))
def graph_svm(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Constraints:
    r"""The constraints of token-priority graphs: tokens of one strongly connected component score alike, edges lead to lower scores.

    .. math:: (e_i - e_j)^\top W e_k = 0 \ \ (i, j \text{ in one component of } G_k), \qquad
        (e_i - e_j)^\top W e_k \ge 1 \ \ (i \to j \text{ in } G_k, \text{ in different components}),

    for every last token k and its graph :math:`G_k`. Given the equations, one inequality per pair of components is enough; each is written
    with the components' smallest tokens. This is problem (Graph-SVM) of :cite:t:`li2024mechanics`.

    Args:
        graph: of the training data, :func:`~.graph.priority_graph`.
        embeddings: e, ``[K, d]``.
    Returns:
        The constraints; ``input`` holds k and ``token`` holds j.
    Raises:
        TypeError: no graph, or no tensor or array.
        ValueError: another number of embeddings than tokens of the graph, or values that are not finite.
    """
    check_graph(graph, embeddings)
    rows = torch.tensor([*graph.equal(), *graph.above()], dtype=torch.long).reshape(-1, 3)
    last, high, low = rows.unbind(1)
    equality = torch.arange(len(rows)) < len(graph.equal())
    return Constraints(
        embeddings[high] - embeddings[low], embeddings[last], rhs=(~equality).double(), equality=equality, input=last, token=low
    )


def _others(select: Tensor, T: int) -> Tensor:
    """The positions of each input that are not selected, ``[..., n, T - 1]``."""
    # 0, ..., T - 2 with every position from the selected one on shifted by one.
    positions = torch.arange(T - 1)
    return positions + (positions >= select[..., None])


def _check_own_tokens(tokens: Tensor) -> None:
    """:func:`check_tokens` where the tokens are their own queries."""
    check_real("tokens", tokens, "[..., n, T, d]", max(3, tokens.ndim))
    check_tokens(tokens, tokens[..., 0])
