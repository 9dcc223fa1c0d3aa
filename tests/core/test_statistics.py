"""Statistics against closed forms and against scipy."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement, Null, permutation_p
from transformer_theory.core.statistics import (
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HEADLINE_DRAWS,
    RANGE_DRAWS,
    UNTRAINED,
    agreement,
    bounded_interval,
    can_still_decide,
    equals_its_draws,
    false_discoveries,
    jackknife_interval,
    over_seeds,
    permutations,
    rank_sum_p,
    reason_without_p,
    share_interval,
    student_interval,
    studentised,
    studentised_maximum,
)

ROW = Measurement("crate", "on data", "rate", 1.0, side=">=", seed=0)


def test_student_interval_is_scipys():
    values = [0.3, 1.7, 2.2, -0.4]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert student_interval(values) == pytest.approx((expected.low, expected.high))
    assert student_interval([1.0]) is None


def test_permutation_p_counts_ties_and_is_never_zero():
    draws = [0.0, 1.0, 1.0, 2.0]
    assert permutation_p(1.0, draws, ">=") == 4 / 5
    assert permutation_p(1.0, draws, "<=") == 4 / 5
    assert permutation_p(9.0, draws, ">=") == 1 / 5
    assert permutation_p(1.5, draws, "==", predicted=1.4) == 1 / 5
    assert permutation_p(1.5, draws, "!=", predicted=1.4) == 1
    assert permutation_p(9.0, draws, "!=", predicted=1.4) == 1 / 5
    with pytest.raises(ValueError, match="<>"):
        permutation_p(1.0, draws, "<>")


def test_permutation_p_is_uniform_under_the_null():
    generator = np.random.default_rng(0)
    p = [permutation_p(generator.normal(), generator.normal(size=99).tolist(), ">=") for _ in range(2000)]
    counts, _ = np.histogram(p, bins=10, range=(0.005, 1.005))
    assert stats.chisquare(counts).pvalue > 0.01


def test_false_discoveries_by_hand():
    assert false_discoveries([0.01, 0.04, 0.03, 0.5]) == pytest.approx(
        [0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5]
    )
    assert false_discoveries([]) == []


@each_case(
    ("numbers", "expected"),
    [((0.9, 1.0, 0.5), 0.8), ((1.2, 1.0, 0.0), 1.2), ((0.5, 0.5, 0.5), None), ((None, 1.0, 0.0), None)],
)
def test_agreement(numbers, expected):
    result = agreement(*numbers)
    assert result == (None if expected is None else pytest.approx(expected))


def test_a_share_of_another_number_of_samples_has_no_interval():
    assert share_interval(0.5, 3) is None
    low, high = share_interval(0.5, 10)
    assert low < 0.5 < high


def test_permutations_depend_on_the_size_alone_and_earlier_rows_stay():
    torch.manual_seed(1)
    few, many = permutations(6, 3), permutations(6, 40)
    torch.testing.assert_close(few, many[:3])
    assert (many.sort(1).values == torch.arange(6)).all()
    assert len(many.unique(dim=0)) > 30
    assert permutations(6, 0).shape == (0, 6)


@each_case("side", [">=", "<=", "==", "!="])
def test_rank_sum_p_enumerates_all_choices(side):
    generator = np.random.default_rng(3)
    values, draws = generator.normal(0.5, 1, 3), generator.normal(0, 1, 6)
    measures = {
        ">=": lambda x: x,
        "<=": lambda x: -x,
        "==": lambda x: -abs(x - 0.4),
        "!=": lambda x: abs(x - 0.4),
    }
    extreme = measures[side](np.array([*values, *draws]))
    ranks = stats.rankdata(extreme)
    sums = [ranks[list(chosen)].sum() for chosen in combinations(range(9), 3)]
    expected = np.mean([total >= ranks[:3].sum() - 1e-9 for total in sums])
    assert rank_sum_p(values, draws, side, predicted=0.4) == pytest.approx(expected)


def test_the_jackknife_of_a_mean_covers_it():
    hits = 0
    for seed in range(200):
        x = torch.randn(200, generator=torch.Generator().manual_seed(seed)).double()
        low, high = jackknife_interval(lambda index, x=x: float(x[index].mean()), 200)
        hits += low <= 0 <= high
    assert 180 <= hits <= 198  # 95 % of 200 is 190
    assert jackknife_interval(lambda index: 0.0, 9) is None


def test_a_p_value_needs_enough_draws():
    few, enough = (
        replace(ROW, nulls=(Null("permuted labels", tuple(np.linspace(0, 0.9, n))),))
        for n in (RANGE_DRAWS, HEADLINE_DRAWS)
    )
    assert over_seeds([few]).p is None
    assert reason_without_p(few) == "no p-value: the null has 19 draws, 99 are needed"
    assert over_seeds([enough]).p == 1 / 200
    assert reason_without_p(enough) == ""
    assert "does not predict a side" in reason_without_p(replace(enough, side=None))
    assert over_seeds([replace(enough, side=None)]).p is None
    assert reason_without_p(replace(ROW, value=None, reason="no labels")) == "no value"


def test_untrained_networks_are_compared_by_ranks_not_averaged():
    draws = tuple(np.linspace(0, 0.9, RANGE_DRAWS))
    rows = [
        replace(ROW, value=value, seed=seed, nulls=(Null(UNTRAINED, draws),))
        for seed, value in enumerate((0.95, 1.0, 1.3))
    ]
    summary = over_seeds(rows)
    assert summary.p == pytest.approx(1 / 1540)  # 3 of 22 numbers
    assert summary.null.draws == pytest.approx(draws)
    alone = over_seeds(rows[:1])
    assert alone.p is None
    assert (
        reason_without_p(rows[0])
        == "no p-value: 1 trained network and 19 untrained ones are too few; add seeds"
    )


def test_shared_permutations_keep_the_null_of_the_mean_wide():
    """Three seeds that see one accident of the labels: independent draws would make it a finding, shared
    draws do not.
    """
    generator = np.random.default_rng(0)
    found = {"shared": 0, "independent": 0}
    for _ in range(200):
        accident, shared = generator.normal(), tuple(generator.normal(size=HEADLINE_DRAWS))
        for kind in found:
            draws = [
                shared if kind == "shared" else tuple(generator.normal(size=HEADLINE_DRAWS)) for _ in range(3)
            ]
            rows = [
                replace(
                    ROW,
                    value=accident + 1e-3 * seed,
                    seed=seed,
                    nulls=(Null("permuted labels", draws[seed]),),
                )
                for seed in range(3)
            ]
            found[kind] += over_seeds(rows).p <= 0.05
    assert found["shared"] <= 20  # 5 % of 200, with its spread
    assert found["independent"] >= 25


def test_a_value_that_depends_on_the_data_alone_keeps_its_interval():
    rows = [replace(ROW, seed=seed, interval=(0.8, 1.2), interval_kind="over samples") for seed in range(3)]
    summary = over_seeds(rows)
    assert (summary.interval, summary.interval_kind, summary.n) == ((0.8, 1.2), "over samples", 3)
    differing = over_seeds([replace(row, value=float(row.seed)) for row in rows])
    assert differing.interval_kind == "over seeds"
    assert differing.interval == pytest.approx(student_interval([0.0, 1.0, 2.0]))


def test_the_value_on_noise_is_averaged_over_the_seeds_that_have_it():
    rows = [replace(ROW, seed=0, on_noise=0.5), replace(ROW, seed=1)]
    assert over_seeds(rows).on_noise == 0.5
    assert over_seeds(rows[1:]).on_noise is None


def test_a_rank_sum_with_ties_enumerates_mid_ranks():
    values, draws = [1.0, 1.0, 1.0], [1.0] * 10 + [0.0] * 9
    ranks = stats.rankdata([*values, *draws])
    expected = np.mean(
        [ranks[list(chosen)].sum() >= ranks[:3].sum() for chosen in combinations(range(22), 3)]
    )
    assert rank_sum_p(values, draws, ">=") == pytest.approx(expected)
    assert rank_sum_p([2.0, 2.0], [2.0] * 5, ">=") == 1.0


def test_a_missing_first_seed_does_not_hide_the_test():
    null = Null("permuted labels", tuple(np.linspace(0, 0.9, HEADLINE_DRAWS)))
    missing = Measurement("crate", "on data", "rate", None, reason="no data", seed=0)
    rows = [missing, replace(ROW, seed=1, nulls=(null,)), replace(ROW, seed=2, nulls=(null,))]
    assert over_seeds(rows).p == over_seeds(rows[1:]).p == 1 / 200


def test_equal_draws_give_no_p_value():
    row = replace(ROW, nulls=(Null("permuted labels", (0.5,) * HEADLINE_DRAWS),))
    assert over_seeds([row]).p is None
    assert "all draws of the null are equal" in reason_without_p(row)


def test_intervals_of_bounded_quantities_stay_inside_and_hold_the_mean():
    for values in ([0.98, 1.0, 0.99], [0.0, 0.3, 0.9], [0.5, 0.51]):
        low, high = bounded_interval(values, (0.0, 1.0))
        assert 0 < low < np.mean(values) < high < 1
    low, high = bounded_interval([1.0, 2.0, 9.0], (0.0, None))
    assert low > 0
    assert math.isclose(low * high, 16.0)  # symmetric around log 4
    upper = bounded_interval([-1.0, -2.0, -9.0], (None, 0.0))
    assert np.allclose(upper, (-high, -low))
    # Far from the bounds the scale does not matter; at a bound the plain interval is all there is.
    assert np.allclose(
        bounded_interval([5.0, 5.1, 5.2], (-1e6, 1e6)), student_interval([5.0, 5.1, 5.2]), atol=1e-4
    )
    assert bounded_interval([1.0, 1.0], (0.0, 1.0)) == (1.0, 1.0)
    assert bounded_interval([0.5], (0.0, 1.0)) is None
    # By hand: mean .5, standard error .1 / sqrt(2), t quantile 12.706 with one degree of freedom, slope 4.
    low, high = bounded_interval([0.4, 0.6], (0.0, 1.0))
    assert math.isclose(high, 1 / (1 + math.exp(-4 * 12.706204736 * 0.1)), rel_tol=1e-6)


# ---- tests that share their draws


def by_brute_force(values, draws):
    """Step-down adjusted p-values with loops, from the definition."""
    together = [list(values), *[list(row) for row in draws]]
    standard = []
    for column in zip(*together):
        mean = sum(column) / len(column)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in column) / len(column))
        standard.append([abs(one - mean) / deviation if deviation else 0.0 for one in column])
    order = sorted(range(len(values)), key=lambda test: -standard[test][0])
    found, before = {}, 0.0
    for place, test in enumerate(order):
        behind = order[place:]
        count = sum(
            max(standard[other][row] for other in behind) >= standard[test][0] - 1e-9
            for row in range(1, len(together))
        )
        before = found[test] = max(before, (1 + count) / len(together))
    return [found[test] for test in range(len(values))]


def test_the_studentised_maximum_is_that_of_its_definition():
    generator = np.random.default_rng(0)
    for shift in (0.0, 3.0):
        draws = generator.standard_t(3, size=(39, 7)) + generator.normal(size=(39, 1))
        values = generator.normal(size=7) + shift * np.arange(7)
        assert studentised_maximum(values, draws) == pytest.approx(by_brute_force(values, draws))
        # neither the unit nor the sign of a test matters
        scale = np.array([1.0, -2.0, 1e3, 1e-3, 1.0, -1.0, 5.0])
        assert studentised_maximum(scale * values + 7, scale * draws + 7) == pytest.approx(
            studentised_maximum(values, draws)
        )


def test_the_studentised_maximum_by_hand():
    """Test 1 holds 4, 0, 1, 1, 4 with mean 2, so that |value - mean| is 2 and the draws have 2, 1, 1, 2; its
    variance is 14/5. Test 2 holds 1, 0, 0, 0, 0: the value is at 2 deviations, each draw at 1/2. Test 2 comes
    first, and its draws, with 2/1.673 = 1.20 from test 1, never reach 2. Two draws tie with test 1.
    """
    values = np.array([4.0, 1.0])
    draws = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    z, others = studentised(values, draws)
    assert z == pytest.approx([2 / math.sqrt(14 / 5), 2.0])
    assert others[:, 1] == pytest.approx([-0.5] * 4)
    assert studentised_maximum(values, draws) == pytest.approx([3 / 5, 1 / 5])


def test_a_test_whose_draws_all_equal_the_value_is_none():
    draws = np.random.default_rng(1).normal(size=(99, 2))
    values = np.array([9.0, 0.3])
    with_constant = np.column_stack([draws, np.full(99, 0.7) * (1 + 1e-8 * np.arange(99))])
    found = studentised_maximum(np.array([*values, 0.7]), with_constant)
    assert found.tolist() == [*studentised_maximum(values, draws), 1.0]
    assert equals_its_draws(0.7, Null(EQUAL_SPECTRUM, (0.7, 0.7 * (1 + 1e-8))))
    assert not equals_its_draws(0.7, Null(EQUAL_SPECTRUM, (0.7, 0.7 * (1 + 1e-5))))
    assert not equals_its_draws(0.7, Null(EQUAL_SPECTRUM, (0.7,), value=0.8))
    assert not equals_its_draws(0.7, Null(EQUAL_SPECTRUM, ()))


def families(count, tests, draws, seed):
    """Exchangeable rows [1 + draws, tests]: correlated tests with heavy tails, some of them skewed."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        noise = generator.normal(size=(1 + draws, 1)) + generator.standard_t(2, size=(1 + draws, tests))
        noise[:, ::3] = np.exp(noise[:, ::3].clip(-9, 9))
        yield noise


