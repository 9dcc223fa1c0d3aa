"""Bad input: one clear line that says what was expected, what came and what to do."""

import math

import numpy as np
import pytest
import torch

from transformer_theory import universal
from transformer_theory.theories.universal import ContextualMapping, UniversalApproximator

identity = UniversalApproximator(lambda x: x, 2, 1, 0.5).fit()

figures = {experiment.name: experiment for experiment in universal.THEORY.experiments}


def codes_of(mapping: ContextualMapping) -> np.ndarray:
    return mapping.decode(mapping.codes([[0], [0], [1]]))


def softmax(beta: float) -> np.ndarray:
    return ContextualMapping(1, 2, 0.5).codes([[0], [1]], dtype=np.float64, inverse_temperature=beta)


CASES = {
    "delta is not 1/k": (
        lambda: ContextualMapping(1, 3, 0.3),
        r"delta must be 1/k .*got 0.3; pass e.g. delta=1/3",
    ),
    "delta above 1/2": (lambda: ContextualMapping(1, 3, 1.0), r"delta must be 1/k .*got 1.0; pass"),
    "negative delta": (lambda: ContextualMapping(1, 3, -0.5), r"delta must be 1/k"),
    "NaN": (lambda: ContextualMapping(1, 3, math.nan), r"delta must be 1/k"),
    "tiny delta": (lambda: ContextualMapping(1, 3, 1e-300), r"delta must be 1/k"),
    "no tokens": (lambda: ContextualMapping(1, 0, 0.5), r"n must be at least 1, got 0"),
    "positions": (
        lambda: ContextualMapping(1, 3, 0.5, "sines"),
        r"positions must be one of 'none', 'integers', 'steps', got 'sines'",
    ),
    "global factor": (
        lambda: ContextualMapping(1, 3, 0.5, global_factor=0),
        r"global_factor must be at least 1, got 0",
    ),
    "too many grids": (
        lambda: ContextualMapping(2, 6, 1 / 4).grids(),
        r"at most 1,000,000 grids .*got 4\^\(2 \* 6\) = 16,777,216; pass n <= 4 or delta >= 1/3",
    ),
    "far too many grids": (lambda: universal.all_grids(10, 10, 10), r"about 1e100; lower d or n"),
    "shape of grids": (
        lambda: ContextualMapping(1, 3, 0.5).codes([[0], [1]]),
        r"grids must have shape \[\*grids, 3, 1\], got \[2, 1\]",
    ),
    "grids out of range": (
        lambda: ContextualMapping(1, 2, 0.5).codes([[0], [2]]),
        r"integers in \[0, 2\).*got 0 to 2; quantise",
    ),
    "grids of floats": (
        lambda: ContextualMapping(1, 2, 0.5).codes([[0.5], [0.0]]),
        r"integers in \[0, 2\).*got float64; quantise",
    ),
    "softmax in integers": (
        lambda: ContextualMapping(1, 2, 0.5).codes([[0], [1]], inverse_temperature=10.0),
        r"softmax attention needs a floating dtype, got None; pass dtype=np.float64",
    ),
    "decoding": (
        lambda: ContextualMapping(1, 3, 0.5, "steps").decode(np.array([5])),
        r"decoding needs disjoint windows.*got positions='steps'",
    ),
    "points out of range": (
        lambda: identity(torch.tensor([[0.5], [1.0]])),
        r"points must lie in \[0, 1\), got 0.5 to 1; rescale",
    ),
    "shape of points": (
        lambda: identity(torch.zeros(3, 1)),
        r"points must have shape \[\*points, 2, 1\], got \[3, 1\]",
    ),
    "p": (lambda: identity.error(0.5), r"p must be at least 1 .*got 0.5"),
    "ramp": (lambda: identity.layers(ramp=0.0), r"ramp must lie in \(0, 1\), got 0.0"),
    "shape of f": (
        lambda: UniversalApproximator(lambda x: x.sum(1), 2, 1, 0.5).fit(),
        r"values of f must be finite and have shape \[4, 2, 1\], got \[4, 1\]",
    ),
    "f is not finite": (
        lambda: UniversalApproximator(lambda x: x / 0, 2, 1, 0.5).fit(),
        r"values of f must be .*got values that are not finite",
    ),
    "attention": (
        lambda: UniversalApproximator(lambda x: x, 2, 1, 0.5, attention="some"),
        r"attention must be one of 'all', 'none', got 'some'",
    ),
    "layers without attention": (
        lambda: UniversalApproximator(lambda x: x, 2, 1, 0.5, attention="none").fit().layers(),
        r"got attention='none'; pass attention='all'",
    ),
    "object grids": (
        lambda: ContextualMapping(1, 2, 0.5).codes(np.array([[0.5], [0]], dtype=object)),
        r"grids must be a tensor, an array",
    ),
    "ragged grids": (
        lambda: ContextualMapping(1, 2, 0.5).codes([[0], [1, 1]]),
        r"grids must be .* of one shape",
    ),
    "repeated tokens": (
        lambda: codes_of(ContextualMapping(1, 3, 0.5)),
        r"codes must be those of tokens of covered grids, got \d+",
    ),
    "no code": (lambda: ContextualMapping(1, 3, 1 / 4).decode(np.array([7])), r"codes must be those .*got 7"),
    "negative code": (
        lambda: ContextualMapping(1, 3, 1 / 4).decode(np.array([-7])),
        r"codes must be those .*got -7",
    ),
    "infinite temperature": (
        lambda: softmax(math.inf),
        r"inverse_temperature must be positive and finite, got inf",
    ),
    "temperature NaN": (
        lambda: softmax(math.nan),
        r"inverse_temperature must be positive and finite, got nan",
    ),
    "negative temperature": (
        lambda: softmax(-1.0),
        r"inverse_temperature must be positive and finite, got -1",
    ),
    "values with NaN": (
        lambda: identity.settings.fit_values(np.full((4, 2, 1), np.nan)),
        r"values must be finite .*not finite",
    ),
    "shape of values": (
        lambda: identity.settings.fit_values(np.zeros((1, 2, 4))),
        r"values must be .*\[4, 2, 1\], got \[1, 2, 4\]",
    ),
    "f is not equivariant": (
        lambda: UniversalApproximator(lambda x: x.cumsum(1), 2, 1, 0.25, equivariant=True).fit(),
        r"f must be permutation-equivariant .*; pass equivariant=False",
    ),
    "f of float32": (
        lambda: UniversalApproximator(torch.nn.Linear(1, 1), 2, 1, 0.5).fit(),
        r"f must take float64 tensors .*convert its input or weights",
    ),
    "arrays of two lengths": (
        lambda: universal.collisions(np.zeros((2, 3)), np.zeros((2, 2))),
        r"one shape, got \[2, 3\] and \[2, 2\]",
    ),
    "a grid of many tokens": (lambda: universal.all_grids(2, 1, 10**5), r"about 1e30102; pass n <= 19"),
    "figure": (
        lambda: figures["universal.error"](values=(3, 3)),
        r"values must be strictly increasing, got \(3, 3\)",
    ),
    "excluded share": (lambda: universal.excluded_share(0, 1, 1), r"k must be at least 1, got 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case: str, request):
    request.getfixturevalue("unchecked")
    call, message = CASES[case]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_types(request):
    request.getfixturevalue("unchecked")
    with pytest.raises(TypeError, match=r"delta must be a number, got str; pass e.g. delta=1/4"):
        ContextualMapping(1, 3, "0.5")
    with pytest.raises(TypeError, match=r"n must be an integer, got float 2\.0"):
        ContextualMapping(1, 2.0, 0.5)
    with pytest.raises(TypeError, match="f must be a function"):
        UniversalApproximator(3, 2, 1, 0.5)
    with pytest.raises(TypeError, match="equivariant must be True or False, got 'yes'"):
        UniversalApproximator(lambda x: x, 2, 1, 0.5, equivariant="yes")
    for dtype in (np.int64, torch.float64):  # int64 would overflow: the largest code of (16, 1, 12) is 1.4e31
        with pytest.raises(TypeError, match=r"dtype must be None .* or a floating dtype of numpy"):
            ContextualMapping(1, 12, 1 / 16).codes(np.arange(12)[:, None], dtype=dtype)
    for call in (lambda: identity.error(generator=0), lambda: universal.random_function(0, n=3)):
        with pytest.raises(TypeError, match=r"generator must be a torch.Generator.*got int"):
            call()
    with pytest.raises(TypeError, match="p must be a number, got str"):
        identity.error("1")
