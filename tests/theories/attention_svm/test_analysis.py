"""The theory on given data: defined answers for good and for bad data."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.analysis import unit_scale
from transformer_theory.theories.attention_svm.problem import equal_distractors
from transformer_theory.theories.attention_svm.selection import attention_threshold

SHORT = (10, 50, 100, 200, 300)


def gaussian(*size: int, seed: int = 0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def finite(result: attention_svm.Analysis):
    """Everything in it is a number, and it can be drawn and printed."""
    for name, value in result.arrays().items():
        assert np.isfinite(value).all() or name == "null", name
    assert result.plot().get_axes()
    assert str(result)
    for value in (result.cosine, result.margin, result.first_step, float(result.attention.min())):
        assert np.isfinite(value)
    return result


def test_good_data_are_predicted():
    instance = equal_distractors(inputs=5, tokens=6, dim=12, generator=torch.Generator().manual_seed(0))
    result = finite(attention_svm.analyse(instance.tokens, instance.query, instance.scores))
    assert result.feasible
    assert result.construction.applies
    assert not result.tied.any()
    assert result.agreement.all()
    assert result.locally_optimal.all()
    assert result.saturated
    assert result.selected.tokens.tolist() == instance.optimal().tolist()
    assert result.cosine > 0.995
    assert result.margin > 0.95
    assert result.null is not None
    assert result.null.mean < 0.7
    # the same from its parts, in the original scale
    solution = attention_svm.frobenius_max_margin(
        attention_svm.constraints(instance.tokens, instance.query, instance.optimal())
    )
    assert float(cosine(result.W, solution.W)) == pytest.approx(result.cosine, abs=1e-9)
    assert result.states[0].step == 0
    assert result.states[-1].step == 4000
    assert {"cosine_selected", "cosine_optimal", "margins", "attention"} <= result.arrays().keys()


def test_scale_and_coordinates_change_nothing():
    x, z, scores = gaussian(4, 5, 8), gaussian(4, 8, seed=1), gaussian(4, 5, seed=2)
    q = torch.linalg.qr(gaussian(8, 8, seed=3))[0]
    plain = attention_svm.analyse(x, z, scores, steps=SHORT)
    for other in (
        attention_svm.analyse(1e150 * x, 1e-150 * z, scores, steps=SHORT),
        attention_svm.analyse(x @ q.T, z @ q.T, scores, steps=SHORT),
    ):
        assert other.cosine == pytest.approx(plain.cosine)
        assert other.margin == pytest.approx(plain.margin)
        assert other.first_step == pytest.approx(plain.first_step)


def test_a_head_and_labels_are_scores():
    x, z, head = gaussian(4, 5, 8), gaussian(4, 8, seed=1), gaussian(8, seed=2)
    labels = torch.tensor([1.0, -1.0, -1.0, 1.0]).double()
    result = attention_svm.analyse_head(x, z, head, labels, steps=SHORT)
    same = attention_svm.analyse(x, z, labels[:, None] * (x @ head), steps=SHORT)
    assert result.best.tokens.tolist() == same.best.tokens.tolist()
    assert result.cosine == pytest.approx(same.cosine)
    with pytest.raises(ValueError, match="-1 or 1"):
        attention_svm.analyse_head(x, z, head, labels + 1)


def test_an_infeasible_prediction_names_its_tokens():
    x, z = gaussian(2, 3, 2), gaussian(1, 2, seed=1).repeat(2, 1)
    x[1] = x[0]  # the same input twice, with another best token
    scores = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]).double()
    result = finite(attention_svm.analyse(x, z, scores, steps=SHORT))
    assert not result.feasible
    assert "infeasible" in result.best.reason
    assert {(0, 1), (1, 0)} <= set(result.best.contradicting)
    assert not result.construction.applies
    assert not result.agreement.all()


def test_ties_are_reported_but_equal_tokens_are_no_ties():
    x, z = gaussian(3, 4, 6), gaussian(3, 6, seed=1)
    x[1, 3] = x[1, 0]
    scores = torch.tensor([[1.0, 0, 0, 1.0], [1.0, 0, 0, 1.0], [0, 2.0, 0, 0]]).double()
    result = finite(attention_svm.analyse(x, z, scores, steps=SHORT))
    assert result.tied.tolist() == [True, False, False]
    assert result.best.tokens.tolist() == [0, 0, 1]
    assert result.feasible
    assert len(result.best.constraints) == 8  # the equal token is no constraint
    assert result.duplicates.tolist() == [False, True, False]
    assert "equal tokens, which count as one: input 1\n" in str(result)


def two_copies():
    """Input 0 has a token twice, with scores 3 and 0; their mean, 1.5, is below the 2 of its third token."""
    x, z = gaussian(3, 5, 8), gaussian(3, 8, seed=1)
    x[0, 2] = x[0, 0]
    scores = torch.tensor([[3.0, 1.0, 0, 2.0, 0], [0, 0, 1.0, 0.5, 0.2], [1.0, 0, 0.1, 0.2, 0.3]]).double()
    return x, z, scores


def test_copies_of_a_token_have_the_mean_of_their_scores():
    x, z, scores = two_copies()
    assert attention_svm.analyse(x, z, scores, steps=SHORT).best.tokens.tolist() == [3, 2, 0]
    scores[0, 2] = 2.0
    once, other = scores.clone(), scores.clone()
    once[0, 0] = once[0, 2] = 2.5
    other[0, 0], other[0, 2] = 2.0, 3.0
    first, *more = [attention_svm.analyse(x, z, s, steps=SHORT) for s in (scores, once, other)]
    assert first.best.tokens.tolist() == [0, 2, 0]
    assert first.agreement.all()  # whichever copy has the higher score
    for result in more:
        assert result.agreement.tolist() == first.agreement.tolist()
        assert result.cosine == pytest.approx(first.cosine)


def test_the_order_of_tokens_changes_nothing():
    x, z, scores = two_copies()
    x, z, scores = (
        torch.cat([x, gaussian(1, 5, 8, seed=5)]),
        torch.cat([z, 0 * z[:1]]),
        torch.cat([scores, scores[1:2]]),
    )
    plain = finite(attention_svm.analyse(x, z, scores, steps=SHORT))
    assert plain.decided.tolist() == [True, True, True, False]
    assert plain.selected.solution is not None
    assert plain.null is not None
    for seed in range(3):
        order = torch.stack(
            [torch.randperm(5, generator=torch.Generator().manual_seed(10 * seed + i)) for i in range(4)]
        )
        result = attention_svm.analyse(
            x.gather(1, order[..., None].expand(-1, -1, 8)), z, scores.gather(1, order), steps=SHORT
        )
        assert repr(result) == repr(plain)
        assert str(result).splitlines()[:-3] == str(plain).splitlines()[:-3]
        for name in ("decided", "agreement", "locally_optimal", "tied", "duplicates", "zero_query"):
            assert torch.equal(getattr(result, name), getattr(plain, name)), name
        for name in ("cosine", "margin", "first_step"):
            assert getattr(result, name) == pytest.approx(getattr(plain, name), abs=1e-8), name
        assert result.null.draws == pytest.approx(plain.null.draws, abs=1e-8)
        torch.testing.assert_close(result.attention, plain.attention)
        torch.testing.assert_close(result.W, plain.W)


@each_case("best", [0, 2])
@each_case("copies", [1, 3])
def test_a_query_of_zero_selects_nothing(best, copies):
    """Wherever the best token is, and even if copies of a token hold most of the attention."""
    x, z, scores = gaussian(3, 4, 6), gaussian(3, 6, seed=1), gaussian(3, 4, seed=2)
    z[1] = 0
    x[1, :copies] = x[1, 0]
    scores[1, best] = 9.0
    result = finite(attention_svm.analyse(x, z, scores, steps=SHORT))
    assert result.zero_query.tolist() == [False, True, False]
    assert result.decided.tolist() == [True, False, True]
    assert not result.agreement[1]
    assert not result.locally_optimal[1]
    assert result.selected.solution is not None  # of the inputs that select
    assert "the query of input 1 is zero" in result.best.reason
    assert "nothing is selected: input 1\n" in str(result)
    assert "none in 1" in str(result)
    assert not result.feasible
    assert {i for i, _ in result.best.contradicting} == {1}
    assert float(result.attention[1]) == pytest.approx(0.25 * copies)
    assert not result.saturated


@pytest.mark.parametrize(
    ("x", "scores", "reason"),
    [
        (torch.ones(3, 4, 5, dtype=torch.float64), gaussian(3, 4), "all tokens of each input are equal"),
        (torch.zeros(3, 4, 5, dtype=torch.float64), gaussian(3, 4), "all tokens of each input are equal"),
        (gaussian(3, 4, 5), torch.zeros(3, 4, dtype=torch.float64), ""),
    ],
)
def test_data_without_a_gradient_leave_w_at_zero(x, scores, reason):
    result = finite(attention_svm.analyse(x, gaussian(3, 5, seed=1), scores, steps=SHORT))
    assert not result.W.any()
    assert result.cosine == result.margin == 0
    assert result.null is None
    assert reason in result.best.reason
    if not reason:
        assert result.tied.all()
    assert bool(result.agreement.any()) == bool(reason)  # a single token is the best one
    assert str(result).endswith("W stayed at zero: no token is better than another")
    left = result.plot().get_axes()[0]
    assert "W stayed at zero: no token" in " ".join(left.texts[0].get_text().split())
    assert left.get_legend() is None


def test_gradients_that_cancel_are_not_called_equal_scores():
    # the two best tokens are opposite
    x = torch.tensor([[[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]]]).double()
    z, scores = torch.ones(1, 1).double(), torch.tensor([[1.0, 1.0, 0, 0]]).double()
    result = finite(attention_svm.analyse(x, z, scores, steps=SHORT))
    assert "gradients of the tokens cancel" in result.stationary
    assert not result.decided.any()
    assert attention_svm.analyse(x, z, scores, steps=(0,)).stationary == "W is zero: no step was made"


def test_a_run_that_has_not_settled_is_marked():
    result = finite(
        attention_svm.analyse(
            gaussian(40, 6, 3), gaussian(40, 3, seed=1), gaussian(40, 6, seed=2), steps=SHORT
        )
    )
    warning = f"not settled (smallest attention {float(result.attention.min()):.2f})"
    assert not result.saturated
    assert warning in str(result)
    cosines, _, attention = result.plot().get_axes()
    legend = cosines.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == warning
    assert "chance level: random signs" in [text.get_text() for text in legend.get_texts()]
    assert attention.get_title(loc="left") == "Attention: 6 of 40 inputs"
    assert len(repr(result)) < 200


@each_case(
    ("make", "message"),
    [
        (lambda x, z, s: attention_svm.analyse(x[:, :1], z, s[:, :1]), "tokens"),
        (lambda x, z, s: attention_svm.analyse(x[:0], z[:0], s[:0]), "tokens"),
        (lambda x, z, s: attention_svm.analyse(x[None], z[None], s[None]), r"\[n, T, d\]"),
        (lambda x, z, s: attention_svm.analyse(x, z, s, seed=-1), "seed"),
        (lambda x, z, s: attention_svm.analyse(x, 0 * z, s), "zero"),
        (lambda x, z, s: attention_svm.analyse(x / 0, z, s), "finite"),
        (lambda x, z, s: attention_svm.analyse(x, z, s[:2]), r"scores must have shape \[3, 4\]"),
        (lambda x, z, s: attention_svm.analyse(x, z, s, steps=(50, 10)), "steps"),
        (lambda x, z, s: attention_svm.analyse(x, z, s, steps=()), "steps"),
    ],
)
def test_bad_input_is_refused(make, message, unchecked):
    with pytest.raises(ValueError, match=message):
        make(gaussian(3, 4, 5), gaussian(3, 5, seed=1), gaussian(3, 4, seed=2))


@each_case("tokens", [2, 3, 5, 8, 12, 17, 32, 64])
def test_attention_without_preference_seldom_selects(tokens, generator):
    """Independent normal logits of variance one: one input in twenty at most, where a half would let up to
    all of them pass.
    """
    count = 40_000
    top = torch.randn(count, tokens, generator=generator, dtype=torch.float64).softmax(-1).amax(-1)
    share = float((top >= attention_threshold(torch.full((count,), tokens))).double().mean())
    assert share < 0.054  # .05 at two tokens, and four standard deviations
    threshold = attention_threshold(torch.tensor([tokens]))[0]
    assert float(threshold / (1 - threshold)) >= max(1.0, 16 / (tokens - 1)) * (1 - 1e-12)


def test_more_than_half_of_two_tokens_selects_nothing():
    x, z, scores = gaussian(3, 2, 5), gaussian(3, 5, seed=1), gaussian(3, 2, seed=2)
    early, late = (finite(attention_svm.analyse(x, z, scores, steps=steps)) for steps in ((0, 4), SHORT))
    assert early.attention.min() > 0.5
    assert not early.decided.any()
    assert early.selected.reason == "no input selects a token"
    assert early.null is None
    assert late.decided.all()
    assert attention_threshold(torch.tensor([1])).tolist() == [1.0]


def test_unit_scale_has_norm_one_on_average():
    x = gaussian(6, 3, 4)
    assert float(unit_scale(x).square().sum(-1).mean()) == pytest.approx(1)
    assert not unit_scale(torch.zeros(2, 3)).any()


def test_axes_of_the_figure_show_few_plain_numbers_that_do_not_touch(unchecked):
    instance = equal_distractors(inputs=5, tokens=6, dim=12, generator=torch.Generator().manual_seed(0))
    for steps in ((40,), SHORT, (1, 3000)):
        figure = attention_svm.analyse(instance.tokens, instance.query, instance.scores, steps=steps).plot()
        figure.draw_without_rendering()
        for ax in figure.axes[:2]:
            low, high = ax.get_xlim()
            shown = [
                text
                for text in ax.get_xticklabels(which="both")
                if text.get_text() and low <= text.get_position()[0] <= high
            ]
            assert 1 <= len(shown) <= 6
            boxes = [text.get_window_extent() for text in shown]
            assert all(float(text.get_text()) == text.get_position()[0] for text in shown)
            assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    single = (
        attention_svm.analyse(instance.tokens, instance.query, instance.scores, steps=(40,))
        .plot()
        .axes[0]
        .lines[0]
    )
    assert single.get_marker() == "o"  # a line through one point is invisible


def test_a_run_that_has_not_settled_names_its_steps():
    instance = equal_distractors(inputs=5, tokens=6, dim=12, generator=torch.Generator().manual_seed(0))
    early = str(attention_svm.analyse(instance.tokens, instance.query, instance.scores, steps=(40,)))
    assert "smallest attention 0.95" in early
    assert "more than 40 steps" in early
    assert "settle" not in str(
        attention_svm.analyse(instance.tokens, instance.query, instance.scores, steps=(2000,))
    )


def test_the_reason_of_an_infeasible_selection_gives_no_advice():
    """Equal tokens are dropped before the solver runs, so its advice to drop them would mislead."""
    x = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    result = attention_svm.analyse(
        x,
        torch.ones(2, 1, dtype=torch.float64),
        torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
        steps=(3,),
    )
    assert "infeasible" in result.best.reason
    assert result.best.contradicting == ((0, 1), (1, 1))
    assert ";" not in result.best.reason


def test_numpy_arrays_float32_and_integer_labels_are_converted():
    x, z = gaussian(3, 4, 5).float(), gaussian(3, 5, seed=1).float()
    scores, head, labels = (
        gaussian(3, 4, seed=2).float(),
        gaussian(5, seed=3).float(),
        torch.tensor([1, -1, 1]),
    )
    exact = attention_svm.analyse(x.double(), z.double(), scores.double(), steps=SHORT)
    assert attention_svm.analyse(x, z, scores, steps=SHORT).cosine == exact.cosine
    assert attention_svm.analyse(x.numpy(), z.numpy(), scores.numpy(), steps=SHORT).cosine == exact.cosine
    assert attention_svm.analyse_head(x, z, head, labels, steps=SHORT).feasible
