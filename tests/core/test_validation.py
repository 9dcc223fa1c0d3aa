"""Shared checks of arguments, and lossless conversion of arrays."""

import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.validation import (
    as_float64,
    converted,
    finite,
    integers,
    number,
    positive,
    same_dtype,
)


@each_case("value", [0, 0.0, -1, math.inf, math.nan])
def test_what_is_not_above_zero_and_finite_is_named(value):
    with pytest.raises(ValueError, match=f"^step must be positive and finite, got {value}$"):
        positive(rate=1.0, step=value)
    with pytest.raises(
        ValueError,
        match=f"^eps must be positive and finite, got {value}; it is the distortion, squared inside$",
    ):
        positive(eps=value)


@each_case(("value", "kind"), [("1", "str"), (None, "NoneType"), ([1.0], "list"), (1j, "complex")])
def test_what_is_no_number_is_named(value, kind):
    for check in (lambda: positive(step=value), lambda: number("step", value)):
        with pytest.raises(TypeError, match=f"^step must be a number, got {kind}$"):
            check()


def test_numbers_of_any_kind_pass():
    positive(a=1, b=1e-300, c=np.float32(0.5), d=np.int64(3))
    assert number("a", np.float64(2.0)) == 2.0


def test_counts():
    integers(steps=1, dim=np.int64(3))
    integers(minimum=0, steps=0)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        integers(steps=0)
    for value in (1.5, True, "3"):
        with pytest.raises(TypeError, match="steps"):
            integers(steps=value)


@converted(float64=("x",), int64=("labels",), floats=("w",))
def kinds(x, labels=None, *, w=None):
    return x, labels, w


@each_case(
    "x",
    [
        np.ones(2, "float32"),
        np.ones(2, "int32"),
        np.ones(2, ">f8"),
        np.ones(2, ">i4"),
        np.ones(2, "uint64"),
        np.ma.masked_array([1.0, 1.0], mask=[False, False]),
        [1, 1],
        torch.ones(2),
        torch.ones(2).half(),
        torch.ones(2).long(),
    ],
)
def test_lossless_conversion(x):
    value, labels, w = kinds(x, np.array([1, 2], "uint8"), w=np.ones(2, "float32"))
    assert value.dtype == torch.float64
    assert value.tolist() == [1.0, 1.0]
    assert labels.dtype == torch.int64
    assert w.dtype == torch.float32


@each_case(
    "x",
    [
        "text",
        None,
        {"a": 1},
        np.array(["a"]),
        np.ones(2, bool),
        np.ones(2, complex),
        [[1], [1, 2]],
        torch.tensor([2**60 + 1]),
        np.array([2**63], "uint64"),
        np.ma.masked_array([1.0, 2.0], mask=[False, True]),
    ],
)
def test_what_would_lose_something_is_refused(x):
    with pytest.raises((TypeError, ValueError), match=r"^x must"):
        kinds(x)
    with pytest.raises(TypeError, match=r"^labels must hold integers"):
        kinds([1.0], labels=[1.5])


def test_an_array_of_objects_is_named():
    with pytest.raises(
        ValueError,
        match="x must be a tensor, an array or a list of numbers of one shape, got an array of object",
    ):
        kinds(np.array([[1], [1, 2]], dtype=object))


def test_a_conversion_of_an_unknown_argument_is_an_error_of_its_author():
    with pytest.raises(TypeError, match="'y'"):
        converted(float64=("y",))(lambda x: x)


def test_tensors():
    finite(x=torch.ones(2))
    with pytest.raises(ValueError, match="x must be finite, got 1"):
        finite(x=torch.tensor([1.0, math.nan]))
    same_dtype(x=torch.ones(1), y=torch.ones(1))
    with pytest.raises(ValueError, match=r"x and y .*float32 and torch.float64"):
        same_dtype(x=torch.ones(1), y=torch.ones(1).double())
    with pytest.raises(ValueError, match="y on a CPU"):
        same_dtype(x=torch.ones(1), y=torch.ones(1).half())


def test_autocast_is_off_inside_and_on_again_afterwards():
    @converted(floats=("x",))
    def product(x, *, fails: bool = False):
        if fails:
            raise ValueError("inside")
        return x @ x

    x = torch.full((4, 4), 1 + 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(product(x), torch.full((4, 4), 4 * (1 + 2**-12) ** 2))
        assert (x @ x).dtype == torch.bfloat16
        with pytest.raises(ValueError, match="inside"):
            product(x, fails=True)
        assert (x @ x).dtype == torch.bfloat16


def test_one_integer_that_float64_does_not_hold_is_refused():
    largest = 2**53
    assert as_float64("x", [1, -largest]).tolist() == [1.0, -float(largest)]
    for values in ([1, largest + 1], [-largest - 1, 0]):
        with pytest.raises(ValueError, match=rf"x must hold integers up to 2\^53, .* got {largest + 1}"):
            as_float64("x", values)
