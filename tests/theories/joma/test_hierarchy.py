"""The hierarchy of latents, the stack that learns it, and the measure of what its units recover."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.models.embedding import build
from transformer_theory.theories.joma.hierarchy import (
    Hierarchy,
    chance_recovery,
    random_hierarchy,
    recovery,
    shuffled_recovery,
    uncentred_recovery,
)
from transformer_theory.theories.joma.joint import Layer, Stack, fit_stack

SMALL = Hierarchy((torch.tensor([[0, 3], [1, 2], [2, 4]]), torch.tensor([[0, 1], [1, 2]])), vocabulary=6)


def test_a_class_is_expanded_down_to_its_tokens():
    tokens, latents, classes = SMALL.activity()
    assert classes.tolist() == [[True, False], [False, True]]
    assert latents.tolist() == [[True, True, False], [False, True, True]]
    assert [row.nonzero()[:, 0].tolist() for row in tokens] == [[0, 1, 2, 3], [1, 2, 4]]
    assert SMALL.sequences(5).tolist() == [[5, 0, 1, 2, 3], [5, 5, 1, 2, 4]]


@pytest.mark.parametrize(("classes", "latents", "parts"), [(20, (10, 20), 2), (30, (20, 30), 3)])
def test_random_sets_differ_and_expand_to_sequences(generator, classes, latents, parts):
    drawn = random_hierarchy(generator, classes=classes, latents=latents, parts=parts)
    assert [len(table) for table in drawn.parts] == [*latents, classes]
    for table in drawn.parts:
        sets = {frozenset(row) for row in table.tolist()}
        assert len(sets) == len(table)
        assert {len(row) for row in sets} == {parts}
    for label, row in enumerate(drawn.sequences(30).tolist()):
        units = {label}
        for table in reversed(drawn.parts):
            units = {below for unit in units for below in table[unit].tolist()}
        assert row == [99] * (30 - len(units)) + sorted(units)


def plain_stack(model: Stack, ids: torch.Tensor):
    """The stack on whole sequences, padding and all; hidden units and entropies of the last position."""
    tokens, hidden, entropies = model.embedding(ids), [], []
    d = tokens.shape[-1]
    mask = torch.full((ids.shape[1], ids.shape[1]), -math.inf, dtype=tokens.dtype).triu(1)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        q, k, v = (tokens @ w.T for w in layer.qkv.weight.split(d))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(d) + mask, dim=-1)
        tokens = layer.attention_norm(tokens + weights @ v)
        h = torch.relu(layer.lower(tokens))
        tokens = layer.mlp_norm(tokens + layer.upper(h))
        hidden.append(h.amax(1))
        entropies.append(-(weights[:, -1] * weights[:, -1].log()).sum(-1))
    return model.head(tokens[:, -1]), hidden, entropies


def test_computing_the_padding_once_is_exact():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Stack(vocabulary=12, classes=4, dim=8, width=10, depth=2).double()
    ids = torch.tensor([[11, 11, 11, 11, 3, 4, 5], [11, 11, 11, 11, 11, 2, 9], [11, 11, 11, 11, 11, 11, 7]])
    logits, hidden, entropies = plain_stack(model, ids)
    logits_again, traces = model.trace(ids)
    assert traces[0].hidden.shape[1] == 4  # one padding, then what differs
    assert_close(logits_again, logits)
    for layer, h, entropy in zip(traces, hidden, entropies):
        assert_close(layer.hidden.amax(1), h, rtol=1e-12, atol=1e-12)
        assert_close(layer.entropy, entropy, rtol=1e-12, atol=1e-12)
    unpadded = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert_close(model(unpadded), plain_stack(model, unpadded)[0])


def test_recovery_is_numpys_largest_correlation():
    rng = np.random.default_rng(0)
    h, a = (
        rng.random((9, 4)),
        np.array(
            [
                [0, 1, 1],
                [1, 1, 0],
                [1, 1, 0],
                [0, 1, 0],
                [0, 1, 1],
                [1, 1, 1],
                [0, 1, 0],
                [0, 1, 0],
                [1, 1, 1],
            ]
        ),
    )
    # all have latent 1
    wanted = np.mean([max(np.corrcoef(h[:, u], a[:, latent])[0, 1] for u in range(4)) for latent in (0, 2)])
    run = recovery(torch.tensor(h), torch.tensor(a, dtype=torch.bool))
    assert float(run) == pytest.approx(wanted, abs=1e-12)
    cosine = (h / np.linalg.norm(h, axis=0)).T @ (a / np.linalg.norm(a, axis=0))
    assert float(uncentred_recovery(torch.tensor(h), torch.tensor(a, dtype=torch.bool))) == pytest.approx(
        cosine.max(0).mean(), abs=1e-12
    )


def test_a_dead_unit_recovers_nothing():
    activity = torch.tensor([[True], [False], [True], [False]])
    dead, alive = torch.zeros(4, 1), -activity.float()
    assert float(recovery(torch.cat([dead, alive], dim=1), activity)) == 0.0
    assert float(recovery(torch.cat([dead, activity.float()], dim=1), activity)) == pytest.approx(1)


def test_the_largest_of_many_correlations_is_large_by_chance(generator):
    """400 Gaussian units over 20 classes: .62 to .63, as the docstring says."""
    units = torch.randn(20, 400, generator=generator, dtype=torch.float64)
    activity = torch.rand(20, 15, generator=generator) < 0.4
    null = shuffled_recovery(units, activity, generator=generator, draws=30)
    assert null.shape == (30,)
    assert 0.61 < float(null.mean()) < 0.64
    assert chance_recovery(400, 20) == pytest.approx(float(null.mean()), abs=0.015)
    assert chance_recovery(1, 20) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="at least 1 unit and 3 classes, got 0 and 2"):
        chance_recovery(0, 2)


def test_the_curves_of_a_training(generator):
    drawn = random_hierarchy(generator, vocabulary=12, latents=(4, 5), classes=6, parts=2)
    run = fit_stack(drawn, generator, steps=60, rate=1e-2, length=12, dim=16, width=20, measure_steps=(30,))
    assert run.steps == (0, 30, 60)
    assert run.recovered.shape == run.rank.shape == run.entropy.shape == (3, 3)
    assert float(run.loss[-1]) < 0.8 * float(run.loss[0])
    assert float(run.entropy[0].max()) <= math.log(12) + 1e-6
    for side, index in ((run.before, 0), (run.after, -1)):
        again = torch.stack([recovery(h, a) for h, a in zip(side, drawn.activity()[1:])])
        assert_close(run.recovered[index], again)
    layer = run.model.layers[1]
    assert isinstance(layer, Layer)
    lower = layer.lower.weight.detach().double().numpy()
    values = np.linalg.svd(lower, compute_uv=False)
    assert float(run.rank[-1, 1]) == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-6)


def test_weighting_classes_by_their_draws_is_the_batch(generator):
    """One Adam step on the weighted classes is one on the repeated sequences."""
    drawn = random_hierarchy(generator, vocabulary=12, latents=(4, 5), classes=6, parts=2)
    run = fit_stack(
        drawn, torch.Generator().manual_seed(3), steps=1, rate=1e-2, length=12, batch=16, dim=8, width=10
    )
    again = torch.Generator().manual_seed(3)
    model = build(lambda: Stack(vocabulary=12, classes=6, dim=8, width=10, depth=3), again)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    torch.randint(2**62, (), generator=again)  # what descend takes for dropout
    labels = torch.randint(6, (16,), generator=again)
    torch.nn.functional.cross_entropy(model(drawn.sequences(12)[labels]), labels).backward()
    optimiser.step()
    for name, value in model.state_dict().items():
        # Adam's first step amplifies rounding
        assert_close(run.model.state_dict()[name], value, atol=2e-4, rtol=1e-3, msg=name)


def test_impossible_hierarchies_and_constant_latents_are_refused(unchecked, generator):
    with pytest.raises(ValueError, match="3 units have 3 different sets of 2, got 10 latents"):
        random_hierarchy(generator, vocabulary=4, latents=(10,))
    with pytest.raises(ValueError, match="length must hold the 4 tokens"):
        SMALL.sequences(3)
    constant = torch.ones(4, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="active in some classes and not in others, got 2"):
        recovery(torch.rand(4, 3), constant)
    with pytest.raises(ValueError, match="active in some class, got 2"):
        uncentred_recovery(torch.rand(4, 3), ~constant)
