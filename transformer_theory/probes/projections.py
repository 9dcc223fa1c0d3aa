r"""The bilinear form W of the scores, and the order of heads and sequences, from the operations that led to
queries and keys.

Queries are usually a product of tokens with a parameter, followed by operations that only move, cast or scale
entries: views, permutations, splits, repeats and concatenations (:class:`.Step`). To find the origin of each
entry, the same operations are applied to a tensor of *codes* with the shape of the product, [tokens, out]:

    code = token * out + row        the entry of the product of this token with this row of the matrix

The codes of the queries then show the matrix row and the token of every entry. Names of modules and
conventions are not needed: matrices may be separate, stacked, tied or shared by groups of heads, heads may
come before or after the batch, and tokens may be divided into windows. If head h has the rows :math:`Q_h` of
the matrix of the queries and :math:`K_h` of the matrix of the keys, then

.. math:: W_h = \text{scale}\, K_h^\top Q_h, \qquad s(x, z) = x^\top W_h z .

The matrix may itself be a sum or a product of matrices (:mod:`.linear_maps`), and it may be any tensor that
does not depend on the inputs (pruned weights, weights divided by their norm).

W is unknown if queries or keys are computed in another way (rotary positions, normalised queries), if their
codes do not factorise into heads and sequences, or if keys and queries come from different tokens. As a
check, W is compared with the observed scores of a few tokens. Source: :cite:t:`vaswani2017attention`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .flow import JOINS, Flow, Step
from .linear_maps import LinearMap, linear_maps

MAX_CODES = 2**27  # largest number of entries of a projection; their codes take half a gigabyte
SAMPLE = 3, 8  # numbers of sequences, and of tokens per sequence, whose scores are compared with W
# relative tolerance of this comparison for float32 and float64; 30 times as large for half precision
SCORES_RTOL = 1e-3
MAX_VISITED = 200  # largest number of operations among which the reason for a missing W is sought
NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize"}
ROTATIONS = {"view_as_complex", "view_as_real", "complex", "polar"}
BIASED = "a bias is added to the scores (relative positions, a mask of numbers)"
SCALED = "the scores are not scaled by one number (a learnt scale of each head, bounded scores)"
ROTATED = "queries or keys are multiplied by numbers that differ between tokens (rotary positions)"
OTHER_TOKENS = "queries and keys come from different tokens"
NOT_REPRODUCED = "the projections of the tokens do not reproduce the scores"


@dataclass(frozen=True)
class Operand:
    """Queries or keys of a product.

    Attributes:
        node: node of the tensor in :class:`.Flow`; None if unknown.
        flip: whether the tensor is transposed, ``[..., head_dim, tokens]``.
        letters: for an einsum, the letters of the tensor, and the same letters in the order ``[..., tokens,
            head_dim]``; None otherwise.
        repeats: number of heads that share each head of the tensor.
    """

    node: int | None
    flip: bool = False
    letters: tuple[str, str] | None = None
    repeats: int = 1

    def read(self, codes: Tensor) -> Tensor:
        """Returns the codes of the tensor in the order ``[..., tokens, head_dim]``, with shared heads
        repeated.
        """
        if self.letters is not None:
            codes = in_order(codes, *self.letters)
        codes = codes.mT if self.flip else codes
        return codes if self.repeats == 1 else codes.repeat_interleave(self.repeats, -3)


@dataclass(frozen=True)
class Arrangement:
    """Matrix rows of every head, and tokens of every sequence.

    Attributes:
        order: permutation of the flattened leading axes of queries and keys to ``[sequences, heads]``,
            ``[sequences * heads]``.
        in_order: whether the permutation is the identity.
        query_rows, key_rows: row indices of the matrices, ``[heads, head_dim]``.
        query_tokens, key_tokens: positions in the flattened input of the projections, ``[sequences,
            tokens]``.
    """

    order: Int[Tensor, " lead"]
    in_order: bool
    query_rows: Int[Tensor, "heads p"]
    key_rows: Int[Tensor, "heads p"]
    query_tokens: Int[Tensor, "sequences q"]
    key_tokens: Int[Tensor, "sequences k"]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of sequences and heads."""
        return len(self.key_tokens), len(self.key_rows)

    @property
    def time_first(self) -> bool:
        """Whether the input of the projections is ``[tokens, batch, dim]``."""
        # In this layout, successive tokens of a sequence are n positions apart.
        n, k = self.key_tokens.shape
        return min(n, k) > 1 and bool((self.key_tokens.diff(dim=1) == n).all())


