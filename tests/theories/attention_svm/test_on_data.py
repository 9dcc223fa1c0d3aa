"""The theory on labelled data: measurements, feasible sets, unsupported data and the figure."""

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.on_data import (
    HEAD_ACCURACY,
    HEADLINE,
    SELECTABLE,
    describe,
    measure,
    plot,
    read,
)
from transformer_theory.theories.attention_svm.problem import equal_distractors


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labelled(n=120, seq=6, dim=12, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    tokens = torch.randn(n, seq, dim, generator=generator, dtype=torch.float64)
    tokens[:, 0] += 2 * torch.randn(classes, dim, generator=generator, dtype=torch.float64)[labels]
    return TokenData(tokens, labels=labels)


def measured(data, seed=0, draws=19):
    problem = read(data)
    assert not isinstance(problem, Unsupported)
    return collect(measure(problem, torch.Generator().manual_seed(seed), draws=draws))


def selectable(data):
    """The row on feasibility and the arrays before it, without the descent that follows."""
    arrays, problem = {}, read(data)
    assert not isinstance(problem, Unsupported)
    for item in measure(problem, torch.Generator().manual_seed(0), draws=0):
        if isinstance(item, Measurement):
            if item.quantity == SELECTABLE:
                return item, arrays
        else:
            arrays |= item
    raise AssertionError("there is no such row")


@pytest.fixture(scope="module")
def on_labelled():
    return measured(labelled(), draws=199)


def test_descent_on_data_goes_to_the_max_margin_direction_of_its_selection(on_labelled):
    table, arrays = on_labelled
    headline = table.select(quantity=HEADLINE).one()
    assert headline.value > 0.99
    assert headline.verdict == "consistent"
    assert headline.scope == "any data"
    assert headline.null.mean < 0.6
    assert len(headline.null.draws) == 19  # a statement about any data has no p-value
    assert headline.null.high < headline.value
    assert table.select(quantity=SELECTABLE).one().value >= 12
    assert (
        table.select(quantity="attention on the selected token (smallest over the inputs)").one().value
        > 0.999
    )
    assumptions = {row.quantity: row.verdict for row in table.select(kind="assumption")}
    assert assumptions["every input has one best token"] == "holds"
    assert assumptions["all other tokens of each input score the same"] == "fails"
    best = table.select(quantity="cosine of W to the max-margin direction of the best tokens").one()
    assert best.verdict == "not covered"
    assert np.isfinite(arrays["attention_svm/cosine_selected"]).all()
    assert arrays["attention_svm/attention"].sum(-1) == pytest.approx(1)
    assert all(name.startswith("attention_svm/") for name in arrays)


def test_each_seed_draws_a_class(on_labelled):
    classes = {
        measured(labelled(), seed=seed, draws=0)[0].select(quantity=HEAD_ACCURACY).one().note
        for seed in range(4)
    }
    assert len(classes) > 1


def test_without_draws_only_the_nulls_are_missing(on_labelled):
    table, _ = measured(labelled(), draws=0)
    assert table == on_labelled[0].replace(nulls=())
    assert any(row.null is not None for row in on_labelled[0])


def test_the_head_is_scored_on_the_other_half(on_labelled):
    accuracy = on_labelled[0].select(quantity=HEAD_ACCURACY).one()
    assert (accuracy.scope, accuracy.split, accuracy.null.kind) == (
        "these data",
        "validation",
        "permuted labels",
    )
    # 40 of 120 inputs are in the class: 80 inputs, half of them held out
    assert (accuracy.n, len(accuracy.null.draws)) == (40, 19)
    assert accuracy.interval[0] < accuracy.value < accuracy.interval[1]
    values = []
    for seed in range(10):
        # in sample, a head of 60 weights is near 1
        noise = TokenData(gaussian(100, 4, 60, seed=seed), labels=torch.arange(100) % 2)
        for item in measure(read(noise), torch.Generator(), draws=19):
            values.append(item.value)
            assert item.quantity == HEAD_ACCURACY
            break
    assert abs(sum(values) / 10 - 0.5) < 0.1


def test_an_inequality_predicts_no_number(on_labelled):
    row = on_labelled[0].select(quantity=SELECTABLE).one()
    assert row.threshold == 12
    assert row.predicted is None
    assert {row.scope for row in on_labelled[0].select(kind="on data")} == {"any data", "these data"}


def test_a_run_too_short_to_select_has_a_reason():
    instance = equal_distractors(inputs=5, tokens=6, dim=12, generator=torch.Generator().manual_seed(0))
    short = attention_svm.analyse(instance.tokens, instance.query, instance.scores, steps=(0, 1, 2, 3))
    table, _ = collect(describe(short))
    row = table.select(quantity=HEADLINE).one()
    assert row.value is None
    assert row.reason == "no input selects a token"


def test_a_margin_that_is_only_small_does_not_refute_feasibility(unchecked):
    # in general position, so 24 inputs are feasible, with norms above what descent resolves
    close = 3 + 0.05 * gaussian(400, 8, 24)
    row, _ = selectable(TokenData(close, labels=torch.arange(400) % 4))
    assert row.value < row.threshold == 24
    assert row.verdict == "inconclusive"


def test_feasibility_is_guaranteed_for_independent_queries_only(unchecked):
    tokens, labels = gaussian(100, 5, 12), torch.arange(100) % 2
    row, _ = selectable(TokenData(tokens, labels=labels, query=torch.ones(100, 12, dtype=torch.float64)))
    assert row.threshold == 1  # all queries are equal
    assert row.verdict == "consistent"
    row, _ = selectable(TokenData(tokens, labels=labels, query=gaussian(100, 12, seed=1)))
    assert row.value >= row.threshold == 12


def test_narrow_tokens_are_mostly_infeasible(unchecked):
    row, arrays = selectable(labelled(seq=16, dim=3))
    assert arrays["attention_svm/feasible_share"][-1] == 0
    # "At least zero" would be no prediction of a count, so there is neither a threshold nor a verdict.
    assert (row.verdict, row.predicted, row.op, row.threshold) == (None, None, None, None)


@each_case(
    ("data", "needs"),
    [
        (TokenData(gaussian(5, 4, 3)), "labels"),
        (TokenData(gaussian(5, 4, 3), labels=torch.zeros(5, dtype=torch.long)), "two classes"),
        (TokenData(gaussian(1, 5, 3), labels=torch.tensor([0])), "two classes"),
        (TokenData(gaussian(6, 1, 3), labels=torch.arange(6) % 2), "two tokens"),
    ],
)
def test_data_without_labels_or_choice_are_unsupported(data, needs):
    problem = read(data)
    assert isinstance(problem, Unsupported)
    assert needs in problem.reason


@each_case(
    ("data", "reason"),
    [
        (TokenData(torch.ones(6, 4, 3, dtype=torch.float64), labels=torch.arange(6) % 2), ""),
        (TokenData(torch.zeros(6, 4, 3, dtype=torch.float64), labels=torch.arange(6) % 2), ""),
        (TokenData(gaussian(2, 2, 1), labels=torch.tensor([0, 1])), ""),
        (TokenData(gaussian(2, 5, 3), labels=torch.tensor([0, 7])), "none can be held out"),
        (TokenData(gaussian(5, 4, 12), labels=torch.arange(5) % 2), ""),
        (TokenData(torch.ones(5, 4, 12, dtype=torch.float64), labels=torch.arange(5) % 2), "infeasible"),
        (TokenData(gaussian(9, 5, 3)[torch.zeros(9, dtype=torch.long)], labels=torch.arange(9) % 3), ""),
        (
            TokenData(
                gaussian(8, 3, 2), labels=torch.arange(8) % 2, query=torch.zeros(8, 2, dtype=torch.float64)
            ),
            "infeasible",
        ),
        (TokenData(1e150 * gaussian(8, 3, 4), labels=torch.arange(8) % 2), ""),
        (TokenData(1e-150 * gaussian(8, 3, 4), labels=torch.arange(8) % 2), ""),
    ],
)
def test_any_labelled_data_give_rows_and_a_figure(data, reason, unchecked):  # shapes were checked above
    table, arrays = measured(data)
    assert table
    assert reason in " ".join(row.reason for row in table)
    for row in table:
        assert (row.value is not None and np.isfinite(row.value)) or row.reason, row
    assert plot(Result("test", {}, table, arrays)).get_axes()


def test_figures_are_plotted_from_the_stored_result(on_labelled, tmp_path):
    Result("test", {}, *on_labelled).save(tmp_path / "result")
    figure = plot(Result.load(tmp_path / "result"))
    assert [ax.get_title(loc="left") for ax in figure.get_axes()] == [
        "Cosine to max-margin W",
        "Margins",
        "Attention: 6 of 24 inputs",
        "Feasible random sets",
    ]
