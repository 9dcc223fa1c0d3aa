r"""Builds the constraints under which attention selects given tokens: one function per kind of attention.

============================  ===========================================================================
cross-attention               :func:`constraints`: one query per input
self-attention                :func:`self_attention`: the query is the token at a fixed position
prompt                        :func:`prompt`: one query for all inputs, absorbed into the weights (z = 1)
causal, sequence to sequence  :func:`causal`, :func:`sequence_to_sequence`: many queries per input, one W
several tokens per input      :func:`multi_token`: a set of tokens shares the attention
token-priority graph          :func:`graph_svm`: tokens of one strongly connected component score alike
============================  ===========================================================================

Problem (Att-SVM) comes from :cite:t:`tarzanagh2023transformers`, the prompts from
:cite:t:`tarzanagh2023maxmargin`, and the graphs from :cite:t:`li2024mechanics`. The notation is explained in
docs/notation.md.
"""

from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted, in_range, integers
from .constraint_set import Constraints
from .graph import PriorityGraph, check_graph
from .validation import as_bool, check_positions, check_real, check_shape, check_tokens


@in_range
@converted(float64=("tokens", "query"), int64=("select",))
def constraints(
    tokens: Float[Tensor, "*trials n T d"],
    query: Float[Tensor, "*trials n d_z"],
    select: Int[Tensor, "*trials n"],
) -> Constraints:
    r"""Returns the n (T-1) constraints :math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1` of a selection.

    A token that equals the selected one gives the contradiction 0 >= 1, which makes the selection infeasible;
    :func:`distinct_constraints` leaves such tokens out.

    >>> from transformer_theory import attention_svm
    >>> tokens = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)  # one input of two tokens in the plane
    >>> query, select = torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([0])  # select the first token
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
        TypeError: an argument is not a tensor or array of numbers, or the positions are not integers.
        ValueError: there is no input, shapes do not fit, a value is not finite, or a position is outside
            0..T-1.
    """  # noqa: E501
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


def distinct_constraints(
    tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]
) -> Constraints:
    """Returns the :func:`constraints` of a single problem, except those for tokens that equal the selected
    one.

    Equal tokens get equal attention for any W, and averaging them changes nothing, so they count as one
    token. Real data contain equal tokens: the blank corners of an image, for example.

    Args:
        tokens, query, select: as for :func:`constraints`, of a single problem.
    Returns:
        At most n (T-1) constraints, all with a non-zero difference.
    Raises:
        TypeError, ValueError: as for :func:`constraints`.
    """
    pairs = constraints(tokens, query, select)
    return pairs.take((pairs.difference != 0).any(-1).nonzero().squeeze(-1))


@in_range
@converted(float64=("tokens",), int64=("select",))
def self_attention(
    tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"], *, position: int = 0
) -> Constraints:
    r"""Returns the constraints :math:`(x_{i,a_i} - x_{i,t})^\top W x_{i,k} \ge 1` of a selection; token k of
    each input is its query.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
        position: k, the same for all inputs; negative numbers count from the end. The paper takes the first
            token.
    Returns:
        The n (T-1) :func:`constraints` with these queries; ``position`` holds k.
    Raises:
        TypeError, ValueError: as for :func:`constraints`; or ``position`` is not an integer, or is outside
            -T..T-1.
    """
    _check_own_tokens(tokens)
    T = tokens.shape[-2]
    integers(minimum=-T, position=position)
    if position >= T:
        raise ValueError(f"position must lie in [-{T}, {T}), got {position}")
    pairs = constraints(tokens, tokens[..., position, :], select)
    return replace(pairs, position=torch.full(pairs.difference.shape[:-1], position % T))


