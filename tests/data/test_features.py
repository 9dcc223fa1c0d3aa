"""The tokens inside a network as a data set."""

import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.data import TokenData
from transformer_theory.probes.features import features


class Blocks(nn.Module):
    """Each block doubles; a class token of ones may come in front."""

    def __init__(self, depth=3, *, cls=False, dropout=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(dropout)) for _ in range(depth)]
        )
        self.heads = nn.ModuleList([nn.Identity()])
        for block in self.blocks:
            block[0].weight.data.copy_(2 * torch.eye(2))
        if cls:
            self.cls_token = nn.Parameter(torch.ones(1, 1, 2))

    def forward(self, x):
        if hasattr(self, "cls_token"):
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


def sample() -> TokenData:
    tokens = torch.arange(5 * 3 * 2, dtype=torch.float64).reshape(5, 3, 2)
    return TokenData(
        tokens,
        labels=torch.arange(5),
        ids=torch.arange(15).reshape(5, 3),
        next_id=torch.arange(5),
        images=torch.zeros(5, 1, 2, 2).double(),
    )


@each_case(("layer", "factor"), [(-1, 8), (0, 2), (1, 4), ("blocks.1", 4), ("*.2", 8), ("heads.0", None)])
def test_features_are_the_output_of_the_block(layer, factor):
    model, data = Blocks(), sample()
    if factor is None:
        with pytest.raises(
            ValueError, match=r"block heads\.0 must run once per forward pass, got 0 outputs for 5 sequences"
        ):
            features(model, data, layer=layer)
        return
    hidden = features(model, data, layer=layer, batch_size=2)
    assert torch.equal(hidden.tokens, factor * data.tokens)
    assert hidden.tokens.dtype == torch.float64
    assert torch.equal(hidden.query, hidden.tokens[:, -1])
    for name in ("labels", "ids", "next_id", "images"):
        assert torch.equal(getattr(hidden, name), getattr(data, name)), name
    assert hidden.vocab_size == data.vocab_size


def test_a_class_token_is_the_query_and_has_no_word():
    hidden = features(Blocks(cls=True), sample(), layer=0)
    assert hidden.tokens.shape == (5, 4, 2)
    assert torch.equal(hidden.query, torch.full((5, 2), 2.0).double())
    assert hidden.ids is None
    assert hidden.next_id is None
    assert hidden.vocab_size is None
    assert hidden.labels is not None


def test_features_leave_the_model_as_it_was():
    model = Blocks(dropout=0.5).train()
    hidden = features(model, sample(), layer=-1)
    assert torch.equal(hidden.tokens, 8 * sample().tokens)  # dropout was off
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert not hidden.tokens.requires_grad


def test_features_of_torchs_own_encoder(generator):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    data = TokenData(torch.randn(3, 5, 4, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        expected = model.eval()(data.tokens)
    torch.testing.assert_close(features(model, data, layer=-1).tokens, expected)


@each_case(
    ("layer", "message"),
    [
        (3, r"layer must lie in \[-3, 3\), got 3; blocks has 3 blocks"),
        (-4, r"layer must lie in \[-3, 3\), got -4"),
        ("block.1", "'block.1' matches none; did you mean 'blocks.1'"),
        ("blocks.?", r"'blocks.\?' matches 3 \(blocks.0, blocks.1, blocks.2"),
    ],
)
def test_an_unknown_layer_is_refused_with_a_suggestion(layer, message):
    with pytest.raises(ValueError, match=message):
        features(Blocks(), sample(), layer=layer)


def test_models_and_data_without_blocks_or_inputs_are_refused():
    with pytest.raises(ValueError, match="has no ModuleList of blocks"):
        features(nn.Linear(2, 2), sample())
    with pytest.raises(ValueError, match="the model needs images, but bare has none"):
        features(Blocks(), TokenData(sample().tokens, name="bare"), inputs="images")
    with pytest.raises(ValueError, match="inputs must be 'tokens', 'images' or 'ids', got 'labels'"):
        features(Blocks(), sample(), inputs="labels")
    pooling = nn.Sequential(nn.ModuleList([nn.Flatten()])[0], nn.Linear(6, 1))
    with pytest.raises(ValueError, match=r"block 0 must return \[batch, seq, dim\], got \[5, 6\]"):
        features(pooling.double(), sample(), layer="0")
