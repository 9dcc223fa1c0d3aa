r"""The bilinear form of scores, and the order of heads and sequences, from where the entries of queries and keys came from.

Queries are followed back through operations that only move, cast or scale their entries (views, permutations, splits, repeats,
concatenations) to a product of tokens with a parameter (:class:`.Step`). The same operations on a tensor of *codes*,

    code = token * out + row        of each entry of the product, [tokens, out],

tell which row of the matrix and which token every entry of the queries came from. So neither names of modules nor conventions are needed:
matrices may be separate, stacked, tied or shared by groups of heads, heads may come before or after the batch, and tokens may be cut into
windows. With the rows Q_h of the queries' matrix and K_h of the keys',

.. math:: W_h = \text{scale}\, K_h^\top Q_h, \qquad s(x, z) = x^\top W_h z .

If the chain breaks (rotary positions, normalised queries), the codes do not factorise, or keys and queries come from different tokens,
there is no W, and a reason instead. As a safeguard W is compared with the observed scores of a few tokens.
Source: :cite:t:`vaswani2017attention`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .flow import Flow, Step

MAX_CODES = 2**27  # entries of a projection that are followed, half a gigabyte of codes
SAMPLE = 3, 8  # sequences, and tokens of each, whose scores are compared with W
SCORES_RTOL = 1e-3  # for networks in float32; 30 times as large in shorter types
NOT_FOLLOWED = "queries or keys are not a projection of tokens by a matrix (rotary positions, norms of queries, biases, a state)"


@dataclass(frozen=True)
class Operand:
    """Queries or keys of a product: the node of the tensor, and how the product reads it.

    Attributes:
        node: None if the tensor was not followed.
        flip: whether the product took the tensor transposed, ``[..., head_dim, tokens]``.
        letters: of an einsum, the axes of the tensor and those in the order ``[..., tokens, head_dim]``; None otherwise.
        repeats: how often each head was repeated, of keys shared by groups of heads.
    """

    node: int | None
    flip: bool = False
    letters: tuple[str, str] | None = None
    repeats: int = 1

    def read(self, codes: Tensor) -> Tensor:
        """Codes in the order ``[..., tokens, head_dim]``."""
        if self.letters is not None:
            codes = in_order(codes, *self.letters)
        codes = codes.mT if self.flip else codes
        return codes if self.repeats == 1 else codes.repeat_interleave(self.repeats, -3)


@dataclass(frozen=True)
class Arrangement:
    """Rows and tokens of every head and sequence.

    Attributes:
        order: leading entries of queries and keys in the order ``[sequences, heads]``, ``[sequences * heads]``.
        in_order: whether they have this order already.
        query_rows, key_rows: rows of the matrices, ``[heads, head_dim]``.
        query_tokens, key_tokens: positions in the flattened input of the projections, ``[sequences, tokens]``.
    """

    order: Int[Tensor, " lead"]
    in_order: bool
    query_rows: Int[Tensor, "heads p"]
    key_rows: Int[Tensor, "heads p"]
    query_tokens: Int[Tensor, "sequences q"]
    key_tokens: Int[Tensor, "sequences k"]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sequences and of heads."""
        return len(self.key_tokens), len(self.key_rows)

    @property
    def time_first(self) -> bool:
        """Whether neighbouring positions of the input belong to different sequences: ``[tokens, batch, dim]``."""
        n, k = self.key_tokens.shape
        return min(n, k) > 1 and bool((self.key_tokens.diff(dim=1) == n).all())


