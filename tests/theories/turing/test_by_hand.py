"""Margins in bits, close calls, their null, the inputs of the responses and the rows of the ladder against
loops in numpy.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.theories.turing import Margins, ladder
from transformer_theory.theories.turing import invariance as networks
from transformer_theory.theories.turing.claims import invariance, precision
from transformer_theory.theories.turing.construction import compile_machine
from transformer_theory.theories.turing.in_networks import CLOSE, IN_NETWORKS, MARGIN, permuted, repeated

FIXED = 4_019_217_653  # seed of all fixed numbers of the package


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def is_close(scores: np.ndarray) -> bool:
    second, first = np.sort(scores)[-2:]
    larger = max(abs(first), abs(second))
    return first == second or first - second < 2.0 ** (math.floor(math.log2(larger)) - 7)


def digits(scores: np.ndarray) -> float:
    second, first = np.sort(scores)[-2:]
    larger = max(abs(first), abs(second))
    if first == second:
        return 0.0
    return max(0.0, math.log2((first - second) / 2.0 ** (math.floor(math.log2(larger)) - 7)))


def instance(keys: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of two heads with scores of size 100 and 20: close calls are frequent, in one more
    than in the other.
    """
    g = generator(3)
    query, key = torch.randn(9, 2, keys, 3, generator=g), torch.randn(9, 2, keys, 3, generator=g)
    query[..., 0] = 1.0
    key[..., 0] += torch.tensor([100.0, 20.0])[:, None]
    return query, key


def rows_of(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, quantity: str = CLOSE) -> list:
    metric, tokens = Margins(), torch.zeros(len(query), query.shape[2], 3)
    metric.draws = 19  # what a probe asks for
    metric.update(
        Activations("a", 0, "attention", tokens, tokens, query=query, key=key, value=key, mask=mask)
    )
    return [row for row in metric.compute(draws=19) if row.quantity == quantity]


def masks() -> dict[str, torch.Tensor | None]:
    several = torch.rand(9, 2, 7, 7, generator=generator(4)) < 0.5
    return {"none": None, "causal": torch.ones(1, 1, 7, 7).tril().bool(), "of each head": several}


@each_case("quantity", [MARGIN, CLOSE])
@each_case("kind", ["none", "causal", "of each head"])
def test_values_and_draws_are_those_of_the_allowed_keys(kind: str, quantity: str):
    """A draw has the scores m + s z of a row: mean, deviation (over n) and number of its allowed keys."""
    query, key = instance()
    mask, of = masks()[kind], {MARGIN: digits, CLOSE: is_close}[quantity]
    allowed = np.ones((9, 2, 7, 7), bool) if mask is None else mask.expand(9, 2, 7, 7).numpy()
    scores = np.einsum("bhqd,bhkd->bhqk", query.double().numpy(), key.double().numpy())
    z = torch.randn(19, 128, 7, generator=generator(FIXED)).double().numpy()
    for head, row in enumerate(rows_of(query, key, mask, quantity)):
        value, chance = [], []
        for b in range(9):
            for q in range(7):
                own = scores[b, head, q][allowed[b, head, q]]
                if len(own) > 1:
                    value.append(of(own))
                    table = z[:, ((b * 2 + head) * 7 + q) % 128, : len(own)]
                    chance.append([of(own.mean() + own.std() * each) for each in table])
        assert row.value == pytest.approx(np.mean(value), rel=1e-4)
        assert row.null.draws == pytest.approx(np.mean(chance, 0), rel=1e-3)
        assert 0.05 < row.null.median < (0.6 if quantity == CLOSE else 4)


def test_rows_with_infinite_scores_count_neither_in_the_value_nor_in_the_null():
    query, key = instance()
    before = rows_of(query[1:], key[1:], None)
    key[0, :, 3] = -math.inf
    after = rows_of(query, key, None)
    assert [row.value for row in after] == pytest.approx([row.value for row in before])
    assert all(max(row.null.draws) <= 1 for row in after)


