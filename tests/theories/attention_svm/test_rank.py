"""Ranks: true ones, those of the released notebook, the figure and the map."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom, nbinom

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible
from transformer_theory.core.statistics import clopper_pearson
from transformer_theory.theories.attention_svm import solvers
from transformer_theory.theories.attention_svm.claims import solutions as claims
from transformer_theory.theories.attention_svm.figures.common import normal_mean
from transformer_theory.theories.attention_svm.figures.rank import (
    FEASIBLE_SHARE,
    FROBENIUS,
    NUCLEAR,
    RECIPE,
    feasible_interval,
    published_constraints,
    rank,
)
from transformer_theory.theories.attention_svm.figures.rank_map import rank_map


@each_case(
    ("size", "tried", "frobenius", "nuclear"),
    [
        ((5, 5, 4), 100, 3.98, 2.57),
        ((5, 5, 10), 100, 5.0, 2.50),
        ((10, 5, 10), 100, 9.99, 3.77),
        ((10, 5, 4), 113, 4.0, 3.43),
    ],
)
def test_means_of_the_published_seeds(size, tried, frobenius, nuclear, unchecked):
    """Means and numbers of seeds of an independent computation."""
    found = {one.quantity: one for one in rank.sweep.function(*size, official=0)}
    assert found[FEASIBLE_SHARE].columns["n"] == tried
    assert found[FROBENIUS].columns["n"] == found[NUCLEAR].columns["n"]  # all are verified
    assert found[FROBENIUS].value == pytest.approx(frobenius, abs=1e-9)
    assert found[NUCLEAR].value == pytest.approx(nuclear, abs=1e-9)


def test_few_feasible_seeds_are_all_taken():
    readings = rank.sweep.function(10, 5, 3, feasible=40, max_seeds=40, official=0)
    found = {one.quantity: one.columns["n"] for one in readings}
    share = solvers.frobenius_max_margins(published_constraints(range(40), 10, 5, 3)).solved
    assert 0 < share.sum() < 40
    assert found == {FEASIBLE_SHARE: 40, FROBENIUS: int(share.sum()), NUCLEAR: int(share.sum())}


def test_the_published_recipe_counts_errors_and_failures():
    pairs = published_constraints(range(4), 10, 5, 10)
    problems = [pairs.problem(at) for at in range(4)]
    solutions = [solvers.nuclear_max_margin(c) for c in problems]
    true, printed = [solution.rank for solution in solutions], [solvers.official_rank(c) for c in problems]
    assert sum(printed) > 2 * sum(true)
    active = [int((solution.margins <= 1 + 1e-9).sum()) for solution in solutions]
    assert all(r * (r + 1) / 2 <= count for r, count in zip(true, active))
    assert any(r * (r + 1) / 2 > count for r, count in zip(printed, active))
    assert (
        solvers.frobenius_max_margin(problems[0]).rank
        == solvers.official_rank(problems[0], norm="frobenius")
        == 10
    )
    infeasible = published_constraints(range(1), 15, 5, 2).problem(0)
    assert solvers.official_rank(infeasible) == 1
    with pytest.raises(Infeasible):
        solvers.nuclear_max_margin(infeasible)


def test_the_figure_has_a_panel_per_size_and_gaps_where_nothing_is_feasible():
    experiment = rank(inputs=(5, 15), tokens=(5,), dims=(1, 10), feasible=5, max_seeds=10, official=1)
    result = experiment.run()
    assert not result.select(quantity=NUCLEAR, at={"d": 1})
    assert result.select(quantity=FEASIBLE_SHARE).column("value") == [0, 1, 0, 1]
    assert result.select(quantity=RECIPE["nuclear"], at={"d": 1}).column("value") == [1, 1]
    assert all(row.predicted is None for row in result.table)  # one seed, where the paper has 100
    first, second, legend = experiment.plot(result).axes[:3]
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("n = 5, T = 5", "n = 15, T = 5")
    assert len(legend.get_legend().get_texts()) == 5


def test_reference_means_need_enough_problems(monkeypatch):
    found = {settings: list(rank.sweep.function(15, 5, 4, official=settings)) for settings in (9, 10)}

    def beside(official=10, **settings):
        made = dataclasses.replace(
            rank.sweep, function=lambda n, T, d, **settings: found[settings["official"]]
        )
        monkeypatch.setattr(rank, "sweep", made)
        rows = rank(inputs=(15,), tokens=(5,), dims=(4,), official=official, **settings).run().table
        return {row.quantity: (row.predicted, row.basis) for row in rows if row.predicted is not None}

    true, paper = (
        {FROBENIUS: (4, "recomputed"), NUCLEAR: (3.75, "recomputed")},
        {RECIPE["frobenius"]: (1.4, "figure")},
    )
    assert beside() == true | paper
    assert beside(feasible=50) == beside(max_seeds=300) == paper
    assert beside(official=9) == true


def test_half_widths():
    values = np.array([3, 4, 4, 5])
    mean = normal_mean("rank", values)
    half = 1.96 * np.std(values, ddof=1) / 2
    assert mean.columns["interval"] == pytest.approx((mean.value - half, mean.value + half))
    assert normal_mean("rank", values[:1]).columns["interval"] == (3, 3)


def test_the_map_respects_the_bound_and_has_intervals(run):
    experiment = rank_map(inputs=(2, 5), tokens=(3,), dims=(2, 6), trials=15)
    result = run(experiment)
    for row in result.select(quantity=NUCLEAR):
        frobenius = result.select(quantity=FROBENIUS, at=dict(row.at)).one()
        assert row.value <= frobenius.value <= min(row.at["n"], row.at["d"])
    feasible = result.select(quantity=FEASIBLE_SHARE)
    assert set(feasible.select(at={"d": 6}).column("value")) == {1}  # d >= max(T - 1, n)
    row = feasible.select(at={"n": 5, "d": 2}).one()
    assert binom.sf(round(15 * row.value) - 1, 15, row.interval[0]) == pytest.approx(0.025)
    assert len(result.table) == 12
    assert len(experiment.plot(result).axes) == 6


def test_the_map_writes_whole_numbers():
    experiment = rank_map(inputs=(10,), tokens=(3,), dims=(12,), trials=4)
    feasible, frobenius, _ = experiment.plot(experiment.run()).axes
    assert feasible.texts[0].get_text().startswith("1.00\n")
    assert frobenius.texts[0].get_text() == "10.0\n±.00"


def test_a_size_without_feasible_problems():
    experiment = rank_map(inputs=(15,), tokens=(15,), dims=(2,), trials=5)
    result = experiment.run()
    assert [row.value for row in result.table] == [0, None, None]
    experiment.plot(result)


def test_the_bound_on_the_rank_detects_a_solver_that_always_returns_one(monkeypatch, generator):
    real = solvers.nuclear_max_margin
    monkeypatch.setattr(
        claims, "nuclear_max_margin", lambda c: dataclasses.replace(real(c), complementary_rank=1)
    )
    evidence = claims.pataki.check(generator)
    assert evidence.value > evidence.threshold
    assert evidence.detail["excess"] < 0


def test_the_share_of_feasible_problems_has_the_interval_of_a_search_that_stops():
    """Against the negative binomial law of the number of seeds it takes: the tails at both ends, and the
    coverage, summed exactly.
    """
    wanted, most = 7, 60
    for tried in (8, 20, 59):
        low, high = feasible_interval(wanted, tried, wanted)
        assert nbinom.cdf(tried - wanted, wanted, low) == pytest.approx(0.025)  # tried seeds or fewer
        assert nbinom.sf(tried - wanted - 1, wanted, high) == pytest.approx(0.025)  # tried seeds or more
        assert high < clopper_pearson(wanted, tried)[1]
    assert feasible_interval(wanted, wanted, wanted)[1] == 1
    assert feasible_interval(3, most, wanted) == clopper_pearson(3, most)
    outcomes = [(wanted, n) for n in range(wanted, most + 1)] + [(k, most) for k in range(wanted)]
    low, high = np.array([feasible_interval(k, n, wanted) for k, n in outcomes]).T
    for share in np.linspace(0.01, 0.99, 99):
        stopped = nbinom.pmf(np.arange(most + 1 - wanted), wanted, share)
        chance = np.concatenate([stopped, binom.pmf(np.arange(wanted), most, share)])
        assert chance.sum() == pytest.approx(1)
        assert chance[(low <= share) & (share <= high)].sum() >= 0.95 - 1e-12
