"""The causal CRATE: causality, the released network, sources of known entropy, and generated sequences."""

import math
from functools import partial
from pydoc_data.topics import topics

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import next_token_logits
from transformer_theory import models
from transformer_theory.models import crate as block

SIZES = {"vocabulary": 7, "context": 12, "dim": 16, "depth": 2, "heads": 2}
ATTENTION = {
    "released": block.CausalReleasedAttention,
    "paper": partial(block.CausalPaperAttention, context=12),
    "exact": partial(block.CausalExactAttention, context=12),
    "token statistics": block.CausalTokenStatisticsAttention,
    "released token statistics": partial(block.CausalReleasedTokenStatisticsAttention, context=12),
}


def built(seed=0, **other):
    return models.build(
        lambda: models.CRATELanguageModel(**{**SIZES, **other}), torch.Generator().manual_seed(seed)
    )


def train(model, batches, *, lr=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    for ids in batches:
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()
    return model.eval()


def entropy(probabilities):
    return float(torch.special.entr(probabilities).sum())


@each_case("sparsify", [block.Ista, block.OvercompleteIsta])
@each_case("attention", ATTENTION)
def test_a_logit_does_not_depend_on_later_tokens(attention, sparsify):
    model = built(attention=ATTENTION[attention], sparsify=sparsify).double()
    ids = torch.randint(7, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(ids)
        for i in (1, 5, 11):
            changed = ids.clone()
            changed[:, i] = (changed[:, i] + 1) % 7
            moved = (model(changed) - logits).abs().amax((0, 2))
            assert moved[:i].max() < 1e-12
            assert moved[i:].min() > 1e-9  # the present and later logits do depend on it
            assert_close(model(ids[:, :i]), logits[:, :i])  # nor does the length of the sequence matter


@pytest.fixture
def released():
    """Random weights with the names and shapes of a released language model: width 128, two heads, two
    layers, 11 tokens, 7 in a row.
    """
    shapes = {"transformer.wte.weight": (11, 128), "transformer.wpe.weight": (7, 128)}
    for i in range(2):
        names = {
            "prenorm_1.weight": (128,),
            "prenorm_1.bias": (128,),
            "attn.c_attn.weight": (128, 128),
            "ista.weight": (128, 128),
        }
        names |= {
            "attn.c_proj.weight": (128, 128),
            "attn.c_proj.bias": (128,),
            "prenorm_2.weight": (128,),
            "prenorm_2.bias": (128,),
        }
        shapes |= {f"transformer.h.{i}.{name}": shape for name, shape in names.items()}
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.1 * torch.randn(shape, generator=generator) + ("norm_" in name)
        for name, shape in shapes.items()
    }
    weights |= {f"transformer.h.{i}.attn.bias": torch.ones(7, 7).tril()[None, None] for i in range(2)}
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


@pytest.mark.parametrize(
    "absent", ["none", "lm_head.weight", "transformer.wte.weight", "transformer.h.0.attn.bias"]
)
def test_released_weights_give_the_released_logits(released, absent):
    ids = torch.randint(11, (5, 6), generator=torch.Generator().manual_seed(1))
    expected = next_token_logits(released, ids, heads=2, depth=2)
    released.pop(absent, None)
    model = models.CRATELanguageModel.from_released(
        {"model": {f"_orig_mod.{name}": value for name, value in released.items()}}
    )
    assert not model.training
    assert model.head.weight is model.embedding.weight
    with torch.no_grad():
        logits = model(ids)
    assert logits.shape == (5, 6, 11)
    assert expected.std() > 0.1
    assert_close(logits.double(), expected, atol=1e-5, rtol=0)


def test_the_smallest_released_network_has_half_the_weights_of_gpt_2():
    with torch.device("meta"):
        sizes = {"vocabulary": 50304, "context": 1024, "dim": 768, "depth": 12, "heads": 12}
        model = models.tie_head(models.CRATELanguageModel(**sizes, norm=torch.nn.Identity))
    layers = 12 * (3 * 768**2 + 5 * 768)
    assert sum(p.numel() for p in model.parameters()) == (50304 + 1024) * 768 + layers == 60_699_648


def test_weights_that_are_not_those_of_a_released_language_model_are_named(released):
    read = models.CRATELanguageModel.from_released
    with pytest.raises(
        ValueError,
        match=r"a causal CRATE as released, with transformer\.wte\.weight, transformer\.wpe\.weight, .*, "
        r"got none",
    ):
        read({})
    with pytest.raises(
        ValueError, match=r"lm_head\.weight must be transformer\.wte\.weight, as in the released network"
    ):
        read(released | {"lm_head.weight": torch.zeros(11, 128)})
    with pytest.raises(ValueError, match="heads must divide the 128 rows of c_attn, got 3; pass heads="):
        read(released, heads=3)
    last = released.pop("transformer.h.1.ista.weight")
    with pytest.raises(
        ValueError,
        match=r"must hold the 19 weights of .*, got 1 missing: transformer\.layers\.1\.1\.fn\.weight; 1 "
        r"unknown: more$",
    ):
        read(released | {"more": last})
    with pytest.raises(ValueError, match=r"1 of another shape: pos_embedding \[7, 64\] for \[7, 128\]$"):
        read(released | {"transformer.h.1.ista.weight": last, "transformer.wpe.weight": torch.zeros(7, 64)})


def test_attention_that_sees_the_future_is_refused():
    with pytest.raises(
        ValueError,
        match="attention must be causal, got ReleasedAttention, which sees the tokens it has to predict",
    ):
        built(attention=block.ReleasedAttention)


@pytest.mark.parametrize("tied", [False, True])
def test_it_learns_a_source_down_to_its_entropy(tied):
    """x_i is x_{i-3} with probability .9, else any: tokens and pairs of neighbours are uniform, so attention
    has to look back.
    """
    size, keep, lag = 6, 0.9, 3
    generator = torch.Generator().manual_seed(0)

    def sample(batch, n=24):
        fresh = torch.randint(size, (batch, n), generator=generator)
        kept = torch.rand(batch, n, generator=generator) < keep
        for i in range(lag, n):
            fresh[:, i] = torch.where(kept[:, i], fresh[:, i - lag], fresh[:, i])
        return fresh

    other = (1 - keep) / size
    rate = entropy(torch.tensor([keep + other] + [other] * (size - 1)))
    model = built(vocabulary=size, context=24, dim=32, depth=1, heads=2)
    model = models.tie_head(model) if tied else model
    start = float(model.loss(sample(256)).detach())
    assert start == pytest.approx(math.log(size), abs=0.05)
    train(model, (sample(64) for _ in range(200)), lr=1e-2)
    with torch.no_grad():
        ids = sample(2000)
        losses = torch.nn.functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")[
            :, lag - 1 :
        ].mean()
    assert rate - 0.02 < float(losses) < rate + 0.25 * (math.log(size) - rate)


