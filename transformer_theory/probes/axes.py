r"""Which axis of queries and keys holds tokens, and which holds heads, if their bilinear form is unknown.

The criterion: the keys of an attention are tokens, so in each matrix of scores the key axis runs over the
positions of one sequence, and the features of all keys come from the same channels. As in
:mod:`.projections`, the operations that led to queries and keys are applied to codes of their origin,

    code = token * out + row        row: channel of the output of a linear map or of a convolution,
                                    token: all other axes,

but here operations that keep the shape may lie between (norms, rotary positions, biases, activations), and
the origin may be a convolution or a product with a constant on either side. Then

    the row depends on the last axis alone,     attention over tokens: slices with equal rows are one head,
    the token on the key axis alone             slices with equal tokens one sequence (a window is a sequence)
    the row depends on the key axis             the softmax is over channels; if this holds for the keys
                                                alone, they are mixtures of tokens

If the operations are not known, only shapes remain. The scores of all sequences need one row of weights per
token and head. If the leading axes cannot be sequences and heads by this count, because windows share an axis
with heads or stand after them, the attention is not measured, and a row says why.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .flow import Flow
from .projections import MAX_CODES, Arrangement, Operand, apply_step, arrangement_of, hashable

CHANNELS = "the softmax is over channels, not over tokens"
MIXTURES = "the keys are not tokens but mixtures of tokens, formed by a matrix"
DIVIDED = "tokens are divided into heads before one matrix projects every head"
LOW_RANK = "its softmaxes are parts of a low-rank approximation of attention"
UNCLEAR = "heads and windows share an axis, and the operations that made it are not known"
MAX_CHAIN = 200  # largest number of operations between an origin and queries or keys


class Axes:
    """Finds the axes of queries and keys.

    Args:
        flow: flow of tensors of the pass, with steps.
        cache: what was found, by the operations that led to queries and keys; shared by all passes.
    """

    def __init__(self, flow: Flow, cache: dict[Any, Any]):
        self.flow, self.cache = flow, cache
        self._whole: dict[int, tuple[int, ...]] = {}  # tensors that were divided into heads, and their shapes

    def are_divided(self, *operands: Operand) -> bool:
        """Whether tokens were divided into heads before the projections, so that all heads share one small
        matrix.
        """
        return any(self._divided(self.flow.projections_of(x.node)) for x in operands if x.node is not None)

    def _divided(self, projections: set[int]) -> bool:
        return any(self._before_division(node) is not None for node in projections)

    def _before_division(self, node: int) -> int | None:
        """Returns the tensor whose last axis was divided before a product with a matrix; None if it was
        not.
        """
        step = self.flow.steps[node]
        width, parent = (0 if step.weight is None else step.weight.shape[1]), step.parent
        while (
            width
            and (move := self.flow.steps.get(parent)) is not None
            and not move.is_origin
            and not move.joined
        ):
            parent = move.parent
            shape = self._shape(parent)
            if shape and shape[-1] > width and not shape[-1] % width and move.function is not None:
                if move.shape[-1] == width and math.prod(shape) == math.prod(move.shape):
                    self._whole[parent] = shape
                    return parent
                return None
        return None

    def _shape(self, node: int) -> tuple[int, ...]:
        """Returns the shape of a node; empty if it is not known."""
        known = self.flow.steps.get(node) or self.flow.links.get(node)
        if known is not None:
            return known.shape
        tensor = self.flow.tensor(node)
        return () if tensor is None else tuple(tensor.shape)

    def find(self, query: Operand, key: Operand) -> Arrangement | str:
        """Returns heads and sequences, or the reason why this is no attention over tokens; an empty text if
        the operations are not known.
        """
        chains = self._chain(query.node), self._chain(key.node)
        if chains[0] is None or chains[1] is None:
            return ""
        signature = tuple(self._signature(chain, side) for chain, side in zip(chains, (query, key)) if chain)
        if signature not in self.cache:
            codes = [self._codes(chain, side) for chain, side in zip(chains, (query, key)) if chain]
            self.cache[signature] = _axes(*codes)
        return self.cache[signature]

    def _parents(self, node: int) -> tuple[int, ...] | None:
        """Returns the nodes whose entries a node has, at places that are known; none for an origin. None:
        they are not known.
        """
        step, link = self.flow.steps.get(node), self.flow.links.get(node)
        if node in self._whole:
            return ()
        if step is not None and step.weight is not None:
            return () if self._before_division(node) is None else (step.parent,)
        if step is not None:
            return step.joined or step.parents[:1]
        if link is not None:
            return () if link.rows else (link.parent,)
        return None

    def _chain(self, node: int | None) -> list[int] | None:
        """Returns the origin of a node and the nodes after it, oldest first; None if there is not exactly
        one.
        """
        found, origins, todo = set(), 0, [node]
        while todo:
            current = todo.pop()
            parents = None if current is None else self._parents(current)
            if current is None or parents is None or len(found) > MAX_CHAIN:
                return None
            if current not in found:
                found.add(current)
                origins += not parents
                todo += parents
        return sorted(found) if origins == 1 else None

    def _signature(self, chain: list[int], operand: Operand) -> Any:
        """Returns a hashable description of the operations of a chain."""
        index = {node: i for i, node in enumerate(chain)}
        steps = []
        for node in chain[1:]:
            step = self.flow.steps.get(node)
            arguments = ()
            if step is not None and step.function is not None:
                arguments = step.function, hashable(step.args), hashable(step.kwargs), step.part
            steps.append((arguments, tuple(index[parent] for parent in self._parents(node) or ())))
        return self._origin(chain[0]), tuple(steps), operand.flip, operand.letters, operand.repeats

    def _origin(self, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the shape of an origin, and its axes that are rows of the matrix."""
        link = self.flow.links.get(node)
        if link is None or node in self._whole:
            shape = self._whole.get(node) or self.flow.steps[node].shape
            return shape, (len(shape) - 1,)
        return link.shape, tuple(axis % len(link.shape) for axis in link.rows)

    def _codes(self, chain: list[int], operand: Operand) -> tuple[Tensor, int] | None:
        """Computes the codes ``[*lead, tokens, head_dim]`` of queries or keys, and the number of rows; None
        if there are too many.
        """
        shape, rows = self._origin(chain[0])
        if math.prod(shape) > MAX_CODES:
            return None
        order = [axis for axis in range(len(shape)) if axis not in rows] + list(rows)
        codes = torch.arange(math.prod(shape), dtype=torch.int32).view([shape[axis] for axis in order])
        known = {chain[0]: codes.permute([order.index(axis) for axis in range(len(shape))])}
        for node in chain[1:]:
            step, parents = self.flow.steps.get(node), self._parents(node)
            if step is not None and step.function is not None:
                known[node] = apply_step(step, known)
            elif parents:
                known[node] = known[parents[0]]
            if step is not None and step.weight is not None:  # all features of a head stand for the head
                known[node] = known[node][..., :1].expand(step.shape)
        return operand.read(known[chain[-1]]), math.prod(shape[axis] for axis in rows)


