"""Shares, scores, divergences and the rows of the ladder against numpy, on unequal heads, lengths and
distributions.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, ortho_group
from torch import nn

from tests.cases import each_case
from transformer_theory import induction
from transformer_theory.core.metric import Activations
from transformer_theory.theories.induction import chains, ladder, learning, memory
from transformer_theory.theories.induction.claims import heads
from transformer_theory.theories.induction.in_networks import (
    IN_NETWORKS,
    CopyingScore,
    SecondBlockLoss,
    limits_of,
    next_token_blocks,
    repeated_blocks,
)
from transformer_theory.theories.induction.memory import (
    MemoryNetwork,
    measured_recall,
    triggered_sequences,
    unit_vectors,
)
from transformer_theory.theories.induction.network import Layer
from transformer_theory.theories.induction.scores import InductionScores


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def activations(weights: np.ndarray) -> Activations:
    tokens = torch.zeros(len(weights), weights.shape[2], 2)
    return Activations("a", 0, "attention", tokens, tokens, weights=torch.from_numpy(weights).float())


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    weights = np.where(allowed, np.exp(scores), 0.0)
    return weights / weights.sum(-1, keepdims=True)


# ---- the positional share


@pytest.mark.parametrize("causal", [False, True])
def test_the_positional_share_of_sequences_of_two_lengths(causal: bool):
    """Pairs of different sequences that both have the query and the key; two unequal heads."""
    rng, parts = np.random.default_rng(0), []
    common = rng.normal(size=(2, 5, 5)) * np.array([2.0, 0.3])[:, None, None]
    for n, length in ((3, 5), (2, 4), (1, 3)):
        allowed = np.tri(length, dtype=bool) if causal else np.ones((length, length), bool)
        scores = common[:, :length, :length] + rng.normal(size=(n, 2, length, length)) + 4.0
        parts.append((scores, allowed))
    metric = induction.PositionalShare()
    for scores, allowed in parts:
        metric.update(activations(softmax(scores, allowed)))
    for head, row in enumerate(metric.compute()):
        together = own = 0.0
        for q, k in np.ndindex(5, 5):
            seen = []
            for scores, allowed in parts:
                if max(q, k) < len(allowed):
                    keys = allowed[q]
                    centred = scores[:, head, q, k] - scores[:, head, q][:, keys].mean(1)
                    seen += list(centred if keys[k] else 0 * centred)
            pairs = [a * b for i, a in enumerate(seen) for j, b in enumerate(seen) if i != j]
            if pairs:
                together += sum(pairs) / (len(seen) - 1)
                own += sum(each**2 for each in seen)
        assert row.value == pytest.approx(together / own, rel=1e-5)
        assert row.n == 6
        assert IN_NETWORKS.side is row.side is None


def test_a_weight_that_is_not_finite_leaves_its_sequence_out():
    weights = softmax(np.random.default_rng(1).normal(size=(4, 1, 3, 3)), np.ones((3, 3), bool))
    spoilt = weights.copy()
    spoilt[2, 0, 1, 1] = math.nan
    rows = []
    for each in (spoilt, np.delete(weights, 2, 0)):
        metric = induction.PositionalShare()
        metric.update(activations(each))
        rows += metric.compute()
    assert rows[0].value == pytest.approx(rows[1].value)
    assert rows[0].n == rows[1].n == 3


# ---- the copying score


def share_of(matrix: np.ndarray) -> float:
    eigenvalues = np.linalg.eigvals(matrix)
    return float(eigenvalues.real.sum() / np.abs(eigenvalues).sum())


def test_the_copying_score_and_the_law_of_its_null():
    """The score is that of W_E W_V W_O W_U; in the null the values are rotated before W_O."""
    rng = np.random.default_rng(2)
    heads, dim, p = 2, 6, 3
    W_V, W_O = rng.normal(size=(heads, dim, p)), rng.normal(size=(heads, p, dim))
    W_O[1] += 1.5 * W_V[1].T  # copies
    W_E, W_U = rng.normal(size=(11, dim)), rng.normal(size=(dim, 11))
    metric = CopyingScore()
    both = np.stack([W_V, W_O.transpose(0, 2, 1)], 1)
    metric.sums = {(-1,): torch.from_numpy(W_U @ W_E), (0, 0): torch.from_numpy(both)}
    rotations = ortho_group.rvs(p, size=600, random_state=3)
    for head, row in enumerate(metric.compute(draws=600, generator=generator(1))):
        assert row.value == pytest.approx(share_of(W_E @ W_V[head] @ W_O[head] @ W_U))
        chance = [share_of(W_E @ W_V[head] @ Q @ W_O[head] @ W_U) for Q in rotations]
        assert len(row.null.draws) == 600
        error = 5 * np.std(chance) * math.sqrt(2 / 600)
        assert np.mean(row.null.draws) == pytest.approx(np.mean(chance), abs=error)
        assert np.std(row.null.draws) == pytest.approx(np.std(chance), rel=0.12)
        assert np.quantile(row.null.draws, 0.9) == pytest.approx(np.quantile(chance, 0.9), abs=0.1)
        assert (row.side, row.head) == (">=", head)


# ---- blocks


def test_scores_are_means_over_the_queries_of_each_kind():
    """P = 4: previous tokens of queries 1 to 7; the others of queries 4 to 6."""
    weights = softmax(np.random.default_rng(4).normal(size=(3, 2, 8, 8)), np.tri(8, dtype=bool))
    metric = InductionScores()
    metric.update(activations(weights))
    rows = {(row.quantity, row.head): row.value for row in metric.compute()}
    for head in (0, 1):
        A = weights[:, head]
        assert rows["attention to the previous token", head] == pytest.approx(
            np.mean([A[:, i, i - 1] for i in range(1, 8)])
        )
        assert rows["prefix matching", head] == pytest.approx(np.mean([A[:, i, i - 3] for i in (4, 5, 6)]))
        assert rows["attention to the duplicate token", head] == pytest.approx(
            np.mean([A[:, i, i - 4] for i in (4, 5, 6)])
        )
    assert {row.side for row in metric.compute()} == {">="}


def test_a_null_of_the_blocks_has_other_ids_first():
    parts = repeated_blocks(torch.zeros(2, 12).long(), {"vocabulary": 13, "sequences": 40}, generator())
    value, null = parts["value"], torch.cat(list(parts["null"]))
    assert torch.equal(value[:, :6], value[:, 6:])
    assert all(len(set(row.tolist())) == 12 for row in null)
    assert {int(each) for each in null.unique()} == set(range(13))


def test_targets_are_the_next_ids_of_the_second_block():
    parts = next_token_blocks(torch.zeros(2, 10).long(), {"vocabulary": 20, "sequences": 31}, generator())
    value, (null,) = parts["value"], parts["null"]
    assert value.shape == (4, 10)
    assert torch.equal(value[:, :5], value[:, 5:])
    assert torch.equal(null[:, 5:], value[:, 5:])
    assert all(not set(a.tolist()) & set(b.tolist()) for a, b in zip(null[:, :5], value[:, :5]))
    expected = [[-1] * 5 + row[6:] + [-1] for row in value.tolist()]
    assert parts["targets"].tolist() == expected


def test_the_loss_is_that_of_the_second_block():
    rng, targets = np.random.default_rng(5), np.array([[-1, -1, -1, 2, 0, -1], [-1, 1, -1, 1, 2, -1]])
    logits = rng.normal(size=(2, 6, 3)) * 2
    losses = [
        np.log(np.exp(logits[i, j]).sum()) - logits[i, j, t]
        for (i, j), t in np.ndenumerate(targets)
        if t >= 0 and j > 2
    ]
    metric, tokens = SecondBlockLoss(), torch.zeros(2, 6, 1)
    parts = {"outputs": torch.from_numpy(logits), "targets": torch.from_numpy(targets)}
    metric.update(Activations("", 0, "outputs", tokens, tokens, **parts))
    (row,) = metric.compute()
    assert row.value == pytest.approx(np.mean(losses))
    assert row.side == "<="


# ---- chains


def test_the_divergence_of_a_prediction_from_a_strategy():
    """sum s ln(s/p), of positions 2 to length - 2; the two are not exchangeable."""
    rng = np.random.default_rng(6)
    strategy, prediction = (rng.dirichlet([0.4, 1.0, 2.0], size=(4, 6)) + 1e-3 for _ in range(2))
    strategy, prediction = (each / each.sum(-1, keepdims=True) for each in (strategy, prediction))
    each = (strategy * np.log(strategy / prediction)).sum(-1)[:, 2:5]
    found = chains.divergence(torch.from_numpy(strategy), torch.from_numpy(prediction), skip=2)
    assert float(found) == pytest.approx(each.mean())
    other = (prediction * np.log(prediction / strategy)).sum(-1)[:, 2:5]
    assert abs(each.mean() - other.mean()) > 0.03


def test_the_expected_loss_is_the_cross_entropy_with_the_row_of_the_present_state():
    rng = np.random.default_rng(7)
    P, prediction = rng.dirichlet([1, 1, 1], size=(2, 3)), rng.dirichlet([1, 1, 1], size=(2, 5))
    ids = np.array([[0, 1, 2, 1, 0], [2, 2, 0, 1, 1]])
    expected = [
        np.mean([-(P[n, ids[n, t]] * np.log(prediction[n, t])).sum() for t in (1, 2, 3)]) for n in (0, 1)
    ]
    found = chains.expected_loss(*(torch.from_numpy(each) for each in (prediction, ids, P)), skip=1)
    assert found.tolist() == pytest.approx(expected)


# ---- the ladder


def test_the_best_head_is_found_anew_in_each_draw():
    rng = np.random.default_rng(8)
    value, null = rng.random((5, 3)), rng.random((7, 5, 3))
    value[:, 1] = value[:, 1] / 2 + 0.5
    row, accuracy = ladder.rows_of(torch.from_numpy(value), torch.from_numpy(null), 0.25, tokens=8)
    assert row.value == pytest.approx(value[:, 1].mean())
    assert row.null.draws == pytest.approx([max(draw[:, head].mean() for head in range(3)) for draw in null])
    assert (row.n, row.predicted, row.side) == (5, 1.0, ">=")
    assert (accuracy.value, accuracy.predicted, accuracy.side) == (0.25, 1.0, ">=")
    assert "best head: 1 of 3" in row.note
    assert "uniform attention: 0.170" in row.note  # the mean of 1/5, 1/6 and 1/7


class Half(nn.Module):
    """Predicts the id three places back, right in blocks of four; wrong at the first prediction."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.one_hot(ids.roll(3, 1), 30).float()
        logits[:, 4] = 0
        logits[:, 4, 29] = 1
        return logits


