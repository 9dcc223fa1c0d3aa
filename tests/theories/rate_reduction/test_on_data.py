"""Rate reduction and ReduNet on labelled data."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory import data
from transformer_theory.core.measurement import collect
from transformer_theory.core.result import Result
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.theories import rate_reduction
from transformer_theory.theories.rate_reduction import on_data
from transformer_theory.theories.rate_reduction.on_data import ON_DATA, features_of, read


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def measure(tokens, labels):
    problem = ON_DATA.read(TokenData(tokens, labels))
    return collect(ON_DATA.measure(problem, torch.Generator().manual_seed(0)))


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
        features = features_of(read(sequences), torch.Generator())
        assert_close(features.vectors, unit_norm(vectors))
        assert features.description


def test_many_wide_samples_are_cut_and_projected(monkeypatch):
    monkeypatch.setattr(on_data, "MAX_SAMPLES", 30)
    monkeypatch.setattr(on_data, "MAX_DIM", 10)
    features = features_of(read(TokenData(normal(50, 1, 20), torch.arange(50) % 3 * 4)), torch.Generator().manual_seed(0))
    assert features.vectors.shape == (30, 10)
    assert features.labels.unique().tolist() == [0, 1, 2]


def test_accuracy_on_unseen_samples_is_no_verdict_on_the_theory(generator):
    features, labels = rate_reduction.orthogonal_classes((40, 40), (2, 2), 6, generator=generator)  # the classes fit
    rows, _ = measure(features[:, None], labels)
    assert rows.select(quantity=on_data.RANKS_FIT).one().verdict == "holds"
    assert rows.select(quantity=on_data.ACCURACY_AFTER).one().verdict == "not covered"


def test_digits(unchecked):  # the contract checks shapes
    rows, arrays = collect(ON_DATA.measure(ON_DATA.read(data.load("digits")), torch.Generator().manual_seed(0)))
    headline = rows.select(quantity=ON_DATA.headline).one()
    assert headline.value > 5 * headline.null.high
    assert headline.p is None
    assert len(headline.null.draws) == on_data.PERMUTATIONS
    assert headline.verdict == "not covered"
    reduction = rows.select(quantity=on_data.RATE_REDUCTION).one()
    assert reduction.value > 5 * reduction.null.high > 0
    assert reduction.verdict is None  # it cannot be negative, so its sign is no evidence
    assert rows.select(quantity=on_data.LAYERS_RAISE).one().value == 1.0
    assert rows.select(quantity=on_data.REDUCTION_AFTER).one().value == pytest.approx(56.6, abs=1.0)
    assert rows.select(quantity=on_data.ACCURACY_AFTER, split="validation").one().value >= 0.96
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


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        (normal(2, 1, 1), torch.tensor([0, 1])),
        (normal(20, 1, 3), torch.arange(20)),  # each sample its own class, more classes than dimensions
        (normal(12, 3, 2)[:1].expand(12, 3, 2).clone(), torch.arange(12) % 2),  # duplicates
        (normal(40, 3, 200), torch.arange(40) % 3 * 4),  # more than 128 dimensions, gaps in the labels
        (torch.cat([normal(10, 2, 2), torch.zeros(10, 2, 2, dtype=torch.float64)]), torch.arange(20) // 10),
    ],
)
def test_any_valid_data_give_one_headline_and_no_exception(tokens, labels):
    rows, arrays = measure(tokens, labels)
    assert len(rows.select(quantity=ON_DATA.headline)) == 1
    for row in rows:
        assert row.reason if row.value is None else np.isfinite(row.value)
    ON_DATA.plot(Result("compare", table=rows, arrays=arrays))
