"""Public functions give the numbers of their arguments' precision, and gradients, inside autocast too."""

import inspect
from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import metrics
from transformer_theory.theories import collapse, crate, in_context, particles, rate_reduction
from transformer_theory.theories.crate.tasks import sparse_rate_reduction


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = torch.nn.functional.normalize(normal(60, 12), dim=1)
LABELS = torch.arange(60) % 3
SOFT = normal(60, 3, seed=1).softmax(1)
BASES = torch.linalg.qr(normal(12, 12, seed=2)).Q.unflatten(1, (3, 4)).transpose(0, 1).contiguous()
MAPS = normal(2, 3, 7, 7, seed=3).softmax(-1)
SCORES = normal(3, 7, 7, seed=4)
TOKENS = normal(2, 9, 12, seed=5)
MATRICES = 0.2 * normal(2, 12, 12, seed=6)

ON_WEIGHTS = ("diagonal_mass", "effective_support", "entropy", "sharpness", "sink_mass", "top1_mass")
ON_FEATURES = ("coding_rate", "coding_length", "centred_coding_length", "mean_coding_length")
ON_CLASSES = (
    "class_coding_rate",
    "class_coding_rate_gradient",
    "class_coding_rates",
    "compression_operators",
    "rate_reduction",
    "rate_reduction_gradient",
    "segmented_coding_length",
)
METRICS: dict[str, tuple[Callable, Tensor]] = (
    {name: (getattr(metrics, name), MAPS) for name in ON_WEIGHTS}
    | {
        name: (partial(getattr(metrics, name), eps=0.5), X)
        for name in (*ON_FEATURES, "coding_rate_gradient", "expansion_operator")
    }
    | {name: (partial(getattr(metrics, name), labels=LABELS, eps=0.5), X) for name in ON_CLASSES}
    | {
        "alignment": (lambda A: metrics.alignment(A, BASES.roll(1, 0)), BASES),
        "effective_rank": (metrics.effective_rank, TOKENS),
        "entropy_lower_bound": (partial(metrics.entropy_lower_bound, keys=7), SCORES.abs()),
        "hard_max_gap": (metrics.hard_max_gap, SCORES),
        "neural_collapse": (partial(metrics.neural_collapse, labels=LABELS), X),
        "numerical_rank": (partial(metrics.numerical_rank, tolerance=1e-3), TOKENS),
        "principal_angles": (lambda A: metrics.principal_angles(A, BASES[0] + 0.5 * BASES[1]), BASES[0]),
        "rank_collapse_residual": (metrics.rank_collapse_residual, TOKENS),
        "rollout": (metrics.rollout, MAPS),
        "stable_rank": (metrics.stable_rank, TOKENS),
        "subspace_coding_rate": (partial(metrics.subspace_coding_rate, bases=BASES, eps=0.5), TOKENS),
        "unit_norm": (metrics.unit_norm, TOKENS),
    }
)
OTHERS: dict[str, tuple[Callable, Tensor]] = {
    name: (partial(getattr(metrics, name), labels=SOFT, eps=0.5), X) for name in ON_CLASSES
} | {
    "incoherence": (crate.incoherence, BASES + 0.1),
    "incompleteness": (crate.incompleteness, BASES + 0.1),
    "sparse_rate_objective": (partial(crate.sparse_rate_objective, bases=BASES, eps=0.5, lam=0.1), TOKENS),
    "causal_exact_step": (
        partial(crate.causal_exact_step, bases=BASES, kappa=0.1, eps=0.5, context=9),
        TOKENS,
    ),
    "mssa": (partial(crate.mssa, bases=BASES, eps=0.5), TOKENS),
    "sparse_rate_reduction": (lambda z: sparse_rate_reduction(z, BASES, eps=0.5)[0], TOKENS),
    "softmax_field": (partial(particles.softmax_field, beta=2.0), TOKENS),
    "unnormalised_field": (partial(particles.unnormalised_field, beta=2.0), TOKENS),
    "energy": (partial(particles.energy, beta=2.0), TOKENS),
    "dimension": (collapse.dimension, TOKENS),
    "cubic_law": (lambda x: collapse.cubic_law(x, MATRICES[0], MATRICES[1]), TOKENS),
    "contraction": (lambda x: collapse.contraction(SCORES[0].softmax(-1), x), TOKENS[0, :7]),
    "dual_part": (lambda v: in_context.dual_part(SCORES, v), normal(3, 7, 4, seed=7)),
    "closed form of the loss": (lambda x: _loss(x, LABELS), X),
    "loss of memberships": (lambda x: _loss(x, SOFT), X),
}


def _loss(features: Tensor, labels: Tensor) -> Tensor:
    return rate_reduction.MaximalCodingRateReduction(gamma1=2.0)(features, labels).loss


def numbers(result: Any) -> Tensor:
    if is_dataclass(result):
        result = [value for value in astuple(result) if value is not None]  # pyright: ignore[reportArgumentType]
    return torch.as_tensor(result)


def test_each_public_function_of_metrics_is_called_here():
    public = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    assert public == METRICS.keys()


@each_case("call", [*METRICS.values(), *OTHERS.values()], ids=[*METRICS, *OTHERS])
def test_autocast_changes_neither_value_nor_gradient(call):
    function, inputs = call
    inputs = inputs.clone().requires_grad_()
    expected = numbers(function(inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = numbers(function(inputs))
        assert torch.is_autocast_enabled("cpu")
    assert found.dtype == expected.dtype
    assert_close(found, expected, rtol=1e-6, atol=1e-7)
    if expected.requires_grad:
        gradients = [torch.autograd.grad(value.sum(), inputs)[0] for value in (expected, found)]
        assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [LABELS, SOFT], ids=["labels", "memberships"])
def test_the_backward_pass_of_the_loss_may_run_inside_autocast(labels):
    inputs = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(_loss(inputs, labels), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(_loss(inputs, labels), inputs)
    assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_the_output_of_a_network_under_autocast_is_measured_in_float32():
    network = torch.nn.Linear(12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = network(X)
        found = metrics.subspace_coding_rate(features, BASES, eps=0.5)
    assert features.dtype == torch.bfloat16
    assert_close(found, metrics.subspace_coding_rate(features.float(), BASES, eps=0.5))
