"""Relative gains, their bounds, and how fast B grows: against printed numbers, differences and quadrature."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.scan_snap import one_common
from transformer_theory.theories.scan_snap import (
    SequenceClasses,
    closed_form,
    gain_bounds,
    growth_exponents,
    lemma4_flow,
    symmetric_lemma4_flow,
)
from transformer_theory.theories.scan_snap.claims import flows, theorems
from transformer_theory.theories.scan_snap.figures import chi as chi_figure
from transformer_theory.theories.scan_snap.figures.b_growth import B_AT_END, B_SNAPPED, b_growth
from transformer_theory.theories.scan_snap.figures.decoder_gain import DISTANCE, decoder_gain
from transformer_theory.theories.scan_snap.figures.exponents import POWER, SLOPE, exponents
from transformer_theory.theories.scan_snap.figures.regime_map import pattern_numbers, regime_map
from transformer_theory.theories.scan_snap.flow import CLOSED, EXACT, LEMMA4, DrivenFlow
from transformer_theory.theories.scan_snap.gains import printed_gain_bounds
from transformer_theory.theories.scan_snap.growth import decades_near_half, longest_logarithmic_growth

SETTING = {"classes": 2, "vocab_size": 1000, "eta_y": 1.0}


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_bounds_hold_with_the_share_of_the_class_and_not_as_printed():
    classes = one_common(5, 5000, 0.06)
    flow = lemma4_flow(classes, tensor(1e8), eta_y=1.0, eta_z=0.1)
    share, printed = gain_bounds(classes, flow), printed_gain_bounds(classes, flow)
    assert_close(share.log_chi.exp(), torch.full((1, 5), 1.0315, dtype=torch.float64), rtol=0, atol=6e-5)
    assert_close(share.lower.exp(), torch.full((1, 5), 1.0311, dtype=torch.float64), rtol=0, atol=6e-5)
    assert_close(share.upper.exp(), torch.full((1, 5), 1.1293, dtype=torch.float64), rtol=0, atol=1.1e-4)
    assert_close(printed.lower.exp(), torch.full((1, 5), 1.1653, dtype=torch.float64), rtol=0, atol=1.1e-4)
    assert_close(flow.drive, torch.full((1, 5), 0.3039, dtype=torch.float64), rtol=0, atol=1.1e-4)
    assert share.token.tolist() == [10 * (n + 1) for n in range(5)]
    assert float(share.slack.min()) > 0 > float(printed.slack.max())


@each_case(("of_logits", "of_drive"), [(-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (0.0, 1.0)])
def test_a_wrong_sign_crosses_the_bounds(of_logits: float, of_drive: float):
    classes = one_common(5, 5000, 0.06)
    right = lemma4_flow(classes, tensor(1e4, 1e8), eta_y=1.0, eta_z=0.1)
    wrong = replace(right, logits=of_logits * right.logits, drive=of_drive * right.drive)
    assert float(gain_bounds(classes, right).slack.min()) > 0 > float(gain_bounds(classes, wrong).slack.max())
    assert bool(gain_bounds(classes, wrong).slack.isfinite().all())


def test_the_drive_of_lemma_4_determines_every_logit():
    """z_l - z_l' and the common token from the drive alone, by the trapezoid rule: the equations of Theorem
    2, unequal shares included.
    """
    P = tensor([0.3, 0.5, 0.2, 0.0, 0.0], [0.2, 0.0, 0.0, 0.7, 0.1])
    classes = SequenceClasses(P, torch.zeros(2, dtype=torch.long), 300, tensor(0.3, 0.7))
    t = torch.logspace(-2, 5, 4000, dtype=torch.float64)
    flow = lemma4_flow(classes, t, eta_y=1.0, eta_z=0.3)
    squares = classes.features(flow.logits[:, 0][:, None]) ** 2
    steps = flow.drive.diff(dim=0) * classes.weights
    middle = (squares[1:] + squares[:-1]) / 2
    for n, token in ((0, 1), (0, 2), (1, 3), (1, 4)):
        moved = (middle[:, n, token] * steps[:, n]).sum()
        assert_close(moved, flow.logits[-1, 0, token] - flow.logits[0, 0, token], rtol=1e-4, atol=0)
    fallen = -((1 - middle[:, :, 0]) * steps).sum()
    assert_close(fallen, flow.logits[-1, 0, 0] - flow.logits[0, 0, 0], rtol=1e-4, atol=0)


def test_exponents_are_the_derivatives_of_b():
    t = tensor(30.0, 300.0, 1e6, 1e30)
    rates = {"eta_z": 0.3, "overlap": 0.2}
    found = growth_exponents(t, **SETTING, **rates)
    up, down = (closed_form.B(t * factor, **SETTING, **rates) for factor in (1 + 1e-6, 1 - 1e-6))
    assert_close(found.per_log, (up - down) / 2e-6, rtol=1e-5, atol=0)
    assert_close(found.power, found.per_log / found.value, rtol=1e-12, atol=0)


def test_printed_exponents():
    t = closed_form.scanning_time(**SETTING) * tensor(0.01, 0.1, 0.5, 5, 1e2, 1e6, 1e20, 1e100)
    found = growth_exponents(t, **SETTING, eta_z=0.01, overlap=0.3)
    for value, printed, digits in zip(
        found.power.tolist(),
        (2.0, 1.997, 1.917, 0.231, 0.119, 0.055, 0.0135, 0.0016),
        (3, 3, 3, 3, 3, 3, 4, 4),
    ):
        assert round(value, digits) == printed
    assert [round(value, 3) for value in found.per_loglog[-3:].tolist()] == [0.324, 0.458, 0.498]


def test_logarithmic_growth_needs_fast_attention():
    assert longest_logarithmic_growth(**SETTING, eta_z=0.1, overlap=0.3) == 0
    assert longest_logarithmic_growth(**SETTING, eta_z=1e4, overlap=0.3) == pytest.approx(2.0, abs=0.01)
    t = torch.logspace(0, 4, 41, dtype=torch.float64)
    slope = torch.where((t > 5) & (t < 2000), 0.52, 0.1)
    slope[20] = 0.7  # interrupts the run from 10 to 10^3.3
    assert decades_near_half(t, slope) == pytest.approx(1.2, abs=0.01)


def test_a_common_token_that_gains_violates_the_quadratic_start(monkeypatch, generator):
    def flipped(*arguments, **rates):
        found = symmetric_lemma4_flow(*arguments, **rates)
        return replace(found, common=-found.common)

    monkeypatch.setattr(theorems, "symmetric_lemma4_flow", flipped)
    (claim,) = [claim for claim in theorems.CLAIMS if claim.id == "scan_snap/quadratic-start"]
    assert claim.check(generator).verdict == "violated"


def test_a_move_that_turns_back_violates_the_growth_of_tokens(monkeypatch):
    """The net move after 50 t0' is as predicted; the move between 2 t0' and 50 t0' is not."""

    def overshooting(*arguments, **rates):
        found = lemma4_flow(*arguments, **rates)
        return replace(found, logits=torch.cat([found.logits[:2], 2 * found.logits[3:], found.logits[3:]]))

    (claim,) = [claim for claim in theorems.CLAIMS if claim.id == "scan_snap/single-common-token"]
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "consistent"
    monkeypatch.setattr(theorems, "lemma4_flow", overshooting)
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "violated"