@dataclass(frozen=True)
class Projection:
    """Queries and keys of one call as projections of tokens.

    Attributes:
        arrangement: matrix rows of the heads and tokens of the sequences.
        tokens: input of the projection of the keys, ``[..., dim]``; None if it is no longer stored.
        query_weight, key_weight: matrices of the projections, ``[out, dim]``.
        factor: product of the numbers by which queries and keys were multiplied after the projections.
        own: whether queries and keys come from the same tokens, as in self-attention.
    """

    arrangement: Arrangement
    tokens: Float[Tensor, "*lead dim"] | None
    query_weight: Float[Tensor, "q_out dim"]
    key_weight: Float[Tensor, "k_out k_dim"]
    factor: float
    own: bool

    def sequences(self) -> Float[Tensor, "sequences k dim"] | None:
        """Returns the tokens on which W acts; None if they are no longer stored."""
        if self.tokens is None:
            return None
        return self.tokens.reshape(-1, self.tokens.shape[-1])[
            self.arrangement.key_tokens.to(self.tokens.device)
        ]

    def maps(self, scale: float) -> dict[str, Float[Tensor, "heads p dim"]]:
        """Returns the projections of each head for the scores ``scale * q @ k``, as the fields of
        :class:`.Activations`.
        """
        rows = self.arrangement
        return {
            "key_map": self.key_weight[rows.key_rows],
            "query_map": self.query_weight[rows.query_rows] * (scale * self.factor),
        }

    def agrees(self, query: Float[Tensor, "n heads q p"], key: Float[Tensor, "n heads k p"]) -> bool:
        """Whether W reproduces the observed scores of a few tokens.

        Both score matrices are centred over queries and over keys. Biases of the projections add terms that
        are constant along one of these axes, so centring removes them. Scores of centred tokens are centred,
        and single precision suffices for them.
        """
        assert self.tokens is not None
        rows, flat = self.arrangement, self.tokens.reshape(-1, self.tokens.shape[-1])
        n, tokens = SAMPLE
        # If the queries were joined from several calls, the arrangement covers the queries of the first call
        # only.
        lengths = min(query.shape[2], rows.query_tokens.shape[1]), min(key.shape[2], rows.key_tokens.shape[1])
        i, j = (torch.linspace(0, length - 1, min(tokens, length)).long() for length in lengths)
        precision = torch.promote_types(self.query_weight.dtype, torch.float32)
        x, z = (
            _centred(flat[index[:n][:, sample].to(flat.device)].double()).to(precision)
            for index, sample in ((rows.key_tokens, j), (rows.query_tokens, i))
        )
        q, k = (
            z[:, None] @ self.query_weight[rows.query_rows].to(precision).mT,
            x[:, None] @ self.key_weight[rows.key_rows].to(precision).mT,
        )
        expected = q.double() @ k.double().mT
        observed = query[:n, :, i].double() @ key[:n, :, j].double().mT
        finite = torch.isfinite(observed).flatten(1).all(1) & torch.isfinite(expected).flatten(1).all(1)
        observed, expected = _centred(_centred(observed[finite]).mT).mT, self.factor * expected[finite]
        rtol = SCORES_RTOL if query.dtype in (torch.float32, torch.float64) else 30 * SCORES_RTOL
        return float((expected - observed).norm()) <= rtol * float(observed.norm()) + 1e-12


