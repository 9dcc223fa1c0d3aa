"""Sharpness, overlaps and the rows of a comparison against numbers from numpy: unequal heads, masks and
frequencies; the trained runs are given.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.theories.scan_snap import (
    ScanAndSnap,
    SymmetricClasses,
    on_data,
    single_common,
    synthetic,
)
from transformer_theory.theories.scan_snap.claims import training
from transformer_theory.theories.scan_snap.flow import general, symmetric
from transformer_theory.theories.scan_snap.in_networks import IN_NETWORKS, OVERLAP, SHARPNESS


def causal(n: int, seed: int, *, common: np.ndarray) -> np.ndarray:
    """Attention of three heads; each has its own common map, with noise."""
    scores = common + np.random.default_rng(seed).normal(size=(n, 3, 4, 4))
    weights = np.exp(scores) * np.tri(4)
    return weights / weights.sum(-1, keepdims=True)


def test_sharpness_and_overlap_of_three_heads_under_a_causal_mask():
    """The first query has one key: it counts with sharpness 0."""
    common = np.random.default_rng(0).normal(size=(3, 4, 4)) * np.array([0.5, 2.0, 4.0])[:, None, None]
    batches = [[causal(n, seed + n, common=common) for n in (2, 5)] for seed in (0, 10)]
    metric, mask = ScanAndSnap(), torch.ones(1, 1, 4, 4).tril().bool()
    for parts in batches:
        metric.reset()
        for part in parts:
            x = torch.zeros(len(part), 4, 2)
            metric.update(Activations("", 0, "attention", x, x, weights=torch.from_numpy(part), mask=mask))
    rows = {(row.quantity, row.head): row for row in metric.compute(draws=1)}
    A = [np.concatenate(parts) for parts in batches]
    H = -np.where(A[1] > 0, A[1] * np.log(np.where(A[1] > 0, A[1], 1)), 0).sum(-1)
    sharp = 1 - H[..., 1:] / np.log(np.arange(2, 5))
    uniform = np.tri(4) / np.arange(1, 5)[:, None]
    directions = [each.mean(0) - uniform for each in A]
    directions = [each / np.linalg.norm(each, axis=(1, 2), keepdims=True) for each in directions]
    for head in range(3):
        row = rows[SHARPNESS, head]
        assert row.value == pytest.approx(sharp[:, head].sum() / (7 * 4))
        assert row.side == IN_NETWORKS.side == ">="
        overlap = rows[OVERLAP, head]
        assert overlap.value == pytest.approx((directions[1][head] * directions[0][head]).sum())
        others = [(directions[1][head] * directions[0][k]).sum() for k in range(3) if k != head]
        assert overlap.null.draws == pytest.approx(others)
        assert overlap.side == ">="


def comparison() -> SimpleNamespace:
    """Run 0 learnt the next tokens of the data, three others learnt shuffled ones."""
    rng = np.random.default_rng(1)
    t = torch.from_numpy
    frequency = rng.dirichlet(np.full(6, 0.7))
    groups = SimpleNamespace(
        distinct=t(np.array([1, 1, 0, 0, 1, 0], bool)), common=t(np.array([0, 0, 1, 1, 0, 0], bool)), rule=""
    )
    match = SimpleNamespace(dynamics=on_data.EXACT, half_way=40.0)
    return SimpleNamespace(
        data=SimpleNamespace(
            classes=SimpleNamespace(tokens=6, classes=3),
            frequency=t(frequency),
            distinctness=t(rng.random(6)),
            counted=SimpleNamespace(target=torch.arange(50)),
            held_out=SimpleNamespace(target=torch.arange(20)),
        ),
        runs=SimpleNamespace(
            change=t(rng.normal(size=(4, 6))),
            sharpness=t(rng.random(4)),
            accuracy=t(rng.random(4)),
            held_out=t(rng.random(4)),
        ),
        gains=SimpleNamespace(
            measured=t(rng.normal(size=(4, 5))), predicted=t(rng.normal(size=(4, 5))),
            start=t(rng.normal(size=5)), pairs=torch.zeros(5, 2),
        ),
        groups=groups, covered=True, null_distinctness=None, by_held_out=None, by_distinctness=None,
        likelier_gains=t(rng.random(4)), half_way=t(np.array([25.0, 40.0, 160.0, 10.0])), match=match,
    )  # fmt: skip


@pytest.mark.usefixtures("unchecked")
def test_changes_of_attention_are_means_over_occurrences(monkeypatch):
    monkeypatch.setattr(on_data, "_correlation", lambda *_, **__: SimpleNamespace(quantity=None))
    given = comparison()
    rows = {row.quantity: row for row in on_data._token_rows(given)}
    f, change = given.data.frequency.numpy(), given.runs.change.numpy()
    for quantity, group, side in (
        (on_data.DISTINCT_CHANGE, given.groups.distinct.numpy(), ">="),
        (on_data.COMMON_CHANGE, given.groups.common.numpy(), "<="),
    ):
        means = [np.average(each[group], weights=f[group]) for each in change]
        row = rows[quantity]
        assert row.value == pytest.approx(means[0])
        assert row.null.draws == pytest.approx(means[1:])
        assert (row.side, row.op, row.threshold, row.n) == (side, side, 0.0, group.sum())
    likelier = given.likelier_gains.tolist()
    row = rows[on_data.LIKELIER_GAINS]
    assert (row.value, row.null.draws, row.side) == (likelier[0], tuple(likelier[1:]), ">=")
    assert (row.threshold, row.predicted) == (0.5, 1.0)
    assert rows[on_data.DISTINCTNESS].value == pytest.approx((f * given.data.distinctness.numpy()).sum())
    assert rows[on_data.DISTINCTNESS].side == ">="


@pytest.mark.usefixtures("unchecked")
def test_sharpness_gains_and_accuracies_stand_beside_shuffled_runs():
    given = comparison()
    rows = {(row.quantity, row.split): row for row in on_data._attention_rows(given)}
    for key, values, n in (
        ((on_data.SHARPNESS_AFTER, ""), given.runs.sharpness, 50),
        ((on_data.ACCURACY, "train"), given.runs.accuracy, 50),
        ((on_data.ACCURACY, "validation"), given.runs.held_out, 20),
    ):
        value, *draws = values.tolist()
        assert (rows[key].value, rows[key].null.draws, rows[key].side) == (value, tuple(draws), ">=")
        assert rows[key].n == n
    g = {name: getattr(given.gains, name).numpy() for name in ("measured", "predicted", "start")}
    errors = np.abs(g["measured"][0] - g["predicted"][0]) / np.abs(g["measured"][0] - g["start"])
    row = rows[on_data.GAIN_ERROR, ""]
    assert row.value == pytest.approx(np.median(errors))
    assert (row.side, row.predicted, row.null.draws) == ("<=", 0.0, (1.0,))


@pytest.mark.usefixtures("unchecked")
def test_times_are_compared_by_their_ratio(monkeypatch):
    """A time half or twice as long is wrong by a factor of two."""
    monkeypatch.setattr(on_data, "_correlation", lambda *_, **__: SimpleNamespace(quantity=None))
    given = comparison()
    given.covered_by_exact_flow, given.scanning_time = True, 30.0
    match = SimpleNamespace(
        dynamics=on_data.EXACT,
        half_way=40.0,
        order=None,
        error=0.3,
        null=on_data.Null("shuffled", (0.8, 0.9)),
    )
    rows = {row.quantity: row for row in on_data._match_rows(given, match)}
    half_way, error = rows[on_data.FLOW_HALF_WAY], rows[on_data.FLOW_ERROR]
    assert half_way.value == pytest.approx(40 / 25)
    assert half_way.null.draws == pytest.approx([1.0, 4.0, 4.0])
    assert (half_way.side, half_way.predicted) == ("<=", 1.0)
    assert (error.value, error.null.draws, error.side, error.predicted) == (0.3, (0.8, 0.9), "<=", 0.0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("measured", "predicted"), [(0.0, 40.0), (25.0, 0.0)])
def test_a_movement_that_did_not_happen_has_no_half_way_step(monkeypatch, measured: float, predicted: float):
    monkeypatch.setattr(on_data, "_correlation", lambda *_, **__: SimpleNamespace(quantity=None))
    given = comparison()
    given.covered_by_exact_flow, given.scanning_time = True, 30.0
    given.half_way[0] = measured
    null = on_data.Null("shuffled", (0.8, 0.9))
    match = SimpleNamespace(dynamics=on_data.EXACT, half_way=predicted, order=None, error=0.3, null=null)
    quantities = [row.quantity for row in on_data._match_rows(given, match)]
    assert quantities == [None, on_data.FLOW_ERROR]


def test_differences_are_relative_to_the_largest_expected_number():
    """Gradients have entries that are zero."""
    value, expected = torch.tensor([[0.5, -2.0], [3.0, 1.0]]), torch.tensor([[0.0, -4.0], [2.0, 1.0]])
    assert training._relative(value, expected) == pytest.approx(2 / 4)


# ---- flows and classes


@pytest.mark.parametrize(("classes", "vocabulary"), [(2, 50), (2, 5), (2, 10**8)])
def test_logits_below_the_share_of_the_classes_count_as_zero(classes: int, vocabulary: int, monkeypatch):
    """The error is measured on the logits, absolute below K/M; with a trained decoder below 1e-6 at least."""
    asked = []

    class Stopped(Exception):
        pass

    def integrate(rate, size, s, **settings):
        asked.append((size, s.tolist(), settings))
        raise Stopped

    given = synthetic(classes, per_query=classes, common=3, distinct=4, vocab_size=vocabulary)
    law = torch.tensor([0.1, 0.2, 0.15, 0.2, 0.05, 0.1, 0.2], dtype=torch.float64)
    small = SymmetricClasses(classes, vocabulary, law[:3], law[3:], per_query=classes)
    monkeypatch.setattr(general, "integrate", integrate)
    monkeypatch.setattr(symmetric, "integrate", integrate)
    share, states, logits = classes / vocabulary, 3 + 4 * classes, 3 + 4 * classes
    before, of_states = states * (classes + 1), (general.exact_flow, general.modified_flow)
    flows = (
        (general.lemma4_flow, given, logits + classes, slice(None), share, "DOP853", 1e-10),
        *(
            (flow, given, before + logits, slice(before, None), max(share, 1e-6), "DOP853", 1e-8)
            for flow in of_states
        ),
        (symmetric.symmetric_lemma4_flow, small, 7, slice(None), share, "LSODA", 1e-10),
        (symmetric.symmetric_exact_flow, small, 1 + 2 * 7 + 4 + 7, slice(19, None), share, "LSODA", 1e-8),
        (symmetric.symmetric_modified_flow, small, 1 + 2 * 7 + 4 + 7, slice(19, None), share, "LSODA", 1e-8),
    )
    for flow, data, size, measured, scale, method, tolerance in flows:
        with pytest.raises(Stopped):
            flow(data, torch.tensor([3.0, 7.0]).double(), eta_y=2.0, eta_z=0.5)
        found, s, settings = asked.pop()
        assert (found, s) == (size, [6.0, 14.0]), flow.__name__
        assert settings["scale"] == pytest.approx(scale), flow.__name__
        assert settings["measured"] == measured, flow.__name__
        assert (settings["method"], settings["tolerance"]) == (method, tolerance), flow.__name__


@pytest.mark.parametrize(("distinct", "weights"), [(1, [1.0]), (2, [0.1, 1.0]), (4, [0.1, 0.4, 0.7, 1.0])])
def test_synthetic_classes_by_hand(distinct: int, weights: list[float]):
    """Four classes, two per query; three common tokens of weight one."""
    found, total = synthetic(4, per_query=2, common=3, distinct=distinct), 3 + sum(weights)
    expected = np.zeros((4, 3 + 4 * distinct))
    expected[:, :3] = 1 / total
    for n in range(4):
        expected[n, 3 + n * distinct : 3 + (n + 1) * distinct] = np.array(weights) / total
    assert found.conditional.numpy() == pytest.approx(expected)
    assert found.query.tolist() == [0, 0, 1, 1]
    assert found.vocab_size == 3 + 4 * distinct + 2 + 4
    assert synthetic(4, distinct=1, common=0, vocab_size=77).vocab_size == 77


def test_a_single_common_token_has_its_share_in_each_class():
    weights = np.array([[1.0, 3.0], [2.0, 0.5]])
    found = single_common(torch.from_numpy(weights), torch.tensor([0.2, 0.7]), vocab_size=30)
    expected = [[0.2, 0.2, 0.6, 0, 0], [0.7, 0, 0, 0.24, 0.06]]
    assert found.conditional.numpy() == pytest.approx(np.array(expected))
    assert (found.query.tolist(), found.vocab_size) == ([0, 0], 30)
