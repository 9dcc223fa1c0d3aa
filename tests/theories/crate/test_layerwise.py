"""Layer-wise curves: the released measurement and the paper's, of CRATE and ViT."""

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from transformer_theory.metrics.coding import rate_reduction, unit_norm
from transformer_theory.models import CRATE, ViT, build
from transformer_theory.models import crate as blocks
from transformer_theory.models.crate.compression import coordinates
from transformer_theory.probes import NoAttention, probe
from transformer_theory.theories import crate
from transformer_theory.theories.crate import layer_curves as module
from transformer_theory.theories.crate.in_networks import (
    AFTER,
    BEFORE,
    NONZEROS,
    Compression,
    unit_coordinates,
)

ATTENTION = (
    blocks.ExactAttention,
    blocks.PaperAttention,
    blocks.ReleasedAttention,
    blocks.TokenStatisticsAttention,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(attention=blocks.ReleasedAttention, seed=0, depth=2):
    return (
        build(
            lambda: CRATE.for_tokens(6, 5, 3, dim=12, depth=depth, heads=3, attention=attention),
            generator(seed),
        )
        .double()
        .eval()
    )


@pytest.fixture
def inputs():
    return torch.randn(10, 6, 5, generator=generator(1), dtype=torch.float64)


def values(table, quantity):
    return table.select(quantity=quantity).column("value")


def head_rate(coords, eps=0.1):
    return module.head_rate(unit_norm(coords), eps=eps)


@pytest.mark.parametrize(("n", "p"), [(7, 4), (4, 7)])
def test_head_rate_is_the_plain_formula(n, p):
    coords = torch.randn(3, 2, n, p, generator=generator(), dtype=torch.float64)
    plain = torch.zeros(3, dtype=torch.float64)
    for sequence in range(3):
        for head in range(2):
            W = coords[sequence, head] / coords[sequence, head].norm(dim=-1, keepdim=True)
            plain[sequence] += 0.5 * torch.logdet(torch.eye(n, dtype=W.dtype) + p / (n * 0.01) * W @ W.T)
    assert_close(head_rate(coords), plain)


def test_equal_tokens_have_the_smallest_rate_and_orthogonal_ones_the_largest():
    alike = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    spread = torch.eye(4, dtype=torch.float64).expand(1, 2, 4, 4)
    assert float(head_rate(alike)) == pytest.approx(0.5 * 2 * torch.log(torch.tensor(401.0)).item(), rel=1e-6)
    assert float(head_rate(spread)) == pytest.approx(
        0.5 * 2 * 4 * torch.log(torch.tensor(101.0)).item(), rel=1e-6
    )


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
        module.INPUT: head_rate(coords).mean(),
        BEFORE: head_rate(layer_norm(tokens, (12,))[:, None] @ bases).mean(),
        AFTER: head_rate(layer_norm(half, (12,))[:, None] @ bases).mean(),
        NONZEROS: (output != 0).double().mean(),
        module.REDUCTION: rate_reduction(unit_norm(output[:, 0]), labels, eps=0.5**0.5),
    }
    assert {row.quantity for row in rows} == expected.keys()
    for quantity, value in expected.items():
        assert values(rows, quantity) == [pytest.approx(float(value), rel=1e-9)]


def test_a_probe_gives_the_same_curves(inputs):
    model = network()
    metrics = [
        module.InputRate(),
        Compression(eps=0.1, scaling=unit_coordinates, max_sequences=None, rotations=0),
        module.ClassRates(),
    ]
    with probe(model, metrics) as p, torch.no_grad():
        p.labels = torch.arange(10) % 3
        model(inputs)
    probed = {
        (row.quantity, row.layer): row.value
        for metric in metrics
        for row in metric.compute()
        if row.quantity in module.CURVES
    }
    table = crate.layerwise(model, inputs, torch.arange(10) % 3)
    assert {
        (row.quantity, row.layer): row.value for row in table if row.quantity != NONZEROS
    } == pytest.approx(probed)


def test_a_vit_has_the_same_curves(inputs):
    vit = build(lambda: ViT.for_tokens(6, 5, 3, dim=12, depth=2, heads=3), generator()).double().eval()
    table = crate.layerwise(vit, inputs, torch.arange(10) % 3, name="the ViT")
    assert set(table.column("quantity")) == set(module.CURVES)
    assert values(table, NONZEROS) == [1.0, 1.0]
    assert all(row.model == "the ViT" and row.layer in (0, 1) for row in table)