def test_a_network_is_measured_on_repeated_and_on_unrelated_blocks(monkeypatch):
    """Scores are known functions of the ids; the second one is the prefix matching."""

    def known(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        same = (ids[:, :4] == ids[:, 4:]).double().mean(1)
        mixed = (same + ids[:, 1] / 100)[:, None] * torch.tensor([1.0, 0.5])
        return torch.stack([mixed + 1, mixed, mixed + 2])

    monkeypatch.setattr(ladder, "sequence_scores", known)
    settings = {"length": 4, "vocabulary": 29, "draws": 6, "blocks": 3}
    row, accuracy = ladder.measured(Half(), generator=generator(9), **settings)
    g = generator(9)
    drawn = [torch.randperm(29, generator=g)[:8].tolist() for _ in range(3 + 18)]
    assert row.value == pytest.approx(1 + np.mean([ids[1] for ids in drawn[:3]]) / 100)
    expected = [np.mean([ids[5] for ids in drawn[3 + 3 * i : 6 + 3 * i]]) / 100 for i in range(6)]
    assert row.null.draws == pytest.approx(expected)
    assert row.n == 3
    assert accuracy.value == pytest.approx(2 / 3)


def test_limits_that_are_missing_come_from_the_ids():
    data = torch.tensor([[3, 11, 5, 0, 2, 7], [1, 1, 4, 9, 6, 8]])
    assert limits_of(data, {}) == {"vocabulary": 12, "length": 6, "sequences": 60}
    assert limits_of(data, {"vocabulary": 50, "length": 4}) == {
        "vocabulary": 50,
        "length": 4,
        "sequences": 60,
    }


@pytest.mark.parametrize(("sequences", "blocks"), [(20, 1), (21, 2), (100, 5)])
def test_all_sets_of_blocks_together_have_the_number_of_sequences(sequences: int, blocks: int):
    """Twenty sets: the value and nineteen draws."""
    parts = repeated_blocks(torch.zeros(1, 8).long(), {"vocabulary": 30, "sequences": sequences}, generator())
    assert [len(part) for part in (parts["value"], *parts["null"])] == [blocks] * 20


# ---- learning


class Table(nn.Module):
    """Logits that depend on the id and its place."""

    def __init__(self, vocabulary: int, length: int):
        super().__init__()
        rng = np.random.default_rng(11)
        self.logits = rng.normal(size=(length, vocabulary, vocabulary))
        self.logits *= np.linspace(0.2, 3, length)[:, None, None]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.logits[np.arange(ids.shape[1]), ids.numpy()])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_losses_are_those_of_the_next_ids():
    """All of them for chains, those behind the first pattern for repeated patterns."""
    model, ids = Table(4, 7), np.random.default_rng(12).integers(4, size=(3, 7))
    q = log_softmax(model.logits[np.arange(7), ids])
    each = np.array([[-q[n, t, ids[n, t + 1]] for t in range(6)] for n in range(3)])
    assert float(learning.chain_loss(model, torch.from_numpy(ids))) == pytest.approx(each.mean())
    for period in (2, 5):
        found = learning.repeated_loss(model, (torch.from_numpy(ids), period))
        assert float(found) == pytest.approx(each[:, period:].mean())


