"""CRATE in networks: compression by attention in the blocks' own subspaces, its chance level,
and non-zeros.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.problems.crate import gaussian
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import BAND_DRAWS, RANGE_DRAWS
from transformer_theory.metrics.coding import subspace_coding_rate, unit_norm
from transformer_theory.probes import probe
from transformer_theory.theories import crate
from transformer_theory.theories.crate import in_networks
from transformer_theory.theories.crate.in_networks import AFTER, BEFORE, COMPRESSION, GROWTH


def random_subspaces(seed=0):
    return crate.random_subspaces(3, 12, 4, generator=torch.Generator().manual_seed(seed))


@dataclass
class Block:
    bases: torch.Tensor

    def subspaces(self):
        return self.bases


def feed(metric, before, after, bases, layer=0, output=None):
    """The two activations of a block in a forward pass: its attention, then the block itself."""
    metric.update(
        Activations("blocks.0.attention", layer, "attention", before, after - before, module=Block(bases))
    )
    output = after if output is None else output
    metric.update(Activations("blocks.0", layer, "features", before, output, after_attention=after))


def standard(tokens):
    return unit_norm(tokens - tokens.mean(-1, keepdim=True))


def rows_of(metric):
    return {row.quantity: row for row in metric.compute(draws=RANGE_DRAWS)}


def test_compression_is_measured_in_the_subspaces_of_the_block():
    bases = random_subspaces()
    tokens = gaussian(2, 5, 12)
    stepped = crate.exact_step(tokens, bases, kappa=2.0, eps=0.5)
    metric = crate.Compression()
    feed(metric, tokens, stepped, 7 * bases)  # the length of U does not matter
    before, after = (
        float(subspace_coding_rate(standard(z), bases, eps=in_networks.EPS).mean()) for z in (tokens, stepped)
    )
    rows = rows_of(metric)
    assert rows[BEFORE].value == pytest.approx(before)
    assert rows[AFTER].value == pytest.approx(after)
    assert rows[COMPRESSION].value == pytest.approx(1 - after / before)
    assert crate.THEORY.in_networks.headline == COMPRESSION


def test_rotations_are_drawn_for_the_first_sequences_beside_their_own_value():
    bases, tokens = random_subspaces(), gaussian(11, 5, 12)
    after = tokens + 0.3 * gaussian(11, 5, 12, seed=1)
    whole, spaced = crate.Compression(max_drawn=4), crate.Compression(max_sequences=2)
    first, all_drawn = crate.Compression(max_drawn=None), crate.Compression(max_drawn=None)
    for start in (0, 3, 6, 9):  # three sequences of the first pass have rotations, and one of the second
        feed(whole, tokens[start : start + 3], after[start : start + 3], bases)
    feed(first, tokens[:4], after[:4], bases)
    feed(all_drawn, tokens, after, bases)
    feed(spaced, tokens, after, bases)
    assert rows_of(spaced)[BEFORE].n == 2  # of 11; no more of them can have rotations
    assert rows_of(spaced)[BEFORE].null.value is None
    for quantity, row in rows_of(whole).items():
        of_first, of_all = rows_of(first)[quantity], rows_of(all_drawn)[quantity]
        assert row.value == pytest.approx(of_all.value)
        assert row.n == 11
        assert row.null.value == pytest.approx(of_first.value)
        assert row.null.draws == pytest.approx(of_first.null.draws)
        assert of_all.null.value is None
    rate = float(subspace_coding_rate(standard(tokens[:4]), bases, eps=in_networks.EPS).mean())
    assert rows_of(whole)[BEFORE].null.value == pytest.approx(rate)


def test_only_changes_of_direction_are_compression():
    bases, tokens = random_subspaces(), gaussian(2, 5, 12)
    still, gather, stretch, growth = (
        crate.Compression(),
        crate.Compression(),
        crate.Compression(),
        crate.Growth(),
    )
    feed(still, tokens, tokens, bases)
    feed(gather, tokens, tokens.mean(1, keepdim=True).expand_as(tokens), bases)
    for metric in (stretch, growth):
        feed(metric, tokens, 3 * tokens + 5, bases)
    assert rows_of(still)[COMPRESSION].value == pytest.approx(0, abs=1e-12)
    assert rows_of(gather)[COMPRESSION].value > 0.3
    assert rows_of(gather)[COMPRESSION].null.median > 0.3  # in any subspace, hence the null
    # lengths and means do not count
    assert rows_of(stretch)[COMPRESSION].value == pytest.approx(0, abs=1e-12)
    assert rows_of(growth)[GROWTH].value > 0.1


def test_a_step_along_the_subspaces_exceeds_the_chance_level():
    """The component in the first of two subspaces is removed: the rate in rotated subspaces falls less."""
    bases = crate.random_subspaces(2, 24, 4, generator=torch.Generator().manual_seed(5))
    tokens = gaussian(4, 16, 24)
    metric = crate.Compression()
    feed(metric, tokens, tokens - tokens @ bases[0] @ bases[0].T, bases)
    row = rows_of(metric)[COMPRESSION]
    assert row.value > row.null.high + 0.2


def test_key_projections_replace_unknown_subspaces():
    key = gaussian(2, 12, 4)
    query = gaussian(2, 12, 4, seed=1)
    tokens, after = gaussian(3, 5, 12), gaussian(3, 5, 12, seed=2)
    bilinear, keys = key @ query.mT, torch.zeros(3, 2, 5, 4)
    by_key, by_block = crate.Compression(), crate.Compression()
    by_key.update(
        Activations("attention", 0, "attention", tokens, tokens, key=keys, bilinear=bilinear, module=object())
    )
    by_key.update(Activations("blocks.0", 0, "features", tokens, after, after_attention=after))
    feed(by_block, tokens, after, key)
    for quantity, row in rows_of(by_key).items():
        assert row.value == pytest.approx(rows_of(by_block)[quantity].value)
    assert "key projections" in rows_of(by_key)[BEFORE].note


def test_blocks_without_subspaces_are_skipped():
    metric = crate.Compression()
    tokens = gaussian(2, 5, 12)
    metric.update(Activations("a", 0, "attention", tokens, tokens, module=object()))
    metric.update(Activations("blocks.0", 0, "features", tokens, tokens, after_attention=tokens))
    assert list(metric.compute()) == []


def test_sequences_that_are_not_finite_are_left_out():
    bases, tokens = random_subspaces(), gaussian(6, 5, 12)
    after = tokens + 0.3 * gaussian(6, 5, 12, seed=1)
    finite, partly, none, diverged = (crate.Compression() for _ in range(4))
    feed(finite, tokens[1:], after[1:], bases)
    after[0, 2, 3] = torch.nan
    feed(partly, tokens, after, bases)
    assert [row.value for row in partly.compute()] == pytest.approx([row.value for row in finite.compute()])
    feed(none, tokens[:1], after[:1], bases)
    feed(diverged, tokens, after, torch.nan * bases)
    assert list(none.compute()) == list(diverged.compute()) == []


def test_the_subspaces_are_those_of_the_first_attention_of_a_block():
    bases, tokens, after = random_subspaces(), gaussian(6, 5, 12), gaussian(6, 5, 12, seed=1)
    one, two = crate.Compression(), crate.Compression()
    for metric in (one, two):
        metric.update(Activations("m", 0, "attention", tokens, after, module=Block(bases)))
        if metric is two:
            other = Block(gaussian(3, 12, 4, seed=2))
            metric.update(Activations("n", 0, "attention", tokens, after, module=other, first_head=3))
        metric.update(Activations("blocks.0", 0, "features", tokens, after, after_attention=after))
    assert one.compute() == two.compute()


def test_merging_gives_the_union():
    bases, tokens = random_subspaces(), gaussian(14, 5, 12)
    after, features = tokens + 0.3 * gaussian(14, 5, 12, seed=1), gaussian(14, 5, 12).relu()
    whole, parts, others = in_networks.metrics(), in_networks.metrics(), in_networks.metrics()
    for metrics, part in ((whole, slice(0, 14)), (parts, slice(0, 5)), (others, slice(5, 14))):
        for metric in metrics:
            metric.max_drawn = None  # else each half has rotations of four sequences
            feed(metric, tokens[part], after[part], bases, layer=1, output=features[part])
    for one, some, rest in zip(whole, parts, others):
        some.merge(rest)
        values = [
            [x for row in m.compute(draws=9) for x in (row.value, *(row.null.draws if row.null else ()))]
            for m in (one, some)
        ]
        assert values[0]
        assert values[0] == pytest.approx(values[1])
        some.reset()
        assert list(some.compute()) == []


def test_share_of_nonzeros_counts_exact_zeros():
    output = torch.zeros(2, 4, 10)
    output[0, :, :3] = 1.0
    output[1, :, 0] = -2.0
    metric = crate.Sparsity()
    metric.update(Activations("blocks.0", 0, "features", output, output))
    (row,) = metric.compute()
    assert row.value == pytest.approx(0.2)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_float32_streams_give_the_rates_of_float64(offset):
    """Also for tokens with a large mean, which centring removes."""
    bases, tokens = random_subspaces(), gaussian(14, 9, 12) + offset
    after = tokens + 0.3 * gaussian(14, 9, 12, seed=1)
    rows = []
    for dtype in (torch.float32, torch.float64):
        metrics = crate.Compression(), crate.Growth()
        for metric in metrics:
            feed(metric, tokens.to(dtype), after.to(dtype), bases)
        rows.append({row.quantity: row for metric in metrics for row in metric.compute(draws=5)})
    single, double = rows
    assert single.keys() == double.keys() == {BEFORE, AFTER, COMPRESSION, GROWTH}
    for quantity, row in double.items():
        assert single[quantity].value == pytest.approx(row.value, abs=3e-6, rel=3e-6)
        assert single[quantity].null.draws == pytest.approx(row.null.draws, abs=3e-6, rel=3e-6)


def test_the_distortion_scaling_and_number_of_draws_are_arguments():
    bases, tokens = random_subspaces(), gaussian(20, 5, 12)
    after = tokens + 0.3 * gaussian(20, 5, 12, seed=1)
    metric = crate.Compression(eps=0.1, scaling=in_networks.lengths_kept, max_sequences=None, rotations=3)
    feed(metric, tokens, after, bases)
    row = rows_of(metric)[BEFORE]
    assert row.value == pytest.approx(float(subspace_coding_rate(tokens, bases, eps=0.1).mean()))
    assert len(set(row.null.draws)) == 3
    assert row.n == 20
    limited = crate.Compression()
    feed(limited, tokens, after, bases)
    assert rows_of(limited)[BEFORE].n == in_networks.MAX_SEQUENCES
    with pytest.raises(ValueError, match="eps"):
        crate.Compression(eps=0.0)


@pytest.mark.parametrize("make", [crate.Compression, crate.Growth])
def test_the_null_has_as_many_sets_as_are_asked_for(make):
    metric, tokens = make(), gaussian(6, 5, 12)
    feed(metric, tokens, tokens + 0.3 * gaussian(6, 5, 12, seed=1), random_subspaces())
    few, all_sets, more = (
        [row.null.draws for row in metric.compute(draws=draws)] for draws in (BAND_DRAWS, RANGE_DRAWS, 199)
    )
    assert {row.null for row in metric.compute()} == {None}
    assert {len(set(draws)) for draws in all_sets} == {RANGE_DRAWS}
    assert all_sets == more
    assert [draws[:BAND_DRAWS] for draws in all_sets] == few


@pytest.mark.parametrize("shape", [(1, 1, 12), (2, 1, 12), (2, 20, 12)])
def test_constant_tokens_and_single_sequences_give_values(shape):
    """Constant tokens have no component after centring: the rate is zero and does not fall."""
    constant, metric, growth = crate.Compression(), crate.Compression(), crate.Growth()
    feed(constant, torch.ones(shape), torch.ones(shape), random_subspaces())
    assert rows_of(constant)[COMPRESSION].value == 0
    for each in (metric, growth):
        feed(each, gaussian(*shape), gaussian(*shape, seed=1), random_subspaces())
        assert all(row.value is not None for row in rows_of(each).values())


@pytest.mark.parametrize("kind", ["separate", "torch"])
def test_weak_directions_of_the_keys_belong_to_their_span(kind):
    """Projections whose singular values fall to 1e-4, as after long weight decay: their product W is known to
    the precision of float32 only, so the spans come from the key projection itself.
    """
    d, heads, weak = 24, 2, torch.logspace(0, -4, 4).repeat(2)

    class Separate(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(d, 8 if i < 2 else d, bias=False) for i in range(3))

        def forward(self, x):
            q, k, v = (
                each(x).unflatten(-1, (heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
            )
            return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(d, heads, bias=False, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Separate() if kind == "separate" else Torch()

        def forward(self, x):
            return x + self.inner(x)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(2)))
    spans = []
    with torch.no_grad():
        for block in model:
            part = block.inner
            q, k = (
                (part.q.weight, part.k.weight)
                if kind == "separate"
                else part.attention.in_proj_weight.chunk(3)[:2]
            )
            for matrix in (q, k):
                scales = weak if kind == "separate" else torch.logspace(0, -4, d // heads).repeat(heads)
                matrix *= scales[:, None]
            spans.append(torch.linalg.qr(k.double().unflatten(0, (heads, -1)).mT)[0])
    x = gaussian(3, 7, d).float()
    with torch.no_grad(), probe(model, [crate.Compression()], draws=0) as p:
        model(x)
        streams = [x, model[0](x), model(x)]

    def rate(Z, U):
        Z = Z.double() - Z.double().mean(-1, keepdim=True)
        W = torch.nn.functional.normalize(Z, dim=-1)[:, None] @ U
        gram = torch.eye(U.shape[-1]) + U.shape[-1] / (Z.shape[1] * 0.25) * W.mT @ W
        return 0.5 * torch.linalg.slogdet(gram)[1].sum(1).mean()

    table = p.result().table
    for layer, U in enumerate(spans):
        for quantity, Z in ((BEFORE, streams[layer]), (AFTER, streams[layer + 1])):
            row = table.select(quantity=quantity, layer=layer, step=0).one()
            assert row.value == pytest.approx(float(rate(Z, U)), rel=1e-5)