@dataclass(frozen=True)
class Projection:
    """Queries and keys of one call as projections of tokens.

    Attributes:
        arrangement: see there.
        tokens: the input of the keys' projection, ``[..., dim]``; None if it is gone.
        query_weight, key_weight: the matrices, ``[out, dim]``.
        factor: by which queries and keys together were multiplied afterwards.
        own: whether queries and keys come from the same tokens.
    """

    arrangement: Arrangement
    tokens: Float[Tensor, "*lead dim"] | None
    query_weight: Float[Tensor, "q_out dim"]
    key_weight: Float[Tensor, "k_out k_dim"]
    factor: float
    own: bool

    def sequences(self) -> Float[Tensor, "sequences k dim"] | None:
        """The tokens on which W acts."""
        if self.tokens is None:
            return None
        return self.tokens.reshape(-1, self.tokens.shape[-1])[self.arrangement.key_tokens.to(self.tokens.device)]

    def bilinear(self, scale: float) -> Float[Tensor, "heads dim dim"]:
        """W of each head for scores ``scale q k``."""
        at = self.arrangement
        return self.key_weight[at.key_rows].mT @ self.query_weight[at.query_rows] * (scale * self.factor)

    def agrees(self, query: Float[Tensor, "n heads q p"], key: Float[Tensor, "n heads k p"]) -> bool:
        """Whether queries and keys of a few tokens have the scores of W.

        Both sides are centred over queries and over keys, where biases of the projections drop out.
        """
        assert self.tokens is not None
        at, flat = self.arrangement, self.tokens.reshape(-1, self.tokens.shape[-1])
        n, tokens = SAMPLE
        # Of queries that were joined from pieces, the arrangement has the first piece.
        lengths = min(query.shape[2], at.query_tokens.shape[1]), min(key.shape[2], at.key_tokens.shape[1])
        i, j = (torch.linspace(0, length - 1, min(tokens, length)).long() for length in lengths)
        x, z = (flat[part[:n][:, places].to(flat.device)].double() for part, places in ((at.key_tokens, j), (at.query_tokens, i)))
        expected = (z[:, None] @ self.query_weight[at.query_rows].double().mT) @ (x[:, None] @ self.key_weight[at.key_rows].double().mT).mT
        observed = query[:n, :, i].double() @ key[:n, :, j].double().mT
        finite = torch.isfinite(observed).flatten(1).all(1) & torch.isfinite(expected).flatten(1).all(1)
        observed, expected = (_centred(s[finite]) for s in (observed, self.factor * expected))
        rtol = SCORES_RTOL if query.dtype in (torch.float32, torch.float64) else 30 * SCORES_RTOL
        return float((expected - observed).norm()) <= rtol * float(observed.norm()) + 1e-12


class Projections:
    """Finds the projections of queries and keys, by their nodes.

    Args:
        flow: of the pass, with steps.
        cache: arrangements by the operations that led to them; layers of one kind, and later passes, share them.
    """

    def __init__(self, flow: Flow, cache: dict[Any, Arrangement | str]):
        self.flow, self.cache = flow, cache

    def find(self, query: Operand, key: Operand) -> Projection | str:
        """Queries and keys of one product as projections of tokens, or the reason why they are none."""
        queries, keys = self._chain(query.node), self._chain(key.node)
        if queries is None or keys is None:
            return NOT_FOLLOWED
        (q_end, q_chain), (k_end, k_chain) = queries, keys
        q_factor, k_factor = self._factor(q_end, q_chain), self._factor(k_end, k_chain)
        if q_factor is None or k_factor is None:
            return "parts of the queries or keys are scaled differently"
        signature = self._signature(q_end, q_chain, query), self._signature(k_end, k_chain, key)
        known = self.cache.get(signature)
        if known is None:
            known = self.cache[signature] = _arranged(self._codes(q_end, q_chain, query), self._codes(k_end, k_chain, key))
        if isinstance(known, str):
            return known
        q_step, k_step = self.flow.steps[q_end], self.flow.steps[k_end]
        assert q_step.weight is not None
        assert k_step.weight is not None
        own = self.flow.root[q_step.parent] == self.flow.root[k_step.parent] and q_step.weight.shape[1] == k_step.weight.shape[1]
        return Projection(known, k_step.tokens, q_step.weight, k_step.weight, q_factor * k_factor, own)

    def _chain(self, node: int | None) -> tuple[int, list[int]] | None:
        """The projection at the start, and the nodes from there on, oldest first; None if there is no such chain."""
        chain, ends, todo = set(), set(), [node]
        while todo:
            current = todo.pop()
            step = None if current is None else self.flow.steps.get(current)
            if step is None:
                return None
            if step.weight is not None:
                ends.add(current)
            elif current not in chain:
                chain.add(current)
                todo += step.joined or (step.parent,)
        return (ends.pop(), sorted(chain)) if len(ends) == 1 else None

    def _factor(self, end: int, chain: list[int]) -> float | None:
        """The number by which the whole projection was multiplied; None if its parts differ."""
        factors = {end: 1.0}
        for node in chain:
            step = self.flow.steps[node]
            before = {factors[parent] for parent in step.joined or (step.parent,)}
            if len(before) > 1:
                return None
            factors[node] = before.pop() * step.factor
        return factors[chain[-1] if chain else end]

    def _signature(self, end: int, chain: list[int], operand: Operand) -> Any:
        """The operations of a chain, with the places of their arguments in it: equal signatures give equal codes."""
        place = {node: i for i, node in enumerate([end, *chain])}
        steps = []
        for node in chain:
            step = self.flow.steps[node]
            parents = tuple(place[parent] for parent in step.joined or (step.parent,))
            steps.append((step.function, _hashable(step.args), _hashable(step.kwargs), step.part, parents, bool(step.joined)))
        return self.flow.steps[end].shape, tuple(steps), operand.flip, operand.letters, operand.repeats

    def _codes(self, end: int, chain: list[int], operand: Operand) -> tuple[Tensor, int] | str:
        """The codes ``[lead, tokens, head_dim]`` of queries or keys, and the number of rows of the matrix."""
        shape = self.flow.steps[end].shape
        if math.prod(shape) > MAX_CODES:
            return f"queries or keys have more than {MAX_CODES:,} entries; measure fewer sequences at a time"
        codes = {end: torch.arange(math.prod(shape), dtype=torch.int32).view(shape)}
        for node in chain:
            codes[node] = _repeated(self.flow.steps[node], codes)
        return operand.read(codes[chain[-1] if chain else end]), shape[-1]