@pytest.mark.parametrize("kind", [CRATE, ViT])
def test_batches_do_not_matter(inputs, monkeypatch, kind):
    model = build(lambda: kind.for_tokens(6, 5, 3, dim=12, depth=2, heads=3), generator()).double().eval()
    whole = crate.layerwise(model, inputs, torch.arange(10) % 3)
    monkeypatch.setattr(module, "BATCH", 3)
    parts = crate.layerwise(model, inputs, torch.arange(10) % 3)
    assert parts.column("value") == pytest.approx(whole.column("value"))


def test_nulls_are_untrained_networks_or_the_shuffled_weights(inputs):
    model, others = network(), [network(seed=1), network(seed=2)]
    table = crate.layerwise(model, inputs, untrained=others)
    for row, first, second in zip(table, *(crate.layerwise(other, inputs) for other in others)):
        assert row.null.kind == "untrained networks"
        assert row.null.draws == pytest.approx((first.value, second.value))
    twin = module.shuffled(model)
    for parameter, other in zip(model.parameters(), twin.parameters()):
        assert_close(parameter.flatten().sort().values, other.flatten().sort().values)
    assert not torch.equal(
        model.transformer.layers[0][0].fn.qkv.weight, twin.transformer.layers[0][0].fn.qkv.weight
    )
    nulls = [row.null.mean for row in crate.layerwise(model, inputs)]
    assert nulls == pytest.approx(crate.layerwise(twin, inputs).column("value"))


def test_the_network_stays_as_it_was(inputs):
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    crate.layerwise(model, inputs)
    assert model.training
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_invalid_arguments_are_named(inputs, unchecked):
    with pytest.raises(ValueError, match="at least one sequence"):
        crate.layerwise(network(), inputs[:0])
    with pytest.raises(ValueError, match="10, got 9"):
        crate.layerwise(network(), inputs, torch.zeros(9, dtype=torch.long))
    with pytest.raises(NoAttention):
        crate.layerwise(torch.nn.Linear(5, 3).double(), inputs)
    with pytest.raises(ValueError, match=r"untrained .* got CRATE; pass \[model\]"):
        crate.layerwise(network(), inputs, untrained=network())
    with pytest.raises(ValueError, match=r"eps .* got 0"):
        crate.layerwise(network(), inputs, eps=0.0)
    with pytest.raises(ValueError, match=r"subspaces\(\), got Opaque"):
        crate.layerwise(network(Opaque), inputs)


class Opaque(nn.Module):
    """A compression block without ``subspaces()``: the exact step."""

    def __init__(self, dim, *, heads, head_dim):
        super().__init__()
        self.inner = blocks.ExactAttention(dim, heads=heads, head_dim=head_dim)

    def forward(self, tokens):
        return self.inner(tokens)


class Transparent(Opaque):
    """The same with ``subspaces()``, and nothing else of the library's blocks."""

    def subspaces(self):
        return self.inner.subspaces()


def test_any_block_with_subspaces_has_curves(inputs):
    other, ours = network(Transparent), network(blocks.ExactAttention)
    assert not isinstance(other.transformer.layers[0][0].fn, blocks.Subspaces)
    labels = torch.arange(10) % 3
    table = crate.layerwise(other, inputs, labels)
    assert len(table) == 10
    for row, expected in zip(table, crate.layerwise(ours, inputs, labels)):
        assert (row.quantity, row.layer, row.value) == (
            expected.quantity,
            expected.layer,
            pytest.approx(expected.value),
        )


def test_the_distortion_is_an_argument(inputs):
    model, labels = network(), torch.arange(10) % 3
    released, wide = (
        crate.layerwise(model, inputs, labels),
        crate.layerwise(model, inputs, labels, eps=0.5, untrained=[network(seed=1)]),
    )
    layer = model.transformer.layers[0]
    with torch.no_grad():
        tokens = (
            torch.cat([model.cls_token.expand(10, -1, -1), model.to_patch_embedding(inputs)], 1)
            + model.pos_embedding
        )
        coords = coordinates(layer[0].norm(tokens), layer[0].fn.subspaces())
    for table, eps in ((released, 0.1), (wide, 0.5)):
        assert values(table, module.INPUT)[0] == pytest.approx(float(head_rate(coords, eps=eps).mean()))
    assert values(released, module.REDUCTION) == values(wide, module.REDUCTION)
    assert {row.quantity: row.unit for row in wide}[AFTER] == "nats"
