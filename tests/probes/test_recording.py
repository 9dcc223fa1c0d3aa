"""The activations of one forward pass, by the name of the module."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.problems.networks import WIDE, built, tokens
from transformer_theory.models import ViT
from transformer_theory.probes import NoAttention


def test_activations_are_found_by_name_and_reproduce_the_forward_pass():
    model = built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)).train()
    x, state = tokens(5, 9, 4), torch.get_rng_state()
    seen = tt.activations(model, x)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert next(iter(seen)).startswith("blocks.0.attention")
    attention, block = seen["blocks.1.attention"], seen["blocks.1"]
    assert (attention.kind, block.kind, block.layer) == ("attention", "features", 1)
    weights = attention.weights @ attention.value
    assert_close(model.blocks[1].attention.out(weights.transpose(1, 2).flatten(-2)), attention.output)
    assert_close(seen["outputs"].outputs, model.eval()(x))
    again = tt.activations(model, np.asarray(x))
    assert list(again) == list(seen)
    assert torch.equal(again["blocks.1"].output, block.output)


def test_a_block_that_runs_twice_has_two_names():
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return self.block(self.block(x))

    seen = tt.activations(Twice(), tokens(2, 5, 4))
    first, second = (
        each for name, each in seen.items() if name.startswith("block") and each.kind == "features"
    )
    assert torch.equal(first.output, second.tokens)


def test_a_network_without_attention_has_its_blocks():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    seen = tt.activations(model, tokens(2, 5, 4))
    assert [each.kind for each in seen.values()] == ["features"] * 3
    assert torch.equal(seen["2"].output, model(tokens(2, 5, 4)))
    with pytest.raises(NoAttention):
        tt.activations(nn.Linear(4, 4), tokens(2, 5, 4))