class Projections:
    """Finds the projections of queries and keys.

    Args:
        flow: flow of tensors of the pass, with steps.
        cache: arrangements by the operations that led to them. Similar layers and later passes have the same
            operations.
    """

    def __init__(self, flow: Flow, cache: dict[Any, Arrangement | str]):
        self.flow, self.cache = flow, cache

    def find(self, query: Operand, key: Operand) -> Projection | str:
        """Returns queries and keys of a product as projections of tokens, or the reason why they are not."""
        queries, keys = self._chain(query.node), self._chain(key.node)
        if queries is None or keys is None:
            return self._why(query.node if queries is None else key.node)
        (q_start, q_chain), (k_start, k_chain) = queries, keys
        q_factor, k_factor = self._factor(q_start, q_chain), self._factor(k_start, k_chain)
        if q_factor is None or k_factor is None:
            return "parts of the queries or keys are scaled differently"
        signature = self._signature(q_start, q_chain, query), self._signature(k_start, k_chain, key)
        arrangement = self.cache.get(signature)
        if arrangement is None:
            codes = self._codes(q_start, q_chain, query), self._codes(k_start, k_chain, key)
            arrangement = self.cache[signature] = arrangement_of(*codes)
        if isinstance(arrangement, str):
            return arrangement
        q_maps, k_maps = linear_maps(self.flow, q_start), linear_maps(self.flow, k_start)
        if not q_maps or not k_maps:
            return self._why(q_start if not q_maps else k_start)
        shared = (root for root in q_maps if root in k_maps and q_maps[root].width == k_maps[root].width)
        root = next(shared, None)
        maps: list[LinearMap] = [
            next(iter(maps.values())) if root is None else maps[root] for maps in (q_maps, k_maps)
        ]
        matrices = maps[0].matrix(), maps[1].matrix()
        return Projection(arrangement, maps[1].tokens, *matrices, q_factor * k_factor, root is not None)

    def _chain(self, node: int | None) -> tuple[int, list[int]] | None:
        """Follows steps backwards from a node to a projection, or to a sum of projections.

        Returns:
            The node of the projection, and the nodes after it, oldest first. None if a step is unknown.
        """
        chain, starts, todo = set(), set(), [node]
        while todo:
            current = todo.pop()
            step = None if current is None else self.flow.steps.get(current)
            if current is None or step is None:
                return self._chain_to_parts(node)
            if step.is_origin:
                starts.add(current)
            elif current not in chain:
                chain.add(current)
                todo += step.parents
        return (starts.pop(), sorted(chain)) if len(starts) == 1 else self._chain_to_parts(node)

    def _chain_to_parts(self, node: int | None) -> tuple[int, list[int]] | None:
        """Follows steps backwards to a concatenation of several projections, or of projections and constants,
        along their last axis.
        """
        chain: list[int] = []
        while node is not None and (step := self.flow.steps.get(node)) is not None and not step.is_origin:
            if step.joined:
                return (node, chain[::-1]) if linear_maps(self.flow, node) else None
            chain.append(node)
            node = step.parent
        return None

    def _why(self, node: int | None) -> str:
        """Returns the reason why queries or keys are no projection: the operation that follows the last
        projection on the way to them, or that made them.
        """
        flow = self.flow
        visited, todo, first, last = set(), [] if node is None else [node], "", ""
        while todo and len(visited) < MAX_VISITED:
            current = todo.pop(0)  # the operations nearest to the queries come first
            if current in visited or current < 0:
                continue
            visited.add(current)
            name = "" if current in flow.steps else flow.names[current]
            first = first or name
            parents = flow.parents[current]
            projected = [parent for parent in parents if flow.projections_of(parent)]
            if name in JOINS or name in ("add", "sub"):
                last = last or (name if projected else "")  # another part may tell more
            elif name and projected:
                others = [parent for parent in parents if parent not in projected[:1]]
                own = any(flow.descends(other, projected[0]) for other in others)
                if name in NORMS or (name in ("mul", "div") and own):
                    return "queries or keys are normalised, or multiplied by functions of themselves"
                if name in ROTATIONS or name == "mul":
                    return ROTATED
                return f"queries or keys are changed by {name!r} after the projection of the tokens"
            todo += parents
        if last:
            return f"queries or keys are changed by {last!r} after the projection of the tokens"
        made = f" (they come from {first!r})" if first else ""
        return f"queries or keys are no projection of tokens by a matrix{made}"

    def _factor(self, start: int, chain: list[int]) -> float | None:
        """Returns the number by which the projection was multiplied; None if its parts were multiplied by
        different numbers.
        """
        factors = {start: 1.0}
        for node in chain:
            step = self.flow.steps[node]
            parent_factors = {factors[parent] for parent in step.parents}
            if len(parent_factors) > 1:
                return None
            factors[node] = parent_factors.pop() * step.factor
        return factors[chain[-1] if chain else start]

    def _signature(self, start: int, chain: list[int], operand: Operand) -> Any:
        """Returns a hashable description of the operations of a chain. Equal signatures give equal codes."""
        # numbers of nodes differ between layers, their order does not
        index = {node: i for i, node in enumerate([start, *chain])}
        steps = []
        for node in chain:
            step = self.flow.steps[node]
            parents = tuple(index[parent] for parent in step.parents)
            steps.append(
                (
                    step.function,
                    hashable(step.args),
                    hashable(step.kwargs),
                    step.part,
                    parents,
                    bool(step.joined),
                )
            )
        return self.flow.steps[start].shape, tuple(steps), operand.flip, operand.letters, operand.repeats

    def _codes(self, start: int, chain: list[int], operand: Operand) -> tuple[Tensor, int] | str:
        """Computes the codes ``[*lead, tokens, head_dim]`` of queries or keys.

        Returns:
            The codes and the number of rows of the matrix, or the reason why there are none.
        """
        shape = self.flow.steps[start].shape
        if math.prod(shape) > MAX_CODES:
            return f"queries or keys have more than {MAX_CODES:,} entries; measure fewer sequences at a time"
        codes = {start: torch.arange(math.prod(shape), dtype=torch.int32).view(shape)}
        for node in chain:
            codes[node] = apply_step(self.flow.steps[node], codes)
        return operand.read(codes[chain[-1] if chain else start]), shape[-1]


