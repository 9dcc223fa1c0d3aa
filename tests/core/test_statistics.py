"""Statistics against closed forms and against scipy."""

import numpy as np
import pytest
from scipy import stats

from transformer_theory.core.statistics import agreement, false_discoveries, permutation_p, share_interval, student_interval


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
    with pytest.raises(ValueError, match="<>"):
        permutation_p(1.0, draws, "<>")


def test_permutation_p_is_uniform_under_the_null():
    generator = np.random.default_rng(0)
    p = [permutation_p(generator.normal(), generator.normal(size=99).tolist(), ">=") for _ in range(2000)]
    counts, _ = np.histogram(p, bins=10, range=(0.005, 1.005))
    assert stats.chisquare(counts).pvalue > 0.01


def test_false_discoveries_by_hand():
    assert false_discoveries([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])
    assert false_discoveries([]) == []


@pytest.mark.parametrize(
    ("numbers", "expected"), [((0.9, 1.0, 0.5), 0.8), ((1.2, 1.0, 0.0), 1.2), ((0.5, 0.5, 0.5), None), ((None, 1.0, 0.0), None)]
)
def test_agreement(numbers, expected):
    result = agreement(*numbers)
    assert result == (None if expected is None else pytest.approx(expected))


def test_a_share_of_another_number_of_samples_has_no_interval():
    assert share_interval(0.5, 3) is None
    low, high = share_interval(0.5, 10)
    assert low < 0.5 < high
