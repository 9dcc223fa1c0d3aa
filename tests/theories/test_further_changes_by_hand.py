"""The changes of attention with its output matrix, of words and of thresholds, by plain products."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.cases import each_case
from tests.theories.test_changes_by_hand import block, generator, reading, scored
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import Attended, NotChanged, Projected
from transformer_theory.models import CRATE, ViT
from transformer_theory.models.crate import Ista, OvercompleteIsta
from transformer_theory.probes.changed_pass import changed_attention, check_changed
from transformer_theory.theories.attention_svm import interventions as attention_svm
from transformer_theory.theories.crate import interventions as crate
from transformer_theory.theories.joma import interventions as joma
from transformer_theory.theories.particles import interventions as particles
from transformer_theory.theories.scan_snap import interventions as scan_snap


def projected(at: Attended, *, dim: int = 8, hidden: int = 5, **given) -> Projected:
    """An attention with a random output matrix in a block with a lower layer."""
    heads, p = at.value.shape[1], at.value.shape[-1]
    matrix = torch.randn(heads, dim, p, generator=generator(7))
    bias = torch.randn(dim, generator=generator(8))
    added = torch.einsum("nhqk,nhke,hde->nqd", at.weights, at.value, matrix) + bias
    tokens = torch.randn(len(at.key), at.key.shape[2], dim, generator=generator(9))
    module = nn.Module()
    module.attention, module.mlp = nn.Linear(dim, dim), nn.Linear(dim, hidden)
    columns = {"tokens": tokens, "matrix": matrix, "added": added, "name": "", "module": module}
    own = {name: getattr(at, name) for name in Attended.__dataclass_fields__}
    return Projected(**(own | columns | {"attention": "attention"} | given))


def not_changed(model, change, x, *, site):
    with changed_attention(model, change, site=site) as changed:
        model(x)
    with pytest.raises(NotChanged):
        check_changed(changed, "this")


# --- attention SVM


def test_one_of_the_next_four_largest_scores_is_drawn():
    at = scored(
        [
            [7.0, 6.0, 5.0, 4.0, 3.0, 2.0],  # the next four are 1 to 4
            [0.0, 9.0, 9.0, 5.0, -math.inf, -math.inf],  # two largest scores, and two smaller ones
            [3.0, -math.inf, -math.inf, -math.inf, -math.inf, -math.inf],
            [1.0, 1.0, 1.0, -math.inf, -math.inf, -math.inf],
        ]
    )
    drawn = [set(), set()]
    for seed in range(60):
        new = attention_svm.next_largest(replace(at, generator=generator(seed))).weights[0, 0]
        assert_close(new.sum(-1), torch.ones(4))
        for row in range(2):
            assert new[row].max() == 1.0
            drawn[row].add(int(new[row].argmax()))
        assert new[2].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        assert_close(new[3], torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]) / 3)
    assert drawn == [{1, 2, 3, 4}, {0, 3}]


def test_each_of_the_next_four_is_drawn_equally_often():
    at = attended(n=400)
    new = attention_svm.next_largest(at).weights
    rank = at.weights.argsort(-1, descending=True).argsort(-1)
    found = rank[new == 1.0].bincount(minlength=6) / rank[..., 0].numel()
    assert_close(found, torch.tensor([0.0, 0.25, 0.25, 0.25, 0.25, 0.0]), atol=0.03, rtol=0)


# --- particles


def test_tokens_as_values_by_hand():
    at = projected(attended(causal=True))
    new = particles.tokens_as_values(at)
    A, z, added = at.weights.double().numpy(), at.tokens.double().numpy(), at.added.double().numpy()
    for b in range(3):
        for query in range(6):
            direction = sum(A[b, head, query] @ z[b] for head in range(2))
            expected = direction / np.linalg.norm(direction) * np.linalg.norm(added[b, query])
            assert_close(new.added[b, query].double(), torch.as_tensor(expected), rtol=1e-4, atol=1e-5)
    assert new.weights is at.weights
    assert new.value is at.value


def test_rotated_values_are_one_orthogonal_map_of_all_tokens():
    at = projected(attended(n=8))
    named, drawn = particles.tokens_as_values(at).added, particles.rotated_values(at).added
    assert_close(drawn.norm(dim=-1), at.added.norm(dim=-1))
    # scalar products of directions are those of the sums: the map is orthogonal
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (named.flatten(0, 1), drawn.flatten(0, 1))]
    assert_close(unit[0] @ unit[0].mT, unit[1] @ unit[1].mT, rtol=1e-4, atol=1e-5)
    assert float((unit[0] * unit[1]).sum(-1).mean()) < 0.9
    again = particles.rotated_values(replace(at, generator=generator(1))).added
    assert not torch.allclose(drawn, again, atol=1e-2)


class Tokens(nn.Module):
    """Hard attention to the next token, of one head; values and output are multiples of the tokens."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        d = len(value)
        self.value, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        with torch.no_grad():
            self.value.weight.copy_(value)
            self.out.weight.copy_(torch.eye(d))

    def forward(self, x):
        T = x.shape[1]
        scores = 1e4 * torch.eye(T).roll(1, 1).expand(len(x), 1, T, T)
        query, key = scores, torch.eye(T).expand(len(x), 1, T, T)
        heads = nn.functional.scaled_dot_product_attention(query, key, self.value(x)[:, None], scale=1.0)
        return self.out(heads[:, 0])


