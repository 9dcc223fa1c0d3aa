"""What is asked of numbers: one wording, which names what came."""

import math

import numpy as np
import pytest

from transformer_theory.core.validation import number, positive


@pytest.mark.parametrize("value", [0, 0.0, -1, math.inf, math.nan])
def test_what_is_not_above_zero_and_finite_is_named(value):
    with pytest.raises(ValueError, match=f"^step must be positive and finite, got {value}$"):
        positive(rate=1.0, step=value)
    with pytest.raises(ValueError, match=f"^eps must be positive and finite, got {value}; it is the distortion, squared inside$"):
        positive(eps=value)


@pytest.mark.parametrize(("value", "kind"), [("1", "str"), (None, "NoneType"), ([1.0], "list"), (1j, "complex")])
def test_what_is_no_number_is_named(value, kind):
    for check in (lambda: positive(step=value), lambda: number("step", value)):
        with pytest.raises(TypeError, match=f"^step must be a number, got {kind}$"):
            check()


def test_numbers_of_any_kind_pass():
    positive(a=1, b=1e-300, c=np.float32(0.5), d=np.int64(3))
    assert number("a", np.float64(2.0)) == 2.0