def apply_step(step: Step, codes: dict[int, Tensor]) -> Tensor:
    """Applies one step to the codes of its parents."""
    if step.function is None:
        return codes[step.parent]
    argument = [codes[part] for part in step.joined] if step.joined else codes[step.parent]
    output = step.function(argument, *step.args, **step.kwargs)
    return output if step.part is None else output[step.part]


def arrangement_of(query: tuple[Tensor, int] | str, key: tuple[Tensor, int] | str) -> Arrangement | str:
    """Determines heads and sequences from the codes of queries and keys. Returns the reason if they do not
    factorise.
    """
    if isinstance(query, str) or isinstance(key, str):
        return query if isinstance(query, str) else str(key)
    if not query[0].numel() or not key[0].numel():
        return "there are no sequences"
    lead = torch.broadcast_shapes(query[0].shape[:-2], key[0].shape[:-2])
    sides = []
    for codes, out in (query, key):
        codes = codes.expand(*lead, *codes.shape[-2:]).reshape(-1, *codes.shape[-2:]).long()
        # In each [tokens, head_dim] slice, the row must depend on the last axis only, and the token on the
        # other axis only.
        rows, tokens = codes[:, 0] % out, codes[:, :, 0] // out
        if not torch.equal(codes, tokens[..., None] * out + rows[:, None]):
            return "queries or keys mix tokens, so scores are not bilinear in them"
        sides.append((rows, tokens))
    (q_rows, q_tokens), (k_rows, k_tokens) = sides
    # Slices with the same rows belong to the same head, slices with the same tokens to the same sequence.
    head, heads = _numbered(torch.cat([q_rows, k_rows], 1))
    sequence, sequences = _numbered(torch.cat([q_tokens, k_tokens], 1))
    H, n = len(heads), len(sequences)
    order = torch.argsort(sequence * H + head)
    # Each pair of a sequence and a head must occur exactly once.
    if len(order) != H * n or not torch.equal((sequence * H + head)[order], torch.arange(H * n)):
        return "heads and sequences of the queries do not factorise"
    in_order = torch.equal(order, torch.arange(H * n))
    return Arrangement(
        order, in_order, q_rows[heads], k_rows[heads], q_tokens[sequences], k_tokens[sequences]
    )


def _numbered(rows: Int[Tensor, "n m"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
    """Numbers the distinct rows of a matrix in the order of their first occurrence.

    Returns:
        The number of each row ``[n]``, and the index at which each distinct row occurs first ``[k]``.
    """
    _, kind = torch.unique(rows, dim=0, return_inverse=True)
    # ``kind`` numbers the distinct rows in lexicographic order; sort these numbers by the first index at
    # which each occurs.
    first = torch.full((int(kind.max()) + 1,), len(rows)).scatter_reduce(
        0, kind, torch.arange(len(rows)), "amin"
    )
    first, order = first.sort()
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rank[kind], first


def in_order(x: Tensor, letters: str, order: str) -> Tensor:
    """Permutes the axes of a tensor from the letters of an einsum to another order of letters; missing axes
    get length 1.
    """
    ordered = x.permute(*(letters.index(c) for c in order if c in letters))
    for axis, c in enumerate(order):
        if c not in letters:
            ordered = ordered.unsqueeze(axis)
    return ordered


def hashable(value: Any) -> Any:
    """Converts the arguments of an operation to a hashable value."""
    if isinstance(value, tuple | list):
        return tuple(hashable(x) for x in value)
    if isinstance(value, dict):
        return tuple((name, hashable(x)) for name, x in value.items())
    if isinstance(value, slice):
        return "slice", value.start, value.stop, value.step
    return id(value) if isinstance(value, Callable) else value


def _centred(vectors: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Subtracts the mean of the vectors."""
    return vectors - vectors.mean(-2, keepdim=True)
