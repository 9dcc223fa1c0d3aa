"""Regularisation paths within a cone: the loss and the projection that they use, the width of the cone, and
the figure.
"""

import itertools

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.builders import constraints
from transformer_theory.theories.attention_svm.dynamics import LOGISTIC, local_path
from transformer_theory.theories.attention_svm.dynamics.cone_path import OFFSET, SelectionLoss, into_cone
from transformer_theory.theories.attention_svm.figures.local_paths import (
    REACHED,
    SLOPE,
    local_paths,
)
from transformer_theory.theories.attention_svm.problem import Instance, cross_attention
from transformer_theory.theories.attention_svm.selection import all_selections, cone_width, locally_optimal


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def found():
    """The selections of random problems that some W makes, and whether they are locally optimal."""
    problems = cross_attention(
        inputs=3, tokens=4, dim=5, generator=torch.Generator().manual_seed(0), trials=6
    )
    selections, local, other = all_selections(problems)
    return selections[local | other], local[local | other]


def test_the_loss_is_the_signed_logarithm_of_its_difference():
    instance = cross_attention(
        inputs=3, tokens=4, dim=5, generator=torch.Generator().manual_seed(0), trials=40
    )
    select, W = torch.zeros(40, 3, dtype=torch.long), normal(40, 5, 5)
    prediction = (instance.attention(W) * instance.scores).sum(-1)
    difference = (LOGISTIC.value(prediction) - LOGISTIC.value(instance.scores[..., 0])).mean(-1)
    expected = difference.sign() * (OFFSET + difference.abs().log())
    assert bool((difference > 0).any())
    assert bool((difference < 0).any())
    torch.testing.assert_close(SelectionLoss(instance, select, LOGISTIC)(W), expected, atol=1e-8, rtol=0)


def test_the_loss_is_resolved_where_its_difference_underflows():
    """Two tokens with logits 0 and -r: L - L_a tends to slope * deficit * e^-r."""
    tokens, query = (
        torch.tensor([[[[0.0], [-1.0]]]], dtype=torch.float64),
        torch.ones(1, 1, 1, dtype=torch.float64),
    )
    for other, sign in ((-0.5, 1), (0.5, -1)):
        instance = Instance(tokens, query, torch.tensor([[[0.0, other]]], dtype=torch.float64))
        loss = SelectionLoss(instance, torch.zeros(1, 1, dtype=torch.long), LOGISTIC)
        value = loss(torch.full((1, 1, 1), 2000.0, dtype=torch.float64))
        assert float(value) == pytest.approx(sign * (OFFSET + np.log(0.5 * 0.5) - 2000), abs=1e-8)


def test_the_projection_onto_the_cone_is_the_nearest_point():
    centre, W, bound = normal(3, 4), 0.3 * normal(300, 3, 4, seed=1), torch.tensor(0.8, dtype=torch.float64)
    projected = into_cone(centre, bound, 0.0)(W)
    norms = torch.linalg.matrix_norm(projected)
    assert float(norms.max()) <= 1 + 1e-12
    angle = cosine(projected[norms > 1e-9], centre.expand(int((norms > 1e-9).sum()), -1, -1), dim=(-2, -1))
    assert float(angle.min()) >= 0.8 - 1e-12
    # The set is convex, so its nearest point P has <W - P, Y - P> <= 0 for every Y in it, here 0 and random
    # points.
    points = into_cone(centre, bound, 0.0)(normal(500, 3, 4, seed=2) + 2 * centre)
    for others in (points, 0 * points[:1]):
        inner = ((W - projected)[:, None] * (others - projected[:, None])).sum((-2, -1))
        assert float(inner.max()) <= 1e-12
    torch.testing.assert_close(into_cone(centre, bound, 0.0)(points), points)
    assert float(torch.linalg.matrix_norm(into_cone(centre, bound, 0.5)(W)).min()) >= 0.5 - 1e-12


def test_the_width_is_that_of_a_convex_program(found):
    """The nearest W in angle with a bad margin below every good one, by a general solver, and zero if not
    locally optimal.
    """
    import cvxpy as cp

    selections, local = found
    checked = 0
    for k in [*local.nonzero().squeeze(-1).tolist()[:3], *(~local).nonzero().squeeze(-1).tolist()[:2]]:
        instance, select = selections.instance[k], selections.select[k]
        pairs = constraints(instance.tokens, instance.query, select)
        solution = attention_svm.frobenius_max_margin(pairs)
        F = torch.einsum("cd,ce->cde", pairs.difference, pairs.query).flatten(1).numpy()
        bad = instance.scores[pairs.input, pairs.token] > instance.scores[pairs.input, select[pairs.input]]
        widths = []
        for b in bad.nonzero().squeeze(-1).tolist():
            w = cp.Variable(25)
            inside = [F[b] @ w <= F[c] @ w for c in (~bad).nonzero().squeeze(-1).tolist()]
            cp.Problem(cp.Minimize(cp.sum_squares(w - solution.W.flatten().numpy())), inside).solve(
                solver=cp.CLARABEL
            )
            assert w.value is not None
            widths.append(1 - float(np.linalg.norm(w.value)) / float(solution.W.norm()))
        width, nearest = cone_width(instance.scores, select, pairs, solution)
        assert width == pytest.approx(min(widths), abs=1e-7)
        assert (width > 1e-12) == bool(local[k])
        if local[k]:
            margins = pairs.margins(nearest)
            assert float(margins[bad].min()) == pytest.approx(float(margins[~bad].min()), abs=1e-9)
            assert float(1 - cosine(nearest, solution.W)) == pytest.approx(width, abs=1e-12)
            checked += 1
    assert checked


