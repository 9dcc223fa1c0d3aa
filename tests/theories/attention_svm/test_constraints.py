"""Constraints: defaults, errors, and one-line descriptions of problems and solutions."""

import math

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import Constraints, builders, solvers
from transformer_theory.theories.attention_svm.constraint_set import stack
from transformer_theory.theories.attention_svm.feasibility import construct
from transformer_theory.theories.attention_svm.graph import priority_graph
from transformer_theory.theories.attention_svm.problem import cross_attention

SOLVERS = {
    "frobenius_max_margin": solvers.frobenius_max_margin,
    "frobenius_max_margins": solvers.frobenius_max_margins,
    "nuclear_max_margin": solvers.nuclear_max_margin,
    "nuclear_max_margins": solvers.nuclear_max_margins,
    "lp_max_margin": lambda c, **options: solvers.lp_max_margin(c, p=3, **options),
    "spectral_max_margin": solvers.spectral_max_margin,
}
ONE = ("frobenius_max_margin", "nuclear_max_margin", "lp_max_margin", "spectral_max_margin")


def drawn(seed: int = 0, trials: int | None = None):
    generator = torch.Generator().manual_seed(seed)
    instance = cross_attention(inputs=3, tokens=4, dim=5, generator=generator, trials=trials)
    return instance, builders.constraints(instance.tokens, instance.query, instance.optimal())


def test_defaults_are_filled_in():
    d, z = (torch.ones(2, 3, k, dtype=torch.float64) for k in (4, 5))
    c = Constraints(d, z)
    assert c.rhs.eq(1).all()
    assert not c.equality.any()
    assert c.equality.dtype == torch.bool
    assert c.input.tolist() == [[0, 1, 2]] * 2
    assert not c.token.any()
    assert not c.position.any()
    for value in (c.rhs, c.equality, c.input, c.token, c.position):
        assert value.shape == (2, 3)


def test_descriptions_are_one_short_line():
    instance, single = drawn()
    _, batch = drawn(trials=3)
    impossible = builders.constraints(instance.tokens, torch.zeros_like(instance.query), instance.optimal())
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(impossible)
    solution = solvers.nuclear_max_margin(single)
    described = {
        repr(single): "m=9, d_x=5, d_z=5, equations=0",
        repr(batch): "batch=[3]",
        repr(solution): f"rank={solution.rank}, kkt=",
        repr(solvers.frobenius_max_margin(single)): "status='optimal'",
        repr(solvers.frobenius_max_margins(batch)): "status={'optimal': 3}, kkt<=",
        repr(solvers.frobenius_max_margins(stack([single, impossible]))): "'infeasible': 1",
        repr(solvers.frobenius_max_margins(stack([impossible]))): "status={'infeasible': 1})",
        # no rank: the solution need not be unique
        repr(solvers.spectral_max_margin(single)): "W=[5, 5], m=9, norm=",
        repr(caught.value.certificate): "1 of m=9 constraints: input 0 token",
    }
    for line, part in described.items():
        assert part in line
        assert "\n" not in line
        assert "tensor" not in line
        assert len(line) < 140


@each_case("name", [*SOLVERS, "official_rank", "construct", "stack"])
@each_case("wrong", ["tensor", "list", "instance", "none"])
def test_other_types_than_constraints_raise_one_line(name, wrong, unchecked):
    instance, _ = drawn()
    value = {"tensor": instance.tokens, "list": [[1.0]], "instance": instance, "none": None}[wrong]
    others = {
        "stack": lambda problem: stack([problem]),
        "construct": construct,
        "official_rank": solvers.official_rank,
    }
    with pytest.raises(TypeError, match="must be Constraints, got") as caught:
        (SOLVERS | others)[name](value)
    assert "\n" not in str(caught.value)


@each_case("name", SOLVERS)
def test_tolerances_are_positive_numbers(name, unchecked):
    _, c = drawn(trials=None if name in ONE else 2)
    for tol in (0, -1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match="tol"):
            SOLVERS[name](c, tol=tol)
    for tol in ("tight", None, True):
        with pytest.raises(TypeError, match="tol"):
            SOLVERS[name](c, tol=tol)


@each_case("name", SOLVERS)
def test_a_batch_and_a_single_problem_are_not_confused(name):
    _, c = drawn(trials=2 if name in ONE else None)
    with pytest.raises(ValueError, match="got a batch" if name in ONE else r"must be a batch \[B, m\]"):
        SOLVERS[name](c)


