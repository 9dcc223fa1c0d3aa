"""The shape checks of tests: once for equal shapes, again for others, and no call is made twice."""

from dataclasses import dataclass
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

calls: list[tuple[int, ...]] = []


@jaxtyping.jaxtyped(typechecker=beartype)
def columns(
    x: Float[Tensor, "n d"], y: Float[Tensor, " d"], *, wrong: tuple[int, ...] = ()
) -> Float[Tensor, " d"]:
    calls.append(tuple(x.shape))
    return x.new_zeros(wrong) if wrong else x.sum(0) + y


@jaxtyping.jaxtyped(typechecker=beartype)
def total(parts: list[Float[Tensor, " n"]]) -> float:
    return float(sum(part.sum() for part in parts))


@jaxtyping.jaxtyped(typechecker=beartype)
@dataclass
class Pair:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]


def test_arguments_of_other_shapes_and_types_are_checked_again():
    x, y = torch.zeros(3, 2), torch.zeros(2)
    columns(x, y)
    columns(x, y)
    others: list[Any] = [(x[0], y), (x, torch.zeros(3)), (x.long(), y), (x.numpy(), y), (x, None)]
    for bad in others:
        with pytest.raises(jaxtyping.TypeCheckError):
            columns(*bad)


def test_another_result_of_known_arguments_is_checked_and_no_call_is_repeated():
    x, y = torch.zeros(3, 4), torch.zeros(4)
    for size in (4, 4, 5):
        calls.clear()
        if size == 4:
            columns(x, y, wrong=(size,))
        else:
            with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
                columns(x, y, wrong=(size,))
        assert calls == [(3, 4)]
    columns(x, y)


@pytest.mark.parametrize("length", [2, 40])
def test_lists_are_checked_again(length):
    parts = [torch.zeros(2)] * length
    total(parts)
    total(parts)
    with pytest.raises(jaxtyping.TypeCheckError):
        total([torch.zeros(2, 2)] * length)


def test_fields_of_a_dataclass_are_checked_again():
    Pair(torch.zeros(2), torch.zeros(2))
    Pair(torch.zeros(2), torch.zeros(2))
    with pytest.raises(jaxtyping.TypeCheckError):
        Pair(torch.zeros(2), torch.zeros(3))