def test_values_that_are_the_tokens_are_not_changed():
    x = torch.randn(4, 6, 5, generator=generator())
    not_changed(Tokens(torch.eye(5)), particles.tokens_as_values, x, site="output")


def test_values_that_are_multiples_of_the_tokens_are_kept():
    """Tokens as values keep what their multiples add; a network with other values changes."""
    x = torch.randn(4, 6, 5, generator=generator())
    for value, kept in ((3 * torch.eye(5), True), (torch.eye(5).roll(1, 0), False)):
        model = Tokens(value)
        plain = model(x).detach()
        with changed_attention(model, particles.tokens_as_values, site="output"):
            assert torch.allclose(model(x), plain, rtol=1e-5, atol=1e-5) == kept
        with changed_attention(model, particles.rotated_values, site="output"):
            assert not torch.allclose(model(x), plain, atol=0.1)


def test_tokens_as_values_need_the_tokens():
    for tokens in (None, torch.randn(3, 6, 7)):
        with pytest.raises(ValueError, match="a module that attends among the tokens of the stream"):
            particles.tokens_as_values(projected(attended(), tokens=tokens))


# --- JoMA


def by_hand(at: Projected) -> np.ndarray:
    """Half the squared responses of the lower layer, ``[n, heads, keys]``."""
    W, Wo, v = (x.detach().double().numpy() for x in (at.module.mlp.weight, at.matrix, at.value))
    return np.array(
        [
            [
                [0.5 * np.sum((W @ (Wo[head] @ vector)) ** 2) for vector in v[b, head]]
                for head in range(len(Wo))
            ]
            for b in range(len(v))
        ]
    )


def test_responses_by_hand():
    at = projected(attended())
    assert_close(joma.responses(at).double(), torch.as_tensor(by_hand(at)), rtol=1e-4, atol=1e-4)
    # some models store the transposed matrix
    module = nn.Module()
    module.attention, module.mlp = at.module.attention, nn.Linear(5, 8)
    with torch.no_grad():
        module.mlp.weight.copy_(at.module.mlp.weight.mT)
    assert_close(joma.responses(replace(at, module=module)), joma.responses(at))


@pytest.mark.parametrize("causal", [False, True])
def test_predicted_weights_by_hand(causal):
    """Logarithms of the weights are the responses times one number; the mean entropy of the rows stays."""
    at = projected(attended(causal=causal))
    new, s = joma.predicted(at).weights.double(), torch.as_tensor(by_hand(at))
    assert_close(new.sum(-1), torch.ones(3, 2, 6).double())
    assert not new[~at.mask].any()
    entropies = [torch.special.entr(x).sum(-1).mean(-1) for x in (new, at.weights.double())]
    assert_close(*entropies, rtol=1e-4, atol=1e-4)
    for b in range(3):
        for head in range(2):
            # the scale from two keys of the last row predicts all rows
            first, second = s[b, head].argsort(descending=True)[:2].tolist()
            ratio = new[b, head, -1, first] / new[b, head, -1, second]
            scale = ratio.log() / (s[b, head, first] - s[b, head, second])
            scores = (scale * s[b, head]).expand(6, 6).masked_fill(~at.mask[b, head], -math.inf)
            assert_close(new[b, head], scores.softmax(-1), rtol=1e-3, atol=1e-4)


