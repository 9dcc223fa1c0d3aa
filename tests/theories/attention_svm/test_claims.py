"""What the claims rest on: when a distance decides, when descent has settled, and what joint descent assumes
of the tokens.
"""

from dataclasses import replace

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.errors import NotConverged
from transformer_theory.core.measurement import judge
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.claims import (
    common,
    definitions,
    descent,
    factors,
    graph,
    joint,
    multi_token,
    paths,
    prompt,
    solutions,
    steps,
)
from transformer_theory.theories.attention_svm.claims.common import limit_distance
from transformer_theory.theories.attention_svm.dynamics import (
    JointInstance,
    JointTargets,
    factored_path,
    joint_targets,
    random_start,
    regularisation_path,
)
from transformer_theory.theories.attention_svm.selection import locally_optimal


@each_case(
    ("before", "after", "done", "verdict"),
    [
        (0.5, 0.01, True, "consistent"),
        (0.5, 0.3, True, "inconclusive"),  # still falling
        (0.5, 0.45, True, "violated"),
        (0.5, 0.6, True, "violated"),
        (0.5, 0.45, False, "inconclusive"),
        (0.5, 0.01, False, "inconclusive"),
    ],
)
def test_a_large_distance_that_still_falls_is_inconclusive(before, after, done, verdict):
    found = limit_distance(before, after, 0.02, done=done, detail={"steps": 7})
    assert judge(found.value, "<=", 0.02, converged=found.converged) == verdict
    assert found.detail == {"distance before": before, "steps": 7}
    if done and verdict == "violated":
        assert not limit_distance(before, after, 0.02, falling=1.3, detail={}).converged


@each_case(
    ("module", "name"),
    [
        (factors, "factored-direction"),
        (graph, "graph-direction"),
        (joint, "joint-tight"),
        (steps, "mirror-descent"),
        (common, "global-direction"),
        (paths, "regularisation-path"),
    ],
)
def test_a_seed_without_a_fitting_instance_is_inconclusive(module, name, monkeypatch):
    monkeypatch.setattr(module, "MAX_DRAWS", 0)
    (claim,) = (claim for claim in attention_svm.THEORY.claims if claim.id == f"attention_svm/{name}")
    check, _ = claim.run(0)
    assert check.verdict == "inconclusive"
    assert "draws" in check.note


def test_a_run_near_a_saddle_has_not_settled():
    """Its W approaches the max-margin solution of a selection that is not locally optimal for 2,400 steps
    before leaving it.
    """
    generator = torch.Generator().manual_seed(1027)
    instance = attention_svm.cross_attention(inputs=4, tokens=6, dim=8, generator=generator, trials=10)
    half = attention_svm.normalised_descent(
        instance, random_start(instance, generator=generator), steps=800, rate=0.2
    )
    end = attention_svm.normalised_descent(instance, half, steps=800, rate=0.2)
    saddle, select = 6, instance.selected(end.W)
    pairs = attention_svm.constraints(instance.tokens[saddle], instance.query[saddle], select[saddle])
    solution = attention_svm.frobenius_max_margin(pairs)
    assert not locally_optimal(instance.scores[saddle], select[saddle], pairs, solution).all()
    assert 1 - cosine(end.W[saddle], solution.W) < 1e-3
    assert sorted(set(range(10)) - set(descent._settled(instance, half, end))) == [saddle]
    later = attention_svm.normalised_descent(instance, end, steps=3200, rate=0.2)
    assert (instance.selected(later.W) != select).any(-1).nonzero().squeeze(-1).tolist() == [saddle]


def drawn(seed: int) -> tuple[JointInstance, JointTargets]:
    return joint._draw(torch.Generator().manual_seed(seed), joint._is_tight)