def test_an_instance_that_needs_a_small_tolerance_is_decided():
    (claim,) = [claim for claim in flows.CLAIMS if claim.id == "scan_snap/weak-overlap-logit"]
    assert claim.run(85)[0].verdict == "consistent"


def test_the_law_of_the_exact_common_logit_is_within_its_threshold_at_its_worst(monkeypatch, generator):
    """Eight classes, E_0 = 0.1, one distinct token that outweighs the others, which gains most; 0.085."""
    monkeypatch.setattr(theorems, "_weights", lambda generator: tensor(1.1, 0.1, 0.1))
    monkeypatch.setattr(theorems, "uniform", lambda low, high, generator: high if high < 0 else low)
    monkeypatch.setattr(theorems.torch, "randint", lambda *arguments, **setting: torch.tensor(8))
    found = theorems.law_error.check(generator)
    assert found.value == pytest.approx(0.085, abs=0.001)
    assert found.verdict == "consistent"


def test_a_vocabulary_beyond_64_bits():
    """In the limit M -> infinity with s = eta_Y t / K fixed gamma is s, and B is 1/4 ln(1 + 4 Gamma / C_0)
    with Gamma = K s^2 / 2.
    """
    setting = {"classes": 2, "vocab_size": 10**32, "eta_y": 1.0}
    assert float(closed_form.gamma(tensor(10.0), **setting)) == pytest.approx(5.0)
    assert float(closed_form.B(tensor(10.0), **setting, eta_z=1.0, overlap=0.1)) == pytest.approx(
        math.log(1 + 4 * 25 * 0.01) / 4
    )


