"""The changes of attention and blocks that further theories name, by plain products."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import Attended, BlockPass
from transformer_theory.probes.changed_pass import changed_attention
from transformer_theory.theories.bottleneck import interventions as bottleneck
from transformer_theory.theories.chain_of_thought import interventions as chain
from transformer_theory.theories.collapse import interventions as collapse
from transformer_theory.theories.crate import interventions as crate
from transformer_theory.theories.joma import interventions as joma
from transformer_theory.theories.length import interventions as length
from transformer_theory.theories.particles import interventions as particles
from transformer_theory.theories.rate_reduction import interventions as rate_reduction
from transformer_theory.theories.router import interventions as router
from transformer_theory.theories.turing import interventions as turing
from transformer_theory.theories.universal import interventions as universal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def block(output: torch.Tensor, tokens: torch.Tensor | None = None, **given) -> BlockPass:
    tokens = torch.randn(output.shape, generator=generator(5)) if tokens is None else tokens
    return BlockPass(0, tokens, output, lambda x: x.flip(-1), "", None, "", generator(), **given)


# --- attention


def test_each_sequence_has_the_context_of_the_one_before_it_in_the_batch():
    at = attended()
    new = universal.other_context(at)
    for b in range(3):
        other = at.weights[(b - 1) % 3] @ at.value[(b - 1) % 3]
        assert_close((new.weights @ new.value)[b], other)


def test_random_directions_are_as_long_and_new_in_every_draw():
    at = attended()
    own = at.weights @ at.value
    distance = (own.roll(1, 0) - own).norm(dim=-1)
    drawn = [new.weights @ new.value - own for new in map(universal.random_direction, [at, at])]
    for each in drawn:
        assert_close(each.norm(dim=-1), distance)
    assert not torch.allclose(*drawn)
    assert abs(float(torch.cosine_similarity(*drawn, dim=-1).mean())) < 0.3


def test_context_of_another_sequence_needs_one():
    with pytest.raises(ValueError, match="a batch of at least two, got one"):
        universal.other_context(attended(n=1))


def scored(rows: list[list[float]]) -> Attended:
    """One head whose score of query i for key j is rows[i][j], of which -inf is blocked."""
    scores = torch.tensor(rows)
    mask = scores.isfinite()[None, None]
    known = scores.masked_fill(~mask[0, 0], 0.0)
    keys = torch.eye(len(rows[0]))[None, None]
    weights = scores.softmax(-1)[None, None]
    values = torch.randn(1, 1, len(rows[0]), 3, generator=generator())
    return replace(
        attended(n=1, heads=1),
        query=known[None, None],
        key=keys,
        value=values,
        weights=weights,
        mask=mask,
        scale=1.0,
    )


def test_close_calls_are_those_within_the_rounding_of_bfloat16():
    # between 8 and 16 numbers of bfloat16 are 1/16 apart, between 1 and 2 1/128; negative scores alike
    at = scored(
        [
            [9.0, 9.05, 1.0, 0.0],
            [9.0, 9.07, 1.0, 0.0],
            [1.5, 1.506, 1.0, 0.0],
            [1.5, 1.51, 1.0, 0.0],
            [-9.0, -9.05, -20.0, -30.0],
            [5.0, -math.inf, -math.inf, -math.inf],
        ]
    )
    close = turing.close_calls(at)
    assert close.flatten().tolist() == [True, False, True, False, True, False]
    new, old = turing.exchanged(at).weights[0, 0], at.weights[0, 0]
    for query, (first, second) in {0: (1, 0), 2: (1, 0), 4: (0, 1)}.items():
        assert new[query, first] == old[query, second]
        assert new[query, second] == old[query, first]
        assert torch.equal(new[query, 2:], old[query, 2:])
    assert torch.equal(new[[1, 3, 5]], old[[1, 3, 5]])
    drawn = set()
    for seed in range(20):
        new = turing.exchanged_elsewhere(replace(at, generator=generator(seed))).weights[0, 0]
        changed = (new != old).any(-1).nonzero().flatten().tolist()
        assert changed == [1, 3]  # three close calls, and only two other queries with several keys
        drawn.add(tuple(changed))
        assert_close(new.sum(-1), torch.ones(6))
    assert drawn == {(1, 3)}


def test_a_second_weight_that_underflows_is_no_close_call():
    # between 2^14 and 2^15 numbers of bfloat16 are 128 apart, more than float32 weights can differ by
    at = scored([[20000.0, 0.0, -5.0, 0.0], [20000.0, 19950.0, 0.0, 0.0], [20000.0, 19800.0, 0.0, 0.0]])
    assert turing.close_calls(at).flatten().tolist() == [False, True, False]
    assert torch.equal(turing.exchanged(at).weights[0, 0, [0, 2]], at.weights[0, 0, [0, 2]])


def test_as_many_other_queries_are_drawn():
    rows = [[9.0, 9.05, 1.0, 0.0]] * 2 + [[9.0, 5.0, 1.0, 0.0]] * 6
    at, drawn = scored(rows), set()
    for seed in range(60):
        new = turing.exchanged_elsewhere(replace(at, generator=generator(seed))).weights[0, 0]
        drawn.add(tuple((new != at.weights[0, 0]).any(-1).nonzero().flatten().tolist()))
    assert {len(one) for one in drawn} == {2}
    assert {query for one in drawn for query in one} == {2, 3, 4, 5, 6, 7}


def test_the_rounding_needs_the_scale():
    with pytest.raises(ValueError, match="their scale, which is not known"):
        turing.exchanged(replace(attended(), scale=None))


def test_the_heaviest_key_of_every_query_goes():
    at = attended(causal=True)
    row = torch.tensor([0.2, 0.5, 0.3, 0.0, 0.0, 0.0])
    weights = at.weights.clone()
    weights[:, :, 2] = row
    at = at.with_weights(weights)
    new = router.choice_removed(at).weights
    assert_close(new[0, 0, 2], torch.tensor([0.4, 0.0, 0.6, 0.0, 0.0, 0.0]))
    assert torch.equal(new[:, :, 0], at.weights[:, :, 0])  # the only key of a query stays
    rows = {
        tuple(router.other_removed(replace(at, generator=generator(seed))).weights[0, 0, 2].tolist())
        for seed in range(20)
    }
    found = sorted(tuple(round(x, 4) for x in each) for each in rows)
    assert found == [(0.0, 0.625, 0.375, 0.0, 0.0, 0.0), (0.2857, 0.7143, 0.0, 0.0, 0.0, 0.0)]


def test_the_sink_is_the_key_that_receives_most_in_its_head_and_sequence():
    at = attended(n=2, T=4)
    weights = torch.full((2, 2, 4, 4), 0.1)
    sinks = torch.tensor([[2, 0], [3, 1]])
    weights.scatter_(-1, sinks[..., None, None].expand(-1, -1, 4, 1), 0.7)
    at = replace(at, weights=weights)
    new = length.without_sink(at).weights
    for b in range(2):
        for head in range(2):
            expected = torch.full((4, 4), 0.1)
            expected[:, sinks[b, head]] = 0.0
            assert torch.equal(new[b, head], expected)
    drawn = length.without_others(at).weights
    kept = drawn.gather(-1, sinks[..., None, None].expand(-1, -1, 4, 1))
    assert_close(kept, torch.full_like(kept, 0.7))
    assert_close(drawn.sum(-1), torch.full((2, 2, 4), 0.7))  # the others had .3 in all, less than .7
    lighter = replace(at, weights=torch.tensor([0.3, 0.25, 0.25, 0.2]).expand(2, 2, 4, 4))
    taken = length.without_others(lighter).weights
    assert_close(taken[..., 0], torch.full((2, 2, 4), 0.3))
    assert_close(taken.sum(-1), torch.full((2, 2, 4), 0.7))
    assert len(taken.flatten(0, 2).unique(dim=0)) > 2


def test_the_exact_step_is_that_of_the_large_matrix():
    at = attended(T=5)
    W = torch.randn(3, 2, 5, 4, generator=generator(1), dtype=torch.float64)
    at = replace(at, query=W, key=W, value=W, weights=(W @ W.mT).softmax(-1), mask=at.mask[..., :5, :5])
    new = crate.exact(at)
    found = new.weights @ new.value
    for b in range(3):
        for head in range(2):
            w = W[b, head].numpy()
            A = 4 / (5 * 0.25) * w @ w.T
            step = w - np.linalg.solve(np.eye(5) + A, w)
            own = at.weights[b, head].numpy() @ w
            expected = step * np.linalg.norm(own) / np.linalg.norm(step)
            assert_close(found[b, head], torch.as_tensor(expected))
    other = crate.rotated(at)
    norms = [torch.linalg.matrix_norm(each.weights @ each.value) for each in (at, other)]
    assert_close(*norms)
    assert not torch.allclose(other.value, new.value, atol=1e-3)
    again = crate.rotated(replace(at, generator=generator(1)))
    assert not torch.allclose(other.value, again.value, atol=1e-3)
    # with one head a rotation of its coordinates changes nothing
    one = replace(
        at, **{name: getattr(at, name)[:, :1] for name in ("query", "key", "value", "weights", "mask")}
    )
    assert_close(crate.rotated(one).value, crate.exact(one).value)


def test_the_exact_step_is_that_of_crate_alone():
    with pytest.raises(ValueError, match="equal queries, keys and values"):
        crate.exact(attended())
    W = torch.randn(3, 2, 6, 4)
    with pytest.raises(ValueError, match="got a mask or padding"):
        crate.exact(replace(attended(causal=True), query=W, key=W, value=W))


def reading(parts: list):
    """The argument of ``choose``: calls a function with each of the parts."""

    def read(function):
        for part in parts:
            function(part)

    return read


def test_the_answer_does_not_see_its_chain():
    made = chain.given_chains({"vocabulary": 60, "length": 200}, generator())
    assert made.ids.shape == made.targets.shape
    assert bool((made.targets[:, :-1] == -1).all())
    assert len(made.ids) == 60
    hidden, T = made.structure, made.ids.shape[1]
    n = len(hidden.places)
    assert hidden.places == set(range(T - 1 - n, T - 1))
    assert hidden.places | hidden.others == set(range(T - 1))
    # the chain of a + b * c is b * c reduced, an operation, and the answer again
    for row, targets in zip(made.ids.tolist(), made.targets.tolist()):
        assert row[T - 2] == targets[-1]
    at = attended(n=2, T=T, causal=True)
    new = chain.hidden(replace(at, structure=hidden)).weights
    assert torch.equal(new[..., :-1, :], at.weights[..., :-1, :])
    assert not new[..., -1, T - 1 - n : T - 1].any()
    seen = [*range(T - 1 - n), T - 1]
    last = at.weights[..., -1, seen]
    assert_close(new[..., -1, seen], last / last.sum(-1, keepdim=True))
    drawn = [chain.other_places(hidden, generator(seed)) for seed in range(5)]
    assert all(one and len(one.places) == n and not one.places & hidden.places for one in drawn)
    assert len({one.places for one in drawn if one}) == 5
    with pytest.raises(ValueError, match=rf"among the {T} tokens of the prompt, got \[6, 6\]"):
        chain.hidden(replace(attended(), structure=hidden))
    assert chain.other_places(chain.Places(frozenset({1, 2}), frozenset({0}), 4), generator()) is None


# --- blocks


def test_half_of_the_skip_connections_by_hand():
    tokens, branch = torch.randn(2, 3, 5, 4, generator=generator()).unbind(0)
    passed = block(tokens + branch, tokens)
    assert_close(collapse.scaled_skip(passed).output, tokens / 2 + branch)
    moved = collapse.random_direction(passed).output - passed.output
    assert_close(moved.norm(dim=-1), tokens.norm(dim=-1) / 2)
    again = collapse.random_direction(passed).output - passed.output
    assert not torch.allclose(moved, again)


def test_a_second_step_by_hand():
    output = torch.randn(3, 5, 4, generator=generator())
    passed = block(output)
    assert torch.equal(particles.twice(passed).output, output.flip(-1))
    moved = particles.random_step(passed).output - output
    assert_close(moved.norm(dim=-1), (output.flip(-1) - output).norm(dim=-1))


def test_the_lower_layer_is_cut_to_its_stable_rank():
    """Singular values 2, 1, 1, 1 and 1/2: the stable rank is 7.25 / 4, rounded up 2."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True, norm_first=True)
    U, V = torch.linalg.qr(torch.randn(5, 5))[0], torch.linalg.qr(torch.randn(6, 6))[0]
    with torch.no_grad():
        layer.linear1.weight.copy_(U * torch.tensor([2.0, 1.0, 1.0, 1.0, 0.5]) @ V[:, :5].mT)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, before = torch.randn(3, 4, 6), {k: v.clone() for k, v in model.state_dict().items()}

    def read(function):
        def reading(block):
            function(block)
            return block

        with changed_attention(model, reading, site="block"):
            model(x)

    chosen = joma.leading_directions(read)
    assert sorted(chosen) == [0, 1]
    assert [each.kept.tolist() for each in chosen.values()] == [[0, 1]] * 2
    assert {each.name for each in chosen.values()} == {"linear1.weight"}
    drawn = joma.random_directions(chosen, generator(1))
    order = torch.randperm(5, generator=generator(1))[:2]
    assert torch.equal(drawn[0].kept, order)
    # of equal singular values any directions are leading ones, so another second one is taken
    one = {k: replace(each, kept=torch.tensor([0])) for k, each in chosen.items()}
    with changed_attention(model, joma.cut, site="block", structure=one):
        found = model(x)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        for each in model.layers:
            each.linear1.weight.copy_(2 * torch.outer(U[:, 0], V[:, 0]))
        assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_block_without_a_lower_layer():
    passed = replace(block(torch.randn(2, 3, 4)), module=torch.nn.Linear(2, 2), attention="attention")
    with pytest.raises(ValueError, match="no weight matrix that is registered after"):
        joma.leading_directions(reading([passed]))