def test_attention_that_follows_from_the_lower_layer_is_found():
    at = projected(attended(causal=True))
    scores = 0.3 * joma.responses(at)[:, :, None].expand_as(at.weights)
    planted = at.with_weights(scores.masked_fill(~at.mask, -math.inf).softmax(-1))
    assert_close(joma.predicted(planted).weights, planted.weights, rtol=1e-3, atol=1e-5)
    drawn = joma.permuted(planted).weights
    assert_close(drawn.sort(-1).values, planted.weights.sort(-1).values, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(drawn, planted.weights, atol=0.05)
    assert not drawn[~at.mask].any()


def test_uniform_attention_follows_from_any_lower_layer():
    at = projected(attended(causal=True))
    flat = joma.uniform(at)
    assert_close(flat.weights[0, 0, 2], torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]) / 3)
    assert torch.equal(joma.predicted(flat).weights, flat.weights)
    torch.manual_seed(0)
    model = ViT.for_tokens(5, 6, 3, dim=8, depth=2, heads=2).eval()
    with torch.no_grad():
        for each in model.blocks:
            each.attention.qkv.weight[:16] = 0.0  # queries and keys
    not_changed(model, joma.predicted, torch.randn(3, 5, 6), site="output")


def test_a_block_without_a_fitting_lower_layer():
    at = projected(attended())
    with pytest.raises(ValueError, match="no weight matrix that is registered after"):
        joma.predicted(replace(at, attention="mlp"))
    module = nn.Module()
    module.attention, module.mlp = nn.Linear(2, 2), nn.Linear(6, 5)
    with pytest.raises(ValueError, match=r"the 8 dimensions .* got a matrix of shape \[5, 6\]"):
        joma.predicted(replace(at, module=module))


class Heavy(nn.Module):
    """Attention to key c is nearly exp(a_c^2 / 2), by a parameter of its own; the lower layer is diag(a)."""

    def __init__(self, a: torch.Tensor):
        super().__init__()
        self.attention, self.mlp = Weighing(a), nn.Linear(len(a), len(a), bias=False)
        with torch.no_grad():
            self.mlp.weight.copy_(torch.diag(a))

    def forward(self, x):
        return self.attention(x) + 0 * self.mlp(x)


class Weighing(nn.Module):
    def __init__(self, a: torch.Tensor):
        super().__init__()
        self.scores, self.out = (
            nn.Parameter(a.square() / 2 + torch.arange(len(a)) / 100),
            nn.Linear(len(a), len(a), bias=False),
        )
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(len(a)))

    def forward(self, x):
        query, key = torch.ones(len(x), 1, x.shape[1], 1), (x @ self.scores)[:, None, :, None]
        return self.out(nn.functional.scaled_dot_product_attention(query, key, x[:, None], scale=1.0)[:, 0])


