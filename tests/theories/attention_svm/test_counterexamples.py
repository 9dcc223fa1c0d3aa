"""What the theory does not say: instances that meet some of the assumptions, and where descent goes elsewhere."""

import torch

from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import builders, dynamics, selection, solvers
from transformer_theory.theories.attention_svm.problem import Instance


def two_prompts() -> Instance:
    """Two inputs of two tokens, so that the other tokens trivially score the same, and one prompt (z = 1) for both.

    The second input's best token lies against the pull of the first, whose score is ten times as high.
    """
    keys = torch.tensor([[[10.0, 0.0], [0.0, 0.0]], [[-11.0, 5.0], [0.0, 0.0]]], dtype=torch.float64)
    scores = torch.tensor([[1.0, 0.0], [0.1, 0.0]], dtype=torch.float64)
    return Instance(keys, torch.ones(2, 1, dtype=torch.float64), scores)


def test_equal_scores_of_the_others_do_not_make_descent_global_for_several_inputs():
    instance = two_prompts()
    best = solvers.frobenius_max_margin(builders.constraints(instance.tokens, instance.query, instance.optimal()))
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
