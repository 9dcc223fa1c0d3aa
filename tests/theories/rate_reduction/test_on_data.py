"""Rate reduction and ReduNet on labelled data."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import HEADLINE_DRAWS, over_seeds, permutations
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.data.synthetic import noise_like
from transformer_theory.metrics.class_features import permuted_reductions
from transformer_theory.metrics.coding import rate_reduction as reduction_of
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories import rate_reduction
from transformer_theory.theories.rate_reduction import on_data
from transformer_theory.theories.rate_reduction.on_data import ON_DATA, features_of, read


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def measure(tokens, labels, *, draws=19, seed=0):
    problem = ON_DATA.read(TokenData(tokens, labels))
    return collect(ON_DATA.measure(problem, torch.Generator().manual_seed(seed), draws=draws))


def test_features_are_flat_tokens_or_the_class_token_or_the_mean():
    y = torch.arange(8) % 2
    narrow, wide = normal(8, 4, 16), normal(8, 4, 40)
    expected = (
        (TokenData(narrow, y), narrow.flatten(1)),
        (TokenData(wide, y), wide.mean(1)),
        (TokenData(wide, y, query=wide[:, 0]), wide[:, 0]),
        (TokenData(wide[:, :1], y), wide[:, 0]),
    )
    for sequences, vectors in expected:
        features = features_of(read(sequences))
        assert_close(features.vectors, unit_norm(vectors))
        assert features.description


def test_many_wide_samples_are_cut_and_projected(monkeypatch):
    monkeypatch.setattr(on_data, "MAX_SAMPLES", 30)
    monkeypatch.setattr(on_data, "MAX_DIM", 10)
    features = features_of(read(TokenData(normal(50, 1, 20), torch.arange(50) % 3 * 4)))
    assert features.vectors.shape == (30, 10)
    assert features.labels.unique().tolist() == [0, 1, 2]


def test_accuracy_on_unseen_samples_is_no_verdict_on_the_theory(generator):
    # the classes fit
    features, labels = rate_reduction.orthogonal_classes((40, 40), (2, 2), 6, generator=generator)
    rows, _ = measure(features[:, None], labels)
    assert rows.select(quantity=on_data.RANKS_FIT).one().verdict == "holds"
    assert rows.select(quantity=on_data.ACCURACY_AFTER).one().verdict == "not covered"


def test_permuted_reductions_are_rate_reductions_of_permuted_labels():
    x, y = unit_norm(normal(30, 5)), torch.arange(30) % 3 % 2  # classes of 20 and 10
    orders = permutations(30, 4)
    draws = permuted_reductions(x, orders, [20, 10], eps=0.3)
    for order, draw in zip(orders, draws, strict=True):
        permuted = torch.empty_like(y)
        permuted[order] = y.sort().values
        assert draw == pytest.approx(float(reduction_of(x, permuted, eps=0.3)), rel=1e-10)
    assert permuted_reductions(x, permutations(30, 0), [20, 10], eps=0.3) == []


def test_without_draws_there_is_no_null_and_no_permuted_construction():
    tokens, labels = normal(60, 2, 5), torch.arange(60) % 3
    (none, arrays), (some, others), (again, _) = (
        measure(tokens, labels, draws=draws, seed=seed) for draws, seed in ((0, 0), (3, 0), (3, 1))
    )
    assert {row.null for row in none} == {None}
    assert none.column("value") == some.column("value")
    assert others.keys() - arrays.keys() == {"rate_reduction/null_reductions"}
    ON_DATA.plot(Result("compare", table=none, arrays=arrays))
    assert some == again  # nothing depends on the generator
    assert len(some.select(quantity=on_data.SHARE).one().null.draws) == 3


def test_on_noise_the_share_of_the_optimum_is_at_chance():
    """Of twelve sets of noise few may have p <= .05: by the binomial law more than three with probability
    .0022.
    """
    template = TokenData(normal(100, 4, 8), torch.arange(100) % 3)
    found = 0
    for seed in range(12):
        noise = noise_like(template, torch.Generator().manual_seed(seed))
        rows = on_data._rates(features_of(read(noise)), HEADLINE_DRAWS)
        (row,) = (row for row in rows if row.quantity == on_data.SHARE)
        found += over_seeds([row]).p <= 0.05
    assert found <= 3


def test_digits(unchecked):  # the contract checks shapes
    rows, arrays = collect(
        ON_DATA.measure(
            ON_DATA.read(data.load("digits")), torch.Generator().manual_seed(0), draws=HEADLINE_DRAWS
        )
    )
    headline = rows.select(quantity=ON_DATA.headline).one()
    assert headline.value > 5 * headline.null.high
    assert over_seeds([headline]).p == 1 / (1 + HEADLINE_DRAWS)
    assert len(headline.null.draws) == HEADLINE_DRAWS
    assert headline.interval[0] < headline.value < headline.interval[1] < 1.1 * headline.value
    assert headline.interval_kind == "over samples"
    assert headline.verdict == "not covered"
    reduction = rows.select(quantity=on_data.RATE_REDUCTION).one()
    assert reduction.value > 5 * reduction.null.high > 0
    # it cannot be negative, so its sign is no evidence
    assert reduction.verdict is reduction.predicted is None
    assert reduction.value - reduction.interval[0] == pytest.approx(reduction.interval[1] - reduction.value)
    assert rows.select(quantity=on_data.LAYERS_RAISE).one().value == 1.0
    assert rows.select(quantity=on_data.REDUCTION_AFTER).one().value == pytest.approx(56.6, abs=1.0)
    accuracy = rows.select(quantity=on_data.ACCURACY_AFTER, split="validation").one()
    assert accuracy.value >= 0.96
    assert accuracy.interval[0] < accuracy.value
    assert 0.05 < accuracy.null.median < 0.15  # ten classes of similar size
    assert {row.scope for row in rows if "ReduNet" in row.quantity and row.split == "train"} == {"any data"}
    assert np.all(np.diff(arrays["rate_reduction/rates"] @ [1, -1]) > 0)
    assert all(name.startswith("rate_reduction/") for name in arrays)
    figure = ON_DATA.plot(Result("compare", table=rows, arrays=arrays))
    assert len([panel for panel in figure.axes if panel.get_label() != "<colorbar>"]) == 4


@pytest.mark.parametrize(
    ("tokens", "labels", "reason"),
    [
        (normal(6, 3, 2), None, "needs labels"),
        (normal(6, 3, 2), torch.full((6,), 2), "at least two classes"),
        (torch.zeros(4, 1, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1]), "zero"),
    ],
)
def test_unsupported_data_are_refused_with_a_reason(tokens, labels, reason):
    problem = ON_DATA.read(TokenData(tokens, labels))
    assert isinstance(problem, Unsupported)
    assert reason in problem.reason


@each_case(
    ("tokens", "labels"),
    [
        (normal(2, 1, 1), torch.tensor([0, 1])),
        (normal(20, 1, 3), torch.arange(20)),  # each sample its own class, more classes than dimensions
        (normal(12, 3, 2)[:1].expand(12, 3, 2).clone(), torch.arange(12) % 2),  # duplicates
        (normal(40, 3, 200), torch.arange(40) % 3 * 4),  # more than 128 dimensions, gaps in the labels
        (torch.ones(20, 3, 4, dtype=torch.float64), torch.arange(20) % 2),  # constant tokens
        (normal(6, 1, 50), torch.arange(6) % 2),  # fewer sequences than dimensions
        (normal(21, 1, 3), torch.arange(21).clamp(max=1)),  # one class of a single sequence
        (torch.cat([normal(10, 2, 2), torch.zeros(10, 2, 2, dtype=torch.float64)]), torch.arange(20) // 10),
    ],
)
def test_any_valid_data_give_one_headline_and_no_exception(tokens, labels):
    rows, arrays = measure(tokens, labels)
    assert len(rows.select(quantity=ON_DATA.headline)) == 1
    for row in rows:
        assert row.reason if row.value is None else np.isfinite(row.value)
        assert row.interval is None or np.isfinite(row.interval).all()
    if len(labels.unique()) > tokens.shape[1] * tokens.shape[2]:
        assert "do not fit" in rows.select(quantity=ON_DATA.headline).one().reason
    ON_DATA.plot(Result("compare", table=rows, arrays=arrays))