def test_curves_of_chains_are_those_of_the_network_on_new_chains(monkeypatch):
    """The loss given the matrices, of positions 10 to 62, and the divergence from each strategy."""
    model, seen = Table(3, 64), []

    def known(layers, *, steps, measured, measure, **options):
        seen.append((layers, steps, measured))
        for step in measured:
            measure(step, model)

    monkeypatch.setattr(learning, "train_chains", known)
    curves = learning.chain_curves.__wrapped__(2, 5, steps=20, test=6)
    ids, P = chains.sample_chains(6, generator=generator(5))
    ids, P = ids.numpy(), P.numpy()
    q = log_softmax(model.logits[np.arange(64), ids])
    row = P[np.arange(6)[:, None], ids]
    assert seen == [(2, 20, [0, 4, 8, 12, 16, 20])]
    assert curves["loss"] == pytest.approx([-(row * q).sum(-1)[:, 10:63].mean()] * 6)
    uniform = np.mean([(np.log(1 / 3) - q[n, t]).mean() for n in range(6) for t in range(10, 63)])
    assert curves["divergence"]["uniform"] == pytest.approx([uniform] * 6)
    assert curves["strategies"]["uniform"] == pytest.approx(np.log(3))


def test_a_network_is_measured_on_blocks_that_occur_twice(monkeypatch):
    """On 128 blocks of 16 ids, by default, at the steps asked for and at the last one."""
    ids, seen = [], {}

    def blocks(n, *, length, vocabulary, generator):
        ids.append(torch.randint(vocabulary, (n, length), generator=generator).repeat(1, 2))
        return ids[-1], None

    def known(layers, *, steps, generator, norm, measured, measure):
        seen["measured"], seen["norm"] = measured, norm
        for step in sorted(measured):
            measure(step, Table(32, 32))

    def scores(model, ids):
        seen.setdefault("scores", torch.rand(len(learning.SCORES), len(ids), 4, dtype=torch.float64))
        return seen["scores"]

    for name, fake in {"draw_blocks": blocks, "train_induction": known, "sequence_scores": scores}.items():
        monkeypatch.setattr(learning, name, fake)
    curves = learning.formation(2, generator(), steps=50, every=20)
    assert (seen["measured"], seen["norm"], ids[0].shape) == ({0, 20, 40, 50}, True, (128, 32))
    x = ids[0].numpy()
    q = log_softmax(Table(32, 32).logits[np.arange(32), x])
    second = [[(n, t) for t in range(16, 31)] for n in range(128)]
    loss = np.mean([-q[n, t, x[n, t + 1]] for row in second for n, t in row])
    accuracy = np.mean([q[n, t].argmax() == x[n, t + 1] for row in second for n, t in row])
    best = dict(zip(learning.SCORES, seen["scores"].numpy().mean(1)))
    for curve in curves.values():
        assert curve[learning.LOSS] == pytest.approx(loss)
        assert curve[learning.ACCURACY] == pytest.approx(accuracy)
        for name in (learning.PREFIX, learning.PREVIOUS):
            assert curve[name] == pytest.approx(best[name].max())
    assert len(learning.formation(2, generator(), steps=4, every=2, blocks=5)) == 3
    assert ids[1].shape == (5, 32)


