"""What stands for a sequence in the metrics of features."""

import math

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.metric import Activations, Grid
from transformer_theory.metrics.token_layout import MEAN, TokenLayout, mean_feature, mean_query, where

OUTPUT = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)
ONE = torch.eye(5, dtype=torch.bool)[[1, 4, 0]]
SOME = torch.tensor([[True, True, False, False, False], [False] * 4 + [True], [True] * 5])
REAL = torch.tensor([[True] * 3 + [False] * 2, [True] * 5, [True] * 4 + [False]])


def seen(**columns) -> Activations:
    return Activations("", 0, "features", OUTPUT, OUTPUT, weights=WEIGHTS, **columns)


def of_each(mask, x):
    """The mean of the marked tokens of each sequence, one after the other."""
    return torch.stack([rows[keep].mean(0) for rows, keep in zip(x.double(), mask)])


@pytest.mark.parametrize("mask", [ONE, SOME], ids=["one", "some"])
def test_read_tokens_stand_for_a_sequence_whatever_has_contents(mask):
    activations = seen(read=mask, content=~ONE, real=REAL)
    assert_close(mean_feature(activations), of_each(mask, OUTPUT))
    query = of_each(mask, WEIGHTS.transpose(1, 2)).float()
    assert_close(mean_query(activations), query)


def test_or_else_those_with_contents_or_all_that_are_real():
    assert_close(mean_feature(seen(content=SOME, real=REAL)), of_each(SOME, OUTPUT))
    assert_close(mean_feature(seen(real=REAL)), of_each(REAL, OUTPUT))
    assert_close(mean_query(seen(real=REAL)), of_each(REAL, WEIGHTS.transpose(1, 2)).float())
    assert torch.equal(mean_feature(seen()), OUTPUT.mean(1, dtype=torch.float64))
    assert torch.equal(mean_query(seen()), WEIGHTS.mean(2))


def test_other_tokens_may_hold_anything():
    output = OUTPUT.masked_fill(~SOME[..., None], math.nan)
    activations = Activations("", 0, "features", output, output, read=SOME)
    assert_close(mean_feature(activations), of_each(SOME, OUTPUT))


def test_a_sequence_without_such_tokens_has_no_feature():
    none = SOME & torch.tensor([[True], [False], [True]])
    features = mean_feature(seen(read=none))
    assert bool(features[1].isnan().all())
    assert_close(features[[0, 2]], of_each(SOME, OUTPUT)[[0, 2]])


def test_words():
    assert where(seen()) == MEAN
    assert where(seen(read=torch.ones_like(SOME), reading="the tokens")) == MEAN
    assert where(seen(read=ONE, reading="the class token")) == "the class token"
    assert where(seen(read=SOME, reading="the tokens that the head reads")) == (
        "the mean of the tokens that the head reads"
    )
    reason = "the network has an output at every token"
    assert where(seen(content=SOME, reading=reason)) == f"{MEAN} ({reason})"


def test_the_layout_is_that_of_the_first_block():
    content = torch.tensor([[False, False, True, True, True]]).expand(3, -1)
    places = torch.tensor([[-1, -1, 1, 0, 2]]).expand(3, -1)
    layout = TokenLayout()
    layout.update(seen(content=content, read=ONE, grid=Grid(1, 3, places), reading="the class token"))
    layout.update(seen(content=ONE, grid="none"))
    assert (layout.tokens, layout.leading, layout.grid) == (5, 2, (1, 3))
    assert layout.where == "the class token"
    layout.reset()
    layout.update(seen(grid=Grid(2, 3, places)))
    assert (layout.tokens, layout.leading, layout.grid) == (5, 0, None)
    assert layout.compute() == ()
