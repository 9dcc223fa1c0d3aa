"""The figures of descent on K and Q: the three runs against the step, and the outcomes against
the dimension.
"""

from contextlib import suppress

import numpy as np
import pytest
import torch

from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.builders import constraints
from transformer_theory.theories.attention_svm.dynamics import Factors, random_factors
from transformer_theory.theories.attention_svm.figures.convergence_types import (
    KNOWN,
    LOOKS,
    NORMS,
    SUPPORT,
    W,
    convergence_types,
)
from transformer_theory.theories.attention_svm.figures.factor_norms import (
    COMMON,
    DISTANCE,
    IMBALANCE,
    LABELS,
    NORM,
    PENALISED,
    RESIDUAL,
    SEPARATE,
    factor_norms,
)
from transformer_theory.theories.attention_svm.published import published_instance, published_instances
from transformer_theory.theories.attention_svm.selection import locally_optimal


def test_three_runs_of_the_factors(run):
    experiment = factor_norms.quick()
    table = run(experiment).table
    value = {(row.quantity, row.setting, row.step): row.value for row in table}
    stopped, free, common = PENALISED, SEPARATE, COMMON
    assert value[NORM, stopped, 2000] == pytest.approx(value[NORM, stopped, 1000], rel=1e-3)
    assert value[NORM, free, 2000] > 2 * value[NORM, free, 1000]
    assert value[NORM, common, 2000] > 2 * value[NORM, common, 1000]
    assert value[IMBALANCE, common, 2000] < 1e-3 < value[IMBALANCE, free, 2000] / 30
    assert value[DISTANCE, common, 2000] < value[DISTANCE, common, 1000]
    (residual,) = table.select(quantity=RESIDUAL)
    assert residual.predicted == 0
    assert residual.value < 2e-3


def test_the_figure_of_the_factors_has_a_curve_per_run(run):
    experiment = factor_norms.quick()
    panels = experiment.plot(run(experiment)).axes
    assert [len(ax.lines) for ax in panels] == [3, 3, 3]
    assert panels[1].get_legend_handles_labels()[1] == [look["label"] for look in LABELS.values()]


@pytest.mark.parametrize("dim", [20, 50])
def test_the_share_of_problems_in_which_all_tokens_are_support_vectors(dim, unchecked):
    """Exact counts of another program on the same problems."""
    readings = convergence_types.sweep.function(dim, steps=1)
    support = [
        one for one in readings if one.quantity == SUPPORT and one.columns["at"] == {"norm": "Frobenius norm"}
    ]
    assert [one.value for one in support] == [KNOWN[SUPPORT][dim]]


@pytest.mark.parametrize("of", ["descent on W", "descent on K and Q"])
def test_the_types_are_those_of_single_problems(of, unchecked):
    readings = convergence_types.sweep.function(3, inputs=3, tokens=4, trials=8, steps=400)
    places = ({"descent": of}, {"norm": NORMS[of]})
    counts = {one.quantity: round(8 * one.value) for one in readings if one.columns["at"] in places}
    best_selected, local_selected, not_local, unsettled = LOOKS
    expected = dict.fromkeys([*LOOKS, SUPPORT], 0)
    factors = random_factors(
        published_instances(range(8), inputs=3, tokens=4, dim=3), generator=torch.Generator().manual_seed(0)
    )
    for trial in range(8):
        instance = published_instance(trial, inputs=3, tokens=4, dim=3)
        solve = attention_svm.frobenius_max_margin if of == W else attention_svm.nuclear_max_margin
        if of == W:
            end = attention_svm.normalised_descent(instance, attention_svm.start(instance), steps=400).W
        else:
            end = attention_svm.normalised_descent(
                instance, Factors(factors.K[trial], factors.Q[trial]), steps=400
            ).W
        attention = instance.attention(end)
        select, best = attention.argmax(-1), instance.optimal()
        with suppress(attention_svm.Infeasible):
            expected[SUPPORT] += bool(
                (solve(constraints(instance.tokens, instance.query, best)).margins < 1 + 1e-6).all()
            )
        pairs = constraints(instance.tokens, instance.query, select)
        settled = bool((attention.amax(-1) > 1 - 1e-3).all())
        local = settled and bool(locally_optimal(instance.scores, select, pairs, solve(pairs)).all())
        expected[best_selected] += settled and bool((select == best).all())
        expected[local_selected] += local
        expected[not_local] += settled and not local
        expected[unsettled] += not settled
    assert counts == expected
    assert counts[local_selected] > 0


def test_outcomes_of_both_descents(run):
    experiment = convergence_types.quick()
    result = run(experiment)
    best, *settled = LOOKS
    for descent in ("descent on W", "descent on K and Q"):
        rows = [result.select(quantity=quantity, at={"descent": descent}) for quantity in (best, *settled)]
        values = np.array([of_quantity.column("value") for of_quantity in rows])
        np.testing.assert_allclose(values[1:].sum(0), 1)
        assert (values[0] <= values[1]).all()
    # other settings than those of the reference
    assert not [row for row in result.table if row.predicted is not None]
    assert {row.quantity for row in result.table} == {*LOOKS, SUPPORT}
    left, right = experiment.plot(result).axes
    assert len(left.lines) == len(right.lines) == len(LOOKS) + 1