class Majority(nn.Module):
    """Of four classes the one whose words have most weight; each class has a heavy and a light word."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Heavy(torch.tensor([3.0] * 4 + [0.5] * 4))])

    def forward(self, x):
        return votes(self.blocks[0](x).mean(1))


def votes(x: torch.Tensor) -> torch.Tensor:
    """Logits from the weights of the words; of equal ones the last class wins."""
    return 10 * (x[:, :4] + x[:, 4:]) + torch.arange(4) / 100


def majority(n: int = 120, T: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """One heavy word, which is the label, among light words."""
    labels = torch.randint(4, (n,), generator=generator(1))
    words = 4 + torch.randint(4, (n, T), generator=generator(2))
    words[torch.arange(n), torch.randint(T, (n,), generator=generator(3))] = labels
    return nn.functional.one_hot(words, 8).float(), labels


def test_the_recovered_share_of_attention_that_follows_from_the_lower_layer():
    x, y = majority()
    name = "joma/attention that follows from the lower layer"
    result = tt.intervene(Majority(), x, name, labels=y, draws=19)
    rows = [row for row in result.table if row.at["measure"] == "accuracy"]
    effect, means = rows[0], {row.at["attention"]: row.value for row in rows[1:]}
    right = votes(x.mean(1)).argmax(-1) == y  # with uniform weights
    assert means == {
        "unchanged": 1.0,
        "changed": 1.0,
        "uniform weights": pytest.approx(right.double().mean()),
    }
    assert effect.value == 0.0
    assert max(effect.nulls[0].draws) < -0.2
    assert "recovered share beside uniform weights: 1.00" in effect.note


# --- scan and snap

COMMON, DISTINCT = (0, 1, 2, 3), ((4, 5), (6, 7), (8, 9), (10, 11))


def sequences(n: int = 240, T: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of four classes: two distinct words of each, and four that all have; and the classes."""
    labels = torch.arange(n) % 4
    common = torch.randint(4, (n, T), generator=generator(1))
    own = torch.tensor(DISTINCT)[labels].gather(1, torch.randint(2, (n, T), generator=generator(2)))
    return torch.where(torch.rand(n, T, generator=generator(3)) < 0.5, common, own), labels


def of_words(words: torch.Tensor, heads: int = 3, **given) -> Attended:
    """An attention whose values are different vectors of the words, and a number of their place."""
    n, T = words.shape
    vectors = 10 * torch.eye(12)
    places = torch.randn(T, heads * 4, generator=generator(5))
    values = (vectors[words] + places).unflatten(2, (heads, 4)).transpose(1, 2)
    return replace(attended(n=n, heads=heads, T=T), value=values, **given)


def split(at: Attended, part: slice) -> Attended:
    cut = {name: getattr(at, name)[part] for name in ("query", "key", "value", "weights", "mask")}
    labels = None if at.labels is None else at.labels[part]
    ids = None if at.next_ids is None else at.next_ids[part]
    return replace(at, **cut, labels=labels, next_ids=ids, sequences=len(cut["query"]))


def test_common_and_distinct_words_are_found():
    words, labels = sequences()
    at = of_words(words, labels=labels)
    parts = [split(at, slice(0, 120)), replace(split(at, slice(0, 120)), layer=1), split(at, slice(120, 240))]
    chosen = scan_snap.choose_words(reading(parts))
    assert len(chosen.centres) == 16
    found = chosen.of(at.value.transpose(1, 2).flatten(2))
    for word in range(12):
        numbers = found[words == word].unique()  # a word may be divided
        assert bool((chosen.common[numbers] == (word in COMMON)).all())
        assert bool((chosen.distinct[numbers] == (word not in COMMON)).all())


def chosen_words() -> tuple[torch.Tensor, scan_snap.Words]:
    words, labels = sequences()
    return words, scan_snap.choose_words(reading([of_words(words, labels=labels)]))


def test_common_words_are_removed_by_hand():
    words, chosen = chosen_words()
    at = of_words(words, structure=chosen)
    new = scan_snap.common_removed(at).weights
    for b in range(0, 240, 7):
        common = words[b] < 4
        expected = at.weights[b, 1].clone()
        expected[:, common] = 0.0
        assert_close(new[b, 1], expected / expected.sum(-1, keepdim=True))
    for layer, head in ((1, 0), (0, 3)):
        other = replace(at, layer=layer, first_head=head)
        assert scan_snap.common_removed(other) is other
        assert scan_snap.distinct_taken(other) is other


