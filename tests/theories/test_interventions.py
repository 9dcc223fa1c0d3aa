"""The changes of the theories' interventions, by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.intervention import Attended
from transformer_theory.theories import list_theories
from transformer_theory.theories.attention_svm.interventions import permuted as permuted_sharper
from transformer_theory.theories.attention_svm.interventions import sharper
from transformer_theory.theories.in_context.interventions import linearised
from transformer_theory.theories.in_context.interventions import permuted as permuted_linear
from transformer_theory.theories.induction.interventions import repeated
from transformer_theory.theories.length.interventions import changed_scores, doubled, moved
from transformer_theory.theories.scan_snap.interventions import kept_keys, random_keys, random_weight


def attended(n: int = 3, *, causal: bool = False, heads: int = 2, T: int = 6, seed: int = 0) -> Attended:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, n, heads, T, 4, generator=generator).unbind(0)
    mask = torch.ones(n, heads, T, T, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    weights = (q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1)
    return Attended(0, 0, n, q, k, v, weights, 1.0, mask, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_all_changes_are_distributions_over_allowed_keys(causal):
    at = attended(causal=causal)
    for change in (
        kept_keys,
        random_keys,
        random_weight,
        lambda at: sharper(at, factor=2.0),
        lambda at: sharper(at, factor=math.inf),
        lambda at: permuted_sharper(at, factor=4.0),
        linearised,
        permuted_linear,
        moved,
    ):
        new = change(at).weights
        assert_close(new.sum(-1), torch.ones_like(new.sum(-1)))
        assert not new[~at.mask].any()


def test_kept_keys_by_hand():
    at = attended()
    row = torch.tensor([0.5, 0.05, 0.3, 0.11, 0.02, 0.02])
    at = at.with_weights(row.expand_as(at.weights))
    expected = torch.tensor([0.5, 0.0, 0.3, 0.11, 0.0, 0.0]) / 0.91
    assert_close(kept_keys(at).weights, expected.expand_as(at.weights))
    assert bool(((random_keys(at).weights > 0).sum(-1) == 3).all())


def test_as_much_weight_is_moved_at_random_keys():
    at = attended(n=40)
    before, named, drawn = at.weights, kept_keys(at).weights, random_weight(at).weights
    assert_close((named - before).abs().sum(-1), (drawn - before).abs().sum(-1), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(named, drawn, atol=1e-3)


def test_sharper_scores_by_hand():
    at = attended(causal=True)
    scores = (at.query @ at.key.mT).masked_fill(~at.mask, -math.inf)
    assert_close(sharper(at, factor=4.0).weights, (4 * scores).softmax(-1), rtol=1e-4, atol=1e-6)
    hard = torch.nn.functional.one_hot(scores.argmax(-1), 6).float()
    assert_close(sharper(at, factor=math.inf).weights, hard)
    entropy = torch.special.entr(sharper(at, factor=2.0).weights).sum(-1)
    assert_close(torch.special.entr(permuted_sharper(at, factor=2.0).weights).sum(-1), entropy)


def test_the_first_order_of_small_scores_is_their_softmax():
    at = attended(causal=True)
    small = replace(at, weights=(1e-3 * at.scores).softmax(-1))
    assert_close(linearised(small).weights, small.weights, rtol=1e-4, atol=1e-6)
    scores = torch.tensor([1.0, 0.0, -2.0])
    row = attended(n=1, heads=1, T=3).with_weights(scores.softmax(-1).expand(1, 1, 3, 3))
    by_hand = torch.tensor([1 + 4 / 3, 1 + 1 / 3, 1 - 5 / 3]) / 3
    assert_close(linearised(row).weights, by_hand.expand(1, 1, 3, 3))


def test_the_same_keys_twice_change_no_output():
    at = attended()
    same = replace(at, **{name: getattr(at, name)[:1].expand(3, -1, -1, -1) for name in ("query", "key")})
    same = replace(
        same, value=at.value[:1].expand(3, -1, -1, -1), weights=at.weights[:1].expand(3, -1, -1, -1)
    )
    new = doubled(same, logarithmic=False)
    assert new.weights.shape[-1] == 12
    assert_close(new.weights @ new.value, same.weights @ same.value)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_of_another_sequence_by_hand(causal):
    at = attended(causal=causal)
    new = doubled(at, logarithmic=True)
    for b in range(3):
        for query in range(6):
            keys = query + 1 if causal else 6
            other = (b - 1) % 3
            s = torch.cat([at.key[b, 1, :keys], at.key[other, 1, :keys]]) @ at.query[b, 1, query]
            own = at.weights[b, 1, query, :keys].log()  # scores count up to a number for each row
            s = s - s[0] + own[0]
            factor = math.log(2 * keys) / math.log(keys) if keys > 1 else 1.0
            values = torch.cat([at.value[b, 1, :keys], at.value[other, 1, :keys]])
            expected = (factor * s).softmax(-1) @ values
            assert_close((new.weights @ new.value)[b, 1, query], expected, rtol=1e-3, atol=1e-4)


def test_as_large_a_change_of_the_scores():
    at = attended(n=2, T=32)
    both = changed_scores(at)
    assert both.weights.shape == (2, 2, 32, 64)
    assert_close(both.weights.sum(-1), torch.ones(2, 2, 32))
    assert not torch.allclose(both.weights, doubled(at, logarithmic=True).weights, atol=1e-3)


def test_keys_of_another_sequence_need_one():
    with pytest.raises(ValueError, match="a batch of at least two, got one"):
        doubled(attended(n=1), logarithmic=False)
    with pytest.raises(ValueError, match="scale of the scores"):
        doubled(replace(attended(), scale=None), logarithmic=False)


def test_the_second_block_is_scored():
    made = repeated({"vocabulary": 30, "length": 10}, torch.Generator().manual_seed(0))
    assert made.ids.shape == made.targets.shape == (64, 10)
    assert torch.equal(made.ids[:, :5], made.ids[:, 5:])
    assert bool((made.targets[:, [0, 1, 2, 3, 4, 9]] == -1).all())
    assert torch.equal(made.targets[:, 5:9], made.ids[:, 6:])


def test_theories_say_what_they_predict_and_where_it_stands():
    chosen = [one for theory in list_theories() for one in theory.interventions]
    assert len(chosen) >= 8
    assert all(one.source.key for one in chosen)
    assert len({one.name for one in chosen}) == len(chosen)
