"""Each public function gives the right number at any scale and in any dtype, or refuses in one clear line.

The right number is that of float64 for the same rounded arguments, up to :data:`TOLERANCE` rounding units of
the dtype in which a function computes: half precision is computed in float32. Where float64 does not hold
the squares, it is the law of homogeneity. :mod:`tests.scale_cases` has a call of each function.
"""

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation
from jaxtyping import TypeCheckError
from torch import Tensor

from tests.cases import each_case
from tests.scale_cases import CASES
from transformer_theory import metrics
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories import list_theories

TOLERANCE = 1000  # rounding units of the largest entry of a result; an ill-conditioned sum costs some digits
SHORT = {
    torch.float32: (1e-30, 1e-10, 1e-4, 1.0, 1e4, 1e10, 1e30),
    torch.float16: (1e-4, 1.0, 1e4),
    torch.bfloat16: (1e-30, 1e-4, 1.0, 1e4, 1e30),
}
LAWS = {
    torch.float32: (2.0**-100, 2.0**-33, 2.0**33, 2.0**100),
    torch.float64: (2.0**-664, 2.0**664),  # 1e-200 and 1e200
}
BOUNDARIES = (0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 710.0, 1e-308, 1e308, 1e-30, 1e30)

# Public functions without a case: they run networks or trainings, whose numbers are tested there.
RUNS = {
    "attention_svm": {"analyse", "analyse_head", "joint_descent", "regularisation_path", "trajectory"},
    "bottleneck": {"train_variational", "variational_bound"},
    "crate": {"class_attention", "components", "layerwise"},
    "graph_tokens": {"train_heads"},
    "in_context": {"slope_on_step", "train_attention"},
    "joma": {"fit_stack"},
    "router": {"train_selectors"},
    "scan_snap": {"analyse", "gradient_descent"},
    "universal": {"run"},  # in exact arithmetic
    "vision": {"train_patches", "train_tokens", "transfer_accuracy"},
    "attention_svm graphs": {"graph_svm"},
    "rate_reduction processes": {"union_of_ranks"},
}


def numbers(result: Any) -> list[Tensor]:
    """Returns the tensors of a result, and its numbers as tensors."""
    if is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, field.name) for field in fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        return [tensor for value in result for tensor in numbers(value)]
    if result is None or isinstance(result, str):
        return []
    return [result.detach() if isinstance(result, Tensor) else torch.from_numpy(np.asarray(result))]


def computed(call: Callable[[], Any]) -> list[Tensor] | None:
    """Returns the numbers of a call; None if it refuses, or names a number that does not exist as None."""
    try:
        result = call()
    except (ValueError, Infeasible, NotConverged) as error:
        check_message(error)
        return None
    unknown = isinstance(result, tuple) and any(value is None for value in result)
    return None if unknown else numbers(result)


def check_message(error: Exception) -> None:
    """Checks that a refusal is one line that says what was expected or what came."""
    message = str(error)
    assert "\n" not in message
    clear = re.search(r"\b(got|must|needs?|expected)\b", message)
    assert clear or isinstance(error, NotConverged | Infeasible), message


def are_finite(values: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(value.double()).all()) for value in values)


def error_of(found: list[Tensor], right: list[Tensor], dtype: torch.dtype) -> float:
    """Returns the largest error of a result relative to its largest entry, in units of the tolerance."""
    assert [one.shape for one in found] == [other.shape for other in right]
    worst = 0.0
    for one, other in zip(found, right):
        if other.numel():
            dtypes = [kind for kind in (dtype, one.dtype) if kind.is_floating_point]
            unit = max(torch.finfo(torch.promote_types(kind, torch.float32)).eps for kind in dtypes)
            # numbers below the smallest normal one have fewer digits
            least = torch.finfo(torch.float32 if unit > 1e-10 else torch.float64).tiny
            allowed = max(TOLERANCE * unit * float(other.double().abs().max()), 100 * least)
            worst = max(worst, float((one.double() - other.double()).abs().max()) / allowed)
    return worst


