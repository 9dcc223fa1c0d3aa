"""The causal CRATE: it sees no future, learns sources whose entropy is known, and continues sequences."""

import math
from functools import partial
from pydoc_data.topics import topics

import pytest
import torch
from torch.testing import assert_close

from transformer_theory import models
from transformer_theory.theories.crate import block

SIZES = {"vocabulary": 7, "context": 12, "dim": 16, "depth": 2, "heads": 2}
ATTENTION = {
    "released": block.CausalReleasedAttention,
    "paper": partial(block.CausalPaperAttention, context=12),
    "exact": partial(block.CausalExactAttention, context=12),
    "token statistics": block.CausalTokenStatisticsAttention,
}


def built(seed=0, **other):
    return models.build(lambda: models.CRATELanguageModel(**{**SIZES, **other}), torch.Generator().manual_seed(seed))


def train(model, batches, *, lr=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    for ids in batches:
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()
    return model.eval()


def entropy(probabilities):
    return float(torch.special.entr(probabilities).sum())


@pytest.mark.parametrize("sparsify", [block.Ista, block.OvercompleteIsta])
@pytest.mark.parametrize("attention", ATTENTION)
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
            assert moved[i:].min() > 1e-9  # the present and all that follows do depend on it
            assert_close(model(ids[:, :i]), logits[:, :i])  # nor does the length of the sequence matter


def test_attention_that_sees_the_future_is_refused():
    with pytest.raises(ValueError, match="attention must be causal, got ReleasedAttention, which sees the tokens it has to predict"):
        built(attention=block.ReleasedAttention)


@pytest.mark.parametrize("tied", [False, True])
def test_it_learns_a_source_down_to_its_entropy(tied):
    """x_i is x_{i-3} with probability .9, else any: tokens and pairs of neighbours are uniform, so attention has to look back."""
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
        losses = torch.nn.functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")[:, lag - 1 :].mean()
    assert rate - 0.02 < float(losses) < rate + 0.25 * (math.log(size) - rate)


def test_it_learns_a_text_below_the_entropy_of_its_letters():
    text = topics["assignment"] + topics["class"]  # English prose of some 14,000 letters that comes with Python
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    split, context = int(0.9 * len(ids)), 32
    unigram = entropy(torch.bincount(ids[split:]) / len(ids[split:]))  # the best that counting letters can do there
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
    with pytest.raises(ValueError, match=r"ids must be torch\.int32 or torch\.int64, got torch\.float32; convert them"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="n of at least 2, one to predict"):
        model.loss(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="count must be >= 0 and temperature positive and finite, got 3 and 0"):
        model.generate(torch.zeros(1, 1, dtype=torch.long), 3, generator=torch.Generator(), temperature=0.0)
    with pytest.raises(ValueError, match="vocabulary and context must be at least 1, got 0 and 12"):
        built(vocabulary=0)