def planted(n: int = 24, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of two classes, along axes 0 and 3 up to small noise."""
    labels = torch.arange(n) % 2
    tokens = 0.01 * torch.randn(n, 5, dim, generator=generator())
    tokens[labels == 0, :, 0] += 2.0
    tokens[labels == 1, :, 3] -= 3.0
    return tokens, labels


def test_tokens_of_the_last_block_are_projected_onto_the_directions_of_the_classes():
    tokens, labels = planted(dim=4)  # 4 / (2 * 2) = one direction of each class
    passes = [
        replace(block(tokens[part] if layer else 0 * tokens[part], labels=labels[part]), layer=layer)
        for part in (slice(0, 12), slice(12, 24))
        for layer in (0, 1)
    ]
    chosen = rate_reduction.choose_subspaces(reading(passes))
    assert chosen.layer == 1
    plane = chosen.basis @ chosen.basis.mT
    assert_close(
        plane, torch.diag(torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)), atol=0.02, rtol=0
    )
    new = rate_reduction.projected(replace(block(tokens), layer=1, structure=chosen))
    expected = tokens * torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert_close(new.output, expected, atol=0.1, rtol=0)
    first = replace(block(tokens), structure=chosen)
    assert rate_reduction.projected(first) is first
    drawn = [rate_reduction.random_subspace(chosen, generator(seed)).basis for seed in range(2)]
    for basis in drawn:
        assert basis.shape == chosen.basis.shape
        assert_close(basis.mT @ basis, torch.eye(2, dtype=torch.float64))
    assert not torch.allclose(*drawn)
    other = rate_reduction.permuted_labels(chosen, generator(3))
    mixed = tokens.double().reshape(24, 5, 4)
    order = torch.randperm(24, generator=generator(3))
    leading = []
    for y in (0, 1):
        part = mixed[labels[order] == y].reshape(-1, 4)
        leading.append(np.linalg.svd(part.numpy())[2][0])
    q = np.linalg.qr(np.stack(leading, 1))[0]
    assert_close(other.basis @ other.basis.mT, torch.as_tensor(q @ q.T), atol=1e-6, rtol=0)


def test_directions_of_each_class_are_a_half_of_its_share_of_the_dimensions():
    moments = torch.eye(12, dtype=torch.float64).expand(6, 12, 12) * (1 + torch.rand(6, 1, 1))
    assert rate_reduction.span_of_classes(moments, torch.tensor([0, 0, 1, 1, 2, 2])).shape[1] <= 6
    assert rate_reduction.span_of_classes(moments[:, :4, :4], torch.arange(6)).shape[1] <= 4
    distinct = torch.stack([torch.diag(torch.rand(12, generator=generator(s)).double()) for s in range(3)])
    assert rate_reduction.span_of_classes(distinct, torch.arange(3)).shape == (12, 6)


def test_class_subspaces_need_labels_of_two_classes():
    tokens, labels = planted()
    with pytest.raises(ValueError, match="need a class of each sequence, got no labels"):
        rate_reduction.choose_subspaces(reading([block(tokens)]))
    with pytest.raises(ValueError, match="need two classes, got one"):
        rate_reduction.choose_subspaces(reading([block(tokens, labels=0 * labels)]))


def test_tokens_become_the_nearest_word_of_their_position():
    centres = 10 * torch.randn(2, 5, 3, generator=generator(2))
    which = torch.randint(5, (80, 2), generator=generator(3))
    tokens = torch.stack([centres[0, which[:, 0]], centres[1, which[:, 1]]], 1)
    passes = [
        replace(block(tokens[part] * layer), layer=layer)
        for part in (slice(0, 40), slice(40, 80))
        for layer in (0, 1)
    ]
    chosen = bottleneck.choose_codes(reading(passes))
    assert (chosen.layer, chosen.codes.shape, chosen.tokens.shape) == (1, (2, 32, 3), (2, 80, 3))
    for position in range(2):
        assert_close(chosen.codes[position].unique(dim=0), centres[position].unique(dim=0))
    noisy = tokens + 0.1 * torch.randn(tokens.shape, generator=generator(4))
    new = bottleneck.quantised(replace(block(noisy), layer=1, structure=chosen))
    assert_close(new.output, tokens)
    first = replace(block(noisy), structure=chosen)
    assert bottleneck.quantised(first) is first
    drawn = bottleneck.random_codes(chosen, generator())
    for position in range(2):
        known = {tuple(x) for x in tokens[:, position].tolist()}
        assert {tuple(x) for x in drawn.codes[position].tolist()} <= known


def test_words_need_enough_sequences_of_one_length():
    with pytest.raises(ValueError, match="at least 128 sequences, half of which choose them, got 24"):
        bottleneck.choose_codes(reading([block(planted()[0])]))
    parts = [block(planted()[0]), block(planted()[0][:, :3])]
    with pytest.raises(ValueError, match="sequences of one length, got several"):
        bottleneck.choose_codes(reading(parts))
    codes = bottleneck.Codes(0, torch.zeros(2, 32, 8), torch.zeros(2, 64, 8))
    with pytest.raises(ValueError, match="sequences of one length, got 2 and 5"):
        bottleneck.quantised(block(planted()[0], structure=codes))
