"""The local-convergence figure: the published numbers on the published problems, and the figure and the
stored curves.
"""

import numpy as np
import pytest
import torch

from transformer_theory.core.measurement import Table
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.dynamics import random_start
from transformer_theory.theories.attention_svm.figures.common import references
from transformer_theory.theories.attention_svm.figures.local_convergence import (
    BEST_SELECTED,
    PUBLISHED,
    QUANTITIES,
    RUNS,
    LocalConvergence,
)
from transformer_theory.theories.attention_svm.problem import published_instance
from transformer_theory.theories.attention_svm.published import published_instances


@pytest.fixture
def result(run):
    return run(LocalConvergence())


@pytest.mark.parametrize(
    ("kind", "descent", "step", "number", "within"),
    [
        ("frobenius", "W", 1000, 0.989, 0.003),
        ("nuclear", "W", 1000, 0.858, 0.02),
        ("frobenius", "W", 2000, 0.998, 0.001),
        ("nuclear", "KQ", 1000, 0.991, 0.003),
        ("nuclear", "KQ", 2000, 0.9964, 0.001),
        ("frobenius", "KQ", 1000, 0.852, 0.01),
        ("nuclear", "KQ_free", 1000, 0.977, 0.004),
        ("attention", "W", 0, 0.16, 0.005),
        ("attention", "W", 100, 0.73, 0.02),
        ("attention", "W", 200, 0.97, 0.02),
        ("attention", "KQ", 90, 1.0, 0.01),
    ],
)
def test_the_published_numbers(result, kind, descent, step, number, within):
    """The starts are not the published ones, so means over 100 trials agree to their own spread."""
    row = result.select(quantity=QUANTITIES[kind], at={"setting": RUNS[descent]}, step=step).one()
    assert row.value == pytest.approx(number, abs=within)


def test_descent_often_selects_the_best_tokens(result):
    assert result.select(quantity=BEST_SELECTED, at={"setting": RUNS["W"]}).one().value == pytest.approx(
        0.74, abs=0.05
    )


def test_factors_go_to_the_nuclear_solution_in_nearly_every_trial(result):
    index = result.arrays["attention_svm/steps"].tolist().index(1000)
    cosines = result.arrays["attention_svm/KQ_nuclear"][:, index]
    assert np.nanmedian(cosines) == pytest.approx(0.9967, abs=0.001)
    assert (cosines > result.arrays["attention_svm/KQ_frobenius"][:, index]).mean() > 0.98


def test_every_trial_has_its_solutions(result):
    for run in ("W", "KQ", "KQ_free"):
        for norm in ("frobenius", "nuclear"):
            assert np.isfinite(result.arrays[f"attention_svm/{run}_{norm}"]).all(-1).mean() >= 0.99


def test_a_stored_curve_is_that_of_a_single_run(result):
    """One trial alone, with the start that the batch gave it, and solvers of single problems."""
    generator = torch.Generator().manual_seed(0)
    batch = published_instances(range(100), inputs=6, tokens=8, dim=10)
    begin, problem = (
        random_start(batch, generator=generator),
        published_instance(17, inputs=6, tokens=8, dim=10),
    )
    end = attention_svm.normalised_descent(problem, attention_svm.start(problem, W=begin.W[17]), steps=2000).W
    pairs = attention_svm.constraints(problem.tokens, problem.query, problem.selected(end))
    for norm, solve in (
        ("frobenius", attention_svm.frobenius_max_margin),
        ("nuclear", attention_svm.nuclear_max_margin),
    ):
        assert result.arrays[f"attention_svm/W_{norm}"][17, -1] == pytest.approx(
            float(cosine(end, solve(pairs).W)), abs=1e-6
        )


def test_the_figure_marks_the_published_numbers(result):
    attention, whole, factors = LocalConvergence().plot(result).axes
    crosses = []
    for line in (
        line for ax in (attention, whole, factors) for line in ax.lines if line.get_marker() in ("x", "+")
    ):
        crosses += list(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()))
    assert sorted(crosses) == sorted((step, number) for (_, _, step), (number, _) in PUBLISHED.items())
    assert "read off the paper's figure" in whole.get_legend_handles_labels()[1]
    assert "recomputed independently" in factors.get_legend_handles_labels()[1]
    recomputed = references(result.table).select(basis="recomputed").one()
    assert (recomputed.quantity, recomputed.setting, recomputed.step) == (
        QUANTITIES["nuclear"],
        RUNS["KQ"],
        2000,
    )


@pytest.mark.parametrize("changed", [{"dim": 8}, {"trials": 3}, {"rate": 0.05}])
def test_other_settings_are_not_compared_with_the_paper(changed):
    assert len(compared_with_the_paper()) == len(PUBLISHED)
    assert not compared_with_the_paper(**changed)


def test_attention_during_the_run_does_not_depend_on_the_end_but_cosines_do():
    compared = {(row.quantity, row.step) for row in compared_with_the_paper(steps=1100)}
    assert compared == {(QUANTITIES["attention"], step) for step in (0, 90, 100, 200)}


def compared_with_the_paper(**changed):
    """The rows with a published number that an experiment with these settings would write, whatever it
    measured.
    """
    return references(Table(LocalConvergence(**changed)._row(*where, torch.ones(3)) for where in PUBLISHED))


def test_nothing_is_marked_where_nothing_was_published(run):
    experiment = LocalConvergence.quick()
    result = run(experiment)
    assert not references(result.table)
    assert not any(
        line.get_marker() in ("x", "+") for ax in experiment.plot(result).axes for line in ax.lines
    )
