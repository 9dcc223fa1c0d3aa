r"""Sums and products of projections as one product of tokens with a matrix.

    q = W x                          linear layer
    q = W x + s B A x                an adapter (LoRA) that is not merged: matrix W + s B A
    q = W_2 W_1 x                    a factored matrix
    q = D W x                        entries scaled by learnt numbers

A tensor may be such a product of several earlier tensors: q = W_2 h with h = W_1 x is a product of h and of
x. Terms of a sum must be products of the same tokens. Source: :cite:t:`vaswani2017attention`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .flow import Flow, Step

MAX_DEPTH = 8  # largest number of sums and products that are followed back
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


def linear_maps(flow: Flow, node: int, depth: int = MAX_DEPTH) -> dict[int, LinearMap]:
    """Returns a tensor as products of tokens with a matrix, by the root of the tokens in the flow.

    Args:
        flow: flow of tensors of the pass, with steps.
        node: node of the tensor ``[*lead, out]``.
        depth: largest number of steps that are followed back.
    Returns:
        The products, those of the latest tokens first; none if the tensor is no such product.
    """
    step = flow.steps.get(node)
    if step is None or depth == 0:
        return {}
    if step.weight is not None:
        own = {flow.root[step.parent]: LinearMap(step.tokens, step.weight.shape[1], _constant(step.weight))}
        return own | _each(
            lambda inner: _product(step.weight, inner), linear_maps(flow, step.parent, depth - 1)
        )
    if step.terms:
        maps = [linear_maps(flow, term, depth - 1) for term, _ in step.terms]
        factors = [factor for _, factor in step.terms]
        return _together(lambda matrices: _sum(matrices, factors), maps)
    if step.scales is not None:
        scales = step.scales
        return _each(lambda W: scales[:, None] * W, linear_maps(flow, step.parent, depth - 1))
    if step.written is not None:
        index, value = step.written
        return _written(flow, step, index, value, depth - 1)
    if step.joined:
        last = len(step.shape) - 1
        axis = step.kwargs.get("dim", step.args[0] if step.args else 0)
        maps = [_or_zeros(flow, part, depth - 1) for part in step.joined]
        return _together(torch.cat, maps) if step.function is not torch.stack and axis in (-1, last) else {}
    inner = linear_maps(flow, step.parent, depth - 1)
    if step.function is None:
        factor = step.factor
        return inner if factor == 1 else _each(lambda W: factor * W, inner)
    rows = _moved_rows(flow, step) if inner else None
    return {} if rows is None else _each(lambda W: W[rows.to(W.device)], inner)


def _written(flow: Flow, step: Step, index: Any, value: int, depth: int) -> dict[int, LinearMap]:
    """Returns the maps of a tensor of which some places along the last axis were overwritten."""
    rows = _rows(_places(step.shape)[index], step.shape) if _small(step.shape) else None
    if rows is None:
        return {}

    def replaced(matrices: list[Tensor]) -> Tensor:
        old, new = matrices
        result = old.to(torch.promote_types(old.dtype, new.dtype), copy=True)
        result[rows.to(result.device)] = new.to(result)
        return result

    return _together(replaced, [_or_zeros(flow, step.parent, depth), _or_zeros(flow, value, depth)])


def _or_zeros(flow: Flow, node: int, depth: int) -> dict[int, LinearMap] | int:
    """Returns the maps of a tensor, or the number of rows of a constant tensor, whose matrix is zero."""
    maps = linear_maps(flow, node, depth)
    return flow.widths[node] if not maps and node in flow.widths else maps


def _together(
    combine: Callable[[list[Tensor]], Tensor], maps: list[dict[int, LinearMap] | int]
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

        return LinearMap(first.tokens, first.width, matrix)

    return {root: of(root) for root in products[0] if all(root in one for one in products)}


def _each(change: Callable[[Tensor], Tensor], maps: dict[int, LinearMap]) -> dict[int, LinearMap]:
    """Changes the matrix of each map."""
    return {
        root: LinearMap(one.tokens, one.width, lambda make=one.matrix: change(make()))
        for root, one in maps.items()
    }


def _constant(weight: Tensor) -> Callable[[], Tensor]:
    return lambda: weight


def _product(outer: Float[Tensor, "out k"], inner: Float[Tensor, "k in"]) -> Float[Tensor, "out in"]:
    dtype = torch.promote_types(outer.dtype, inner.dtype)
    return outer.to(dtype) @ inner.to(dtype)


def _sum(matrices: list[Tensor], factors: list[float]) -> Tensor:
    (first, *others), (factor, *rest) = matrices, factors
    total = first * factor
    for matrix, each in zip(others, rest):
        total = total + matrix * each
    return total


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
