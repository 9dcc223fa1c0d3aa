"""Layer-wise curves: the released measurement and the paper's, CRATE and ViT on the same axes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from transformer_theory.metrics.coding import rate_reduction, unit_norm
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.models.crate.network import ReleasedAttention, Subspaces
from transformer_theory.probes import probe
from transformer_theory.theories import crate
from transformer_theory.theories.crate import layer_curves as module

ATTENTION = (crate.ExactAttention, crate.PaperAttention, crate.ReleasedAttention, crate.TokenStatisticsAttention)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(attention=ReleasedAttention, seed=0, depth=2):
    return build(lambda: CRATE.for_tokens(6, 5, 3, dim=12, depth=depth, heads=3, attention=attention), generator(seed)).double().eval()


@pytest.fixture
def inputs():
    return torch.randn(10, 6, 5, generator=generator(1), dtype=torch.float64)


def values(rows, quantity):
    return [row["value"] for row in rows if row["quantity"] == quantity]


@pytest.mark.parametrize(("n", "p"), [(7, 4), (4, 7)])
def test_head_rate_is_the_plain_formula(n, p):
    coords = torch.randn(3, 2, n, p, generator=generator(), dtype=torch.float64)
    plain = torch.zeros(3, dtype=torch.float64)
    for sequence in range(3):
        for head in range(2):
            W = coords[sequence, head] / coords[sequence, head].norm(dim=-1, keepdim=True)
            plain[sequence] += 0.5 * torch.logdet(torch.eye(n, dtype=W.dtype) + p / (n * 0.01) * W @ W.T)
    assert_close(module.head_rate(coords), plain)


def test_tokens_that_are_alike_have_the_least_rate_and_spread_ones_the_largest():
    alike = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    spread = torch.eye(4, dtype=torch.float64).expand(1, 2, 4, 4)
    assert float(module.head_rate(alike)) == pytest.approx(0.5 * 2 * torch.log(torch.tensor(401.0)).item(), rel=1e-6)
    assert float(module.head_rate(spread)) == pytest.approx(0.5 * 2 * 4 * torch.log(torch.tensor(101.0)).item(), rel=1e-6)


@pytest.mark.parametrize("attention", ATTENTION)
def test_curves_of_crate_by_hand(attention, inputs):
    model = network(attention, depth=1)
    layer = model.transformer.layers[0]
    with torch.no_grad():
        embedded = model.to_patch_embedding(inputs)
        tokens = torch.cat([model.cls_token.expand(10, -1, -1), embedded], 1) + model.pos_embedding
        half = tokens + layer[0](tokens)
        output = layer(tokens)
        coords = layer[0].fn.coordinates(layer[0].norm(tokens))
    bases = torch.linalg.qr(layer[0].fn.subspaces().detach())[0]
    labels = torch.arange(10) % 3
    rows = crate.layerwise(model, inputs, labels)
    expected = {
        module.INPUT: module.head_rate(coords).mean(),
        module.BEFORE: module.head_rate(layer_norm(tokens, (12,))[:, None] @ bases).mean(),
        module.AFTER: module.head_rate(layer_norm(half, (12,))[:, None] @ bases).mean(),
        module.NONZEROS: (output != 0).double().mean(),
        module.REDUCTION: rate_reduction(unit_norm(output[:, 0]), labels, eps=0.5**0.5),
    }
    assert {row["quantity"] for row in rows} == expected.keys()
    for quantity, value in expected.items():
        assert values(rows, quantity) == [pytest.approx(float(value), rel=1e-9)]


def test_what_a_probe_sees_gives_the_same_curves(inputs):
    model = network()
    labels = torch.arange(10) % 3
    curves = crate.Curves(has_class_token=True)
    with probe(model, [curves]) as p, torch.no_grad():
        p.labels = labels
        model(inputs)
    seen = {(row["quantity"], row.get("layer")): row["value"] for row in curves.compute()}
    rows = crate.layerwise(model, inputs, labels)
    assert {(row["quantity"], row.get("layer")): row["value"] for row in rows} == pytest.approx(seen)


def test_a_vit_stands_on_the_same_axes(inputs):
    vit = build(lambda: ViT.for_tokens(6, 5, 3, dim=12, depth=2, heads=3), generator()).double().eval()
    rows = crate.layerwise(vit, inputs, torch.arange(10) % 3, name="the ViT")
    assert {row["quantity"] for row in rows} == {row["quantity"] for row in crate.layerwise(network(), inputs, torch.arange(10) % 3)}
    assert values(rows, module.NONZEROS) == [1.0, 1.0]
    assert all(row["model"] == "the ViT" and row["layer"] in (0, 1) for row in rows)


def test_batches_do_not_matter(inputs, monkeypatch):
    whole = crate.layerwise(network(), inputs, torch.arange(10) % 3)
    monkeypatch.setattr(module, "BATCH", 3)
    parts = crate.layerwise(network(), inputs, torch.arange(10) % 3)
    assert [row["value"] for row in parts] == pytest.approx([row["value"] for row in whole])


def test_nulls_are_untrained_networks_or_the_shuffled_weights(inputs):
    model, others = network(), [network(seed=1), network(seed=2)]
    rows = crate.layerwise(model, inputs, untrained=others)
    readings = [crate.layerwise(other, inputs) for other in others]
    for row, first, second in zip(rows, *readings):
        assert row["null"] == pytest.approx((first["value"] + second["value"]) / 2)
    twin = module.shuffled(model)
    for own, other in zip(model.parameters(), twin.parameters()):
        assert_close(own.flatten().sort().values, other.flatten().sort().values)
    assert not torch.equal(model.transformer.layers[0][0].fn.qkv.weight, twin.transformer.layers[0][0].fn.qkv.weight)
    shuffled = crate.layerwise(twin, inputs)
    assert [row["null"] for row in crate.layerwise(model, inputs)] == pytest.approx([row["value"] for row in shuffled])


def test_the_network_stays_as_it_was(inputs):
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    crate.layerwise(model, inputs)
    assert model.training
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bad_input_is_told(inputs, unchecked):
    with pytest.raises(ValueError, match="at least one sequence"):
        crate.layerwise(network(), inputs[:0])
    with pytest.raises(ValueError, match="one entry a sequence, 10, got 9"):
        crate.layerwise(network(), inputs, torch.zeros(9, dtype=torch.long))
    with pytest.raises(ValueError, match="no attention was seen"):
        crate.layerwise(torch.nn.Linear(5, 3).double(), inputs)
    with pytest.raises(ValueError, match=r"untrained must be a list of networks, got CRATE; pass \[model\] for one"):
        crate.layerwise(network(), inputs, untrained=network())
    with pytest.raises(ValueError, match="eps must be positive and finite, got 0"):
        crate.layerwise(network(), inputs, eps=0.0)
    message = r"must tell its subspaces, got Silent, which does not; give it subspaces\(\) .* or derive it from crate\.block\.Subspaces"
    with pytest.raises(ValueError, match=message):
        crate.layerwise(network(Silent), inputs)


class Silent(nn.Module):
    """A compression block of one's own that tells nobody what it reads: the exact step."""

    def __init__(self, dim, *, heads, head_dim):
        super().__init__()
        self.own = crate.ExactAttention(dim, heads=heads, head_dim=head_dim)

    def forward(self, tokens):
        return self.own(tokens)