def test_an_mlp_adds_w_gelu_w_of_the_normalised_stream():
    torch.manual_seed(0)
    layer = Layer(6, heads=2, norm=True, mlp=True).double()
    for part in layer.attention.parameters():
        nn.init.zeros_(part)
    x = np.random.default_rng(13).standard_t(4, size=(2, 3, 6))
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    parameters = [p.detach().numpy() for p in layer.mlp.parameters()]
    first, bias, second, shift = parameters
    assert (first.shape, second.shape) == ((24, 6), (6, 24))
    hidden = unit @ first.T + bias
    expected = x + hidden * norm.cdf(hidden) @ second.T + shift
    assert layer(torch.from_numpy(x)).detach().numpy() == pytest.approx(expected)


# ---- memories


def memory_network() -> MemoryNetwork:
    """Seven ids, up to nine tokens, five dimensions, and matrices that are not symmetric."""
    model = MemoryNetwork(vocabulary=7, length=9, dim=5, generator=generator(3))
    with torch.no_grad():
        for number, matrix in enumerate((model.keys1, model.keys2, model.output2)):
            matrix.copy_((2 + number) * torch.randn(5, 5, generator=generator(4 + number)))
    return model


def parts_of(model: MemoryNetwork) -> dict[str, np.ndarray]:
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    return state