def test_it_learns_a_text_below_the_entropy_of_its_letters():
    # English prose of some 14,000 letters that comes with Python
    text = topics["assignment"] + topics["class"]
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    split, context = int(0.9 * len(ids)), 32
    # the best that counting letters can do there
    unigram = entropy(torch.bincount(ids[split:]) / len(ids[split:]))
    model = built(vocabulary=len(letters), context=context, dim=48, depth=2, heads=4)
    generator = torch.Generator().manual_seed(0)
    starts = (torch.randint(split - context - 1, (32, 1), generator=generator) for _ in range(100))
    train(model, (ids[start + torch.arange(context + 1)] for start in starts), lr=5e-3)
    with torch.no_grad():
        held_out = float(model.loss(ids[split:].unfold(0, context + 1, context)))
    assert held_out < unigram - 0.3


def test_the_tied_head_is_one_parameter(tmp_path):
    free, tied = built(), models.tie_head(built())
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in tied.parameters()) == 7 * 16
    models.save_weights(tied, tmp_path / "w.safetensors")
    again = models.tie_head(built(seed=1))
    again.load_state_dict(models.load_weights(tmp_path / "w.safetensors"))
    ids = torch.zeros(1, 5, dtype=torch.long)
    assert_close(again(ids), tied(ids), atol=0, rtol=0)
    assert again.head.weight is again.embedding.weight


def test_sequences_are_continued():
    model = built()
    ids = torch.randint(7, (2, 10), generator=torch.Generator().manual_seed(1))
    first, again = (model.generate(ids, 9, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert first.shape == (2, 19)  # beyond the context of 12
    assert torch.equal(first, again)
    assert torch.equal(first[:, :10], ids)
    cold = model.generate(ids, 1, generator=torch.Generator().manual_seed(2), temperature=1e-6)
    assert torch.equal(cold[:, -1], model(ids)[:, -1].argmax(-1))
    assert torch.equal(model.generate(ids, 0, generator=torch.Generator()), ids)


def test_inputs_that_do_not_fit_are_named(unchecked):
    model = built()
    for shape in ((1, 13), (1, 0), (5,)):
        with pytest.raises(ValueError, match=r"ids must have shape \[batch, n\] with n from 1 to 12, got"):
            model(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 7\), got 3 to 9; pass vocabulary=10"):
        model(torch.tensor([[3, 9]]))
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 7\), got -1 to 0"):
        model(torch.tensor([[-1, 0]]))
    with pytest.raises(
        ValueError, match=r"ids must be torch\.int32 or torch\.int64, got torch\.float32; convert them"
    ):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="n >= 2"):
        model.loss(torch.zeros(1, 1, dtype=torch.long))
    for count, error, message in (
        (-1, ValueError, "at least 0, got -1"),
        (2.5, TypeError, r"an integer, got float 2\.5"),
    ):
        with pytest.raises(error, match=f"count must be {message}"):
            model.generate(torch.zeros(1, 1, dtype=torch.long), count, generator=torch.Generator())
    for context in (2.5, "5"):
        with pytest.raises(TypeError, match="context must be an integer, got"):
            block.CausalExactAttention(16, heads=2, head_dim=8, context=context)
    with pytest.raises(ValueError, match="ids must lie in"):
        model.generate(torch.tensor([[9]]), 1, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"temperature must be positive and finite, got 0\.0"):
        model.generate(torch.zeros(1, 1, dtype=torch.long), 3, generator=torch.Generator(), temperature=0.0)
    with pytest.raises(ValueError, match="vocabulary must be at least 1, got 0"):
        built(vocabulary=0)