def test_as_much_weight_of_distinct_words_is_taken():
    words, chosen = chosen_words()
    at = of_words(words, structure=chosen)
    common = (words < 4)[:, None, None]
    # common words have less weight than distinct ones
    light = (0.02 * common + 1.0 * ~common) * (1 + torch.rand(at.weights.shape, generator=generator()))
    at = at.with_weights(light / light.sum(-1, keepdim=True))
    before, named, drawn = (
        at.weights,
        scan_snap.common_removed(at).weights,
        scan_snap.distinct_taken(at).weights,
    )
    amount = (before * common).sum(-1)
    assert 0 < float(amount.max()) < 0.5
    assert_close(drawn.sum(-1), torch.ones_like(amount))
    lost = (before - drawn).clamp_min(0.0)
    assert_close(lost.sum(-1), amount, rtol=1e-3, atol=1e-5)
    assert not (lost * common).any()
    assert_close((before - named).abs().sum(-1), (before - drawn).abs().sum(-1), rtol=1e-2, atol=1e-4)
    again = scan_snap.distinct_taken(at).weights
    assert not torch.allclose(again, drawn, atol=1e-3)


def test_weight_beyond_that_of_distinct_words_is_taken_from_others():
    words, chosen = chosen_words()
    at = of_words(words[:1], structure=chosen)
    common = words[0] < 4
    row = torch.where(common, 0.9 / common.sum(), 0.1 / (~common).sum())
    at = at.with_weights(row.expand_as(at.weights))
    new = scan_snap.distinct_taken(at).weights
    assert_close(new.sum(-1), torch.ones_like(new[..., 0]))
    assert not new[..., ~common].any()
    # the distinct words give .1; of up to nine common words with .9 in all, one is left when they give .8
    assert int(common.sum()) <= 9
    assert bool(((new > 0).sum(-1) == 1).all())


def test_without_common_words_nothing_changes():
    words, chosen = chosen_words()
    rare = torch.where(words < 4, 4 + 2 * (torch.arange(240) % 4)[:, None], words)
    at = of_words(rare, structure=chosen)
    assert torch.equal(scan_snap.common_removed(at).weights, at.weights)
    assert torch.equal(scan_snap.distinct_taken(at).weights, at.weights)
    # nor if a query sees no other word
    at = of_words(words % 4, structure=chosen)
    assert torch.equal(scan_snap.common_removed(at).weights, at.weights)


def test_places_whose_values_never_vary_are_kept():
    words, labels = sequences()
    at = of_words(words, labels=labels)
    at.value[:, :, 0] = 1.0  # a class token
    chosen = scan_snap.choose_words(reading([at]))
    assert chosen.varying.tolist() == [False] + [True] * 11
    new = scan_snap.common_removed(replace(at, structure=chosen)).weights
    assert bool((new[..., 0] >= at.weights[..., 0]).all())
    assert not new[..., 1:][(words[:, 1:] < 4)[:, None, None].expand(-1, 3, 12, -1)].any()


