"""Closed forms, orders, predictions and counts against equations, loops and integrals."""

import math
from itertools import pairwise, permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq

from tests.cases import each_case
from transformer_theory.core.measurement import Null
from transformer_theory.theories.scan_snap import closed_form, count_sequences, minimal_model, query_data
from transformer_theory.theories.scan_snap.orders import chance_level, rank_correlation, smallest_significant
from transformer_theory.theories.scan_snap.predictions import half_way_step, relative_error


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gain(t: float, M: int, eta: float) -> float:
    """The root h of e^{Mh} + (M - 1) M h = M eta t + 1, by bisection."""

    def excess(h: float) -> float:
        return math.expm1(M * h) + (M - 1) * M * h - M * eta * t

    highest = min(eta * t, math.log1p(M * eta * t) / M)
    return brentq(excess, 0, highest, xtol=1e-300, rtol=1e-14) if t else 0.0


@pytest.mark.parametrize(("M", "eta"), [(2, 3.0), (40, 0.7), (5000, 10.0)])
def test_the_gain_and_its_drive_are_those_of_their_equations(M: int, eta: float):
    """gamma is (M - 1)^2 h / (M - 1 + e^{Mh}) at t/K; Gamma is eta_Z times its integral from 0."""
    K, eta_z, E, times = 3, 0.2, 0.35, [0.0, 0.3, 2.0, 15.0, 400.0, 2e5]
    found = closed_form.h(tensor(times), vocab_size=M, eta_y=eta).numpy()
    assert found == pytest.approx(np.array([gain(t, M, eta) for t in times]), rel=1e-9)

    def speed(t: float) -> float:
        h = gain(t / K, M, eta)
        return (M - 1) ** 2 * h / (M - 1 + math.exp(M * h))

    settings = {"classes": K, "vocab_size": M, "eta_y": eta}
    drive = closed_form.gamma(tensor(times), **settings).numpy()
    assert drive == pytest.approx(np.array([speed(t) for t in times]), rel=1e-8)
    ends = [0.3, 2.0, 15.0, 400.0]
    parts = [quad(speed, low, high, limit=200)[0] for low, high in pairwise([0.0, *ends])]
    integral = eta_z * np.cumsum(parts)
    found = closed_form.Gamma(tensor(ends), **settings, eta_z=eta_z).numpy()
    assert found == pytest.approx(integral, rel=1e-6)
    logit = closed_form.B(tensor(ends), **settings, eta_z=eta_z, overlap=E).numpy()
    assert logit == pytest.approx(np.log(1 + 4 * integral * (K - 1) * E**2) / 4, rel=1e-6)
    printed = closed_form.printed_B(tensor(ends), **settings, eta_z=eta_z, constant=2.5).numpy()
    assert printed == pytest.approx(np.log(2.5 + 4 * integral) / 4, rel=1e-6)
    assert closed_form.scanning_time(**settings) == pytest.approx(3 * math.log(M) / eta)
    assert closed_form.snapping_time(**settings) == pytest.approx(6 * math.log(M) / eta)


def test_the_discrete_gain_adds_a_step_at_a_time():
    M, eta, expected = 7, 0.4, [0.0]
    for _ in range(29):
        expected.append(expected[-1] + eta / (M - 1 + math.exp(M * expected[-1])))
    assert closed_form.h_discrete(30, vocab_size=M, eta_y=eta).tolist() == pytest.approx(expected)


def test_the_logit_of_a_common_token_where_every_token_follows():
    """The gap A grows by eta_Y (1 - E) / (K - 1 + e^A), M = K; z follows from its square."""
    K, eta_y, eta_z, E, times = 6, 0.8, 0.3, 0.2, [0.5, 3.0, 40.0, 900.0]
    gaps = [brentq(lambda A, t=t: math.expm1(A) + (K - 1) * A - eta_y * (1 - E) * t, 0, 50) for t in times]
    expected = -np.log(1 + eta_z / eta_y * (K - 1) * E / (1 - E) * np.array(gaps) ** 2) / 2
    found = closed_form.exact_common_logit(tensor(times), classes=K, eta_y=eta_y, eta_z=eta_z, overlap=E)
    assert found.numpy() == pytest.approx(expected, rel=1e-9)


def test_the_last_crossing_of_one_half_is_half_way():
    """The distance from the start, relative to the last one: 0, .6, .3, .8, 1 at unequal times."""
    logits = 7 + np.outer([0, 0.6, 0.3, 0.8, 1.0], [0.6, -0.8])
    found = half_way_step(tensor([0.0, 1, 4, 10, 11]), torch.from_numpy(logits))
    assert found == pytest.approx(4 + 6 * (0.5 - 0.3) / 0.5)
    assert half_way_step(torch.arange(3.0).double(), torch.ones(3, 2).double()) == 0.0


def test_an_error_is_relative_to_the_measured_change_of_each_run():
    predicted, change = np.array([1.0, 2, -2]), np.array([[1.0, 0, -2], [0.0, 5, 0]])
    found = relative_error(torch.from_numpy(predicted), torch.from_numpy(change))
    expected = [np.linalg.norm(predicted - each) / np.linalg.norm(each) for each in change]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("tied", [False, True])
