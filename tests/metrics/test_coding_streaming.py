"""Streaming second moments: equal to the rates of all samples at once, however they are cut up, merged, or
spread over ranks.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.ranks import on_two_ranks
from transformer_theory.metrics import coding
from transformer_theory.metrics.coding import SecondMoments

EPS = 0.5


def sample(n=60, d=7, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    labels[0] = classes - 1
    return torch.randn(n, d, dtype=torch.float64, generator=generator), labels


def state_of(X, y):
    state = SecondMoments()
    state.update(X, y)
    return state


def assert_rates(state, X, labels):
    for name in ("class_coding_rates", "class_coding_rate", "rate_reduction"):
        assert_close(getattr(state, name)(eps=EPS), getattr(coding, name)(X, labels, eps=EPS))
    assert_close(state.coding_rate(eps=EPS), coding.coding_rate(X, eps=EPS))


def test_stream_equals_batch_and_merge_equals_union():
    X, y = sample(90, 6, 5)
    streamed = SecondMoments()
    for part in torch.arange(90).split(17):
        streamed.update(X[part], y[part])
    few = y < 2
    merged = state_of(X[few], y[few])  # knows two classes only
    merged.merge(state_of(X[~few], y[~few]))
    merged.merge(SecondMoments())
    for state in (streamed, merged, state_of(X, y)):
        assert_rates(state, X, y)
    empty = SecondMoments()
    empty.merge(merged)
    assert_rates(empty, X, y)
    merged.reset()
    assert len(merged.counts) == 0
    assert int(empty.counts.sum()) == 90  # the copy is its own


def test_soft_memberships_stream_too():
    X, _ = sample(90, 6)
    P = torch.softmax(torch.randn(90, 3, dtype=X.dtype, generator=torch.Generator().manual_seed(1)), 1)
    streamed = SecondMoments()
    for part in torch.arange(90).split(17):
        streamed.update(X[part], P[part])
    assert_close(streamed.counts, P.sum(0))
    assert_rates(streamed, X, P)


def test_float32_features_with_a_gap_in_the_labels():
    X, y = sample(50, 5, 3)
    y = 2 * y
    rates = state_of(X.float(), y).class_coding_rates(eps=EPS)
    assert rates.dtype == torch.float64
    assert rates[[1, 3]].tolist() == [0.0, 0.0]
    assert_close(rates, coding.class_coding_rates(X, y, eps=EPS), rtol=1e-6, atol=0)


def test_half_precision_features_are_exact():
    X, y = sample(50, 5, 3)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = X.to(dtype)
        assert_rates(state_of(rounded, y), rounded.double(), y)


def spread(rank):
    """The two ranks hold 20 and 40 samples of 3 and 4 classes; the state of the union, and this
    rank's own.
    """
    X, y = sample()
    y[:20] = y[:20].clamp(max=2)
    own = slice(0, 20) if rank == 0 else slice(20, 60)
    state = state_of(X[own], y[own])
    union = state.all_reduce()
    return {"counts": union.counts, "moments": union.moments, "own": state.counts.sum()}


def test_the_union_of_two_ranks(tmp_path):
    X, y = sample()
    y[:20] = y[:20].clamp(max=2)
    whole = state_of(X, y)
    for rank, union in enumerate(on_two_ranks(spread, tmp_path)):
        assert_close(union["counts"], whole.counts)
        assert_close(union["moments"], whole.moments)
        assert int(union["own"]) == (20, 40)[rank]


def nothing_on_rank_one(rank):
    X, y = sample()
    return (state_of(X, y) if rank == 0 else SecondMoments()).all_reduce().rate_reduction(eps=EPS)


def test_a_rank_without_samples_gets_the_union(tmp_path):
    X, y = sample()
    for value in on_two_ranks(nothing_on_rank_one, tmp_path):
        assert_close(value, coding.rate_reduction(X, y, eps=EPS))


def nothing_anywhere(rank):
    return SecondMoments().all_reduce().counts


def test_the_union_of_nothing_is_empty(tmp_path):
    assert [len(counts) for counts in on_two_ranks(nothing_anywhere, tmp_path)] == [0, 0]


def unlike_dimensions(rank):
    X, y = sample(d=5 + rank)
    try:
        state_of(X, y).all_reduce()
    except ValueError as error:
        return str(error)


def test_ranks_of_different_dimensions_all_raise(tmp_path):
    for message in on_two_ranks(unlike_dimensions, tmp_path):
        assert "features of one dimension, got 5 to 6" in message


LABELS = torch.tensor([0, 1, 1])


@each_case(
    ("call", "message"),
    [
        (lambda: SecondMoments().rate_reduction(eps=1.0), "got an empty state"),
        (
            lambda: state_of(torch.ones(3, 2), LABELS).coding_rate(eps=0.0),
            "eps must be a positive distortion",
        ),
        (lambda: SecondMoments().update(torch.full((3, 2), math.nan), LABELS), "finite"),
        (lambda: SecondMoments().update(torch.ones(3, 2), LABELS.float()), "labels must be integers"),
        (
            lambda: SecondMoments().update(torch.ones(3, 2), torch.full((3, 2), 0.3)),
            "sum to 1, got one that is 0.4 off",
        ),
        (
            lambda: state_of(torch.ones(3, 2), LABELS).merge(state_of(torch.ones(3, 4), LABELS)),
            "dimension 2, got 4",
        ),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