class Telling(Silent):
    """The same with its subspaces, and nothing else of what the room's blocks have."""

    def subspaces(self):
        return self.own.subspaces()


def test_a_block_of_ones_own_is_read_if_it_tells_its_subspaces(inputs):
    own, ours = network(Telling), network(crate.ExactAttention)
    assert not isinstance(own.transformer.layers[0][0].fn, Subspaces)
    labels = torch.arange(10) % 3
    rows = crate.layerwise(own, inputs, labels)
    assert len(rows) == 10
    for row, other in zip(rows, crate.layerwise(ours, inputs, labels)):
        assert (row["quantity"], row["layer"], row["value"]) == (other["quantity"], other["layer"], pytest.approx(other["value"]))


def test_the_distortion_is_an_argument_and_stands_in_the_notes(inputs):
    model, labels = network(), torch.arange(10) % 3
    released, wide = crate.layerwise(model, inputs, labels), crate.layerwise(model, inputs, labels, eps=0.5, untrained=[network(seed=1)])
    layer = model.transformer.layers[0]
    with torch.no_grad():
        tokens = torch.cat([model.cls_token.expand(10, -1, -1), model.to_patch_embedding(inputs)], 1) + model.pos_embedding
        normed = layer[0].norm(tokens)
        read = crate.attention.coordinates(normed, layer[0].fn.subspaces())
    for rows, eps in ((released, 0.1), (wide, 0.5)):
        expected = crate.head_rate(read, eps=eps).mean()  # the input side in one line, as the page has it
        assert values(rows, module.INPUT)[0] == pytest.approx(float(expected))
    assert values(released, module.REDUCTION) == values(wide, module.REDUCTION)
    notes = {row["quantity"]: row["note"] for row in wide}
    assert notes[module.AFTER] == "nats, eps^2 = 0.25; null: an untrained network"
    assert notes[module.REDUCTION] == "nats, eps^2 = 0.5; null: an untrained network"
    assert notes[module.NONZEROS] == "a share; null: an untrained network"
    assert released[0]["note"] == "nats, eps^2 = 0.01; null: the same weights, the entries of every tensor shuffled"


def test_help_finds_the_module_and_the_definition():
    assert crate.layer_curves is module
    assert "varepsilon^2 = .01" in (crate.layerwise.__doc__ or "")