@each_case(
    ("make", "error", "message"),
    [
        (
            lambda v: Constraints("rows", v),
            TypeError,
            "difference must be a torch.Tensor or a numpy array, got str",
        ),
        (
            lambda v: Constraints(v, v, equality=[True, False]),
            TypeError,
            r"equality must be a tensor \[2\] of booleans, got list",
        ),
        (
            lambda v: Constraints(v, v, equality=torch.ones(2).long()),
            TypeError,
            "equality must be .* of booleans, got torch.int64",
        ),
        (
            lambda v: Constraints(v, v, input=torch.ones(2).bool()),
            TypeError,
            "input must hold integers, got torch.bool",
        ),
        (lambda v: Constraints(v, v, token=torch.ones(3).long()), ValueError, r"token must have shape \[2\]"),
        (
            lambda v: Constraints(v, v[:1]),
            ValueError,
            r"query must have one row per constraint, \[2\], got \[1\]",
        ),
        (
            lambda v: Constraints(v, v, rhs=v[:, 0] / 0),
            ValueError,
            "rhs must be finite, got 2 NaN or infinite",
        ),
        (
            lambda v: Constraints(v[0], v[0]),
            ValueError,
            r"difference must be a tensor .*got torch.float64 \[3\]",
        ),
        (lambda v: stack(Constraints(v, v)), TypeError, "a sequence of single problems, got Constraints"),
        (lambda v: stack([]), ValueError, "problems"),
        (lambda v: solvers.official_rank(Constraints(v, v), norm="fro"), ValueError, "norm .*fro"),
        (
            lambda v: solvers.official_rank(Constraints(v[None], v[None])),
            ValueError,
            r"inequalities of one problem, got .*batch=\[1\]",
        ),
        (
            lambda v: solvers.official_rank(Constraints(v, v, equality=torch.ones(2).bool())),
            ValueError,
            "inequalities .* equations=2",
        ),
        (lambda v: solvers.lp_max_margin(Constraints(v, v), p="3"), TypeError, "p .*got str"),
        (lambda v: solvers.lp_max_margin(Constraints(v, v), p=math.nan), ValueError, "p .*got nan"),
    ],
)
def test_bad_parts_are_named(make, error, message, unchecked):
    with pytest.raises(error, match=message):
        make(torch.ones(2, 3, dtype=torch.float64))


def test_every_builder_names_an_argument_that_is_no_array(unchecked):
    instance, _ = drawn()
    x, z, a = instance.tokens, instance.query, instance.optimal()
    many = torch.zeros(3, 4, dtype=torch.long)
    chosen, graph = many == 0, priority_graph(many[:1], torch.zeros(1, dtype=torch.long), tokens=4)
    calls = {
        "tokens": [
            lambda v: builders.constraints(v, z, a),
            lambda v: builders.self_attention(v, a),
            lambda v: builders.causal(v, many),
            lambda v: builders.sequence_to_sequence(v, x, many),
            lambda v: builders.multi_token(v, z, chosen),
            lambda v: solvers.generalised_max_margin(v, z, chosen.double()),
        ],
        "keys": [lambda v: builders.prompt(v, a)],
        "query": [lambda v: builders.constraints(x, v, a)],
        "queries": [lambda v: builders.sequence_to_sequence(x, v, many)],
        "select": [lambda v: builders.constraints(x, z, v), lambda v: builders.causal(x, v)],
        "allowed": [lambda v: builders.sequence_to_sequence(x, x, many, allowed=v)],
        "chosen": [lambda v: builders.multi_token(x, z, v)],
        "logits": [lambda v: builders.multi_token(x, z, chosen, logits=v)],
        "attention": [lambda v: solvers.generalised_max_margin(x, z, v)],
        "embeddings": [lambda v: builders.graph_svm(graph, v)],
    }
    for name, each in calls.items():
        for call in each:
            with pytest.raises(TypeError, match=f"^{name} must be .*, got str$"):
                call("text")
    with pytest.raises(TypeError, match="graph must be PriorityGraph, got list"):
        builders.graph_svm([1], x[0])
    with pytest.raises(TypeError, match="position"):
        builders.self_attention(x, a, position=1.5)
    with pytest.raises(ValueError, match="position"):
        builders.self_attention(x, a, position=4)
    with pytest.raises(ValueError, match=r"T .*got -1"):
        builders.causal_mask(-1)
    with pytest.raises(ValueError, match=r"logits must have shape \[3, 4\], got torch.float64 \[2, 4\]"):
        builders.multi_token(x, z, chosen, logits=x[:2, :, 0])


@each_case("name", ONE)
def test_the_state_of_an_exception_is_not_optimal(name):
    _, c = drawn()
    with pytest.raises(NotConverged) as caught:
        SOLVERS[name](c, tol=1e-30)
    assert caught.value.state.status == "not converged"
    assert caught.value.state.kkt == caught.value.residuals > 1e-30
