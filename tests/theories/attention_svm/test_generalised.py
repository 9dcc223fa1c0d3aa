"""Attention shared among tokens: the finite part, the direction and the scale, against cvxpy and planted
weights; settled attention.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible
from transformer_theory.theories.attention_svm import builders, dynamics, sharing, solvers
from transformer_theory.theories.attention_svm.problem import cross_attention, token_logits, token_scores


def planted(seed, n=3, T=4, d=6, trials=None):
    """Tokens and queries at random, and an attention that keeps two tokens of the first input and one of the
    others.
    """
    g = torch.Generator().manual_seed(seed)
    instance = cross_attention(inputs=n, tokens=T, dim=d, generator=g, trials=trials)
    attention = torch.zeros_like(instance.scores)
    attention[..., 0] = 1.0
    attention[..., 0, :2] = torch.tensor([0.8, 0.2], dtype=torch.float64)
    return instance.tokens, instance.query, attention


def as_written(tokens, query, attention):
    """Both problems as the paper's code states them: all pairs, one cvxpy constraint each."""
    import cvxpy as cp

    x, z, s = tokens.numpy(), query.numpy(), attention.numpy()
    finite, direction = (cp.Variable((x.shape[-1], z.shape[-1])) for _ in range(2))
    equal, above, level = [], [], []
    for i in range(len(x)):
        kept = [t for t in range(x.shape[1]) if s[i, t] > 1e-3]
        for t in kept:
            for u in range(x.shape[1]):
                logit = (x[i, t] - x[i, u]) @ direction @ z[i]
                if u not in kept:
                    above.append(logit >= 1)
                elif u != t:
                    equal.append(logit == 0)
                    level.append((x[i, t] - x[i, u]) @ finite @ z[i] == np.log(s[i, t] / s[i, u]))
    tight = {"solver": "CLARABEL", "tol_gap_rel": 1e-11, "tol_gap_abs": 1e-11, "tol_feas": 1e-11}
    cp.Problem(cp.Minimize(cp.sum_squares(direction)), equal + above).solve(**tight)
    cp.Problem(cp.Minimize(cp.sum_squares(finite)), level).solve(**tight)
    return torch.from_numpy(np.array(direction.value)), torch.from_numpy(np.array(finite.value))


@each_case("seed", range(4))
def test_both_parts_agree_with_the_problem_as_written(seed):
    x, z, s = planted(seed)
    found = solvers.generalised_max_margin(x, z, s)
    direction, finite = as_written(x, z, s)
    assert_close(found.direction.W, direction, rtol=0, atol=1e-7 * found.direction.norm)
    assert_close(found.finite.W, finite, rtol=0, atol=1e-7 * found.finite.norm)
    assert max(found.direction.kkt, found.finite.kkt) < 1e-13


def test_the_prediction_reproduces_the_attention():
    x, z, s = planted(0)
    found = solvers.generalised_max_margin(x, z, s)
    far = found.finite.W + 50 * found.direction.W
    assert_close(token_logits(x, z, far).softmax(-1), s, rtol=0, atol=1e-12)


def test_the_scale_is_the_least_squares_fit_and_is_recovered():
    x, z, s = planted(1)
    found = solvers.generalised_max_margin(x, z, s)
    W = found.finite.W + 17.5 * found.direction.W
    assert float(found.scale(W)) == pytest.approx(17.5)
    assert_close(found.predict(W), W)
    noise = torch.randn(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    best = float((W + noise - found.predict(W + noise)).norm())
    for step in (-0.1, 0.1):
        moved = found.finite.W + (found.scale(W + noise) + step) * found.direction.W
        assert float((W + noise - moved).norm()) > best


def test_the_direction_is_orthogonal_to_the_finite_part():
    """The equations require 0 of the direction, and the finite part is a combination of them."""
    found = solvers.generalised_max_margin(*planted(3))
    assert (
        abs(float((found.direction.W * found.finite.W).sum()))
        < 1e-12 * found.direction.norm * found.finite.norm
    )


def test_one_token_per_input_is_the_max_margin_problem():
    x, z, s = planted(2)
    s = torch.nn.functional.one_hot(s.argmax(-1), 4).double()
    found = solvers.generalised_max_margin(x, z, s)
    assert not found.finite.W.any()
    assert_close(found.direction.W, solvers.frobenius_max_margin(builders.constraints(x, z, s.argmax(-1))).W)


def test_attention_on_all_tokens_has_no_direction():
    x, z, _ = planted(2)
    W = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = solvers.generalised_max_margin(x, z, token_logits(x, z, W).softmax(-1))
    assert not found.direction.W.any()
    assert float(found.scale(W)) == 0
    assert_close(found.predict(W), found.finite.W)


def test_a_batch_gives_the_solutions_of_its_problems():
    x, z, s = planted(5, trials=7)
    batch = solvers.generalised_max_margins(x, z, s)
    W = torch.randn(7, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert batch.direction.solved.all()
    assert batch.finite.solved.all()
    for b in range(7):
        one = solvers.generalised_max_margin(x[b], z[b], s[b])
        assert_close(batch.predict(W)[b], one.predict(W[b]), rtol=0, atol=1e-11 * one.direction.norm)


def test_inseparable_sets_are_refused_and_bad_attention_is_named():
    x, z, s = planted(0)
    x = x.clone()
    x[1, 2] = x[1, 0]  # a masked token equal to a kept one
    with pytest.raises(Infeasible, match=r"input 1 \(token 2\)"):
        solvers.generalised_max_margin(x, z, s)
    spread = s.clone()
    spread[0], spread[1:] = torch.eye(s.shape[1], dtype=torch.float64)[0], 1 / s.shape[1]
    with pytest.raises(ValueError, match="input 1"):
        solvers.generalised_max_margin(x, z, spread, threshold=0.9)


# ---- what has settled


def test_settled_and_shared_by_hand():
    rows = {
        (1.0, 0.0, 0.0): (True, False),
        (0.5, 0.5, 0.0): (True, True),
        (0.5, 0.3, 0.2): (False, True),  # nothing is masked
        (0.9999, 1e-4, 0.0): (False, False),  # in between
    }
    for row, (settled, shared) in rows.items():
        attention = torch.tensor([row], dtype=torch.float64)
        assert bool(sharing.settled(attention)) is settled
        assert bool(sharing.shared(attention)) is shared


def test_the_least_push_of_a_linear_head_is_a_difference_of_scores(generator):
    drawn = cross_attention(inputs=3, tokens=4, dim=5, generator=generator)
    v = torch.randn(5, 1, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    instance = dynamics.HeadInstance(
        drawn.tokens, drawn.query, labels, lambda o: ((o @ v).squeeze(-1), v.T.expand(o.shape))
    )
    scores = token_scores(drawn.tokens, v[:, 0], labels)
    target = solvers.frobenius_max_margin(builders.constraints(drawn.tokens, drawn.query, scores.argmax(-1)))
    best, second = scores.topk(2).values.unbind(-1)
    assert float(sharing.least_push(instance, 60 * target.W)) == pytest.approx(float((best - second).min()))
    assert float(sharing.least_push(instance, 0 * target.W)) == torch.inf  # nothing is masked
    flat = dynamics.HeadInstance(
        drawn.tokens, drawn.query, labels, dynamics.relu_head(torch.zeros(5, 2, dtype=torch.float64))
    )
    assert float(sharing.least_push(flat, 60 * target.W)) == 0