@each_case("length", [1, 4, 8, 9])
def test_the_memory_network_reads_shorter_sequences_too(length: int):
    """Positions from the first on; the first layer attends by position, the second by the id before."""
    model = memory_network()
    W = parts_of(model)
    ids = np.random.default_rng(5).integers(7, size=(3, length))
    allowed = np.tri(length, dtype=bool)
    p = W["positions"][:length]
    expected = []
    for row in ids:
        e = W["embedding"][row]
        before = softmax(p @ W["keys1"] @ p.T, allowed) @ W["previous"][row]
        attention = softmax(e @ W["keys2"] @ before.T, allowed)
        expected.append(attention @ (e @ W["output2"].T @ W["unembedding"].T))
    with torch.no_grad():
        found = model(torch.from_numpy(ids)).numpy()
    assert found == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)


def test_the_masses_of_three_memories():
    """Mean softmax weights of the own id, and of the position before from the second position on."""
    model = memory_network()
    W = parts_of(model)
    p, e = W["positions"], W["embedding"]
    everything = np.ones((7, 7), bool)
    output = softmax(e @ W["output2"].T @ W["unembedding"].T, everything)
    keys2 = softmax(e @ W["keys2"] @ W["previous"].T, everything)
    keys1 = softmax(p @ W["keys1"] @ p.T, np.tri(9, dtype=bool))
    expected = {
        "output 2": np.mean(np.diag(output)),
        "keys 2": np.mean(np.diag(keys2)),
        "keys 1": np.mean([keys1[t, t - 1] for t in range(1, 9)]),
    }
    assert model.masses() == pytest.approx(expected, rel=1e-4)


