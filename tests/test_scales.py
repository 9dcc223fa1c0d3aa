"""Every public function gives the right number at any scale and in any dtype, or refuses."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation
from jaxtyping import TypeCheckError
from torch import Tensor

from tests.scale_cases import CASES
from transformer_theory.core.errors import NotConverged

# in units of the rounding of the dtype in which a function computes: half precision is computed in float32
TOLERANCE = 1000
SHORT = [
    *((torch.float32, scale) for scale in (1e-30, 1e-10, 1e-4, 1.0, 1e4, 1e10, 1e30)),
    *((torch.float16, scale) for scale in (1e-4, 1.0, 1e4)),
    *((torch.bfloat16, scale) for scale in (1e-30, 1e-4, 1.0, 1e4, 1e30)),
]
LAWS = [
    *((torch.float32, scale) for scale in (2.0**-100, 2.0**-33, 2.0**33, 2.0**100)),
    *((torch.float64, scale) for scale in (2.0**-664, 2.0**664)),
]
NUMBERS = (0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 710.0, 1e-308, 1e308, 1e-30, 1e30)


def numbers(result: Any) -> list[Tensor]:
    """Returns all tensors of a result, numbers as tensors."""
    if is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, field.name) for field in fields(result)]
    if isinstance(result, tuple | list):
        return [tensor for value in result for tensor in numbers(value)]
    if isinstance(result, dict):
        return numbers(list(result.values()))
    if result is None or isinstance(result, str):
        return []
    return [result.detach() if isinstance(result, Tensor) else torch.from_numpy(np.asarray(result))]


def computed(call: Any) -> list[Tensor] | None:
    """Returns the numbers of a call; None if it refuses, in one clear line."""
    try:
        result = call()
        unknown = isinstance(result, tuple) and any(each is None for each in result)
        return None if unknown else numbers(result)
    except (ValueError, NotConverged) as error:
        assert "\n" not in str(error), error
        assert len(str(error)) > 20, error
        return None


def close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    """Compares results, each relative to the largest of its entries."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        short = [d for d in (dtype, one.dtype) if d.is_floating_point]
        eps = max(torch.finfo(torch.promote_types(d, torch.float32)).eps for d in short)
        one, other = one.double(), other.double()
        assert torch.equal(one.isfinite(), other.isfinite()), (one, other)
        ordinary = other.isfinite()
        assert torch.equal(one[~ordinary].nan_to_num(0.5), other[~ordinary].nan_to_num(0.5))
        one, other = one[ordinary], other[ordinary]
        if other.numel():
            size = float(other.abs().max())
            least = torch.finfo(torch.float32 if eps > 1e-10 else torch.float64).tiny
            error = float((one - other).abs().max())
            assert error <= max(TOLERANCE * eps * size, 100 * least), f"got {one.flatten()[:6].tolist()}, right {other.flatten()[:6].tolist()}"


@pytest.mark.parametrize(("dtype", "scale"), SHORT, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_short_dtypes(name, dtype, scale):
    case = CASES[name]
    if not case.scaled and scale != 1.0:
        pytest.skip("nothing is scaled")
    found = computed(lambda: case(scale, dtype))
    expected = computed(lambda: case(scale, dtype, exact=True))
    if scale == 1.0 and dtype == torch.float32:
        assert found is not None
    if found is None:
        return
    assert expected is not None
    for value in found:
        assert bool(torch.isfinite(value.double()).all()), value
    close(found, expected, dtype)


@pytest.mark.parametrize(("dtype", "scale"), LAWS, ids=str)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.degree is not None])
def test_laws(name, dtype, scale):
    case = CASES[name]
    expected = computed(lambda: case(dtype=dtype, exact=True))
    found = computed(lambda: case(scale, dtype, numbers=case.at(scale)))
    if found is None:
        return
    assert expected is not None
    factor = math.ldexp(1.0, round(math.log2(scale)))
    expected = [e if not e.is_floating_point() else e.double() * factor**case.degree for e in expected]
    close(found, expected, dtype)


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, case in CASES.items() for number in case.numbers]
)
def test_numbers(name, number, value):
    case = CASES[name]
    if isinstance(case.numbers[number], int):
        if not math.isfinite(value) or abs(value) > 1e6 or value != int(value):
            pytest.skip("no integer")
        value = int(value)
    found = computed(lambda: case(numbers={number: value}))
    for each in found or ():
        assert bool(torch.isfinite(each.double()).all()), each


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf, "zero", "no row", "no column"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.scaled or case.others])
def test_entries(name, entry):
    case = CASES[name]
    if entry in case.allowed:
        return
    tensors = list(case.scaled) + list(case.others)
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        new = tensor.clone(memory_format=torch.contiguous_format)
        if entry == "zero":
            new = torch.zeros_like(new)
        elif entry == "no row":
            new = new[..., :0, :] if new.ndim > 1 else new[:0]
        elif entry == "no column":
            new = new[..., :0]
        else:
            new.view(-1)[0] = entry
        others = [*tensors[:i], new, *tensors[i + 1 :]]
        try:
            found = computed(lambda others=others: case.function(*others, **case.numbers))
        except (BeartypeCallHintParamViolation, TypeCheckError):  # the empty tensor does not fit the others
            continue
        assert found is None or entry is not math.nan
        for each in found or ():
            assert bool(torch.isfinite(each.double()).all()), (i, each)