def test_rank_correlations_leave_out_tied_pairs(tied: bool):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=9), rng.normal(size=(4, 9))
    if tied:
        a, b = a.round(), b.round()
    expected = []
    for each in b:
        signs = [np.sign(a[i] - a[j]) * np.sign(each[i] - each[j]) for i in range(9) for j in range(i)]
        expected.append(sum(signs) / sum(np.abs(signs)))
    assert rank_correlation(torch.from_numpy(a), torch.from_numpy(b)).tolist() == pytest.approx(expected)


def test_a_significant_correlation_exceeds_all_but_five_percent_of_the_draws():
    """p = (1 + draws that reach it) / (1 + draws): of 39 draws one may, of 19 none, of 18 is too few."""
    draws = tuple(np.linspace(-0.5, 0.6, 39))
    for count, highest in ((39, draws[37]), (19, draws[18])):
        least = smallest_significant(Null("k", draws[:count]))
        assert least > highest
        assert least == pytest.approx(highest)
    assert math.isnan(smallest_significant(Null("k", draws[:18])))
    assert math.isnan(smallest_significant(Null("k", (1.0,) * 39)))


def test_the_chance_level_is_the_quantile_of_permuted_orders():
    """Of all 720 orders of six tokens at most 5 % reach it; correlations are multiples of 2/15 apart."""
    a = np.arange(6.0)
    every = np.array(
        [
            sum(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(6) for j in range(i)) / 15
            for b in permutations(a)
        ]
    )
    exact = min(value for value in set(every) if np.mean(every >= value - 1e-9) <= 0.05)
    found = chance_level(torch.from_numpy(a), torch.from_numpy(a), torch.Generator().manual_seed(0))
    assert found == pytest.approx(exact)
    one = tensor([1.0, 0, 0, 0, 0, 0])  # each order has the best one with probability 1/6
    assert math.isnan(chance_level(torch.from_numpy(a), one, torch.Generator().manual_seed(0)))


def test_sharpness_is_that_of_the_positions():
    """A token that occurs k times has k positions, which share its weight."""
    attended = np.array([[0.5, 0.3, 0.2, 0.0], [0.9, 0.1, 0.0, 0.0]])
    counts = np.array([[2, 1, 3, 0], [1, 5, 0, 0]])
    values = []
    for weights, number in zip(attended, counts):
        positions = np.concatenate([[w / k] * k for w, k in zip(weights, number) if k])
        values.append(1 + (positions * np.log(positions)).sum() / math.log(6))
    found = minimal_model._sharpness(torch.from_numpy(attended), torch.from_numpy(counts).double(), 6)
    assert float(found) == pytest.approx(np.mean(values))
    assert float(minimal_model._sharpness(torch.ones(1, 1).double(), torch.ones(1, 1).double(), 1)) == 0
    logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert minimal_model._accuracy(logits, torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


@each_case(
    ("sequences", "kinds", "classes", "rate", "steps"),
    [
        (300, 5, 3, 1.0, 1000),  # 128 * 5 * 4 multiplications: 97,656 steps
        (300, 1000, 9, 1.0, 195),  # 128 * 1000 * 10
        (50, 1000, 9, 1.0, 500),  # 50 sequences
        (300, 5000, 99, 50.0, 50),  # 3.9 steps, but 50 at least
        (300, 5000, 99, 1.0, 912),  # twice 99 ln 100
        (300, 5, 99, 0.01, 10_000),
    ],
)
def test_the_steps_that_a_budget_allows(sequences, kinds, classes, rate, steps, unchecked):
    """Counts that are not zero, times K + 1 columns; 250 million multiplications."""
    counts = torch.zeros(sequences, kinds + 3)
    counts[:, :kinds] = 2.0
    data = SimpleNamespace(
        counted=SimpleNamespace(target=torch.zeros(sequences), counts=counts),
        classes=SimpleNamespace(classes=classes, vocab_size=100),
    )
    assert minimal_model.default_steps(data, eta_y=rate) == steps


def test_three_tenths_of_each_class_are_held_out_rounded_down_but_at_least_one():
    target = torch.tensor([0] * 10 + [1] * 3 + [2] * 2 + [3] * 7)
    masks = [query_data._held_out(target, torch.Generator().manual_seed(seed)) for seed in range(300)]
    for mask in masks:
        assert [int(mask[target == n].sum()) for n in range(4)] == [3, 1, 1, 2]
    share = torch.stack(masks).double().mean(0)
    assert share[:10].tolist() == pytest.approx([0.3] * 10, abs=0.1)
    assert share[15:].tolist() == pytest.approx([2 / 7] * 7, abs=0.1)


def test_words_of_held_out_sequences_are_counted_in_the_numbering_of_the_learnt_ones():
    """Unknown words do not count; a sequence without a known word is left out."""
    words = torch.tensor([[3, 8, 8], [5, 3, 3]])
    learnt = count_sequences(words, torch.tensor([1, 1]), torch.tensor([7, 9]), 12)
    ids = torch.tensor([[8, 5, 8], [2, 6, 11], [3, 4, 9]])
    found = query_data._count_known_tokens(learnt, ids, torch.tensor([9, 7, 7]))
    assert found is not None
    assert found.counts.tolist() == [[0, 1, 2], [1, 0, 0]]  # of the words 3, 5, 8
    assert found.target.tolist() == [1, 0]
    assert query_data._count_known_tokens(learnt, ids[1:2], torch.tensor([7])) is None
