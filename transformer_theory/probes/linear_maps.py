r"""Sums and products of projections as one product of tokens with a matrix.

    q = W x                          linear layer
    q = W x + s B A x                an adapter (LoRA) that is not merged: matrix W + s B A
    q = W_2 W_1 x                    a factored matrix
    q = D W x                        entries scaled by learnt numbers

A tensor may be such a product of several earlier tensors: q = W_2 h with h = W_1 x is a product of h and of
x. Terms of a sum must be products of the same tokens. Source: :cite:t:`vaswani2017attention`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .flow import Flow, Step

MAX_DEPTH = 64  # largest number of sums and products that are followed back
MAX_ENTRIES = 2**27  # largest number of entries whose places are followed


@dataclass(frozen=True)
class LinearMap:
    """A tensor ``[*lead, out]`` as a product of tokens with a matrix.

    Attributes:
        tokens: the tokens ``[*lead, in]``; None if they are no longer stored.
        width: number of columns of the matrix.
        matrix: function that returns the matrix ``[out, in]``.
    """

    tokens: Float[Tensor, "*lead in"] | None
    width: int
    matrix: Callable[[], Float[Tensor, "out in"]]


def linear_maps(flow: Flow, node: int) -> dict[int, LinearMap]:
    """Returns a tensor as products of tokens with a matrix, by the root of the tokens in the flow.

    Args:
        flow: flow of tensors of the pass, with steps.
        node: node of the tensor ``[*lead, out]``.
    Returns:
        The products, those of the latest tokens first; none if the tensor is no such product.
    """
    return _Search(flow).of(node)


class _Search:
    """Maps by node, found once each."""

    def __init__(self, flow: Flow):
        self.flow = flow
        self.known: dict[int, dict[int, LinearMap]] = {}
        self.depth = 0

    def of(self, node: int) -> dict[int, LinearMap]:
        """Returns the maps of a node, see :func:`linear_maps`."""
        step = self.flow.steps.get(node)
        if step is None or self.depth == MAX_DEPTH:
            return {}
        if node not in self.known:
            self.depth += 1
            self.known[node] = self._through(step)
            self.depth -= 1
        return self.known[node]

    def _through(self, step: Step) -> dict[int, LinearMap]:
        """Returns the maps of the output of a step."""
        if step.terms:
            factors = [factor for _, factor in step.terms]
            return _together(
                lambda matrices: _sum(matrices, factors), [self.of(term) for term, _ in step.terms]
            )
        if step.joined:
            axis = step.kwargs.get("dim", step.args[0] if step.args else 0)
            joins_rows = step.function is not torch.stack and axis in (-1, len(step.shape) - 1)
            return _together(torch.cat, [self.or_zeros(part) for part in step.joined]) if joins_rows else {}
        if step.written is not None:
            index, value = step.written
            rows = _rows(_places(step.shape)[index], step.shape) if _small(step.shape) else None
            maps = [self.or_zeros(step.parent), self.or_zeros(value)]
            return {} if rows is None else _together(lambda both: _replaced(both[0], both[1], rows), maps)
        inner = self.of(step.parent)
        if (weight := step.weight) is not None:
            own = {self.flow.root[step.parent]: LinearMap(step.tokens, weight.shape[1], lambda: weight)}
            return own | _each(lambda W: _product(weight, W), inner)
        if (scales := step.scales) is not None:
            return _each(lambda W: scales[:, None] * W, inner)
        if step.function is None:
            return inner if step.factor == 1 else _each(lambda W: step.factor * W, inner)
        rows = _moved_rows(self.flow, step) if inner else None
        return {} if rows is None else _each(lambda W: W[rows.to(W.device)], inner)

    def or_zeros(self, node: int) -> dict[int, LinearMap] | int:
        """Returns the maps of a tensor, or the number of rows of a constant tensor, whose matrix is zero."""
        maps = self.of(node)
        return self.flow.widths[node] if not maps and node in self.flow.widths else maps


def _together(
    combine: Callable[[list[Tensor]], Tensor], maps: Sequence[dict[int, LinearMap] | int]
) -> dict[int, LinearMap]:
    """Combines the matrices of several tensors that are products of the same tokens."""
    products = [one for one in maps if isinstance(one, dict)]
    if not products:
        return {}

    def of(root: int) -> LinearMap:
        first = products[0][root]

        def matrix() -> Tensor:
            known = [one if isinstance(one, int) else one[root].matrix() for one in maps]
            like = next(W for W in known if isinstance(W, Tensor))
            return combine([like.new_zeros(W, first.width) if isinstance(W, int) else W for W in known])

        return LinearMap(first.tokens, first.width, cache(matrix))

    return {root: of(root) for root in products[0] if all(root in one for one in products)}


def _each(change: Callable[[Tensor], Tensor], maps: dict[int, LinearMap]) -> dict[int, LinearMap]:
    """Changes the matrix of each map."""
    return {
        root: LinearMap(one.tokens, one.width, cache(lambda make=one.matrix: change(make())))
        for root, one in maps.items()
    }


def _product(outer: Float[Tensor, "out k"], inner: Float[Tensor, "k in"]) -> Float[Tensor, "out in"]:
    dtype = torch.promote_types(outer.dtype, inner.dtype)
    return outer.to(dtype) @ inner.to(dtype)


def _sum(matrices: list[Tensor], factors: list[float]) -> Tensor:
    (first, *others), (factor, *rest) = matrices, factors
    total = first * factor
    for matrix, each in zip(others, rest):
        total = total + matrix * each
    return total


def _replaced(
    old: Float[Tensor, "out in"], new: Float[Tensor, "few in"], rows: Int[Tensor, " few"]
) -> Float[Tensor, "out in"]:
    result = old.to(torch.promote_types(old.dtype, new.dtype), copy=True)
    result[rows.to(result.device)] = new.to(result)
    return result


def _places(shape: tuple[int, ...]) -> Int[Tensor, "..."]:
    """Numbers the entries of a tensor."""
    return torch.arange(math.prod(shape), dtype=torch.int32).view(shape)


def _small(shape: tuple[int, ...]) -> bool:
    return 0 < math.prod(shape) <= MAX_ENTRIES


def _moved_rows(flow: Flow, step: Step) -> Int[Tensor, " out"] | None:
    """Returns the matrix rows of the entries along the last axis after a move; None if it changed more than
    the last axis.
    """
    shape = flow.steps[step.parent].shape
    if step.function is None or not _small(shape):
        return None
    moved = step.function(_places(shape), *step.args, **step.kwargs)
    return _rows(moved if step.part is None else moved[step.part], shape)


def _rows(places: Int[Tensor, "..."], shape: tuple[int, ...]) -> Int[Tensor, " out"] | None:
    """Returns the places along the last axis of a tensor of this shape; None if others than the last axis
    were selected or moved.
    """
    if not places.ndim or not places.numel():
        return None
    places = places.reshape(-1, places.shape[-1])
    rows = places[0] % shape[-1]
    tokens = torch.arange(math.prod(shape[:-1]), dtype=places.dtype)[:, None]
    return rows.long() if torch.equal(places, tokens * shape[-1] + rows) else None