def test_scores_of_hidden_keys_do_not_count_even_if_they_are_infinite():
    query, key = instance()
    mask = masks()["causal"].clone()
    mask[..., 3:] = False
    before = rows_of(query, key, mask)
    key[:, :, 3:] = math.inf
    after = rows_of(query, key, mask)
    assert [row.value for row in after] == [row.value for row in before]
    assert [row.null.draws for row in after] == [row.null.draws for row in before]


def test_wide_margins_are_the_predicted_side():
    """Keys that are far apart have no close calls and a margin of log2(5 / (1/2)) bits; Gaussian scores of
    the same size have close calls, and smaller margins.
    """
    key = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]).view(1, 1, 5, 1).repeat(64, 1, 1, 1) + 100
    key[:, :, 4] += 4
    query = torch.ones(64, 1, 5, 1)
    (close,) = rows_of(query, key, None)
    assert close.value == 0
    assert min(close.null.draws) > 0
    assert (close.side, close.unit) == ("<=", "share")
    (margin,) = rows_of(query, key, None, MARGIN)
    assert margin.value == pytest.approx(math.log2(10))
    assert max(margin.null.draws) < margin.value
    assert IN_NETWORKS.side == ">="
    assert IN_NETWORKS.headline == MARGIN
    assert margin.null.p(margin.value, margin.side) == close.null.p(close.value, close.side) == 1 / 20


def test_permuted_tokens_are_compared_with_their_own_and_with_another_sequence():
    data = torch.arange(10.0).view(2, 5)
    parts = permuted(data, {}, generator(1))
    assert [sorted(row) for row in parts["value"].tolist()] == data.tolist()
    assert parts["value"].tolist() != data.tolist()
    assert parts["reference"].tolist() == data.tolist()
    assert parts["null"].tolist() == [data[1].tolist(), data[0].tolist()]