def _repeated(step: Step, codes: dict[int, Tensor]) -> Tensor:
    """One step, on codes instead of numbers."""
    if step.function is None:
        return codes[step.parent]
    arguments = [codes[part] for part in step.joined] if step.joined else codes[step.parent]
    moved = step.function(arguments, *step.args, **step.kwargs)
    return moved if step.part is None else moved[step.part]


def _arranged(query: tuple[Tensor, int] | str, key: tuple[Tensor, int] | str) -> Arrangement | str:
    """Heads and sequences from the codes of queries and keys, or the reason why they do not factorise."""
    if isinstance(query, str) or isinstance(key, str):
        return query if isinstance(query, str) else str(key)
    if not query[0].numel() or not key[0].numel():
        return "there are no sequences"
    lead = torch.broadcast_shapes(query[0].shape[:-2], key[0].shape[:-2])
    sides = []
    for codes, out in (query, key):
        codes = codes.expand(*lead, *codes.shape[-2:]).reshape(-1, *codes.shape[-2:]).long()
        rows, tokens = codes[:, 0] % out, codes[:, :, 0] // out
        if not torch.equal(codes, tokens[..., None] * out + rows[:, None]):
            return "queries or keys mix tokens, so scores are not bilinear in them"
        sides.append((rows, tokens))
    (q_rows, q_tokens), (k_rows, k_tokens) = sides
    # Entries of one head share their rows, entries of one sequence their tokens; both are numbered as they first occur.
    head, heads = _numbered(torch.cat([q_rows, k_rows], 1))
    sequence, sequences = _numbered(torch.cat([q_tokens, k_tokens], 1))
    H, n = len(heads), len(sequences)
    order = torch.argsort(sequence * H + head)
    if len(order) != H * n or not torch.equal((sequence * H + head)[order], torch.arange(H * n)):
        return "heads and sequences of the queries do not factorise"
    in_order = torch.equal(order, torch.arange(H * n))
    return Arrangement(order, in_order, q_rows[heads], k_rows[heads], q_tokens[sequences], k_tokens[sequences])


def _numbered(rows: Int[Tensor, "n m"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
    """For each row the number of its kind, in the order of first occurrence, and where each kind occurs first."""
    _, kind = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((int(kind.max()) + 1,), len(rows)).scatter_reduce(0, kind, torch.arange(len(rows)), "amin")
    first, order = first.sort()
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rank[kind], first


def in_order(x: Tensor, letters: str, wanted: str) -> Tensor:
    """A tensor of an einsum with its axes in the wanted order; missing axes get length 1."""
    ordered = x.permute(*(letters.index(c) for c in wanted if c in letters))
    for axis, c in enumerate(wanted):
        if c not in letters:
            ordered = ordered.unsqueeze(axis)
    return ordered


def _hashable(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_hashable(x) for x in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(x)) for name, x in value.items())
    if isinstance(value, slice):
        return "slice", value.start, value.stop, value.step
    return id(value) if isinstance(value, Callable) else value


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True) - scores.mean(-2, keepdim=True) + scores.mean((-1, -2), keepdim=True)
