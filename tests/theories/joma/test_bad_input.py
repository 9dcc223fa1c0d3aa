"""Bad input is named in one line: what was expected and what came."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories.joma import invariants, nonlinear, orbit
from transformer_theory.theories.joma.block import (
    Contexts,
    Exponential,
    Linear,
    Softmax,
    gaussian_block,
    sampled_contexts,
)
from transformer_theory.theories.joma.dynamics import Model, cross_entropy, gradient_descent
from transformer_theory.theories.joma.hierarchy import random_hierarchy
from transformer_theory.theories.joma.joint import fit_stack
from transformer_theory.theories.joma.mixture import Mixture, relu_averages, tanh_averages
from transformer_theory.theories.joma.nonlinear import linear_layer, nonlinear_layer
from transformer_theory.theories.joma.tree import uniform_tree

ONE = torch.ones(1, dtype=torch.float64)
NAN = math.nan * ONE
ZERO = torch.zeros(1, dtype=torch.long)
TREE = uniform_tree(rho=0.5, levels=3, zero=(0.5,))


def contexts(**changed) -> Contexts:
    return sampled_contexts(torch.Generator().manual_seed(0), **changed)


def path(model: Model, data: Contexts, **changed):
    start = gaussian_block(data, units=5, scale=0.3, generator=torch.Generator().manual_seed(0))
    return gradient_descent(start, data, model, **{"rate": 0.1, "steps": 2} | changed)


def fitted(**changed):
    drawn = random_hierarchy(torch.Generator().manual_seed(0), vocabulary=12, latents=(4, 5), classes=6)
    settings = {"steps": 3, "rate": 1e-2, "length": 12, "dim": 4, "width": 6} | changed
    return fit_stack(drawn, torch.Generator().manual_seed(0), **settings)


CASES = {
    "times none": (lambda: nonlinear.log_remaining(ONE, ONE[:0]), "times must be finite and not empty"),
    "times NaN": (lambda: nonlinear.log_remaining(ONE, NAN), "times must be finite"),
    "times then NaN": (lambda: nonlinear.log_remaining(ONE, torch.cat([ONE, NAN])), "times must be finite"),
    "times infinite": (lambda: nonlinear_layer(ONE[None], ONE / 0), "times must be finite"),
    "temperature 0": (
        lambda: nonlinear.attention(ONE, temperature=0.0),
        "temperature must be positive and finite, got 0",
    ),
    "temperature -1": (
        lambda: nonlinear.attention_entropy(ONE[None], temperature=-1.0),
        "temperature must be positive",
    ),
    "mu NaN": (lambda: nonlinear.salient_descent(NAN), "mu must be finite, got 1 NaN"),
    "mu zero": (lambda: nonlinear.log_remaining(0 * ONE, ONE), "mu must be finite and not zero"),
    "mu complex": (lambda: nonlinear.learning_ratio(1j * ONE), "mu must hold real numbers"),
    "times decrease": (lambda: nonlinear.log_remaining(ONE, torch.tensor([2.0, 1.0])), "times must increase"),
    "discriminancy NaN": (lambda: nonlinear.linear_descent(NAN), "discriminancy must be finite, got 1 NaN"),
    "start NaN": (lambda: nonlinear.salient_descent(ONE, start=math.nan), "start must be finite, got nan"),
    "steps -1": (lambda: nonlinear.salient_descent(ONE, steps=-1), "steps must be at least 0, got -1"),
    "rate 0": (lambda: nonlinear.salient_descent(ONE, rate=0.0), "rate must be positive"),
    "bounce NaN": (lambda: nonlinear.bounce(torch.cat([ONE, NAN])), "a curve must hold finite values"),
    "bounce none": (lambda: nonlinear.bounce(ONE[:0]), "a curve must hold finite values and at least one"),
    "rate_lower 0": (
        lambda: Model(Softmax(), rate_lower=0.0),
        "rate_lower must be positive and finite, got 0",
    ),
    "rate_logits -1": (lambda: Model(Softmax(), rate_logits=-1.0), "rate_logits must be positive"),
    "decay -1": (lambda: Model(Softmax(), decay=-1.0), "decay must be finite and at least 0, got -1"),
    "query float": (lambda: Contexts(ONE[None], ONE, ZERO), "query must hold integers, got torch.float64"),
    "target float": (lambda: Contexts(ONE[None], ZERO, ONE), "targets must hold integers"),
    "context empty": (lambda: Contexts(0 * ONE[None], ZERO, ZERO), "positive sum per row"),
    "context negative": (lambda: Contexts(-ONE[None], ZERO, ZERO), "positive sum per row"),
    "lengths differ": (
        lambda: Contexts(ONE[None], ZERO[:0], ZERO),
        "one length of at least 1, got 1 contexts, 0 queries, 1 targets",
    ),
    "query negative": (lambda: Contexts(ONE[None], ZERO - 1, ZERO), "numbered from 0"),
    "form temperature 0": (lambda: Softmax(0.0), "temperature must be positive and finite, got 0"),
    "form normaliser": (lambda: Exponential(normaliser=-1.0), "normaliser must be positive"),
    "no descent steps": (lambda: path(Model(Softmax()), contexts(), steps=0), "steps must be >= 1"),
    "save late": (lambda: path(Model(Softmax()), contexts(), save_steps=(3,)), r"save_steps in \[0, steps\]"),
    "few units": (
        lambda: cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])),
        r"targets must lie in \[0, 3\), one unit per target, got 3",
    ),
    "fixed mean of linear": (
        lambda: invariants.fixed_mean(Model(Linear()), contexts(), path(Model(Linear()), contexts())),
        "got linear attention; use first_term",
    ),
    "moving mean of exponential": (
        lambda: invariants.moving_mean(
            Model(Exponential()), contexts(), path(Model(Exponential()), contexts())
        ),
        "got exponential attention; use first_term",
    ),
    "factorisation of two queries": (
        lambda: invariants.factorisation_error(
            Model(Softmax()), contexts(queries=2), path(Model(Softmax()), contexts(queries=2))
        ),
        "contexts must have one query, got 2",
    ),
    "no sample has the query": (
        lambda: invariants.mean_attention(
            Model(Softmax()), contexts(), path(Model(Softmax()), contexts()), query=1
        ),
        r"query must be the query of some sample, in \[0, 1\), got 1",
    ),
    "few pulls": (
        lambda: Mixture(torch.zeros(3, 2), torch.zeros(2), 1.0, relu_averages),
        "one pull for each of its 3 centres",
    ),
    "column zero": (lambda: nonlinear_layer(torch.tensor([[1.0, 0.0]]), ONE), "finite and not zero"),
    "column NaN": (lambda: linear_layer(torch.tensor([[1.0, math.nan]]), ONE), "finite and not zero"),
    "remaining 0": (lambda: orbit.orbit(ONE, 0 * ONE), r"remaining must lie in \(0, 1\]"),
    "discriminancy zero": (lambda: orbit.blow_up_time(0 * ONE), "finite and not all zero"),
    "frequency negative": (
        lambda: orbit.normalised_clock(ONE, -ONE, 0.5 * ONE),
        "frequency must be finite, >= 0",
    ),
    "v zero": (
        lambda: Mixture(ONE[None], ONE, 1.0, relu_averages).velocity(0 * ONE),
        "v must be finite and not zero, got norm 0",
    ),
    "kinship 99": (lambda: TREE.kinship(99), r"leaf must lie in \[0, 8\), got 99"),
    "kinship -1": (lambda: TREE.kinship(-1), "got -1"),
    "frequency zero": (
        lambda: orbit.normalised_clock(ONE, 0 * ONE, 0.5 * ONE),
        "frequency must be finite, >= 0 and not all zero",
    ),
    "remaining none": (
        lambda: orbit.normalised_clock(ONE, ONE, ONE[:0]),
        "remaining must hold at least one share",
    ),
    "discriminancy none": (
        lambda: orbit.blow_up_time(ONE[:0]),
        "discriminancy must be finite and not all zero",
    ),
    "measured late": (
        lambda: fitted(measure_steps=(4,)),
        r"measure_steps must lie in \[0, 3\], the steps of this run, got 4",
    ),
    "measured early": (lambda: fitted(measure_steps=(-1,)), "got -1"),
    "rate huge": (lambda: fitted(rate=1e38), r"rate must lie in \(0, 1e\+06\], got 1e\+38"),
    "rate negative": (lambda: fitted(rate=-1.0), "rate must lie in"),
    "batch 0": (lambda: fitted(batch=0), "batch must be at least 1, got 0"),
    "no steps": (lambda: fitted(steps=0), "steps must be at least 1, got 0"),
}


@each_case("case", CASES)
def test_bad_input_is_named(unchecked, case: str):
    call, words = CASES[case]
    with pytest.raises((ValueError, TypeError), match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_at_the_start_nothing_is_learnt():
    assert_close(
        nonlinear.log_remaining(torch.tensor([2.0, 1.0], dtype=torch.float64), 0 * ONE),
        torch.zeros(1, 2, dtype=torch.float64),
    )


def test_tanh_averages_accept_single_precision():
    affinity, width = torch.tensor([0.3, -1.0]), torch.tensor(0.7)
    for single, double in zip(
        tanh_averages(affinity, width), tanh_averages(affinity.double(), width.double())
    ):
        assert_close(single.double(), double, atol=1e-6, rtol=1e-6)
