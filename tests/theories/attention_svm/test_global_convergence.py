"""How often descent selects every best token: the counts of an independent run, the intervals, and the figure."""

import numpy as np
import pytest
from scipy.stats import binom

from transformer_theory.theories.attention_svm.experiments.global_convergence import DIMS, KNOWN, GlobalConvergence, count_best
from transformer_theory.theories.attention_svm.experiments.shares import clopper_pearson


@pytest.mark.parametrize(("inputs", "tokens", "dim"), [(5, 5, 2), (5, 5, 10), (10, 5, 5), (15, 5, 5), (5, 10, 10)])
def test_counts_of_the_published_seeds(inputs, tokens, dim):
    """Exact counts of another implementation, over the same 100 problems."""
    count = count_best(inputs, tokens, dim, trials=100, steps=1000, rate=0.1, threshold=1e-3)
    assert count / 100 == KNOWN[inputs, tokens][DIMS.index(dim)]


@pytest.mark.parametrize(("k", "n"), [(0, 20), (3, 20), (20, 20), (487, 1000)])
def test_the_interval_has_the_tails_of_the_binomial(k, n):
    low, high = clopper_pearson(k, n)
    assert binom.sf(k - 1, n, low) == pytest.approx(0.025 if k else 1.0)
    assert binom.cdf(k, n, high) == pytest.approx(0.025 if k < n else 1.0)
    assert low <= k / n <= high


def test_no_trial_says_nothing():
    low, high = clopper_pearson(np.array([0, 1]), np.array([0, 2]))
    assert (low[0], high[0]) == (0, 1)
    assert low[1] == pytest.approx(1 - 0.975**0.5)  # one of two: 1 - (1 - p)^2 = 0.025 at the lower end


def test_the_figure_shows_each_curve_and_the_known_numbers():
    experiment = GlobalConvergence(inputs=(5, 6), tokens=(5,), dims=(2, 5), trials=100, steps=1000)
    result = experiment.run()
    left, right = experiment.draw(result).axes
    assert left.get_legend_handles_labels()[1] == ["n = 5", "n = 6", "independent run"]
    assert right.get_legend_handles_labels()[1] == ["T = 5", "independent run"]
    assert sum("predicted" in row for row in result.table) == 2
    assert all(row["predicted"] == row["value"] for row in result.table if "predicted" in row)
    a = result.arrays
    assert (a["attention_svm/low"] <= a["attention_svm/share"]).all()
    assert (a["attention_svm/share"] <= a["attention_svm/high"]).all()
