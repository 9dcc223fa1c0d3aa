"""Instances that meet only some of the assumptions, where descent goes elsewhere; and local optimality of
batches.
"""

import torch

from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import builders, dynamics, selection, solvers
from transformer_theory.theories.attention_svm.problem import Instance, cross_attention, random_selection


def two_prompts() -> Instance:
    """Two inputs of two tokens, so that the other tokens trivially score the same, and one prompt (z = 1) for
    both.

    The second input's best token lies against the pull of the first, whose score is ten times as high.
    """
    keys = torch.tensor([[[10.0, 0.0], [0.0, 0.0]], [[-11.0, 5.0], [0.0, 0.0]]], dtype=torch.float64)
    scores = torch.tensor([[1.0, 0.0], [0.1, 0.0]], dtype=torch.float64)
    return Instance(keys, torch.ones(2, 1, dtype=torch.float64), scores)


def test_equal_scores_of_the_others_do_not_make_descent_global_for_several_inputs():
    instance = two_prompts()
    best = solvers.frobenius_max_margin(
        builders.constraints(instance.tokens, instance.query, instance.optimal())
    )
    torch.testing.assert_close(best.W, torch.tensor([[0.1], [0.42]], dtype=torch.float64))
    assert selection.first_step_condition(instance) < 0

    end = dynamics.normalised_descent(instance, dynamics.start(instance), steps=3000)
    select = instance.selected(end.W)
    assert select.tolist() == [0, 1]
    assert float(instance.attention(end.W).amax(-1).min()) > 1 - 1e-12
    assert float(cosine(end.W, best.W)) < 0.3
    pairs = builders.constraints(instance.tokens, instance.query, select)
    there = solvers.frobenius_max_margin(pairs)
    assert float(cosine(end.W, there.W)) > 0.999  # the norm diverges, in another direction
    assert bool(selection.locally_optimal(instance.scores, select, pairs, there).all())


def test_local_optimality_of_a_batch_is_that_of_its_problems():
    generator = torch.Generator().manual_seed(3)
    instance = cross_attention(inputs=5, tokens=4, dim=3, generator=generator, trials=30)
    select = random_selection(instance, generator=generator)
    pairs = builders.constraints(instance.tokens, instance.query, select)
    solutions = solvers.frobenius_max_margins(pairs)
    gaps = selection.neighbour_gap(instance.scores, select, pairs, solutions)
    optimal = selection.locally_optimal(instance.scores, select, pairs, solutions)
    assert 0 < int(solutions.solved.sum()) < 30
    assert int(optimal[solutions.solved].sum()) > 0
    for b in range(30):
        if not solutions.solved[b]:
            assert (gaps[b] == torch.inf).all()
            assert not optimal[b].any()
            continue
        single = pairs.problem(b), solutions[b]
        expected = torch.full((5,), -torch.inf, dtype=torch.float64)
        for i, t in selection.neighbours(*single):
            expected[i] = torch.maximum(
                expected[i], instance.scores[b, i, t] - instance.scores[b, i, select[b, i]]
            )
        assert torch.equal(gaps[b], expected)
        assert torch.equal(selection.neighbour_gap(instance.scores[b], select[b], *single), expected)
        assert torch.equal(optimal[b], expected < 0)