def test_a_block_that_needs_a_context_gets_that_of_the_model(unchecked):
    ids = torch.randint(7, (2, 12), generator=torch.Generator().manual_seed(1))
    for kind in (block.CausalExactAttention, block.CausalPaperAttention):
        plain, explicit = built(attention=kind), built(attention=partial(kind, context=12))
        assert_close(plain(ids), explicit(ids), atol=0, rtol=0)
        wider = built(attention=partial(kind, context=24))
        assert wider.transformer.layers[0][0].fn.context == 24
        assert (wider(ids) - plain(ids)).abs().max() > 1e-6

    def orthonormal(dim, *, context, **sizes):
        return block.orthogonal(block.CausalExactAttention(dim, context=context, **sizes))

    assert built(attention=orthonormal).transformer.layers[0][0].fn.context == 12
    with pytest.raises(ValueError, match=r"attention must make a block when called as .* got 'exact'"):
        built(attention="exact")


# generation from stored tokens


@each_case("sparsify", [block.Ista, block.OvercompleteIsta])
@each_case("attention", ATTENTION)
def test_new_tokens_after_stored_ones_are_those_of_the_whole_sequence(attention, sparsify):
    model = built(attention=ATTENTION[attention], sparsify=sparsify).double()
    if attention == "released token statistics":
        for layer in model.transformer.layers:
            torch.nn.init.normal_(layer[0].fn.denom_bias, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(7, (3, 12), generator=torch.Generator().manual_seed(1))
    past = None
    with torch.no_grad():
        logits = model(ids)
        for n in (3, 4, 5, 9, 12):  # one new token, and several at once
            last, past = model._extend(ids[:, :n], past)
            assert_close(last, logits[:, n - 1], atol=1e-12, rtol=0)


@each_case("attention", ATTENTION)
def test_stored_tokens_change_no_sample(attention, monkeypatch):
    model = built(attention=ATTENTION[attention]).double()
    prompt = torch.randint(7, (2, 3), generator=torch.Generator().manual_seed(1))

    def generated():
        # 17 tokens: beyond the context of 12
        return model.generate(prompt, 14, generator=torch.Generator().manual_seed(2))

    stored = generated()
    monkeypatch.setattr(model, "_extend", lambda *_: pytest.fail("tokens were stored"))
    with pytest.raises(pytest.fail.Exception):
        generated()
    monkeypatch.setattr(model.transformer, "extensible", lambda: False)
    assert torch.equal(stored, generated())


def test_networks_whose_blocks_cannot_store_or_that_have_hooks_are_passed_as_a_whole():
    class Halved(block.CausalReleasedAttention):  # inherits an ``extend`` that does not belong to its forward
        def forward(self, tokens):
            return 0.5 * super().forward(tokens)

    assert built().transformer.extensible()
    assert not built(attention=Halved).transformer.extensible()
    model, calls = built(), []
    prompt = torch.zeros(1, 2, dtype=torch.long)
    model.transformer.layers[1].register_forward_hook(lambda *_: calls.append(1))
    model.generate(prompt, 4, generator=torch.Generator())
    assert len(calls) == 4


def test_a_block_with_a_smaller_context_refuses_the_same_sequences():
    for kind in (
        block.CausalExactAttention,
        block.CausalPaperAttention,
        block.CausalReleasedTokenStatisticsAttention,
    ):
        model = built(attention=partial(kind, context=5))
        prompt = torch.zeros(1, 3, dtype=torch.long)
        assert model.generate(prompt, 3, generator=torch.Generator()).shape == (1, 6)
        with pytest.raises(
            ValueError, match="context must count at least the tokens of a sequence, 6, got 5"
        ):
            model.generate(prompt, 4, generator=torch.Generator())


def test_a_stored_token_costs_one_pass_over_one_token():
    model = built()
    lengths = []
    for half in model.transformer.layers[0]:
        original = half.norm.forward
        half.norm.forward = lambda tokens, original=original: (
            lengths.append(tokens.shape[1]),
            original(tokens),
        )[1]
    model.generate(torch.zeros(1, 3, dtype=torch.long), 5, generator=torch.Generator())
    assert lengths[::2] == [3, 1, 1, 1, 1]