@pytest.mark.parametrize(("limit", "whole"), [(10, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]), (9, [0, 1, 0, 1, 4])])
def test_sequences_are_doubled_only_if_twice_their_length_is_allowed(limit: int, whole: list[int]):
    data = torch.tensor([[0.0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])[..., None]
    parts = repeated(data, {"length": limit}, generator())
    assert parts["value"][0, :, 0].tolist() == whole
    assert parts["null"][:, :, 0].tolist() == parts["value"].flip(0)[:, :, 0].tolist()
    assert parts["reference"][0, :, 0].tolist() == ([0, 1, 2, 3, 4] if limit == 10 else [0, 0, 1, 1, 4])


def test_a_rung_averages_values_and_draws_over_the_machines(monkeypatch):
    steps, seen = 80, []

    def known(run, draws, generator):
        number = float(len(seen))
        seen.append(run)
        return {ladder.NULL_KIND: np.arange(draws) + number, ladder.VISITS: np.arange(draws) * number}

    monkeypatch.setattr(ladder, "STEPS", steps)
    monkeypatch.setattr(ladder, "chance", known)
    rungs = {rung.name: rung for rung in ladder.LADDER.rungs}
    (row,) = rungs["bfloat16"].measure(generator(1))
    firsts = []
    for run in seen:
        found = compile_machine(run.machine).run(run.word, steps, arithmetic="bfloat16")
        configurations = [zip(each.states, each.symbols, each.heads) for each in (found, run.reference)]
        wrong = [time for time, (own, true) in enumerate(zip(*configurations)) if own != true]
        firsts.append(wrong[0] - 1 if wrong else steps)  # step 1 leads to time 1
    assert len(set(firsts)) > 1
    assert row.value == pytest.approx(sum(firsts) / (3 * steps))
    assert row.nulls[0].draws == pytest.approx(np.arange(399) + 1.0)
    assert row.nulls[1].draws == pytest.approx(np.arange(399) * 1.0)
    assert (row.n, row.predicted, row.side) == (3, 1.0, ">=")


@pytest.mark.parametrize(("gap", "close"), [(2.0**-5, False), (2.0**-5 - 2.0**-20, True)])
def test_a_gap_of_one_bfloat16_number_is_no_close_call(gap: float, close: bool):
    """At 4 the numbers are 2^-5 apart."""
    key = torch.tensor([4.0, 4.0 - gap, -9.0, 1.0]).view(1, 1, 4, 1)
    (row,) = rows_of(torch.ones(1, 1, 4, 1), key, None)
    assert row.value == close


def test_rungs_run_the_arithmetic_that_their_names_say(monkeypatch):
    seen = {}

    class Given:
        def __init__(self, name):
            self.name = name

        def run(self, word, steps, **settings):
            seen[self.name] = settings
            return SimpleNamespace(agreement=lambda _: 0.5)

    monkeypatch.setattr(ladder, "STEPS", 30)
    monkeypatch.setattr(ladder, "chance", lambda *_: {ladder.NULL_KIND: [0.1], ladder.VISITS: [0.2]})
    for rung in ladder.LADDER.rungs:
        (row,) = rung.measure(generator(), build=lambda _, name=rung.name: Given(name))
        assert row.value == 0.5
    softmax = {"arithmetic": "float64", "score": "softmax"}
    assert seen == {
        "exact arithmetic": {"arithmetic": "exact"},
        "float64": {"arithmetic": "float64"},
        "float32": {"arithmetic": "float32"},
        "bfloat16": {"arithmetic": "bfloat16"},
        "softmax at 1e12": softmax | {"inverse_temperature": 1e12},
        "softmax at 1e8": softmax | {"inverse_temperature": 1e8},
        "softmax at 1e6": softmax | {"inverse_temperature": 1e6},
        "softmax at 1e4": softmax | {"inverse_temperature": 1e4},
        "softmax at 1e3": softmax | {"inverse_temperature": 1e3},
        "positions p and 1/p": {"arithmetic": "float64"},
    }


def test_the_largest_change_of_all_pairs_counts(monkeypatch):
    """Five pairs each with softmax and with hard-max attention."""
    changes = iter([1e-9, 4e-9, 2e-9, 0.0, 3e-9, 5e-10, 1e-10, 7e-9, 0.0, 6e-9])
    monkeypatch.setattr(invariance, "change", lambda *_: next(changes))
    found = invariance.proportions.function(generator())
    assert found.value == 7e-9
    assert sorted(found.detail.values()) == [4e-9, 7e-9]


@pytest.mark.parametrize("agreement", [1.0, 0.99])
def test_the_weight_of_other_keys_is_compared_with_its_bound_on_a_logarithmic_scale(monkeypatch, agreement):
    """Of T = 120 keys all but the first lie c / (3/4 T^5) behind it, so the last query gives the others the
    weight (T - 1) e^{-c (T ln 2 + 6 ln T)}; the bound is 2^-T T^-5.
    """
    T, factors = 120, {"near": 0.9, "far": 2.0}

    def known(machine, weights, word, steps, *, dtype, inverse_temperature, all_scores):
        for query in range(1, steps):
            all_scores[query, : query + 1] = 5.0 - factors[word] * 4 / 3 / steps**5
            all_scores[query, 0] = 5.0
        return SimpleNamespace(agreement=lambda _: agreement if word == "far" else 1.0)

    transformer = SimpleNamespace(machine=None, weights=None)
    runs = [SimpleNamespace(name=name, word=name, transformer=transformer, reference=0) for name in factors]
    monkeypatch.setattr(precision, "trace", known)
    monkeypatch.setattr(precision, "rewriting_runs", lambda generator, steps: runs)
    for share in (1.0, 0.5):
        found = precision.softmax.function(generator(), share=share)
        expected = {
            name: (share * c * (T * math.log(2) + 6 * math.log(T)) - math.log(T - 1))
            / (T * math.log(2) + 5 * math.log(T))
            for name, c in factors.items()
        }
        if agreement < 1:
            expected["far"] = 0.0
        assert found.detail == pytest.approx(expected, rel=1e-3)
        assert found.value == min(found.detail.values())


# ---- networks without positions


def pooled(scores: np.ndarray, kind: str) -> np.ndarray:
    """Weights of attention; a key that is masked has the score minus infinity."""
    if kind == "sum":
        return 1 / (1 + np.exp(-scores))
    if kind == "softmax":
        e = np.exp(scores - scores.max(1, keepdims=True))
    else:  # of the smallest absolute score, shared among equal ones
        size = np.where(np.isinf(scores), np.inf, np.abs(scores))
        e = (size <= size.min(1, keepdims=True) + 1e-9).astype(float)
    return e / e.sum(1, keepdims=True)


POOLS = {
    "softmax": networks.softmax_weights,
    "hard": networks.hard_weights,
    "sum": networks.sum_weights,
}


@each_case("steps", [1, 2, 4])
@each_case("causal", [False, True])
@each_case("kind", POOLS)
def test_the_decoder_attends_to_its_own_tokens_and_to_the_encoder(kind: str, causal: bool, steps: int):
    """Unequal numbers of symbols; the seed is the first token, and only the last output is kept."""
    network = networks.random_network(generator(2))
    ids = np.array([0, 2, 1, 1, 0, 1, 2, 1, 3])
    n = len(ids)
    mask = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    x = network.embedding.numpy()[ids]
    for query, key, value, up, down in network.encoder.numpy():
        scores = np.where(mask, x @ query @ (x @ key).T, -np.inf)
        x = x + pooled(scores, kind) @ x @ value
        x = x + np.maximum(x @ up, 0) @ down
    memory, tokens = x, [network.seed.numpy()]
    for _ in range(steps):
        x = np.array(tokens)
        for query, key, value, up, down in network.decoder.numpy():
            x = x + pooled(x @ query @ (x @ key).T, kind) @ x @ value
            x = x + pooled(x @ query @ (memory @ key).T, kind) @ memory @ value
            x = x + np.maximum(x @ up, 0) @ down
        tokens.append(x[-1])
    given = {"mask": torch.from_numpy(mask)} if causal else {}
    found = network.output(torch.from_numpy(ids), pool=POOLS[kind], steps=steps, **given)
    assert found.numpy() == pytest.approx(tokens[-1], rel=1e-9)
    assert network.encode(torch.from_numpy(ids), POOLS[kind], given.get("mask")).numpy() == pytest.approx(
        memory
    )


def test_two_steps_are_the_default():
    network, ids = networks.random_network(generator(3)), torch.tensor([0, 1, 2])
    outputs = [network.output(ids, pool=networks.softmax_weights, steps=steps) for steps in (1, 2, 3)]
    default = network.output(ids, pool=networks.softmax_weights)
    assert [torch.equal(default, each) for each in outputs] == [False, True, False]


def test_random_weights_have_the_variance_of_their_width():
    network = networks.random_network(generator(4), symbols=5, d=40, layers=3, blocks=2)
    assert network.embedding.shape == (5, 40)
    assert network.encoder.shape == (3, 5, 40, 40)
    assert network.decoder.shape == (2, 5, 40, 40)
    for part, size in ((network.encoder, 40**-0.5), (network.decoder, 40**-0.5), (network.embedding, 1.0)):
        assert float(part.std()) == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize(("preference", "first"), [(0.0, 0.5), (0.7, None), (-1.2, None)])
def test_the_majority_network_averages_the_signs_of_the_symbols(preference: float, first: float | None):
    """Uniform attention has the mean of +1 and -1; a preference weighs the symbols by e^{+-preference}."""
    network, ids = networks.majority_network(preference), np.array([0, 1, 1, 0, 1, 1])
    weight = np.exp(np.where(ids == 0, preference, -preference))
    mean = (weight * np.where(ids == 0, 1, -1)).sum() / weight.sum()
    found = network.output(torch.from_numpy(ids), pool=networks.softmax_weights, steps=1)
    assert found.tolist() == pytest.approx([mean, 1.0])
    if first is not None:
        assert mean == pytest.approx(-1 / 3)
