"""The experiment with attention on several tokens: published data, the rule of acceptance, rows
and figure.
"""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.theories.attention_svm.figures.multi_token import (
    ACCEPTED,
    DISTANCE,
    TARGETS,
    descend,
    multi_token,
)
from transformer_theory.theories.attention_svm.published import published_heads


def test_the_data_are_the_published_ones():
    """Order and precision of the draws, for a seed with a negative label; a seed without one is left out."""
    generator = torch.Generator().manual_seed(2)
    V = torch.randn(4, 4, generator=generator)
    x = torch.randn(3, 4, 4, generator=generator)
    labels = torch.randn(3, generator=generator)
    instance = published_heads(range(1, 30), inputs=3, tokens=4, dim=4)
    kept = [seed for seed in range(1, 30) if bool((_labels(seed) < 0).any())]
    assert 2 in kept
    assert len(instance.labels) == len(kept) < 29
    at = kept.index(2)
    assert_close(instance.tokens[at], torch.nn.functional.normalize(x, dim=-1).double(), rtol=0, atol=0)
    assert_close(instance.labels[at], labels.sign().double(), rtol=0, atol=0)
    mixture = torch.ones(len(kept), 1, 4, dtype=torch.float64)
    expected = (mixture[at] @ (V / V.norm()).double()).clamp(min=0).sum(-1)
    assert_close(instance.head(mixture)[0][at], expected, rtol=1e-12, atol=0)


def _labels(seed):
    generator = torch.Generator().manual_seed(seed)
    torch.randn(4, 4, generator=generator)
    torch.randn(3, 4, 4, generator=generator)
    return torch.randn(3, generator=generator)


@pytest.fixture
def result(run):
    return run(multi_token(dims=(4,), trials=200, steps=1000, every=250))


def test_the_prediction_is_nearer_than_the_direction_and_both_than_one_token(result):
    ends = {
        name: result.table.select(quantity=DISTANCE, at={"target": name, "d": 4}).one().value
        for name in TARGETS
    }
    assert ends["prediction"] < ends["direction"] < ends["one token"]
    assert ends["prediction"] < 0.1 < ends["one token"]


def test_the_share_of_accepted_trials_is_shown_and_counted(result):
    row = result.table.select(quantity=ACCEPTED).one()
    accepted, tried = (
        len(result.arrays["attention_svm/end_4"]),
        len(published_heads(range(1, 201), inputs=3, tokens=4, dim=4).labels),
    )
    assert row.value == accepted / tried
    assert row.n == tried
    assert len(result.arrays["attention_svm/masked_4"]) == accepted
    assert (result.arrays["attention_svm/masked_4"] <= 1e-6).all()
    assert row.interval[0] < row.value < row.interval[1]


def test_distances_fall_on_the_way():
    apart = descend(range(1, 201), 4, 3, 4, 1000, 250, 0.1, 0.0, 0)["apart"]
    assert apart.shape[1:] == (4, 3)
    assert apart[:, -1, 0].mean() < apart[:, 0, 0].mean()


def test_the_figure_names_what_it_shows(result):
    figure = multi_token(dims=(4,)).plot(result)
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "1 − cosine of W to",
        "Share of trials accepted",
        "1 − cosine to prediction",
    ]


def test_published_numbers_are_shown_at_the_published_settings_only(result):
    assert all(row.predicted is None for row in result.table)


def test_rows_and_figure_without_accepted_trials():
    """Ten steps: nothing has settled."""
    found = descend(range(1, 20), 4, 3, 4, 10, 10, 0.1, 0.0, 0)
    assert len(found["apart"]) == 0
    result = multi_token(dims=(4,), trials=20, steps=10, every=10).run()
    assert [row.value for row in result.table] == [0.0]
    assert multi_token(dims=(4,)).plot(result).axes