def test_recall_counts_the_pairs_whose_own_output_is_the_largest():
    N, d, g = 40, 12, generator(6)
    inputs, outputs = (unit_vectors(N, d, g).numpy() for _ in range(2))
    assert np.linalg.norm(inputs, axis=1) == pytest.approx(np.ones(N))
    right = 0
    for i in range(N):
        recalled = sum((inputs[j] @ inputs[i]) * outputs[j] for j in range(N))
        right += int(np.argmax(outputs @ recalled) == i)
    assert 0.2 < right / N < 0.95
    assert measured_recall(N, d, generator(6)) == pytest.approx(right / N)


def test_targets_of_triggers_by_a_loop():
    """A target stands where a trigger is followed by its successor and was so before. Successors are drawn
    first in the order of the package; here they are read off the sequences.
    """
    ids, targets = triggered_sequences(200, vocabulary=9, length=30, triggers=4, generator=generator(7))
    for sequence, wanted in zip(ids.tolist(), targets.tolist()):
        known = {sequence[t]: wanted[t] for t in range(30) if wanted[t] >= 0}
        assert len(known) <= 4
        for trigger, successor in known.items():
            hits = [t for t in range(29) if sequence[t] == trigger and sequence[t + 1] == successor]
            marked = [t for t in range(30) if sequence[t] == trigger and wanted[t] >= 0]
            assert [t for t in marked if t < 29] == hits[1:], "all but the first"
            assert {wanted[t] for t in marked} == {successor}


def test_memories_are_trained_on_batches_of_64_sequences(monkeypatch):
    asked, draw = [], memory.triggered_sequences
    monkeypatch.setattr(
        memory,
        "triggered_sequences",
        lambda n, **settings: (
            settings.pop("generator"),
            asked.append((n, settings)),
            draw(n, **settings, generator=generator(8)),
        )[2],
    )
    optimisers = []

    def optimiser(parameters):
        optimisers.append(torch.optim.SGD(parameters, lr=0.5))
        return optimisers[0]

    model, masses = memory.train_memories(
        optimiser, steps=1, measured=(0, 1), triggers=5, generator=generator(9)
    )
    assert asked == [(64, {"vocabulary": 16, "length": 32, "triggers": 5})]
    assert sorted(masses) == [0, 1]
    assert masses[1] == model.masses()
    # from zero attention is uniform, and only the output has a gradient
    ids, targets = (each.numpy() for each in draw(64, **asked[0][1], generator=generator(8)))
    W = parts_of(model)
    e, U = W["embedding"], W["unembedding"]
    gradient, count = np.zeros((64, 64)), (targets >= 0).sum()
    for row, wanted in zip(ids, targets):
        for t in np.flatnonzero(wanted >= 0):
            error = np.full(16, 1 / 16) - (np.arange(16) == wanted[t])
            gradient += np.outer(error @ U, e[row[: t + 1]].mean(0)) / count
    assert W["output2"] == pytest.approx(-0.5 * gradient, abs=1e-6)
    assert np.abs(W["keys1"]).max() == np.abs(W["keys2"]).max() == 0
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("weights", [None, np.zeros((0, 2, 3, 3))])
def test_without_weights_or_without_sequences_there_is_no_positional_share(weights):
    tokens = torch.zeros(0 if weights is not None else 2, 3, 2)
    given = None if weights is None else torch.from_numpy(weights).float()
    metric = induction.PositionalShare()
    empty = Activations("a", 0, "attention", tokens, tokens, weights=given)
    assert metric.statistics(empty) is None
    metric.update(empty)
    assert list(metric.compute()) == []


# ---- heads that are hardly any, training, claims


