"""Strategies against the posterior, losses against all sequences, recall against simulation, and triggered
sequences.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.induction.chains import divergence, expected_loss, sample_chains, strategies
from transformer_theory.theories.induction.claims.chains import all_sequences, enumerated, marginal
from transformer_theory.theories.induction.learning import passed
from transformer_theory.theories.induction.memory import (
    MEMORIES,
    MemoryNetwork,
    capacity,
    first_steps,
    measured_recall,
    predicted_recall,
    train_memories,
    triggered_sequences,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_strategies_are_counts():
    ids = torch.tensor([[0, 1, 0, 2, 0]])
    rules = strategies(ids, states=3)
    assert rules["unigram"][0, -1].tolist() == pytest.approx([4 / 8, 2 / 8, 2 / 8])
    # 0 was followed by 1 and by 2
    assert rules["bigram"][0, -1].tolist() == pytest.approx([1 / 5, 2 / 5, 2 / 5])
    assert rules["bigram"][0, 1].tolist() == pytest.approx([1 / 3] * 3)  # 1 has had no successor yet


def test_chains_follow_their_matrices():
    ids, P = sample_chains(4000, states=3, length=30, generator=generator())
    counts, expected = np.zeros((3, 3)), np.zeros((3, 3))
    for t in range(29):
        rows = P[torch.arange(4000), ids[:, t]].numpy()
        np.add.at(expected, ids[:, t].numpy(), rows)
        np.add.at(counts, (ids[:, t].numpy(), ids[:, t + 1].numpy()), 1)
    assert np.abs(counts - expected).max() < 4 * math.sqrt(4000 * 29 / 9)
    assert torch.allclose(P.sum(-1), torch.ones(4000, 3, dtype=torch.float64))
    # Dirichlet(1): the mean of a square is 2 / (k (k + 1)).
    assert float(P.square().mean()) == pytest.approx(1 / 6, abs=0.005)


def test_no_rule_beats_bigram_in_expectation():
    assert float(marginal(all_sequences(5), 3).sum()) == pytest.approx(1)
    losses = dict(enumerated(6))
    assert losses["uniform"] == pytest.approx(math.log(3))
    assert losses["bigram"] < losses["unigram"] < losses["uniform"]


def test_the_losses_of_64_states():
    """Another simulation, with losses of drawn states instead of expectations."""
    ids, P = sample_chains(8000, generator=generator(3))
    found = {name: expected_loss(rule, ids, P) for name, rule in strategies(ids, states=3).items()}
    rng, n = np.random.default_rng(0), 8000
    matrix = rng.dirichlet(np.ones(3), size=(n, 3))
    x, counts, losses = rng.integers(3, size=n), np.zeros((n, 3, 3)), []
    for t in range(1, 64):
        y = (rng.random(n)[:, None] > matrix[np.arange(n), x].cumsum(1)).sum(1).clip(max=2)
        row = counts[np.arange(n), x]
        if t > 10:
            losses.append(-np.log((row[np.arange(n), y] + 1) / (row.sum(1) + 3)))
        counts[np.arange(n), x, y] += 1
        x = y
    other = np.mean(losses, axis=0)
    error = math.hypot(float(found["bigram"].std()), float(other.std())) / math.sqrt(n)
    assert abs(float(found["bigram"].mean()) - other.mean()) < 4 * error
    assert float(found["unigram"].mean()) == pytest.approx(1.0065, abs=0.006)
    assert float(found["bigram"].mean()) == pytest.approx(0.8875, abs=0.007)


def test_divergence_of_a_strategy_from_itself():
    ids, _ = sample_chains(5, generator=generator())
    rules = strategies(ids, states=3)
    assert float(divergence(rules["bigram"], rules["bigram"])) == 0
    assert float(divergence(rules["unigram"], rules["uniform"])) > 0


def test_strategies_are_passed_in_turn():
    assert passed({"a": [0.0, 1.0, 1.0, 2.0], "b": [1.0, 0.5, 0.2, 3.0], "c": [5.0, 5.0, 5.0, 5.0]}) == [
        "a",
        "b",
    ]
    assert passed({"a": [2.0, 1.0], "b": [1.0, 2.0]}) == ["b", "a"]


def test_recall_of_few_and_of_many_pairs():
    assert measured_recall(20, 64, generator()) == 1
    assert measured_recall(64**2, 64, generator()) < 0.1
    # Against a simulation of the scores: r of the right pair, |w| s + s' of the others.
    N, d, rng = 300, 40, np.random.default_rng(4)
    right = 1 + math.sqrt(N) / d * rng.standard_normal(3000)
    norm = np.sqrt(right**2 + N / d**2 * rng.chisquare(d - 1, 3000))
    # a coordinate of a random unit vector
    s, other = 2 * rng.beta((d - 1) / 2, (d - 1) / 2, size=(2, 3000, N - 1)) - 1
    wins = right > (norm[:, None] * s + other).max(1)
    assert predicted_recall(N, d) == pytest.approx(wins.mean(), abs=0.03)
    assert predicted_recall(1, 5) == pytest.approx(1)
    mean = sum(measured_recall(700, 128, generator(seed)) for seed in range(4)) / 4
    assert predicted_recall(700, 128) == pytest.approx(mean, abs=0.025)
    assert capacity(100) == pytest.approx(100**2 / (2 * math.log(capacity(100))))


def test_triggered_sequences():
    ids, targets = triggered_sequences(50, vocabulary=12, length=40, triggers=3, generator=generator())
    for sequence, wanted in zip(ids.tolist(), targets.tolist()):
        followers: dict[int, set[int]] = {}
        for t, (now, after) in enumerate(pairwise(sequence)):
            if wanted[t] >= 0:
                assert after == wanted[t]
                assert wanted[t] in followers[now]  # known from the context
            followers.setdefault(now, set()).add(after)
    assert float((targets >= 0).double().mean()) > 0.1
    with pytest.raises(ValueError, match="triggers must be at most the vocabulary, 4 ids, got 5"):
        triggered_sequences(1, vocabulary=4, length=4, triggers=5, generator=generator())


def test_memories_written_by_hand_solve_the_task():
    model = MemoryNetwork(vocabulary=12, length=40, dim=128, generator=generator(1))
    assert model.masses()["output 2"] == pytest.approx(1 / 12)
    with torch.no_grad():
        model.output2.copy_(20 * model.unembedding.mT @ model.embedding)
        model.keys2.copy_(30 * model.embedding.mT @ model.previous)
        model.keys1.copy_(30 * model.positions[1:].mT @ model.positions[:-1])
    assert min(model.masses().values()) > 0.95
    ids, targets = triggered_sequences(50, vocabulary=12, length=40, triggers=3, generator=generator())
    with torch.no_grad():
        right = model(ids).argmax(-1)[targets >= 0] == targets[targets >= 0]
    # a trigger that also stands by chance before other ids has several successors
    assert float(right.double().mean()) > 0.8


def test_first_steps():
    masses = {0: dict.fromkeys(MEMORIES, 0.1), 2: {"output 2": 0.6, "keys 2": 0.4, "keys 1": 0.1}}
    assert first_steps(masses) == {"output 2": 2, "keys 2": math.inf, "keys 1": math.inf}
    assert first_steps(masses, level=0.4)["keys 2"] == 2
    _, recorded = train_memories(
        lambda p: torch.optim.SGD(p, lr=1.0), steps=2, measured=(0, 2), generator=generator()
    )
    assert recorded[2]["output 2"] > recorded[0]["output 2"]


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("call", "message"),
    [
        (lambda: strategies(torch.tensor([[0, 3, 1]]), states=3), r"ids must lie in \[0, 3\), got 0 to 3"),
        (lambda: strategies(torch.rand(1, 4), states=3), "ids must be torch.int32 or torch.int64"),
        (lambda: strategies(torch.tensor([0, 1]), states=3), r"ids must have shape \[batch, n\]"),
        (
            lambda: expected_loss(
                torch.full((1, 11, 3), 1 / 3),
                torch.zeros(1, 11, dtype=torch.long),
                torch.full((1, 3, 3), 1 / 3),
            ),
            "at least 12 positions, of which 10 are left out, got 11",
        ),
        (
            lambda: train_memories(torch.optim.SGD, steps=1, triggers=0, generator=generator()),
            "triggers must be at least 1, got 0",
        ),
        (
            lambda: MemoryNetwork(vocabulary=4, length=1, dim=4, generator=generator()),
            "length must be at least 2, got 1",
        ),
        (lambda: small()(torch.zeros(1, 9, dtype=torch.long)), r"n from 1 to 4, got \[1, 9\]"),
        (lambda: small()(torch.rand(1, 3)), "ids must be torch.int32 or torch.int64"),
        (lambda: predicted_recall(3, 1), "d must be at least 2, got 1"),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def small() -> MemoryNetwork:
    return MemoryNetwork(vocabulary=4, length=4, dim=4, generator=generator())
