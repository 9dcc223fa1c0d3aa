"""Bounds and identities of one row of attention, predictions at other lengths, and trained heads."""

import math

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories import length
from transformer_theory.theories.length import retrieval
from transformer_theory.theories.length.ladder import LADDER, SetTransformer, collected
from transformer_theory.theories.length.longer import gaussian_top_weight, standardised


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores_of(rows: int, n: int, seed: int = 0, size: float = 2.0) -> torch.Tensor:
    return size * torch.randn(rows, n, generator=generator(seed), dtype=torch.float64)


def test_the_gap_by_hand():
    scores = torch.tensor([3.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    expected = 3 - math.log((math.e + 1 + 1 / math.e) / 3)
    assert float(length.score_gap(scores)) == pytest.approx(expected, rel=1e-14)
    assert float(length.winner_weight(length.score_gap(scores), 4)) == pytest.approx(
        float(scores.softmax(0)[0]), rel=1e-14
    )
    # A constant does not matter, so logarithms of weights serve as scores.
    assert float(length.score_gap(scores.softmax(0).log())) == pytest.approx(expected, rel=1e-13)


def test_keys_that_are_not_allowed_do_not_count():
    scores, allowed = scores_of(7, 9), torch.rand(7, 9, generator=generator(1)) < 0.6
    allowed[:, :2] = True
    found = length.score_gap(scores, allowed=allowed)
    for row, seen, gap in zip(scores, allowed, found.tolist()):
        assert gap == pytest.approx(float(length.score_gap(row[seen])), rel=1e-12)
    alone = torch.zeros(1, 3, dtype=torch.bool)
    alone[0, 1] = True
    assert math.isnan(float(length.score_gap(scores[:1, :3], allowed=alone)))


def test_the_gap_keeps_its_digits_in_a_sharp_row():
    assert float(length.score_gap(torch.tensor([80.0, 0.0, 0.0]))) == pytest.approx(80.0, rel=1e-6)


def test_the_bound_holds_and_is_attained():
    scores = scores_of(50, 30)
    bound = length.log_dispersion_bound(scores)
    assert bool((scores.log_softmax(-1).amax(-1) <= bound + 1e-12).all())
    many = torch.zeros(100_000, dtype=torch.float64)
    many[0] = 2.0  # one large score among equal ones attains the bound up to O(1/n)
    assert float(many.log_softmax(0)[0] - length.log_dispersion_bound(many)) == pytest.approx(0.0, abs=1e-4)


def test_the_kept_share_is_the_ratio_of_the_weights():
    first, others = scores_of(5, 6), scores_of(5, 11, seed=1)
    together = torch.cat([first, others], -1).softmax(-1)[:, :6]
    assert torch.allclose(together, first.softmax(-1) * length.kept_share(first, others)[:, None], rtol=1e-12)


def test_resampling_a_constant_is_uniform_and_a_large_pool_is_the_law():
    assert length.resampled_top_weight(torch.ones(4), 50, generator=generator()) == pytest.approx(
        1 / 50, rel=1e-12
    )
    value = float(length.top_weight(scores_of(4000, 100)).mean())
    pool = scores_of(4000, 16, seed=1)
    assert length.resampled_top_weight(pool, 100, generator=generator(2), samples=4000) == pytest.approx(
        value, abs=0.015
    )
    assert length.top_weight(scores_of(3, 8)).tolist() == pytest.approx(
        scores_of(3, 8).softmax(-1).amax(-1).tolist(), rel=1e-12
    )


@pytest.mark.parametrize("ratio", [0.05, 0.5, 4.0])
def test_the_continuum_is_the_limit_of_uniform_keys(ratio: float):
    n = 2000
    measured = float(
        length.top_weight(ratio * n * torch.rand(2000, n, generator=generator(), dtype=torch.float64)).mean()
    )
    assert length.continuum_weight(ratio) == pytest.approx(measured, abs=0.02)
    process = (
        torch.empty(4000, math.ceil(60 / ratio) + 16, dtype=torch.float64)
        .exponential_(generator=generator(1))
        .cumsum(-1)
    )
    assert length.continuum_weight(ratio) == pytest.approx(
        float((1 / (1 + (-ratio * process).exp().sum(-1))).mean()), abs=0.01
    )


def test_a_small_ratio_of_the_continuum_has_weight_ratio():
    # The sum over the points of e^(-r Gamma) has the mean 1/r.
    for ratio in (1e-6, 1e-3, 0.02):
        assert length.continuum_weight(ratio) == pytest.approx(ratio - ratio**2 / 2, rel=1e-3)


def test_log_n_keeps_a_lone_winner_only_above_the_critical_gap():
    for ratio, grows in ((1.5, True), (0.5, False)):
        gap = ratio * math.log(15)
        weights = [float(length.winner_weight(gap * length.log_factor(n, 16), n)) for n in (16, 256, 4096)]
        assert (weights == sorted(weights)) is grows
        assert weights[2] > float(length.winner_weight(gap, 4096))


def test_resampling_fails_if_queries_differ():
    sizes = torch.tensor([0.2, 2.0]).repeat(1000)[:, None]
    pool, long = sizes * scores_of(2000, 16), sizes * scores_of(2000, 256, seed=1)
    assert length.resampled_top_weight(pool, 256, generator=generator()) > 1.5 * float(
        length.top_weight(long).mean()
    )


def test_gaussian_scores_have_the_given_variance():
    rows = standardised(torch.randn(6, 9, generator=generator(), dtype=torch.float64))
    assert torch.allclose(rows.mean(-1), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(rows.square().mean(-1), torch.ones(6, dtype=torch.float64), atol=1e-12)
    assert gaussian_top_weight(torch.zeros(3, 1), 10, generator=generator()).tolist() == pytest.approx(
        [0.1] * 3
    )


def test_the_change_by_one_token_by_hand():
    # All others at -v, a new value v with all the weight: the output moves by 2 |v|, which is the bound.
    scores, values = torch.tensor([-50.0, 0.0]), torch.tensor([[-1.0], [-1.0]])
    change, bound = length.one_token_change(scores, values, torch.tensor(50.0), torch.tensor([1.0]))
    assert float(change) == pytest.approx(2.0)
    assert float(bound) == pytest.approx(2.0)
    moved, _ = length.one_token_change(scores, values, scores[0], values[0])
    assert float(moved) == 0.0


def test_a_sink_and_the_rest_give_the_output():
    weights, values = scores_of(4, 5).softmax(-1), scores_of(5, 3, seed=1)
    mass, rest = length.without_sink(weights, values, sink=2)
    assert torch.allclose(
        (1 - mass)[:, None] * rest + mass[:, None] * values[2], weights @ values, rtol=1e-12
    )


@each_case(
    ("call", "message"),
    [
        (lambda: length.score_gap(torch.ones(3, 1)), "at least 2 keys"),
        (lambda: length.score_gap(torch.tensor([1.0, math.nan])), "not NaN"),
        (lambda: length.log_dispersion_bound(torch.tensor([1.0, math.inf])), "below infinity"),
        (lambda: length.resampled_top_weight(torch.zeros(0), 4, generator=generator()), "finite scores"),
        (
            lambda: length.resampled_top_weight(torch.ones(3), 0, generator=generator()),
            "n must be at least 1",
        ),
        (lambda: length.log_factor(1, 16), "n must be at least 2"),
        (lambda: length.continuum_weight(0.0), "ratio must be positive"),
        (
            lambda: length.score_gap(torch.ones(3), allowed=torch.ones(4, dtype=torch.bool)),
            "allowed must be broadcastable",
        ),
        (lambda: length.winner_weight(1.0, 0), "n must be at least 1"),
        (lambda: length.winner_weight(1.0, math.nan), "n must be at least 1"),
        (lambda: length.kept_share(torch.ones(2), torch.tensor([math.nan])), "not NaN"),
        (
            lambda: length.one_token_change(torch.ones(2), torch.ones(2, 1), 0.0, torch.ones(1), key=2),
            "one of 2 keys",
        ),
        (lambda: length.without_sink(torch.eye(2) / 2, torch.eye(2)), "sum to 1"),
        (lambda: length.top_weight(torch.tensor([1.0, math.nan])), "not NaN"),
        (
            lambda: length.resampled_top_weight(torch.ones(3), 4, generator=generator(), factor=math.nan),
            "factor must be positive",
        ),
        (lambda: length.train_head("largest", generator=generator(), steps=1), "'maximum' or 'needle'"),
        (
            lambda: length.at_length(length.PooledHead(), "needle", 0, torch.ones(3), generator=generator()),
            "keys must be at least 1",
        ),
        (lambda: length.without_sink(torch.eye(2), torch.eye(2)), "weight on other keys"),
    ],
)
def test_bad_input_has_one_line(call, message: str):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_sequences_of_both_tasks():
    for kind in ("maximum", "needle"):
        found = retrieval.draw(20, 7, kind=kind, generator=generator())
        assert found.tokens.shape == (20, 7, 11)
        assert bool((found.tokens[..., 0].argmax(1) == found.right).all())
        assert bool((found.tokens[torch.arange(20), found.right, 1:].argmax(1) == found.labels).all())
    assert float(retrieval.draw(5, 7, kind="needle", generator=generator()).tokens[..., 0].sum()) == 5.0


def test_a_trained_head_finds_the_needle_and_scaling_is_undone():
    model = length.train_head("needle", generator=generator(), steps=150)
    pool = length.short_scores(model, "needle", generator=generator(1), sequences=200)
    rows = [
        length.at_length(model, "needle", n, pool, generator=generator(2), scaled=scaled, sequences=50)
        for n, scaled in ((16, False), (1024, False), (1024, True))
    ]
    assert rows[0].accuracy > 0.95
    assert rows[2].right >= rows[1].right
    assert model.factor == 1.0
    assert rows[0].bound < rows[2].bound


def test_the_first_rung_is_predicted_and_its_null_is_not():
    row = next(iter(LADDER.rungs[0].measure(generator())))
    assert row.value == pytest.approx(row.predicted, abs=0.03)
    assert row.null.low > row.value + 0.3


def test_class_token_scores_are_those_of_the_weights():
    torch.manual_seed(0)
    model = SetTransformer(depth=2)
    tokens = retrieval.draw(6, 5, kind="maximum", generator=generator()).tokens
    heads, first = collected(model, tokens)
    more, _ = collected(model, tokens, images=3)
    assert (len(heads), first) == (4, 2)
    assert heads[0].shape == (6, 6)
    assert more[0].shape == (6, 18)
    assert torch.allclose(more[0][:, :6], heads[0], atol=1e-5)
    # The query of the first block is the same for all sequences, so the other keys have the scores that they
    # have in their own sequence.
    assert torch.allclose(more[0][0, 6:12], heads[0][1], atol=1e-4)


@each_case("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_many_keys_in_any_precision(dtype):
    keys = 100_001  # more than float16 can count
    scores = torch.zeros(keys, dtype=dtype)
    assert float(length.top_weight(scores)) == pytest.approx(1 / keys, rel=1e-5)
    assert float(length.log_dispersion_bound(scores)) == pytest.approx(-math.log(keys), rel=1e-6)
    assert float(length.kept_share(scores, scores[:1])) == pytest.approx(keys / (keys + 1), rel=1e-6)
    scores[7] = 5.0
    assert float(length.score_gap(scores)) == pytest.approx(5.0, rel=1e-6)
    seen = torch.ones(keys, dtype=torch.bool)
    assert float(length.score_gap(scores, allowed=seen)) == pytest.approx(5.0, rel=1e-6)
    assert float(length.winner_weight(torch.tensor(5.0, dtype=dtype), keys)) == pytest.approx(
        1 / (1 + (keys - 1) * math.exp(-5)), rel=1e-6
    )


def test_rows_without_weight_are_refused_and_empty_further_keys_are_not():
    none = torch.tensor([[-math.inf, -math.inf], [0.0, 1.0]], dtype=torch.float64)
    some = torch.tensor([[0.0, -math.inf], [0.0, 1.0]], dtype=torch.float64)
    values = torch.ones(2, 2, 1, dtype=torch.float64)
    gone = torch.full((2,), -math.inf, dtype=torch.float64)
    for call in (
        lambda: length.log_dispersion_bound(none),
        lambda: length.top_weight(none),
        lambda: length.kept_share(none, none),
        lambda: length.one_token_change(none, values, gone + 1, values[:, 0]),
        # the only key with weight goes
        lambda: length.one_token_change(some, values, gone, values[:, 0]),
    ):
        with pytest.raises(ValueError, match="row of -inf"):
            call()
    assert length.kept_share(some[:1], none[:1]).tolist() == [1.0]
    assert length.kept_share(none[:1], some[:1]).tolist() == [0.0]
    assert length.top_weight(some[:1]).tolist() == [1.0]
    with pytest.raises(ValueError, match="values must be finite"):
        length.one_token_change(some, math.inf * values, gone + 1, values[:, 0])


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_change_of_an_output_is_that_of_values_of_any_scale(scale):
    scores, values = scores_of(1, 3), torch.tensor([[[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]]).double()
    new, moved = torch.tensor([0.5]).double(), torch.tensor([[1.0, 1.0]]).double()
    after = scores.clone()
    after[0, 0] = 0.5
    weights = scores.softmax(-1), after.softmax(-1)
    changed = torch.cat([moved[:, None], values[:, 1:]], 1)
    distance = float((weights[1] @ changed[0] - weights[0] @ values[0]).norm())
    change, bound = length.one_token_change(scores, scale * values, new, scale * moved)
    assert float(change) / scale == pytest.approx(distance, rel=1e-12)
    largest = max(float(each[0, 0]) for each in weights)
    assert float(bound) / scale == pytest.approx(2 * largest * 5, rel=1e-12)
