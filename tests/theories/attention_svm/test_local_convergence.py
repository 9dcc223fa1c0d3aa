"""The local-convergence figure: the published numbers on the published problems, and the figure and the
stored curves.
"""

import inspect

import numpy as np
import pytest
import torch

from transformer_theory.core.figure import published
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.dynamics import random_factors, random_start
from transformer_theory.theories.attention_svm.figures.common import ROUNDING_UNIT
from transformer_theory.theories.attention_svm.figures.local_convergence import (
    ATTENTION,
    BEST_SELECTED,
    COSINES,
    FROBENIUS,
    KQ,
    KQ_FREE,
    NUCLEAR,
    PUBLISHED,
    W,
    curves_of,
    local_convergence,
)
from transformer_theory.theories.attention_svm.problem import published_instance
from transformer_theory.theories.attention_svm.published import published_instances


@pytest.fixture
def result(run):
    return run(local_convergence())


@pytest.mark.parametrize(
    ("quantity", "descent", "step", "number", "within"),
    [
        (FROBENIUS, W, 1000, 0.989, 0.003),
        (NUCLEAR, W, 1000, 0.858, 0.02),
        (FROBENIUS, W, 2000, 0.998, 0.001),
        (NUCLEAR, KQ, 1000, 0.991, 0.003),
        (NUCLEAR, KQ, 2000, 0.9964, 0.001),
        (FROBENIUS, KQ, 1000, 0.852, 0.01),
        (NUCLEAR, KQ_FREE, 1000, 0.977, 0.004),
        (ATTENTION, W, 0, 0.16, 0.005),
        (ATTENTION, W, 100, 0.73, 0.02),
        (ATTENTION, W, 200, 0.97, 0.02),
        (ATTENTION, KQ, 90, 1.0, 0.01),
    ],
)
def test_the_published_numbers(result, quantity, descent, step, number, within):
    """The starts are not the published ones, so means over 100 trials agree to their own spread."""
    row = result.select(quantity=quantity, at={"descent": descent}, step=step).one()
    assert row.value == pytest.approx(number, abs=within)


def test_descent_often_selects_the_best_tokens(result):
    assert result.select(quantity=BEST_SELECTED, at={"descent": W}).one().value == pytest.approx(
        0.74, abs=0.05
    )


def test_factors_go_to_the_nuclear_solution_in_nearly_every_trial():
    batch = published_instances(range(10), inputs=6, tokens=8, dim=10)
    begin = random_factors(batch, generator=torch.Generator().manual_seed(0))
    end = attention_svm.normalised_descent(batch, begin, steps=1000, penalty=ROUNDING_UNIT)
    found = curves_of(batch, end.W[None], batch.selected(end.W))
    assert float(found[NUCLEAR].nanmedian()) == pytest.approx(0.9967, abs=0.001)
    assert bool((found[NUCLEAR] > found[FROBENIUS]).all())


def test_every_trial_has_its_solutions(result):
    cosines = result.select(quantity=COSINES)
    assert min(cosines.column("n")) >= 99


def test_the_curves_are_those_of_single_runs():
    """Trials alone, with the starts that the batch gave them, and solvers of single problems."""
    generator = torch.Generator().manual_seed(0)
    batch = published_instances(range(3), inputs=6, tokens=8, dim=10)
    begin = random_start(batch, generator=generator)
    end = attention_svm.normalised_descent(batch, begin, steps=2000).W
    found = curves_of(batch, end[None], batch.selected(end))
    for trial in range(3):
        problem = published_instance(trial, inputs=6, tokens=8, dim=10)
        alone = attention_svm.start(problem, W=begin.W[trial])
        end = attention_svm.normalised_descent(problem, alone, steps=2000).W
        pairs = attention_svm.constraints(problem.tokens, problem.query, problem.selected(end))
        for quantity, solve in (
            (FROBENIUS, attention_svm.frobenius_max_margin),
            (NUCLEAR, attention_svm.nuclear_max_margin),
        ):
            expected = float(cosine(end, solve(pairs).W))
            assert float(found[quantity][0, trial]) == pytest.approx(expected, abs=1e-6)


def test_the_figure_marks_the_published_numbers(result):
    attention, whole, factors = local_convergence().plot(result).axes
    crosses = []
    for line in (
        line for ax in (attention, whole, factors) for line in ax.lines if line.get_marker() in ("x", "+")
    ):
        crosses += list(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()))
    assert sorted(crosses) == sorted((step, number) for (_, _, step), (number, _) in PUBLISHED.items())
    assert "read off the paper's figure" in whole.get_legend_handles_labels()[1]
    assert "recomputed independently" in factors.get_legend_handles_labels()[1]
    recomputed = published(result.table).select(basis="recomputed").one()
    assert (recomputed.quantity, recomputed.setting, recomputed.step) == (
        NUCLEAR,
        KQ,
        2000,
    )


@pytest.fixture
def compared_with_the_paper(monkeypatch, unchecked):
    """A function that returns the rows with a published number of an experiment with these settings, whatever
    it measured: descent does not move, and all quantities are one.
    """
    module = inspect.getmodule(local_convergence)
    monkeypatch.setattr(
        module, "trajectory", lambda instance, state, *, steps, **settings: [state] * len(steps)
    )
    monkeypatch.setattr(
        module,
        "curves_of",
        lambda instance, W, select: dict.fromkeys((ATTENTION, *COSINES), torch.ones(W.shape[:2])),
    )
    return lambda **changed: published(local_convergence(**changed).run().table)


@pytest.mark.parametrize("changed", [{"dim": 8}, {"trials": 3}, {"rate": 0.05}])
def test_other_settings_are_not_compared_with_the_paper(changed, compared_with_the_paper):
    assert len(compared_with_the_paper()) == len(PUBLISHED)
    assert not compared_with_the_paper(**changed)


def test_attention_during_the_run_does_not_depend_on_the_end_but_cosines_do(compared_with_the_paper):
    compared = {(row.quantity, row.step) for row in compared_with_the_paper(steps=1100)}
    assert compared == {(ATTENTION, step) for step in (0, 90, 100, 200)}


def test_nothing_is_marked_where_nothing_was_published(run):
    experiment = local_convergence.quick()
    result = run(experiment)
    assert not published(result.table)
    assert not any(
        line.get_marker() in ("x", "+") for ax in experiment.plot(result).axes for line in ax.lines
    )
