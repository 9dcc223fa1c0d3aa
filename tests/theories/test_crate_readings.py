"""CRATE on data and in networks: the unrolled model, the reducers, the modules."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.measurement import collect
from transformer_theory.data.synthetic import subspace_mixture
from transformer_theory.data.tokens import TokenData
from transformer_theory.metrics.coding import subspace_coding_rate, unit_norm
from transformer_theory.probes import Observation
from transformer_theory.theories import crate
from transformer_theory.theories.crate import readings, unrolled


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def mixture():
    return subspace_mixture(64, seq=8, dim=24, classes=4, rank=6, generator=generator())


@pytest.mark.parametrize("block", [crate.ReleasedAttention, crate.PaperAttention, crate.ExactAttention])
def test_blocks_return_the_change_of_their_step(block):
    torch.manual_seed(0)
    module = block(12, heads=3, head_dim=4).double()
    tokens, bases = gaussian(2, 5, 12), module.subspaces()
    after = tokens + module(tokens)
    if block is crate.ReleasedAttention:
        linear = module.to_out[0]
        assert_close(after, crate.released_step(tokens, bases, linear.weight.T.unflatten(0, (3, 4)), linear.bias))
    elif block is crate.PaperAttention:
        assert_close(after, crate.paper_step(tokens, bases, kappa=module.kappa, eps=module.eps))
    else:
        assert_close(after, crate.exact_step(tokens, bases, kappa=module.kappa, eps=module.eps))


@pytest.mark.parametrize("block", [crate.ReleasedAttention, crate.PaperAttention])
def test_bilinear_gives_the_scores_that_the_kernel_uses(block):
    torch.manual_seed(0)
    module = block(12, heads=3, head_dim=4).double()
    tokens = gaussian(5, 12)
    scores = torch.einsum("id,kde,je->kji", tokens, module.bilinear(), tokens)  # [head, query, key]
    values = tokens @ module.subspaces()
    expected = (scores.softmax(-1) @ values).transpose(0, 1).flatten(-2)
    scale = 0.5 if block is crate.ReleasedAttention else 1.0
    assert_close(module.attend(tokens[None], scale=scale)[0], expected)


def test_ista_block_is_the_ista_step_from_the_tokens():
    torch.manual_seed(0)
    module = crate.Ista(12).double()
    tokens = gaussian(2, 5, 12)
    assert_close(module(tokens), crate.ista_step(tokens, tokens, module.weight, eta=0.1, lam=0.1))


def test_layer_compresses_then_overwrites():
    torch.manual_seed(0)
    layer = crate.Layer(12, attention=crate.ReleasedAttention(12, heads=3, head_dim=4), sparsify=crate.Ista(12)).double()
    tokens = gaussian(2, 5, 12)
    half = tokens + layer[0].fn(layer[0].norm(tokens))
    assert_close(layer(tokens), layer[1].fn(layer[1].norm(half)))
    assert (layer(tokens) >= 0).all()


def test_guarantee_holds_at_every_layer_and_is_no_empty_bound(mixture):
    bases = mixture.bases
    run = crate.compress(mixture.data.tokens, bases, crate.forms(bases, n=8, eps=0.5)["exact"], eps=0.5)
    bound = crate.guaranteed(run, bases, eps=0.5)
    assert (run.rates <= bound + 1e-12).all()
    assert bound[-1] < 0.8 * bound[0]
    assert (run.changes < 0).all()


def test_a_mixture_of_subspaces_is_found_and_coded_as_sparsely_as_predicted(mixture):
    rows, arrays = collect(crate.predict_and_measure(mixture.data, generator()))
    by_name = {row["quantity"]: row for row in rows}
    assert by_name["assumption: tokens lie in one of the subspaces"]["verdict"] == "holds"
    assert by_name["assumption: subspaces are incoherent"]["verdict"] == "holds"
    assert by_name[crate.THEORY.answer]["verdict"] == "consistent"
    sparse = by_name["share of non-zeros of the sparse code"]
    assert sparse["value"] <= sparse["predicted"] == 1 / 8 < sparse["null"]
    assert by_name["smallest change of R^c in a step, released form with tied output"]["value"] > 0
    assert arrays["crate/rate/exact"].shape == (unrolled.LAYERS + 1,)
    assert np.isfinite(np.concatenate([array.ravel() for array in arrays.values()])).all()


def test_scale_of_the_data_does_not_matter(mixture):
    data = mixture.data[:8]
    small = TokenData(tokens=2.0**-20 * data.tokens)
    first, second = (collect(crate.predict_and_measure(d, generator()))[0] for d in (data, small))
    assert [row["value"] for row in first] == pytest.approx([row["value"] for row in second])


def test_tokens_that_are_all_zero_are_not_compressed():
    rows, arrays = collect(crate.predict_and_measure(TokenData(tokens=torch.zeros(3, 2, 4, dtype=torch.float64)), generator()))
    assert len(rows) == 1
    assert rows[0]["quantity"] == crate.THEORY.answer
    assert rows[0]["verdict"].startswith("not applicable: all tokens are zero")
    assert not arrays


@dataclass
class Block:
    bases: torch.Tensor

    def subspaces(self):
        return self.bases


def feed(reducer, before, after, bases, layer=0, output=None):
    """The two observations of a block in a forward pass: its attention, then the block itself."""
    reducer.update(Observation("blocks.0.attention", layer, "attention", before, after - before, parent=Block(bases)), None)
    reducer.update(Observation("blocks.0", layer, "features", before, after if output is None else output, attended=after), None)


def standard(tokens):
    return unit_norm(tokens - tokens.mean(-1, keepdim=True))


def reading(reducer, **equal):
    return {row["quantity"]: row for row in reducer.compute() if all(row.get(k) == v for k, v in equal.items())}


def test_compression_is_read_in_the_blocks_own_subspaces():
    bases = crate.random_subspaces(3, 12, 4, generator=generator())
    tokens = gaussian(2, 5, 12)
    stepped = crate.exact_step(tokens, bases, kappa=2.0, eps=0.5)
    reducer = crate.Compression()
    feed(reducer, tokens, stepped, 7 * bases)  # the length of U does not matter
    before, after = (float(subspace_coding_rate(standard(z), bases, eps=readings.EPS).mean()) for z in (tokens, stepped))
    rows = reading(reducer)
    assert rows[readings.BEFORE]["value"] == pytest.approx(before)
    assert rows[readings.AFTER]["value"] == pytest.approx(after)
    assert rows[readings.COMPRESSION]["value"] == pytest.approx(1 - after / before)
    assert crate.THEORY.order_parameter == readings.COMPRESSION


def test_no_change_is_no_compression_and_a_gathering_is():
    bases, tokens = crate.random_subspaces(3, 12, 4, generator=generator()), gaussian(2, 5, 12)
    still, gather, stretch = crate.Compression(), crate.Compression(), crate.Compression()
    feed(still, tokens, tokens, bases)
    feed(gather, tokens, tokens.mean(1, keepdim=True).expand_as(tokens), bases)
    feed(stretch, tokens, 3 * tokens + 5, bases)
    assert reading(still)[readings.COMPRESSION]["value"] == pytest.approx(0, abs=1e-12)
    assert reading(gather)[readings.COMPRESSION]["value"] > 0.3
    assert reading(gather)[readings.COMPRESSION]["null"] > 0.3  # in any subspace: that is what the null is for
    assert reading(stretch)[readings.COMPRESSION]["value"] == pytest.approx(0, abs=1e-12)  # neither length nor mean is counted
    assert reading(stretch)[readings.GROWTH]["value"] > 0.1


def test_a_step_along_the_subspaces_stands_out_from_the_null():
    """Removing what lies in the first subspace of two empties it: random subspaces see less of that."""
    bases = crate.random_subspaces(2, 24, 4, generator=generator(5))
    tokens = gaussian(4, 16, 24)
    reducer = crate.Compression()
    feed(reducer, tokens, tokens - tokens @ bases[0] @ bases[0].T, bases)
    row = reading(reducer)[readings.COMPRESSION]
    assert row["value"] > row["null"] + 0.2


def test_key_projections_stand_in_for_subspaces():
    key = gaussian(2, 12, 4)
    query = gaussian(2, 12, 4, seed=1)
    tokens, after = gaussian(3, 5, 12), gaussian(3, 5, 12, seed=2)
    bilinear, keys = key @ query.mT, torch.zeros(3, 2, 5, 4)
    by_key, by_block = crate.Compression(), crate.Compression()
    by_key.update(Observation("attention", 0, "attention", tokens, tokens, key=keys, bilinear=bilinear, parent=object()), None)
    by_key.update(Observation("blocks.0", 0, "features", tokens, after, attended=after), None)
    feed(by_block, tokens, after, key)
    for quantity, row in reading(by_key).items():
        assert row["value"] == pytest.approx(reading(by_block)[quantity]["value"])
    assert "key projections" in reading(by_key)[readings.BEFORE]["note"]


def test_blocks_without_subspaces_are_skipped():
    reducer = crate.Compression()
    tokens = gaussian(2, 5, 12)
    reducer.update(Observation("a", 0, "attention", tokens, tokens, parent=object()), None)
    reducer.update(Observation("blocks.0", 0, "features", tokens, tokens, attended=tokens), None)
    assert list(reducer.compute()) == []


def test_sequences_that_are_not_finite_are_left_out():
    bases, tokens = crate.random_subspaces(3, 12, 4, generator=generator()), gaussian(6, 5, 12)
    after = tokens + 0.3 * gaussian(6, 5, 12, seed=1)
    whole, some, nothing, diverged = (crate.Compression() for _ in range(4))
    feed(whole, tokens[1:], after[1:], bases)
    after[0, 2, 3] = torch.nan
    feed(some, tokens, after, bases)
    assert [row["value"] for row in some.compute()] == pytest.approx([row["value"] for row in whole.compute()])
    feed(nothing, tokens[:1], after[:1], bases)
    feed(diverged, tokens, after, torch.nan * bases)
    assert list(nothing.compute()) == list(diverged.compute()) == []


def test_the_subspaces_are_those_of_the_first_attention_of_a_block():
    bases, tokens, after = crate.random_subspaces(3, 12, 4, generator=generator()), gaussian(6, 5, 12), gaussian(6, 5, 12, seed=1)
    one, two = crate.Compression(), crate.Compression()
    for reducer in (one, two):
        reducer.update(Observation("m", 0, "attention", tokens, after, parent=Block(bases)), None)
        if reducer is two:
            other = Block(gaussian(3, 12, 4, seed=2))
            reducer.update(Observation("n", 0, "attention", tokens, after, parent=other, first_head=3), None)
        reducer.update(Observation("blocks.0", 0, "features", tokens, after, attended=after), None)
    assert one.compute() == two.compute()


def test_streaming_is_the_whole_and_merging_adds():
    bases, tokens = crate.random_subspaces(3, 12, 4, generator=generator()), gaussian(14, 5, 12)
    after, features = tokens + 0.3 * gaussian(14, 5, 12, seed=1), gaussian(14, 5, 12).relu()
    whole, parts, others = crate.reducers(), crate.reducers(), crate.reducers()
    for reducers, part in ((whole, slice(0, 14)), (parts, slice(0, 5)), (others, slice(5, 14))):
        for reducer in reducers:
            feed(reducer, tokens[part], after[part], bases, layer=1, output=features[part])
    for one, some, rest in zip(whole, parts, others):
        some.merge(rest)
        values = [[row[k] for row in r.compute() for k in ("value", "null") if k in row] for r in (one, some)]
        assert values[0]
        assert values[0] == pytest.approx(values[1])
        some.reset()
        assert list(some.compute()) == []


def test_share_of_nonzeros_counts_exact_zeros():
    output = torch.zeros(2, 4, 10)
    output[0, :, :3] = 1.0
    output[1, :, 0] = -2.0
    reducer = crate.Sparsity()
    reducer.update(Observation("blocks.0", 0, "features", output, output), None)
    (row,) = reducer.compute()
    assert row["value"] == pytest.approx(0.2)


def test_experiment_shows_the_three_forms(tmp_path):
    result = crate.Unrolled.quick().run()
    rates = {name: result.arrays[f"crate/rate/{name}"] for name in ("exact", "paper", "tied residual")}
    assert (np.diff(rates["exact"]) <= 0).all()
    assert (np.diff(rates["paper"]) <= 0).all()
    assert (np.diff(rates["tied residual"]) > 0).all()
    verdicts = {row["quantity"]: row["verdict"] for row in result.table if "verdict" in row}
    assert set(verdicts.values()) == {"consistent"}
    crate.Unrolled.quick().draw(result).savefig(tmp_path / "figure.svg")