@each_case(
    ("entries", "measured"),
    [
        ([3.0, 2.0], True),
        ([3.0, 0.0], False),
        ([0.0, -2.0], False),
        ([3.0, math.nan], False),
        ([3.0, math.inf], False),
    ],
)
def test_every_head_must_have_a_matrix_that_is_not_zero(entries: list[float], measured: bool):
    """Two heads whose matrix has one entry, on the diagonal: the copying score is its sign."""
    metric, parts = CopyingScore(), torch.zeros(2, 2, 3, 2, dtype=torch.float64)
    parts[:, 1, 0, 0], parts[:, 1, 1, 1], parts[:, 0, 1, 1] = 1.0, 1.0, torch.tensor(entries)
    metric.sums[(-1,)], metric.sums[0, 0] = torch.eye(3).double(), parts
    rows = list(metric.compute())
    if measured:
        assert [row.value for row in rows] == [1.0, 1.0]
    else:
        (row,) = rows
        assert row.value is None
        assert "W_V, W_O, W_E or W_U is zero or not finite" in row.reason


def test_a_matrix_of_the_smallest_number_is_not_zero():
    metric, parts = CopyingScore(), torch.zeros(1, 2, 3, 2, dtype=torch.float64)
    parts[:, 1, 0, 0], parts[:, 1, 1, 1], parts[:, 0, 1, 1] = 1.0, 1.0, -5e-324
    metric.sums[(-1,)], metric.sums[0, 0] = torch.eye(3).double(), parts
    assert [row.value for row in metric.compute()] == [-1.0]


@pytest.mark.parametrize("patterns", [True, False], ids=["patterns", "chains"])
def test_networks_are_trained_by_adam_with_their_rate_clip_and_schedule(monkeypatch, patterns: bool):
    """A single weight has a gradient. Of repeated patterns its size is at most 1, at the rate .004, which
    falls in the last fifth; of chains it is not cut, and the rate of .01 rises over 100 steps and falls
    along a cosine.
    """
    sizes, steps = [5.0, -0.3, 1.4, 0.8, -1.7, 0.2, -0.6, 3.0, 1.1, -0.5], 10
    path, left = [], iter(sizes)

    def loss(model, batch):
        return next(left) * model.positions[0, 0]

    def measure(step, model):
        path.append(float(model.positions[0, 0]))

    monkeypatch.setattr(learning, "repeated_loss", loss)
    monkeypatch.setattr(learning, "chain_loss", loss)
    train = learning.train_induction if patterns else learning.train_chains
    train(1, steps=steps, generator=generator(2), measured=range(steps + 1), measure=measure)
    mean = square = 0.0
    weight = path[0]
    for step, size in enumerate(sizes):
        g = max(-1.0, min(1.0, size)) if patterns else size
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        moved = mean / (1 - 0.9 ** (step + 1)) / (math.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-8)
        flat = 0.004 * (1.0 if step < 8 else 5 * (1 - step / 10))
        wave = 0.01 * (step + 1) / 100 * (1 + math.cos(math.pi * step / 10)) / 2
        weight -= (flat if patterns else wave) * moved
        assert path[step + 1] - path[0] == pytest.approx(weight - path[0], rel=1e-3, abs=1e-7)


def test_the_claim_about_the_positional_share_measures_scores_of_tokens_and_positions():
    """Scores of 300 sequences, centred over the keys that a query sees: pairs of different sequences over
    pairs of one and the same.
    """
    found, g = heads.positional_share.function(generator(3)), generator(3)
    sigma = 0.6 + 0.8 * float(torch.rand((), generator=g))
    e, p, W = (
        torch.randn(*shape, generator=g, dtype=torch.float64).numpy()
        for shape in ((300, 24, 48), (24, 48), (6, 48, 48))
    )
    x, shares = e + sigma * p, []
    for matrix in W / 48**0.75:
        common = own = 0.0
        scores = x @ matrix @ x.transpose(0, 2, 1) / math.sqrt(48)
        for q in range(24):
            seen = scores[:, q, : q + 1]
            seen = seen - seen.mean(1, keepdims=True)
            own += (seen**2).sum()
            common += ((seen.sum(0) ** 2).sum() - (seen**2).sum()) / 299
        shares.append(common / own)
    predicted = (sigma**2 / (1 + sigma**2)) ** 2
    assert found.detail["share"] == pytest.approx(np.mean(shares), rel=1e-9)
    assert found.detail["predicted"] == pytest.approx(predicted)
    assert found.value == pytest.approx(abs(np.mean(shares) - predicted), rel=1e-6)