def test_padding_is_no_word():
    """Words of padding change neither the words nor their groups, whatever stands there."""
    words, labels = sequences()
    at = of_words(words, labels=labels)
    at.mask[::2, ..., 9:] = False
    chosen = []
    for filled in (0.0, 50.0):
        value = at.value.clone()
        value[::2, :, 9:] = filled
        chosen.append(scan_snap.choose_words(reading([replace(at, value=value)])))
    first, second = chosen
    for name in ("means", "varying", "centres", "common", "distinct"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    values = at.value.transpose(1, 2).flatten(2)
    assert_close(first.means[10], values[1::2, 10].double().mean(0))
    found = first.of(values)
    for word in range(12):
        assert bool((first.common[found[words == word].unique()] == (word in COMMON)).all())


def test_next_ids_take_the_place_of_labels():
    """The words before a next id: the distinct words are those of the class that its sequences end with."""
    words, labels = sequences()
    ids = torch.full_like(words, -1)
    ids[:, 6:] = 20 + labels[:, None]
    at = of_words(words, next_ids=ids)
    conditional = scan_snap._conditional(words, ids, 12)
    expected = torch.zeros(4, 12, dtype=torch.float64)
    for row, following in zip(words.tolist(), ids.tolist()):
        for place, n in enumerate(following):
            for word in row[: place + 1] if n >= 0 else ():
                expected[n - 20, word] += 1
    assert_close(conditional, expected / expected.sum(1, keepdim=True))
    chosen = scan_snap.choose_words(reading([at]))
    found = chosen.of(at.value.transpose(1, 2).flatten(2))
    assert torch.equal(chosen.common[found], words < 4)
    assert torch.equal(chosen.distinct[found], words >= 4)


@each_case(
    ("change", "message"),
    [
        ({}, "need a class of each sequence or next ids, got neither"),
        ({"labels": torch.zeros(240, dtype=torch.int64)}, "two classes or next ids .* got 1"),
        ({"labels": torch.arange(240)}, "two classes or next ids .* got 0"),
        ({"labels": torch.arange(240) % 2, "sequences": 120}, "got windows"),
        (
            {"labels": torch.arange(240) % 2, "value": torch.ones(240, 3, 12, 4)},
            "two different words, got one",
        ),
        ({"next_ids": torch.zeros(240, 5, dtype=torch.int64)}, "sequences of one length, got several"),
    ],
)
def test_common_words_need_two_classes_and_two_words(change, message):
    at = replace(of_words(sequences()[0]), **change)
    with pytest.raises(ValueError, match=message):
        scan_snap.choose_words(reading([at]))


def test_words_are_those_of_as_many_tokens():
    words, chosen = chosen_words()
    at = of_words(words[:, :6], structure=chosen)
    with pytest.raises(ValueError, match="sequences of one length, got 12 and 6 tokens"):
        scan_snap.common_removed(at)


# --- CRATE


def test_steps_without_thresholds_by_hand():
    torch.manual_seed(0)
    y = torch.randn(2, 5, 6)
    Y, one, two = (
        y.double().numpy(),
        Ista(6, eta=0.2, lam=0.3, steps=2),
        OvercompleteIsta(6, ratio=2, eta=0.2),
    )
    D, E, F = (x.detach().double().numpy() for x in (one.weight, two.weight, two.decoder))
    Z = Y
    for _ in range(2):
        Z = Z + 0.2 * (Y - Z @ D.T) @ D
    assert_close(crate.descended(one, y).detach().double(), torch.as_tensor(Z), rtol=1e-5, atol=1e-5)
    Z = 0.2 * Y @ E
    Z = Z + 0.2 * (Y - Z @ E.T) @ E
    assert_close(crate.descended(two, y).detach().double(), torch.as_tensor(Z @ F.T), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sparsify", [Ista, OvercompleteIsta])
def test_blocks_without_thresholds_are_those_of_their_halves(sparsify):
    torch.manual_seed(0)
    model = CRATE.for_tokens(5, 6, 3, dim=8, depth=2, heads=2, sparsify=sparsify).eval()
    x, seen = torch.randn(3, 5, 6), []

    def change(passed):
        new = crate.without_thresholds(passed)
        seen.append((passed, new.output))
        return new

    with changed_attention(model, change, site="block") as changed:
        model(x)
    assert changed.changed == 2
    with torch.no_grad():
        for passed, output in seen:
            half = passed.tokens + passed.module[0](passed.tokens)
            step = crate.descended(passed.module[1].fn, passed.module[1].norm(half))
            assert_close(output, half + step if sparsify is OvercompleteIsta else step)
    assert not any(module._forward_hooks for module in model.modules())
    passed, output = seen[0]
    drawn = crate.random_directions(passed).output
    assert_close((drawn - passed.output).norm(dim=-1), (output - passed.output).norm(dim=-1))
    assert not torch.allclose(drawn, output, atol=1e-3)


def test_tokens_that_no_threshold_cuts_are_not_changed():
    """Steps with D = I, tokens that are positive, and a threshold that is rounded away."""
    model = CRATE.for_tokens(5, 6, 3, dim=8, depth=2, heads=2, sparsify=lambda d: Ista(d, lam=1e-30)).eval()
    with torch.no_grad():
        for layer in model.transformer.layers:
            layer[1].fn.weight.copy_(torch.eye(8))
            layer[1].norm.weight.zero_()
            layer[1].norm.bias.fill_(2.0)
    not_changed(model, crate.without_thresholds, torch.randn(3, 5, 6), site="block")


def test_blocks_without_steps_of_ista():
    passed = replace(block(torch.randn(2, 3, 4)), module=nn.Linear(2, 2))
    with pytest.raises(ValueError, match="as in CRATE, got 0"):
        crate.without_thresholds(passed)