@each_case("seed", range(4))
def test_the_price_of_attention_is_a_derivative(seed):
    """Against the label margin itself, solved again with a little attention moved off each selected token."""
    instance, targets = drawn(seed)
    x = (
        instance.tokens
        + 0.2 * torch.randn(instance.tokens.shape, generator=torch.Generator().manual_seed(seed)).double()
    )
    instance = replace(instance, tokens=x)
    targets = joint_targets(instance, joint.SELECT)
    moved, step = [], 1e-6
    for i in targets.support.nonzero().squeeze(-1).tolist():
        mixed = x[:, 1].clone()
        mixed[i] += step * (x[i, 0] - x[i, 1])
        less = attention_svm.frobenius_max_margin(
            attention_svm.Constraints(instance.labels[:, None] * mixed, torch.ones(len(x), 1).double())
        )
        moved.append((1 / targets.head.norm - 1 / less.norm) / step)
    assert joint.price(instance, targets, joint.SELECT) == pytest.approx(min(moved), abs=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_joint_descent_needs_tokens_that_help_the_label_margin(seed):
    """The other token of each input helps its label more than the selected one: the targets are the same, and
    descent is not there.
    """
    instance, targets = drawn(seed)
    found = joint._distance(instance, targets, targets.sharp.W, torch.Generator().manual_seed(seed))
    assert found.covered
    assert joint.joint_tight.evidence(found).verdict == "consistent"
    tokens = torch.stack([2 * instance.tokens[:, 1], instance.tokens[:, 1]], 1)
    against = replace(instance, tokens=tokens)
    again = joint_targets(against, joint.SELECT)
    torch.testing.assert_close(again.sharp.W, targets.sharp.W)
    found = joint._distance(against, again, again.sharp.W, torch.Generator().manual_seed(seed))
    assert found.detail["price"] < 0
    assert not found.covered
    assert found.value > 0.5


def test_a_token_on_the_margin_has_no_price():
    """The other token lies on the margin too, so attention to it costs no label margin."""
    instance, targets = drawn(0)
    v = targets.head.W.squeeze(-1)
    aside = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()
    aside = aside - (aside @ v)[:, None] * v / (v @ v)
    free = replace(instance, tokens=torch.stack([instance.tokens[:, 1] + aside, instance.tokens[:, 1]], 1))
    assert joint.price(free, joint_targets(free, joint.SELECT), joint.SELECT) == pytest.approx(0, abs=1e-12)


def test_sixteen_starts_find_the_minimum_that_six_miss():
    """A local minimum of the factors can lie below the loss of the target; only more starts find
    the minimum.
    """
    found = []
    for starts in (6, paths.STARTS):
        generator = torch.Generator().manual_seed(175)
        instance, _, nuclear = paths._draw(generator)
        path = factored_path(instance, paths.RADII, generator=generator, starts=starts, steps=paths.STEPS)
        found.append(
            (float(path.log_excess[-1]), paths._distance(instance, path, nuclear, nuclear, norm="nuc"))
        )
    (loss_of_6, of_6), (loss_of_16, of_16) = found
    assert loss_of_16 < loss_of_6 - 0.1
    assert of_6.detail["log loss below that of the target"] > 0
    assert of_6.value > 0.05
    assert paths.factored_regularisation_path.evidence(of_16).verdict == "consistent"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_path_through_other_balls_violates_the_claim(factor):
    """The direction is right, and the weights are half or twice as long as the radius."""
    generator = torch.Generator().manual_seed(0)
    instance, frobenius, _ = paths._draw(generator)
    path = regularisation_path(
        instance, paths.RADII, generator=generator, starts=paths.STARTS, steps=paths.STEPS
    )
    right, wrong = (
        paths._distance(instance, one, frobenius, frobenius, norm="fro")
        for one in (path, replace(path, W=factor * path.W))
    )
    assert paths.ball.evidence(right).verdict == "consistent"
    assert paths.ball.evidence(wrong).verdict == "violated"
    assert wrong.detail["error of the norm"] == pytest.approx(abs(factor - 1))


@each_case("name", ["solvers-agree", "nuclear-solvers", "graph-direction", "graph-finite-part"])
def test_a_feasible_problem_without_a_solution_violates_the_claims_about_solvers(name, monkeypatch):
    def fails(constraints):
        raise NotConverged("the residual must be small, got a large one")

    monkeypatch.setattr(solutions, "nuclear_max_margin", fails)
    monkeypatch.setattr(solutions, "frobenius_max_margin", fails)
    monkeypatch.setattr(graph, "frobenius_max_margin", fails)
    monkeypatch.setattr(graph, "finite_part", lambda *_: fails(None))
    (claim,) = (claim for claim in attention_svm.THEORY.claims if claim.id == f"attention_svm/{name}")
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "violated"


@pytest.mark.parametrize("norm", [0.0, 0.5])
def test_the_first_step_selects_what_its_condition_says(norm):
    found = descent.first_step.check(torch.Generator().manual_seed(3), norm=norm)
    assert (found.verdict == "consistent") == (norm == 0)
    assert 0.1 < found.detail["share with the condition"] < 0.99


def test_in_few_dimensions_problems_are_infeasible_and_in_one_less_than_inputs_only_the_construction_fails():
    found = solutions.feasibility.check(torch.Generator().manual_seed(0), inputs=12, tokens=6, dim=3)
    assert found.detail["infeasible"] > 0
    assert found.detail["not written down"] > 0
    between = solutions.feasibility.control(torch.Generator().manual_seed(0))
    assert between.detail["not written down"] == 1
    assert between.detail["infeasible"] == 0


@pytest.mark.parametrize("seed", [7031, 7167])
def test_near_a_saddle_the_polyak_steps_agree(seed):
    """There Polyak's step has any length; its bound is part of the reference."""
    assert definitions.descent_steps.check(torch.Generator().manual_seed(seed)).verdict == "consistent"


def test_a_slow_finite_part_is_close_to_its_limit_at_the_end():
    assert graph.graph_finite_part.check(torch.Generator().manual_seed(7055)).verdict == "consistent"


def test_a_finite_part_that_still_approaches_its_limit_is_inconclusive():
    run = graph._descend(torch.Generator().manual_seed(0))
    assert run.finite is not None
    near = replace(run, half=run.half + run.finite, W=run.W + run.finite / 4)
    evidence = graph.graph_finite_part.evidence
    assert evidence(run.error(1.0)).verdict == "consistent"
    assert evidence(near.error(1.0)).verdict == "inconclusive"
    assert evidence(replace(run, W=run.half).error(0.0)).verdict == "violated"


def test_a_run_that_selects_another_token_is_not_covered():
    found = [
        claim.check(torch.Generator().manual_seed(7017))
        for claim in joint.CLAIMS
        if claim.id.endswith("tight")
    ]
    assert [evidence.verdict for evidence in found] == ["not covered"]


def test_the_direction_of_the_prompt_counts_too(monkeypatch):
    """A prompt with the right second coordinate and a wrong direction violates the claim."""
    found = prompt.loss_limit.check(torch.Generator().manual_seed(0))
    assert found.value == found.detail["1 - cosine"] > found.detail["distance"]
    right = prompt.normalised_descent

    def halved(*args, **options):
        state = right(*args, **options)
        return replace(state, W=state.W * torch.tensor([[0.3], [1.0]], dtype=torch.float64))

    monkeypatch.setattr(prompt, "normalised_descent", halved)
    assert prompt.loss_limit.check(torch.Generator().manual_seed(0)).verdict == "violated"


def test_orthogonality_counts_only_where_there_is_a_direction():
    found = multi_token.shared_finite_part.check(torch.Generator().manual_seed(0))
    assert 0 < found.detail["with a direction"] < found.detail["problems"]


def test_the_slope_of_normalised_descent_is_minus_one_and_that_of_constant_steps_is_not(unchecked):
    (claim,) = (claim for claim in attention_svm.THEORY.claims if claim.id == "attention_svm/direction-rate")
    check, control = claim.run(0)
    assert check.verdict == "consistent"
    assert control.verdict == "violated"
    assert check.detail["problems"] >= 8
    assert control.value > 2 * control.threshold  # far from the threshold: the check has power


def test_quick_claims_do_not_train():
    assert {claim.cost for claim in attention_svm.THEORY.claims} <= {"quick", "training"}
    assert all(claim.measures and claim.assumptions for claim in attention_svm.THEORY.claims)