def test_each_public_function_has_a_case():
    names = [theory.name for theory in list_theories()]
    modules = {name: import_module(f"transformer_theory.theories.{name}") for name in names}
    for theory, module in {"metrics": metrics, **modules}.items():
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function):
                continue  # a class, or a record
            hints = str(
                [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
            )
            known = any(case.split(":")[0] == f"{theory}.{name}" for case in CASES)
            takes_numbers = "Float[" in hints or "float" in hints or "inspect._empty" in hints
            runs = any(name in names for key, names in RUNS.items() if key.split()[0] == theory)
            assert known or runs or not takes_numbers, (
                f"add a call of {theory}.{name} to tests/scale_cases.py"
            )


@each_case("name", CASES)
def test_short_dtypes_agree_with_float64(name):
    case = CASES[name]
    for dtype, scales in SHORT.items():
        if dtype != torch.float32 and not (case.scaled or case.others):
            continue  # without tensors the call has no dtype
        for scale in scales if case.scaled else (1.0,):
            where = f"{name} of {dtype} at the scale {scale:g}"
            found = computed(lambda dtype=dtype, scale=scale: case(scale, dtype))
            if found is None:
                ordinary = scale == 1 and dtype == torch.float32 and case.in_float32
                assert not ordinary, f"{where} refuses"
                continue
            right = computed(lambda dtype=dtype, scale=scale: case(scale, dtype, exact=True))
            assert right is not None, f"{where} gives {found}, but float64 refuses"
            assert are_finite(found), f"{where} gives {found}"
            error = error_of(found, right, dtype)
            assert error <= 1, f"{where} gives {found} for {right}, {error:.1g} times the tolerance"


@each_case("name", [name for name, case in CASES.items() if case.degree is not None])
def test_laws_of_scale_hold(name):
    case = CASES[name]
    for dtype, scales in LAWS.items():
        right = computed(lambda dtype=dtype: case(dtype=dtype, exact=True))
        assert right is not None
        for scale in scales:
            found = computed(lambda dtype=dtype, scale=scale: case(scale, dtype, numbers=case.at(scale)))
            if found is None:
                continue
            factor = float(np.float64(scale) ** case.degree)
            scaled = [each.double() * factor if each.is_floating_point() else each for each in right]
            assert are_finite(found), f"{name} at the scale {scale:g} of {dtype} gives {found}"
            error = error_of(found, scaled, dtype)
            assert error <= 1, f"{name} at the scale {scale:g} of {dtype} gives {found} for {scaled}"


@each_case("dtype", [torch.float32, torch.float64], ids=str)
@each_case("name", [name for name, case in CASES.items() if case.numbers])
def test_numbers_at_boundaries_give_finite_results_or_are_refused(name, dtype):
    case = CASES[name]
    if dtype == torch.float32 and not (case.scaled or case.others):
        return
    for number, ordinary in case.numbers.items():
        for value in BOUNDARIES:
            if isinstance(ordinary, int):
                if not math.isfinite(value) or not -1 <= value <= 710 or value != int(value):
                    continue
                value = int(value)
            found = computed(lambda number=number, value=value: case(1.0, dtype, numbers={number: value}))
            assert found is None or are_finite(found), f"{name} with {number}={value} gives {found}"


@each_case("name", [name for name, case in CASES.items() if case.scaled or case.others])
def test_entries_at_boundaries_give_finite_results_or_are_refused(name):
    case = CASES[name]
    tensors = [*case.scaled, *case.others]
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        changed = {"zero": torch.zeros_like(tensor), "no column": tensor[..., :0]}
        changed["no row"] = tensor[..., :0, :] if tensor.ndim > 1 else tensor[:0]
        for entry in (math.nan, math.inf, -math.inf):
            if entry not in case.allowed:
                changed[str(entry)] = tensor.clone(memory_format=torch.contiguous_format)
                changed[str(entry)].view(-1)[0] = entry
        for kind, other in changed.items():
            given = [*tensors[:place], other, *tensors[place + 1 :]]
            try:
                found = computed(lambda given=given: case.function(*given, **case.numbers))
            except (BeartypeCallHintParamViolation, TypeCheckError):
                continue  # the empty tensor does not fit the others
            assert found is None or are_finite(found), f"{name} with {kind} gives {found}"
            assert found is None or kind != "nan", f"{name} hides NaN in argument {place}"


@each_case(
    ("call", "right"),
    [
        (lambda: metrics.hard_max_gap(torch.tensor([[60_000.0, -60_000.0]]).half()), 120_000.0),
        (lambda: CASES["collapse.squared_contraction"].function(1e-12, 1 - 1e-6, 4, 1e20), 2.5e-19),
        (lambda: CASES["length.score_gap"].function(torch.tensor([5.0, *[0.0] * 100_000]).half()), 5.0),
        (lambda: CASES["length.top_weight"].function(torch.zeros(1, 100_000).half()), 1e-5),
        (lambda: CASES["length.kept_share"].function(*torch.tensor([[1e4, 1e4], [1e4, 1e4]])), 0.5),
        (lambda: CASES["crate.neumann_error"].function(1e150, terms=1), 1e150),
        (lambda: CASES["bottleneck.gaussian_bottleneck"].function([0.5], 1e308)[1], 0.5 * math.log(2)),
        (lambda: CASES["collapse.depth_cosine"].function(1e308, 3, 4), 1.0),
        # 4 (h(2) - h(1)) of mpmath: the first order cancels
        (lambda: CASES["rate_reduction.flat_reduction"].function(eps=1e6), 2.2633136094668e-26),
        (lambda: CASES["particles.energy"].function(torch.eye(4), beta=1e30), 0.25),
        (lambda: CASES["router.entropy_gradient"].function([0.0, -math.inf])[1], 0.0),
    ],
)
def test_by_hand(call, right):
    assert float(call()) == pytest.approx(right, rel=1e-6)
