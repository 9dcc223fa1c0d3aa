"""Features of blocks that cut sequences into windows, and of networks inside a wrapper."""

import pytest
import torch
from torch import nn

from tests.problems.networks import WIDE, built, tokens
from transformer_theory.data import TokenData
from transformer_theory.models import ViT
from transformer_theory.probes.features import features


class Window(nn.Module):
    """Adds one, and is given windows."""

    def forward(self, x):
        return (x + 1,)


class Windows(nn.Module):
    def __init__(self, runs=1):
        super().__init__()
        self.runs, self.layers = runs, nn.ModuleList([Window()])

    def forward(self, x):
        cut = x.unflatten(1, (3, 2)).flatten(0, 1)
        for _ in range(self.runs):
            cut = self.layers[0](cut)[0]
        return cut.unflatten(0, (-1, 3)).flatten(1, 2).mean(1)


class Scaled(nn.Module):
    """Images in [0, 1] are normalised before the network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network((images - 0.5) / 0.25)


def test_windows_are_joined_in_their_order():
    data = TokenData(tokens(5, 6, 4).double())
    assert torch.equal(features(Windows(), data, batch_size=2).tokens, (data.tokens.float() + 1).double())
    with pytest.raises(
        ValueError, match=r"block layers\.0 must run once per forward pass, got 30 outputs for 5 sequences"
    ):
        features(Windows(runs=2), data, batch_size=2)


def test_a_wrapped_network_keeps_its_class_token():
    sizes = {"image_size": 6, "patch_size": 2, "num_classes": 3}
    network = built(lambda: ViT.for_images(**sizes, **WIDE)).eval()
    images = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    data = TokenData(tokens(4, 9, 12).double(), images=images)
    read = features(Scaled(network), data, inputs="images")
    plain = features(
        network, TokenData(data.tokens, images=((images.float() - 0.5) / 0.25).double()), inputs="images"
    )
    assert torch.equal(read.tokens, plain.tokens)
    assert torch.equal(read.query, read.tokens[:, 0])