def test_the_best_selection_has_no_bound():
    instance = cross_attention(inputs=2, tokens=3, dim=4, generator=torch.Generator().manual_seed(0))
    pairs = constraints(instance.tokens, instance.query, instance.optimal())
    solution = attention_svm.frobenius_max_margin(pairs)
    width, nearest = cone_width(instance.scores, instance.optimal(), pairs, solution)
    assert width == float("inf")
    assert not nearest.any()


def test_all_selections_are_those_of_single_problems(found):
    selections, local = found
    problems = cross_attention(
        inputs=3, tokens=4, dim=5, generator=torch.Generator().manual_seed(0), trials=6
    )
    expected = 0
    for trial, select in itertools.product(range(6), itertools.product(range(4), repeat=3)):
        instance, chosen = problems[trial], torch.tensor(select)
        pairs = constraints(instance.tokens, instance.query, chosen)
        try:
            solution = attention_svm.frobenius_max_margin(pairs)
        except attention_svm.Infeasible:
            continue
        if not torch.equal(chosen, instance.optimal()):
            expected += bool(locally_optimal(instance.scores, chosen, pairs, solution).all())
    assert int(local.sum()) == expected > 0
    assert bool((selections.width[local] > 0).all())


def test_the_path_stays_in_its_set_and_ends_at_the_solution_or_at_the_boundary(found):
    selections, local = found
    wide = selections[local][selections.width[local] > 3e-3]
    for multiple, inside in ((0.5, True), (2.0, False)):
        width = multiple * wide.width
        starts = torch.stack([normal(*wide.W.shape), wide.start])
        path = local_path(wide.instance, wide.select, wide.W, starts, (64.0, 256.0), width=width, steps=100)
        apart = 1 - cosine(path.W[-1], wide.W, dim=(-2, -1))
        assert bool((apart <= width * (1 + 1e-9)).all())
        ratio = torch.linalg.matrix_norm(path.W[-1]) / torch.linalg.matrix_norm(wide.W)
        assert bool(((ratio >= 64 - 1e-9) & (ratio <= 256 + 1e-9)).all())
        assert bool((path.below[-1] != inside).all())
        assert bool((apart < 0.1 * width).all() if inside else (apart > 0.9 * width).all())


@each_case(
    ("change", "message"),
    [
        ({"width": torch.tensor([0.0])}, "width must lie between 0 and 1"),
        ({"radii": (2.0, 1.0)}, "radii must increase"),
        ({"starts": torch.zeros(1, 1, 3, 2)}, "starts must"),
        ({"select": torch.tensor([[0, 7]])}, "select must"),
    ],
)
def test_a_path_refuses_what_does_not_fit(change, message, unchecked):
    instance = cross_attention(
        inputs=2, tokens=3, dim=3, generator=torch.Generator().manual_seed(0), trials=1
    )
    given = {
        "select": instance.optimal(),
        "centre": normal(1, 3, 3),
        "starts": normal(1, 1, 3, 3),
        "radii": (1.0, 2.0),
    } | change
    width = given.pop("width", torch.tensor([0.1]))
    with pytest.raises(ValueError, match=message):
        local_path(instance, *given.values(), width=width)


def test_a_path_needs_a_batch(unchecked):
    instance = cross_attention(inputs=2, tokens=3, dim=3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="instance must be a batch"):
        local_path(
            instance, instance.optimal(), normal(3, 3), normal(1, 3, 3), (1.0,), width=torch.tensor([0.1])
        )


def test_the_figure_changes_at_the_predicted_width(run):
    result = run(local_paths.quick())
    reached = result.select(quantity=REACHED)
    assert [row.value for row in reached] == [1, 0, 0, 0]
    assert [row.predicted for row in reached] == [1, 0, 0, 0]
    assert result.select(quantity=SLOPE).one().value == pytest.approx(-2, abs=0.2)
    assert len(local_paths.quick().plot(result).axes) == 3


def test_a_figure_without_a_wide_enough_cone_says_so(run):
    experiment = local_paths(trials=1, narrowest=0.19)
    result = run(experiment)
    assert result.select(quantity=REACHED).one().reason == "no selection has a wide enough cone"
    assert experiment.plot(result).get_supxlabel()