def test_the_family_wise_error_is_at_most_the_level():
    """Of exchangeable families: the smallest adjusted p-value is at most .05 in 5 % of them, and so is the
    smallest of the true null hypotheses beside one large effect.
    """
    count, alone, beside = 2_000, 0, 0
    for rows in families(count, 20, 59, 3):
        alone += studentised_maximum(rows[0], rows[1:]).min() <= 0.05
        rows[0, 1] += 1e3
        beside += np.delete(studentised_maximum(rows[0], rows[1:]), 1).min() <= 0.05
    for found in (alone, beside):
        assert stats.binomtest(found, count, 0.05, alternative="greater").pvalue > 0.01
    assert stats.binomtest(alone, count, 0.05, alternative="less").pvalue > 0.01  # it is not conservative


def test_99_draws_find_a_lone_effect_among_60_tests():
    generator = np.random.default_rng(4)
    found, by_false_discoveries = 0, 0
    for _ in range(100):
        rows = generator.normal(size=(100, 60))
        rows[0, 7] += 6.0
        p = studentised_maximum(rows[0], rows[1:])
        found += p[7] <= 0.05
        lone = [permutation_p(rows[0, test], rows[1:, test], ">=") for test in range(60)]
        by_false_discoveries += false_discoveries(lone)[7] <= 0.05
    assert found >= 95
    assert by_false_discoveries <= 10  # 60 / 100 is its smallest adjusted p-value, unless others help


