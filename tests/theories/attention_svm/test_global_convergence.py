"""How often descent selects every best token: counts of an independent implementation, intervals, the map,
and the figures.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible
from transformer_theory.core.figure import published, share
from transformer_theory.core.statistics import clopper_pearson
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.figures.global_convergence import (
    KNOWN,
    KNOWN_DIMS,
    global_convergence,
)
from transformer_theory.theories.attention_svm.figures.probability_map import QUANTITIES, probability_map
from transformer_theory.theories.attention_svm.selection import locally_optimal


@each_case(("inputs", "tokens", "dim"), [(5, 5, 2), (5, 5, 10), (10, 5, 5), (15, 5, 5), (5, 10, 10)])
def test_counts_of_the_published_seeds(inputs, tokens, dim, unchecked):
    """Exact counts of another implementation, over the same 100 problems."""
    found = global_convergence.sweep.function(inputs, tokens, dim)
    assert found.value == KNOWN[inputs, tokens][KNOWN_DIMS.index(dim)]


@each_case(("k", "n"), [(0, 20), (3, 20), (20, 20), (487, 1000)])
def test_the_interval_has_the_tails_of_the_binomial(k, n):
    low, high = clopper_pearson(k, n)
    assert binom.sf(k - 1, n, low) == pytest.approx(0.025 if k else 1.0)
    assert binom.cdf(k, n, high) == pytest.approx(0.025 if k < n else 1.0)
    assert low <= k / n <= high


def test_the_interval_without_trials_is_everything():
    low, high = clopper_pearson(np.array([0, 1]), np.array([0, 2]))
    assert (low[0], high[0]) == (0, 1)
    assert low[1] == pytest.approx(1 - 0.975**0.5)  # one of two: 1 - (1 - p)^2 = 0.025 at the lower end


def test_the_figure_shows_each_curve_and_the_known_numbers(run):
    experiment = global_convergence(inputs=(5, 6), tokens=(5,), dims=(2, 5), trials=100, steps=1000)
    result = run(experiment)
    left, right = experiment.plot(result).axes
    assert left.get_legend_handles_labels()[1] == ["n = 5", "n = 6", "recomputed independently"]
    assert right.get_legend_handles_labels()[1] == ["T = 5", "recomputed independently"]
    known = published(result.table)
    assert [dict(row.at) for row in known] == [{"n": 5, "T": 5, "d": d} for d in (2, 5)]
    assert known.column("value") == known.column("predicted")
    assert set(known.column("basis")) == {"recomputed"}
    assert all(row.interval[0] <= row.value <= row.interval[1] for row in result.table)


@each_case("changed", [{"trials": 10}, {"steps": 50}, {"rate": 0.2}, {"threshold": 0.01}])
def test_other_settings_have_no_known_number(changed, monkeypatch):
    made = replace(global_convergence.sweep, function=lambda n, T, d, **settings: share("share", 1, 1))
    monkeypatch.setattr(global_convergence, "sweep", made)
    usual, other = (
        global_convergence(inputs=(5,), tokens=(5,), dims=(2,), **settings).run().table
        for settings in ({}, changed)
    )
    assert len(published(usual)) == len(usual)
    assert not published(other)


@pytest.mark.parametrize(("inputs", "tokens", "dim"), [(2, 5, 3), (6, 4, 3)])
def test_the_map_counts_what_single_problems_show(inputs, tokens, dim):
    """The same problems one at a time: single solver, :func:`locally_optimal`, descent without a batch."""
    settings = {"trials": 8, "steps": 500, "seed": 5}
    counted = probability_map.sweep.function(inputs, tokens, dim, **settings)
    batch = attention_svm.cross_attention(
        inputs=inputs, tokens=tokens, dim=dim, generator=torch.Generator().manual_seed(5), trials=8
    )
    feasible = best = settled = locally = 0
    for trial in range(8):
        problem = batch[trial]
        try:
            attention_svm.frobenius_max_margin(
                attention_svm.constraints(problem.tokens, problem.query, problem.optimal())
            )
            feasible += 1
        except Infeasible:
            pass
        attention = problem.attention(
            attention_svm.normalised_descent(problem, attention_svm.start(problem), steps=500).W
        )
        if bool((attention.amax(-1) > 1 - 1e-3).all()):
            select = attention.argmax(-1)
            settled, best = settled + 1, best + bool((select == problem.optimal()).all())
            pairs = attention_svm.constraints(problem.tokens, problem.query, select)
            locally += bool(
                locally_optimal(
                    problem.scores, select, pairs, attention_svm.frobenius_max_margin(pairs)
                ).all()
            )
    counts = [(round(one.value * one.columns["n"]), one.columns["n"]) for one in counted]
    assert counts == [(feasible, 8), (best, 8), (locally, settled)]
    assert settled > 0


def test_the_map_shows_where_the_theory_predicts():
    experiment = probability_map(inputs=(2, 5), tokens=(3,), dims=(3, 6), trials=10, steps=300)
    result = experiment.run()
    predicted = result.table.select(quantity=next(iter(QUANTITIES)), basis="theory").where(
        lambda row: row.predicted is not None
    )
    assert [(row.at["n"], row.at["d"]) for row in predicted] == [(2, 3), (2, 6), (5, 6)]
    assert predicted.column("value") == [1, 1, 1]
    panels = experiment.plot(result).axes
    assert [ax.get_title(loc="left") for ax in panels] == ["d = 3", "d = 6", "", "", "", ""]