@in_range
@converted(float64=("keys",))
def prompt(keys: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n"]) -> Constraints:
    r"""Returns the constraints :math:`(k_{i,a_i} - k_{i,t})^\top p \ge 1` on a prompt p, which is a W with
    one column (z = 1).

    Args:
        keys: k, ``[*trials, n, T, d]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        n (T-1) constraints on a matrix ``[d, 1]``, whose column is p.
    Raises:
        TypeError, ValueError: as for :func:`constraints`.
    """
    check_real("keys", keys, "[..., n, T, d]", max(3, keys.ndim))
    return constraints(keys, keys.new_ones(*keys.shape[:-2], 1), select)


@in_range
@converted(float64=("tokens", "queries"), int64=("select",))
def sequence_to_sequence(
    tokens: Float[Tensor, "*trials n T d"],
    queries: Float[Tensor, "*trials n q d_z"],
    select: Int[Tensor, "*trials n q"],
    *,
    allowed: Bool[Tensor, "n q T"] | None = None,
) -> Constraints:
    r"""Returns the constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W z_{ik} \ge 1` of every query k of every
    input i and every allowed t.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        queries: z, ``[*trials, n, q, d_z]``; self-attention passes the tokens themselves.
        select: position a_ik of the token that query k of input i selects, ``[*trials, n, q]``.
        allowed: mask of the tokens that each query may attend to, ``[n, q, T]``, the same in all trials.
            None: all tokens.
    Returns:
        One constraint for each input, query and allowed token that is not selected, in this order;
        ``position`` holds k.
    Raises:
        TypeError, ValueError: as for :func:`constraints`; or a selected token is not allowed.
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
        raise ValueError(
            f"select must contain allowed tokens, but query {k} of input {i} may not attend to the token it "
            "selects"
        )
    # The mask is the same in all trials and the selected tokens are allowed. So every trial loses equally
    # many constraints, and the rest can be reshaped to a batch.
    permitted = allowed.reshape(n * q, T)[pair, pairs.token]

    def rows(name: str) -> Tensor:
        value = getattr(pairs, name)
        return value[permitted].reshape(*trials, int(allowed.sum()) - n * q, *value.shape[len(shape) :])

    return Constraints(**{field.name: rows(field.name) for field in fields(Constraints)})


@in_range
@converted(float64=("tokens",))
def causal(tokens: Float[Tensor, "*trials n T d"], select: Int[Tensor, "*trials n T"]) -> Constraints:
    r"""Returns the constraints :math:`(x_{i,a_{ik}} - x_{i,t})^\top W x_{i,k} \ge 1` of every position k and
    every t <= k.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        select: position a_ik <= k of the token that token k selects, ``[*trials, n, T]``.
    Returns:
        The n T (T-1) / 2 constraints of :func:`sequence_to_sequence` with the tokens as queries.
    Raises:
        TypeError, ValueError: as for :func:`constraints`; or a position selects a later one.
    """
    _check_own_tokens(tokens)
    n, T = tokens.shape[-3:-1]
    return sequence_to_sequence(tokens, tokens, select, allowed=causal_mask(T).expand(n, T, T))


def causal_mask(T: int) -> Bool[Tensor, "T T"]:
    """Returns the mask ``[T, T]`` that lets the query at position k (row) attend to the positions t <= k
    (columns).

    Raises:
        TypeError, ValueError: T is not an integer of at least 1.
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
    r"""Returns the constraints under which the tokens of a set :math:`O_i` share the attention of input i and
    all others lose it.

    .. math:: (x_{i,r_i} - x_{i,t})^\top W z_i = \ell_{i,r_i} - \ell_{i,t} \ \ (t \in O_i), \qquad
        (x_{i,r_i} - x_{i,t})^\top W z_i \ge 1 \ \ (t \notin O_i),

    where the reference r_i is the first token of :math:`O_i`. Equations with one reference fix the scores of
    the whole set, so the n (T-1) constraints suffice for sets of any size. This is problem (Gen-SVM) of
    :cite:t:`tarzanagh2023transformers`.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        query: z, ``[*trials, n, d_z]``.
        chosen: mask of the sets :math:`O_i`, ``[*trials, n, T]``; at least one token per input.
        logits: :math:`\ell`, the required scores of the tokens in :math:`O_i` up to a constant per input,
            ``[*trials, n, T]``; entries of other tokens are ignored. The logarithms of the attention give the
            finite part of the weights. None: equal scores, for the direction of the weights.
    Returns:
        n (T-1) constraints; ``equality`` marks the equations.
    Raises:
        TypeError, ValueError: as for :func:`constraints`; or an :math:`O_i` is empty, or a logit of one of
            its tokens is not finite.
    """
    check_tokens(tokens, query)
    chosen = as_bool("chosen", chosen, tokens.shape[:-1])
    if not bool(chosen.any(-1).all()):
        raise ValueError(
            "chosen must name at least one token of each input, got none for input "
            f"{int((~chosen.any(-1)).nonzero()[0, -1])}"
        )
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
    r"""Returns the constraints of token-priority graphs: equal scores within a strongly connected component,
    lower scores along an edge.

    .. math:: (e_i - e_j)^\top W e_k = 0 \ \ (i, j \text{ in one component of } G_k), \qquad
        (e_i - e_j)^\top W e_k \ge 1 \ \ (i \to j \text{ in } G_k, \text{ in different components}),

    for every last token k and its graph :math:`G_k`. Given the equations, one inequality per pair of
    components is enough; it is written for the smallest tokens of both components. This is problem
    (Graph-SVM) of :cite:t:`li2024mechanics`.

    Args:
        graph: graphs of the training data, from :func:`~.graph.priority_graph`.
        embeddings: e, ``[K, d]``.
    Returns:
        The constraints; ``input`` holds k and ``token`` holds j.
    Raises:
        TypeError: ``graph`` is not a graph, or ``embeddings`` is not a tensor or array.
        ValueError: the number of embeddings differs from the number of tokens of the graph, or a value is not
            finite.
    """
    check_graph(graph, embeddings)
    rows = torch.tensor([*graph.equal(), *graph.above()], dtype=torch.long).reshape(-1, 3)
    last, high, low = rows.unbind(1)
    equality = torch.arange(len(rows)) < len(graph.equal())
    return Constraints(
        embeddings[high] - embeddings[low],
        embeddings[last],
        rhs=(~equality).double(),
        equality=equality,
        input=last,
        token=low,
    )


def _others(select: Tensor, T: int) -> Tensor:
    """Returns, per input, the positions that are not selected, in increasing order, ``[..., n, T - 1]``."""
    # These are 0, ..., T - 2, with one added from the selected position on.
    positions = torch.arange(T - 1)
    return positions + (positions >= select[..., None])


def _check_own_tokens(tokens: Tensor) -> None:
    """Calls :func:`check_tokens` for tokens without separate queries ``[..., n, d_z]``; their first
    coordinates serve as placeholder.
    """
    check_real("tokens", tokens, "[..., n, T, d]", max(3, tokens.ndim))
    check_tokens(tokens, tokens[..., 0])
