r"""Which constraints say that attention selects given tokens: one builder a kind of attention.

====================================  ==================================================================================
cross-attention                       :func:`constraints`: a query of its own for each input
self-attention                        :func:`self_attention`: the query is the token at a fixed position
prompt                                :func:`prompt`: one query for all inputs, absorbed into the weights (z = 1)
causal, sequence to sequence          :func:`causal`, :func:`sequence_to_sequence`: many queries an input, one W
several tokens an input               :func:`multi_token`: the chosen ones score alike, the others less
token-priority graph                  :func:`graph_svm`: tokens of one strongly connected component score alike
====================================  ==================================================================================

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`; prompts :cite:t:`tarzanagh2023maxmargin`; graphs
:cite:t:`li2024mechanics`. Notation: docs/notation.md.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .constraint_set import Constraints, came, check_real, check_tensor, check_whole
from .graph import PriorityGraph, check_graph
from .problem import check_tokens


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
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        One constraint for each input and each token that is not selected, in this order; none at all for T = 1.
    Raises:
        TypeError: not a tensor.
        ValueError: no input, a wrong shape or type of the entries, a value that is not finite, a position outside 0..T-1.

    Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    check_tokens(tokens, query)
    *trials, n, T, d = tokens.shape
    check_positions(select, tokens.shape[:-2], T)
    other = torch.arange(T - 1)
    other = other + (other >= select[..., None])  # the positions that are not selected, [*trials, n, T - 1]
    at = (*trials, n * (T - 1))
    picked = tokens.gather(-2, select[..., None, None].expand(*select.shape, 1, d))
    difference = (picked - tokens.gather(-2, other[..., None].expand(*other.shape, d))).reshape(*at, d)
    asked = query[..., None, :].expand(*other.shape, query.shape[-1]).reshape(*at, query.shape[-1])
    inputs = torch.arange(n)[:, None].expand(other.shape).reshape(at)
    return Constraints(difference, asked, input=inputs, token=other.reshape(at))


def distinct_constraints(tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]) -> Constraints:
    """:func:`constraints` of a single problem without those of tokens that equal the selected one.

    Equal tokens get equal attention whatever W is, and averaging them changes nothing, so they count as one token. Real data need this:
    the blank corners of an image are equal.

    Args:
        tokens, query, select: as for :func:`constraints`, of a single problem.
    Returns:
        At most n (T-1) constraints, none of them on a difference of zero.
    Raises:
        TypeError, ValueError: as :func:`constraints`.
    """
    all_pairs = constraints(tokens, query, select)
    return all_pairs.take((all_pairs.difference != 0).any(-1).nonzero().squeeze(-1))


def self_attention(tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"], *, position: int = 0) -> Constraints:
    r"""The constraints :math:`(x_{i,a_i} - x_{i,t})^\top W x_{i,k} \ge 1` of a selection: the query is the input's own token k.

    Args:
        tokens: x, ``[*trials, n, T, d]``, float64.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
        position: k, the same for all inputs; negative counts from the end.
    Returns:
        :func:`constraints` with these queries, n (T-1) of them; ``position`` holds k.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or the position is no whole number or is outside -T..T-1.

    Source: :cite:t:`tarzanagh2023transformers`, who take the first token.
    """
    _check_tokens(tokens)
    T = tokens.shape[-2]
    if isinstance(position, bool) or not isinstance(position, int):
        raise TypeError(f"position must be a whole number in [-{T}, {T}), got {type(position).__name__}")
    if not -T <= position < T:
        raise ValueError(f"position must lie in [-{T}, {T}), got {position}; it names the token that asks")
    pairs = constraints(tokens, tokens[..., position, :], select)
    return replace(pairs, position=torch.full(pairs.difference.shape[:-1], position % T))


def prompt(keys: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"]) -> Constraints:
    r"""The constraints :math:`(k_{i,a_i} - k_{i,t})^\top p \ge 1` on a prompt p, which is W with a single column (z = 1).

    Args:
        keys: k, ``[*trials, n, T, d]``, float64.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        n (T-1) constraints on a matrix ``[d, 1]``, whose column is p.
    Raises:
        TypeError, ValueError: as :func:`constraints`.

    Source: problem (ATT-SVM) of :cite:t:`tarzanagh2023maxmargin`.
    """
    check_real(keys, "keys", "[..., n, T, d]", max(3, getattr(keys, "ndim", 3)))
    return constraints(keys, keys.new_ones(*keys.shape[:-2], 1), select)


def sequence_to_sequence(
    tokens: Float[Tensor, "*trials n T d"],
    queries: Float[Tensor, "*trials n q d_z"],
    select: Int[Tensor, "*trials n q"],
    *,
    allowed: Bool[Tensor, "n q T"] | None = None,
) -> Constraints:
    r"""The constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W z_{ik} \ge 1` for every query k of every input i and every allowed t.

    Args:
        tokens: x, ``[*trials, n, T, d]``, float64.
        queries: z, ``[*trials, n, q, d_z]``; in self-attention the tokens themselves.
        select: position a_ik of the token that query k of input i selects, ``[*trials, n, q]``.
        allowed: which tokens a query may attend to, ``[n, q, T]``, the same in all trials; all if not given.
    Returns:
        One constraint for each input, query and allowed token that is not selected, in this order; ``position`` holds k.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or a selected token is not allowed.

    Source: :cite:t:`tarzanagh2023transformers` on sequence-to-sequence and causal attention.
    """
    _check_tokens(tokens)
    check_real(queries, "queries", "[..., n, q, d_z]", tokens.ndim)
    *trials, n, T, d = tokens.shape
    q = queries.shape[-2]
    if queries.shape[:-2] != tokens.shape[:-2]:
        raise ValueError(f"queries must be [..., n, q, d_z] with [..., n] = {[*trials, n]}, got shape {list(queries.shape)}")
    check_positions(select, (*trials, n, q), T)
    pairs = constraints(
        tokens[..., None, :, :].expand(*trials, n, q, T, d).reshape(*trials, n * q, T, d),
        queries.reshape(*trials, n * q, -1),
        select.reshape(*trials, n * q),
    )
    at = (*trials, n * q * (T - 1))
    pair = torch.arange(n * q).repeat_interleave(T - 1).expand(at)
    pairs = replace(pairs, input=pair // q, position=pair % q)
    if allowed is None:
        return pairs
    check_tensor(allowed, "allowed", f"{[n, q, T]} of booleans")
    if allowed.dtype != torch.bool or allowed.shape != (n, q, T):
        raise ValueError(f"allowed must be a tensor {[n, q, T]} of booleans, got {came(allowed)}")
    forbidden = (~allowed.expand(*trials, n, q, T).gather(-1, select[..., None]).squeeze(-1)).nonzero()
    if len(forbidden):
        *_, i, k = forbidden[0].tolist()
        raise ValueError(f"select must hold allowed tokens, but query {k} of input {i} may not attend to the token it selects")
    kept = allowed.reshape(n * q, T)[pair, pairs.token]  # as many in every trial, since selected tokens are allowed

    def rows(name: str) -> Tensor:
        value = getattr(pairs, name)
        return value[kept].reshape(*trials, int(allowed.sum()) - n * q, *value.shape[len(at) :])

    return Constraints(**{field.name: rows(field.name) for field in fields(Constraints)})


def causal(tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n T"]) -> Constraints:
    r"""The constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W x_{i,k} \ge 1` for every position k and every t <= k.

    Args:
        tokens: x, ``[*trials, n, T, d]``, float64.
        select: position a_ik <= k of the token that token k selects, ``[*trials, n, T]``.
    Returns:
        :func:`sequence_to_sequence` with the tokens as queries, n T (T-1) / 2 constraints.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or a position k selects a later one.

    Source: :cite:t:`tarzanagh2023transformers` on causal attention.
    """
    _check_tokens(tokens)
    n, T = tokens.shape[-3:-1]
    return sequence_to_sequence(tokens, tokens, select, allowed=causal_mask(T).expand(n, T, T))


def causal_mask(T: int) -> Bool[Tensor, "T T"]:
    """Which positions t a query at position k may attend to, ``[T, T]``: t <= k.

    Raises:
        ValueError: T is not a whole number of at least 1.

    Source: :cite:t:`vaswani2017attention`.
    """
    if isinstance(T, bool) or not isinstance(T, int) or T < 1:
        raise ValueError(f"T must be a whole number of at least 1, got {T!r}")
    return torch.ones(T, T, dtype=torch.bool).tril()


def multi_token(
    tokens: Float[Tensor, "*trials n T d"],
    query: Float[Tensor, "*trials n d_z"],
    chosen: Bool[Tensor, "*trials n T"],
    *,
    logits: Float[Tensor, "*trials n T"] | None = None,
) -> Constraints:
    r"""The chosen tokens of an input score alike, and above all others: attention is shared among them.

    .. math:: (x_{i,r_i} - x_{i,t})^\top W z_i = \ell_{i,r_i} - \ell_{i,t} \ \ (t \text{ chosen}), \qquad
        (x_{i,r_i} - x_{i,t})^\top W z_i \ge 1 \ \ (t \text{ not chosen}),

    with the first chosen token r_i of each input as reference: equations with one token say that all chosen ones are equal, so there are
    n (T-1) constraints however many tokens are chosen.

    Args:
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        chosen: which tokens share the attention, ``[*trials, n, T]``; at least one an input.
        logits: :math:`\ell`, what the scores of the chosen tokens are to be, up to a constant an input, ``[*trials, n, T]``: the
            logarithms of their attention, for the finite part of the weights; equal if not given, for the direction. Those of tokens that
            are not chosen are not read.
    Returns:
        n (T-1) constraints, of which ``equality`` marks the equations.
    Raises:
        TypeError, ValueError: as :func:`constraints`, or an input without a chosen token, or a logit of a chosen token that is not finite.

    Source: problem (Gen-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    check_tokens(tokens, query)
    check_tensor(chosen, "chosen", f"{list(tokens.shape[:-1])} of booleans")
    if chosen.dtype != torch.bool or chosen.shape != tokens.shape[:-1]:
        raise ValueError(f"chosen must be a tensor {list(tokens.shape[:-1])} of booleans, got {came(chosen)}")
    if not bool(chosen.any(-1).all()):
        raise ValueError(f"chosen must name at least one token of each input, got none for input {int((~chosen.any(-1)).nonzero()[0, -1])}")
    reference = chosen.int().argmax(-1)
    pairs = constraints(tokens, query, reference)
    m = pairs.difference.shape[:-1]
    other = torch.arange(tokens.shape[-2] - 1)
    other = other + (other >= reference[..., None])
    equality = chosen.gather(-1, other).reshape(m)
    if logits is None:
        return replace(pairs, equality=equality, rhs=(~equality).double())
    check_tensor(logits, "logits", "[..., n, T]")
    if logits.shape != chosen.shape:
        raise ValueError(f"logits must be a tensor {list(chosen.shape)}, got {came(logits)}")
    level = logits.masked_fill(~chosen, 0.0)
    check_real(level, "logits of chosen tokens", "[..., n, T]", tokens.ndim - 1)
    wanted = (level.gather(-1, reference[..., None]) - level.gather(-1, other)).reshape(m)
    return replace(pairs, equality=equality, rhs=torch.where(equality, wanted, 1.0))


def graph_svm(graph: PriorityGraph, embeddings: Float[Tensor, "K d"]) -> Constraints:
    r"""Tokens of one strongly connected component score alike, and those of a component above those that it has an edge to.

    .. math:: (e_i - e_j)^\top W e_k = 0 \ \ (i, j \text{ in one component of } G_k), \qquad
        (e_i - e_j)^\top W e_k \ge 1 \ \ (i \to j \text{ in } G_k, \text{ in different components}),

    for every last token k and its graph :math:`G_k`. Given the equations, one inequality for each pair of components is enough; each is
    written with the components' smallest tokens.

    Args:
        graph: of the training data, :func:`~.graph.priority_graph`.
        embeddings: e, ``[K, d]``, float64.
    Returns:
        The constraints; ``input`` holds k and ``token`` holds j.
    Raises:
        TypeError: not a graph, or not a tensor.
        ValueError: another number of embeddings than tokens of the graph, or a wrong type of their entries.

    Source: problem (Graph-SVM) of :cite:t:`li2024mechanics`.
    """
    check_graph(graph, embeddings)
    rows = torch.tensor([*graph.equal(), *graph.above()], dtype=torch.long).reshape(-1, 3)
    last, high, low = rows.unbind(1)
    equality = torch.arange(len(rows)) < len(graph.equal())
    return Constraints(
        embeddings[high] - embeddings[low], embeddings[last], rhs=(~equality).double(), equality=equality, input=last, token=low
    )


def _check_tokens(tokens: Tensor) -> None:
    """:func:`check_tokens` where the queries are no argument."""
    check_tensor(tokens, "tokens", "[..., n, T, d]")
    check_tokens(tokens, tokens.new_zeros(*tokens.shape[:-2], 1))


def check_positions(select: Tensor, shape: Sequence[int], T: int) -> None:
    """Refuses what is not a tensor of positions in 0..T-1 of this shape ``[...]``.

    Raises:
        TypeError: not a tensor.
        ValueError: says what was expected and what came.
    """
    check_whole(select, "select", shape)
    if int(select.min()) < 0 or int(select.max()) >= T:
        wrong = int(select.min()) if int(select.min()) < 0 else int(select.max())
        raise ValueError(f"select must lie in [0, {T}), got {wrong}; it holds the position of one token of each input")