def test_families_that_stop_would_not_have_become_significant():
    """With all planned draws, those after the stop included, no test of a family that stopped is significant;
    an effect goes on to the end, and most families of noise stop early.
    """
    planned, stops, rejected = 99, [], 0
    for rows in families(300, 10, planned, 5):
        looks = [
            look for look in range(9, planned, 10) if not can_still_decide(rows[0], rows[1 : 1 + look], 99)
        ]
        full = studentised_maximum(rows[0], rows[1:])
        if looks:
            stops.append(looks[0])
            assert full.min() > 0.05
            assert studentised_maximum(rows[0], rows[1 : 1 + looks[0]]).min() > 0.05
        rejected += full.min() <= 0.05
    assert rejected >= 5  # so that a stop could have changed a decision
    assert len(stops) >= 200
    assert np.median(stops) <= 49
    draws = np.random.default_rng(6).normal(size=(19, 10))
    assert can_still_decide(np.array([9.0, *draws[0, 1:]]), draws, planned)
    # each test is exceeded by 9 draws: 1 + 9 is twice .05 of 100; by 8 it may go on
    nine = np.array([[2.0]] * 5 + [[-2.0]] * 4 + [[0.0]] * 2)
    assert not can_still_decide(np.array([1.0]), nine, planned)
    assert can_still_decide(np.array([1.0]), nine[1:], planned)


def test_copies_may_be_few_and_their_p_value_is_two_sided():
    for count, reason in ((19, ""), (18, "no p-value: the null has 18 draws, 19 are needed")):
        null = Null(EQUAL_SCALE, tuple(np.linspace(0, 1, count)))
        for value in (-1.0, 2.0):
            summary = over_seeds([replace(ROW, value=value, nulls=(null,))])
            assert summary.p == (None if reason else pytest.approx(1 / (1 + count)))
            assert reason_without_p(summary) == reason
    own = replace(ROW, value=0.5, nulls=(Null(EQUAL_SCALE, tuple(np.linspace(0, 1, 39)), value=3.0),))
    assert over_seeds([own]).p == pytest.approx(1 / 40)
