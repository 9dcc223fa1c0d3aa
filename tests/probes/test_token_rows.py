"""Rows that say what was decided about the tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.problems.networks import built, tokens
from transformer_theory.metrics import AttentionStatistics, FeatureRates
from transformer_theory.probes import probe


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, first: bool = False):
        super().__init__()
        self.first = first
        self.blocks, self.head = nn.ModuleList([Attention(), Attention()]), nn.Linear(8, 3)

    def forward(self, x, attention=None, keep=None):
        for block in self.blocks:
            x = block(x, attention)
        if keep is not None:
            x = x * keep[..., None]
        return self.head(x[:, 0] if self.first else x.mean(1))


def rows_of(model: nn.Module, *args, **kwargs) -> list[str]:
    with probe(model, [AttentionStatistics(), FeatureRates()], draws=0) as p, torch.no_grad():
        p.labels = torch.arange(6) % 2
        model(*args, **kwargs)
    return [row.reason for row in p.rows if row.quantity == "tokens"]


def test_packed_sequences_are_counted():
    place = torch.arange(7) // 3 > 0  # of 3 and 4 tokens
    mask = (place[:, None] == place).expand(6, 1, 7, 7)
    (reason,) = rows_of(built(Net).eval(), tokens(6, 7, 8), mask)
    assert reason.startswith("rows of blocks hold 12 sequences, found from the masks")


@pytest.mark.parametrize("blocked", [False, True])
def test_a_mask_with_another_name_is_reported_unless_attention_shows_it(blocked):
    keep = torch.arange(7) < torch.tensor([[7], [5], [4], [3], [6], [2]])
    mask = keep[:, None, None] if blocked else None
    reasons = rows_of(built(Net).eval(), tokens(6, 7, 8), mask, keep=keep)
    assert [reason.startswith("the argument keep may be a mask of padding") for reason in reasons] == (
        [] if blocked else [True]
    )


def test_outputs_that_are_computed_from_padding_are_reported():
    real = torch.arange(7) >= torch.tensor([[0], [2], [0], [1], [0], [0]])
    model = built(lambda: Net(first=True)).eval()
    (reason,) = rows_of(model, tokens(6, 7, 8), real[:, None, None])
    assert reason == "the outputs of 2 sequences are computed from padding alone"


def test_nothing_is_said_about_ordinary_inputs():
    assert rows_of(built(Net).eval(), tokens(6, 7, 8)) == []