def _axes(query: tuple[Tensor, int] | None, key: tuple[Tensor, int] | None) -> Arrangement | str:
    """Determines heads and sequences from the codes of queries and keys, or the reason why there are none."""
    if query is None or key is None:
        return ""
    arrangement = arrangement_of(query, key)
    if isinstance(arrangement, Arrangement):
        return arrangement
    if not _runs_over_rows(*key):
        return ""
    return CHANNELS if _runs_over_rows(*query) else MIXTURES


def _runs_over_rows(codes: Tensor, out: int) -> bool:
    """Whether the axis before the last one runs over rows of the matrix, at the same token."""
    if codes.shape[-2] < 2 or not codes.numel():
        return False
    tokens, rows = codes // out, codes % out
    return bool((tokens == tokens[..., :1, :]).all()) and bool((rows != rows[..., :1, :])[..., 1, :].all())


def doubt(shape: torch.Size, head_dim: int, tokens: Tensor | None, batch: int) -> str:
    """Returns the reason why the leading axes of scores cannot be taken for sequences and heads; an empty
    text if they can.

    Args:
        shape: shape of the weights, ``[*lead, queries, keys]``.
        head_dim: length of a query.
        tokens: input of the module; None if unknown.
        batch: number of its sequences.
    """
    *lead, queries, keys = shape
    if tokens is None or tokens.ndim < 3 or not lead:
        return ""
    sizes = tokens.shape
    # tokens of a sequence, if the channels are the last axis, or the first after the batch
    counts = {math.prod(sizes) // batch // dim for dim in {sizes[-1], sizes[1]}}
    all_channels = any(math.prod(lead) * keys == batch * dim for dim in (sizes[-1], sizes[1]))
    if queries == keys and queries not in counts and head_dim in counts and all_channels:
        return CHANNELS
    if len(lead) == 1:
        heads, rest = divmod(lead[0], batch)
        parts = [count // queries for count in counts if count > queries and not count % queries]
        return UNCLEAR if not rest and queries not in counts and any(not heads % n for n in parts) else ""
    sequences = math.prod(lead[:-1])
    fits = sequences == batch or any(sequences * queries == batch * count for count in counts)
    return "" if fits else UNCLEAR