def test_snapping_takes_twice_as_long_as_scanning():
    assert closed_form.snapping_time(**SETTING) == pytest.approx(4 * math.log(1000))


def test_figure_9():
    """B at the end of both panels, and at t0, where the rates do not matter."""
    result = b_growth().run()
    for M, ends, snapped in (
        (100, [0.620, 0.671, 0.713, 0.749, 0.783], 0.510),
        (10_000, [1.408, 1.450, 1.481, 1.509, 1.533], 1.382),
    ):
        at_end, at_t0 = (
            result.select(quantity=name, at={"M": M}).column("value") for name in (B_AT_END, B_SNAPPED)
        )
        assert np.round(at_end, 3).tolist() == ends
        assert np.round(at_t0, 3).tolist() == [snapped] * 5
    assert all(
        row.value == pytest.approx(row.predicted, rel=1e-9) for row in result.select(quantity=B_AT_END)
    )


def test_no_quantity_of_figure_3_but_gamma_fills_its_axis():
    result = chi_figure.chi().run()
    printed, big_gamma, chi, bound = (
        np.array(result.select(quantity=name, at={"t": 700.0}).column("value"))
        for name in (chi_figure.PRINTED, chi_figure.GAMMA, chi_figure.CHI, chi_figure.BOUND)
    )
    assert printed.round().tolist() == [45, 35, 26, 18]
    assert big_gamma.round().tolist() == [511, 301, 173, 81]
    assert (chi < bound).all()
    assert chi.max() < 1.2


def test_figure_8_stays_far_inside_its_bound():
    values = decoder_gain().run().select(quantity=DISTANCE).column("value")
    assert 0.08 < min(values) < max(values) < 0.12


def test_the_exponents_of_the_flows():
    result = exponents(decades=12.0).run()

    def curve(quantity, dynamics):
        rows = result.select(quantity=quantity, at={"dynamics": dynamics}).where(lambda row: row.op is None)
        return np.array([row.value for row in rows if row.note == ""])

    assert curve(POWER, LEMMA4)[1] == pytest.approx(2.0, abs=0.01)
    closed, lemma4, exact = (curve(SLOPE, dynamics) for dynamics in (CLOSED, LEMMA4, EXACT))
    assert np.abs(lemma4 / closed - 1)[1:-1].max() < 0.5
    assert (exact[:14] < lemma4[:14]).all()


def test_the_map_of_regimes(unchecked):  # the contract checks shapes
    few = regime_map(
        ratios=(0.01, 1000.0), vocabularies=(1.0, 1e4), classes=(2, 100), overlaps=(0.1,), decades=3.0
    )
    found = few.run().arrays["scan_snap/map"]
    assert found.shape == (2, 1, 2, 2, 6)
    assert (found[:, :, 0, :, :2] < 0.1).all()  # M = K: Lemma 3 and Lemma 4 follow the exact flow
    assert (found[:, :, 1, :, :3] > 0.5).all()  # M >> K: none does
    assert found[0, 0, 1, :, 5].tolist() == [1, 1]  # two classes and a large vocabulary: Assumption 2
    assert found[1, 0, 1, 1, 4] > 1  # in closed form attention is scanned over decades
    assert found[1, 0, 1, 1, 3] < 0.5  # in the exact flow it is not


def test_patterns_of_agreement():
    agree = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=bool)
    assert pattern_numbers(agree).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: growth_exponents(tensor(1e-4), **SETTING, eta_z=1.0, overlap=0.1), "times .* got 0.0001"),
        (lambda: b_growth(ends=(5.0,)), r"got lengths \[2, 2, 1\]"),
        (lambda: gain_bounds(no_distinct(), driven(no_distinct())), "all tokens of class 1 are common"),
    ],
)
def test_bad_input(make, message: str, unchecked):
    with pytest.raises(ValueError, match=message):
        make()


def no_distinct() -> SequenceClasses:
    return SequenceClasses(tensor([0.3, 0.7], [1.0, 0.0]), torch.zeros(2, dtype=torch.long), 9)


def driven(classes: SequenceClasses) -> DrivenFlow:
    return lemma4_flow(classes, tensor(1.0), eta_y=1.0, eta_z=0.1)
