"""The flows of scan-and-snap against independently computed numbers, other solvers, and each other."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.scan_snap import counterexample, one_common
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.scan_snap import (
    Batch,
    SequenceClasses,
    SymmetricClasses,
    Weights,
    alike,
    closed_form,
    exact_flow,
    forward,
    lemma4_flow,
    modified_flow,
    single_common,
    symmetric_exact_flow,
    symmetric_lemma4_flow,
    symmetric_modified_flow,
    synthetic,
    with_overlap,
)
from transformer_theory.theories.scan_snap.flow import integrate as of_integration
from transformer_theory.theories.scan_snap.flow.integrate import integrate

PAIRS = (
    (symmetric_exact_flow, exact_flow),
    (symmetric_modified_flow, modified_flow),
    (symmetric_lemma4_flow, lemma4_flow),
)
WEIGHTS = torch.linspace(0.1, 1, 10, dtype=torch.float64)
EQUAL = with_overlap(3, vocab_size=9, weights=torch.tensor([1.0, 2.0], dtype=torch.float64), overlap=0.1)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# t, then the common token's logit, exact, modified, Lemma 4, closed form
LARGE = [  # K = 2, M = 1000, common share 0.2
    (14.8217, -0.00058, -0.03419, -0.03455, -0.04377),
    (146.467, -0.00459, -0.08578, -0.08854, -0.10592),
    (141535.0, -0.04786, -0.18605, -0.20113, -0.22038),
]
# K = M = 10, common share 0.05: here the three flows agree
NEXT_ALONE = [(238480.0, -0.13051, -0.12868, -0.12887, -0.02415)]
# the same classes at 1.08 t0', a time that is known to three digits
EARLY = [(24.87, -0.00391, None, -0.00395, None)]


@pytest.mark.parametrize(
    ("classes", "printed", "tolerance"),
    [
        (one_common(2, 1000, 0.2), LARGE, {"rel": 0, "abs": 6e-6}),
        (one_common(10, 10, 0.05), NEXT_ALONE, {"rel": 0, "abs": 6e-6}),
        (one_common(10, 10, 0.05), EARLY, {"rel": 0.01}),
    ],
    ids=["large vocabulary", "next tokens alone", "early"],
)
def test_the_four_dynamics_have_their_own_numbers(classes: SequenceClasses, printed: list, tolerance: dict):
    times, *columns = zip(*printed)
    t, rates = tensor(*times), {"eta_y": 1.0, "eta_z": 0.01}
    computed = [
        flow(classes, t, **rates).logits[:, 0, 0] for flow in (exact_flow, modified_flow, lemma4_flow)
    ]
    setting = {
        "classes": classes.classes,
        "vocab_size": classes.vocab_size,
        "overlap": float(classes.overlap()[0, 1]),
    }
    computed.append(-closed_form.B(t, **setting, **rates))
    for logits, expected in zip(computed, columns):
        if None not in expected:
            assert logits.tolist() == pytest.approx(expected, **tolerance)


def test_the_exact_flow_follows_the_closed_form_gradients(generator):
    """Its derivative by time, from differences, against the gradients of the count form, which automatic
    differentiation confirms.
    """
    classes = synthetic(4, per_query=2, common=2, distinct=3)
    t, step = 20.0, 1e-3
    z = exact_flow(classes, tensor(t - step, t, t + step), eta_y=1.0, eta_z=0.5, tolerance=1e-12).logits
    Y = torch.zeros(classes.tokens, 5, dtype=torch.float64)
    Z = torch.zeros(2, classes.tokens, dtype=torch.float64)
    whole = Batch(classes.conditional, classes.query, torch.arange(4), classes.weights)
    for _ in range(200):  # midpoint rule on the gradients
        now = forward(Weights(Y, Z, classes.vocab_size - 4), whole)
        half = forward(
            Weights(Y + t / 400 * now.decoder, Z + 0.5 * t / 400 * now.attention, classes.vocab_size - 4),
            whole,
        )
        Y, Z = Y + t / 200 * half.decoder, Z + 0.5 * t / 200 * half.attention
    assert_close(z[1], Z, rtol=0, atol=1e-5)
    velocity = 0.5 * forward(Weights(Y, Z, classes.vocab_size - 4), whole).attention
    assert_close((z[2] - z[0]) / (2 * step), velocity, rtol=1e-3, atol=1e-6)


def test_the_modified_decoder_follows_lemma_3_while_attention_stands_still():
    """With attention nearly frozen, w_n = F^T Y e_n is (M - 1) h zeta_n: then the pull at attention is Lemma
    4's, and so is its path.
    """
    classes = one_common(3, 50, 0.2)
    t = tensor(1.0, 30.0, 1e4)
    slow = {"eta_y": 1.0, "eta_z": 1e-7}
    modified, lemma4 = (flow(classes, t, **slow).logits for flow in (modified_flow, lemma4_flow))
    assert_close(modified, lemma4, rtol=1e-4, atol=0)
    fast = {"eta_y": 1.0, "eta_z": 0.1}
    apart = (modified_flow(classes, t, **fast).logits / lemma4_flow(classes, t, **fast).logits - 1).abs()
    assert float(apart[-1].max()) > 0.02


@pytest.mark.parametrize("flow", [exact_flow, modified_flow, lemma4_flow])
def test_errors_are_measured_and_of_the_promised_size(flow):
    classes = one_common(10, 1000, 0.06)
    t = tensor(10.0, 1e4, 1e12)
    rates = {"eta_y": 1.0, "eta_z": 0.1}
    usual, sharp = flow(classes, t, **rates), flow(classes, t, **rates, tolerance=1e-12)
    assert 0 < usual.error < 1e-6
    assert_close(usual.logits, sharp.logits, rtol=0, atol=1e-6)
    assert float(usual.logits.sum(-1).abs().max()) < 1e-9  # row sums are kept


@pytest.mark.parametrize("ratio", [1e100, 1e300])
@pytest.mark.filterwarnings("error")
def test_classes_that_become_dependent_raise_not_converged(ratio: float):
    with pytest.raises(NotConverged, match=r"s = \d"):
        modified_flow(one_common(2, 1000, 0.2), tensor(1.0, 100.0), eta_y=1.0, eta_z=ratio)


def test_two_runs_that_disagree_are_refused():
    seen = [0.0]

    def inconsistent(s: float, state):  # a rate that changes from run to run
        seen.append(s)
        runs = sum(1 for before, after in itertools.pairwise(seen) if after < before and after == 0)
        return state * 0 + (1.0 + runs) / (1 + s)

    with pytest.raises(NotConverged, match="tolerance") as caught:
        integrate(
            inconsistent,
            1,
            tensor(1e3).numpy(),
            measured=slice(None),
            scale=1.0,
            tolerance=1e-8,
            method="DOP853",
        )
    assert caught.value.residuals is not None
    assert caught.value.residuals > 1e-3


def test_stiff_flows_end_with_an_error(monkeypatch):
    monkeypatch.setattr(of_integration, "MAX_EVALUATIONS", 5000)
    with pytest.raises(NotConverged, match="5,000"):
        integrate(
            lambda s, y: -1e12 * (y - 1),
            1,
            tensor(1e12).numpy(),
            measured=slice(None),
            scale=1.0,
            tolerance=1e-8,
            method="DOP853",
        )


@pytest.mark.parametrize("vocab_size", [10**6, 10**12])
def test_logits_of_the_order_of_one_over_m_are_resolved(vocab_size: int):
    """Where M >> K the exact flow moves attention by about 1/M, and its rate cancels unless the common part
    of the decoder is separate.
    """
    family = with_overlap(2, vocab_size=vocab_size, weights=WEIGHTS, overlap=0.1)
    t = tensor(55.0, 1e6)
    rates = {"eta_y": 1.0, "eta_z": 1.0}
    usual, sharp = (
        symmetric_exact_flow(family, t, **rates, tolerance=tolerance) for tolerance in (1e-8, 1e-12)
    )
    assert_close(usual.common, sharp.common, rtol=1e-6, atol=0)
    assert usual.error < 1e-5 * float(usual.common.abs().max())
    full = exact_flow(family.written_out(), t, **rates).logits[:, :, :1]
    assert_close(full[..., 0], sharp.common, rtol=2e-4, atol=0)
    assert bool((sharp.common < 0).all())


def test_the_exact_flow_scales_as_one_over_m():
    """z M does not depend on M where M >> K, for a fixed time before t0'."""
    scaled = [
        vocab_size * float(symmetric_exact_flow(with_overlap(2, vocab_size=vocab_size, weights=WEIGHTS, overlap=0.1), tensor(5.0),  # noqa: E501
                                                eta_y=1.0, eta_z=1.0).common[0, 0])
        for vocab_size in (10**9, 10**12)
    ]  # fmt: skip
    assert scaled[0] == pytest.approx(scaled[1], rel=1e-6)
    assert scaled[0] < -0.1


@pytest.mark.parametrize("flow", [exact_flow, lemma4_flow])
def test_only_the_ratio_of_the_rates_matters(flow):
    classes = one_common(2, 100, 0.2)
    t = tensor(3.0, 1e5)
    one = flow(classes, t, eta_y=1.0, eta_z=0.3).logits
    for scale in (1e-3, 1e4):
        assert_close(
            flow(classes, t / scale, eta_y=scale, eta_z=0.3 * scale).logits, one, rtol=1e-9, atol=1e-12
        )


def test_far_horizons():
    classes = one_common(2, 1000, 0.2)
    t = tensor(1e8, 1e99, 9e296)
    z = exact_flow(classes, t, eta_y=1.0, eta_z=0.01).logits[:, 0, 0]
    assert bool((z.diff() < 0).all())
    assert float(lemma4_flow(classes, t, eta_y=1.0, eta_z=0.01).logits[-1, 0, 0]) < float(z[-1])
    for flow in (exact_flow, modified_flow, lemma4_flow):
        with pytest.raises(ValueError, match=r"times .* 1e\+297"):
            flow(classes, tensor(1e298), eta_y=1.0, eta_z=0.01)
    with pytest.raises(ValueError, match="1e300"):
        closed_form.h(tensor(1e299), vocab_size=1000, eta_y=1.0)


def test_late_attention_hardly_depends_on_its_learning_rate():
    """Exact flow, K = 2, M = 1000: after 1e99 steps a 3000 times faster attention has moved 7 % further; by
    Theorem 4 twice as far.
    """
    family = alike(2, vocab_size=1000, weights=WEIGHTS, common_share=0.2)
    t = tensor(1e99)
    z = [
        float(symmetric_exact_flow(family, t, eta_y=1.0, eta_z=rate).common[0, 0])
        for rate in (0.01, 1.0, 30.0)
    ]
    assert z == pytest.approx((-0.678, -0.722, -0.725), abs=6e-4)
    setting = {"classes": 2, "vocab_size": 1000, "eta_y": 1.0, "overlap": family.overlap}
    slow, fast = (float(closed_form.B(t, eta_z=rate, **setting)[0]) for rate in (0.01, 30.0))
    assert fast > 2 * slow


# ---- classes that are all alike


@each_case(("reduced", "full"), PAIRS)
@each_case(
    ("classes", "vocab_size", "common", "per_query"),
    [(4, 4, 1, None), (4, 50, 2, 2), (6, 6, 3, 1), (3, 1000, 1, None), (2, 3, 1, 1)],
)
def test_the_reduced_flows_equal_the_full_ones(
    reduced, full, classes: int, vocab_size: int, common: int, per_query: int | None
):
    family = alike(
        classes,
        vocab_size=vocab_size,
        weights=WEIGHTS[::3],
        common_share=0.3,
        common=common,
        per_query=per_query,
    )
    t = tensor(0.5, 30.0, 1e3, 1e7)
    setting = {"eta_y": 0.7, "eta_z": 0.3, "tolerance": 1e-11}
    short = reduced(family, t, **setting)
    long = full(family.written_out(), t, **setting)
    assert short.dynamics == long.dynamics
    assert_close(short.written_out(family).logits, long.logits, rtol=0, atol=1e-8)
    assert float(long.logits.abs().max()) > 0.2


def test_the_family_knows_its_overlap():
    family = with_overlap(5, vocab_size=2000, weights=WEIGHTS, overlap=0.04)
    assert family.overlap == pytest.approx(0.04, rel=1e-12)
    full, short = family.written_out().weak_overlap(), family.weak_overlap()
    assert (full.largest, full.smallest) == pytest.approx((short.largest, short.smallest), rel=1e-10)
    assert (full.upper, full.lower) == (short.upper, short.lower)
    same = single_common(WEIGHTS.expand(5, -1), float(family.common[0]), vocab_size=2000)
    assert_close(same.conditional, family.written_out().conditional)


def test_assumption_2_needs_a_huge_vocabulary(unchecked):
    for K in (2, 5, 10):
        edge = 6 * (K * (K - 1)) ** 2
        overlaps = torch.logspace(-4, -0.01, 600, dtype=torch.float64).tolist()
        holds = [
            any(
                with_overlap(K, vocab_size=int(edge * factor), weights=WEIGHTS, overlap=E)
                .weak_overlap()
                .holds
                for E in overlaps
            )
            for factor in (0.9, 1.1)
        ]
        assert holds == [False, True]


@pytest.mark.parametrize("flow", [reduced for reduced, _ in PAIRS])
def test_ten_thousand_classes(flow):
    family = alike(10_000, vocab_size=1_000_000, weights=WEIGHTS, common_share=0.3)
    found = flow(family, tensor(1.0, 1e6, 1e12), eta_y=1.0, eta_z=0.1)
    assert bool((found.common.diff(dim=0) < 0).all())
    assert bool((found.distinct.diff(dim=0) > 0).all())
    assert found.error < 1e-5


def test_the_conserved_form_for_a_thousand_classes():
    """Theorem 3, which the reduction does not use."""
    family = alike(1000, vocab_size=1_000_000, weights=WEIGHTS, common_share=0.3)
    found = symmetric_lemma4_flow(family, tensor(1e3, 1e6, 1e12), eta_y=1.0, eta_z=1.0, tolerance=1e-12)
    y = -torch.expm1(-2 * found.distinct) / family.distinct**2
    assert_close(y, y[:, :1].expand(-1, 10), rtol=1e-6, atol=0)


# ---- the exact flow where every token follows


@each_case(
    ("classes", "overlap", "eta_z", "error"),
    [
        (50, 0.0033, 0.01, 0.003),
        (10, 0.0213, 0.01, 0.012),
        (10, 0.33, 0.01, 0.0364),
        (10, 0.33, 1.0, 0.1634),
        (3, 0.1, 0.01, 0.04),
    ],
)
def test_the_law_of_the_exact_flow(classes: int, overlap: float, eta_z: float, error: float):
    """The error is largest within a decade of t = K: for ten classes, overlap .33 and equal rates .1634 at t
    = 1.41 K.
    """
    family = with_overlap(classes, vocab_size=classes, weights=WEIGHTS, overlap=overlap)
    t = classes * torch.cat(
        [torch.logspace(-1, 2, 301, dtype=torch.float64), torch.logspace(3, 90, 14, dtype=torch.float64)]
    )
    rates = {"eta_y": 1.0, "eta_z": eta_z}
    z = symmetric_exact_flow(family, t, **rates).common[:, 0]
    law = closed_form.exact_common_logit(t, classes=classes, overlap=overlap, **rates)
    assert_close(law, z, rtol=error, atol=0)
    if overlap == 0.33:
        worst = int((law / z - 1).abs().argmax())
        assert float((law / z - 1).abs()[worst]) == pytest.approx(error, abs=2e-4)
        assert 1 < float(t[worst]) / classes < 10
    theorem = -closed_form.B(t, classes=classes, vocab_size=classes, overlap=overlap, **rates)
    assert float(((theorem / z) - 1).abs().max()) > 0.45


def test_slope_of_the_exact_flow_in_the_double_logarithm():
    """-1 in the limit, where Theorem 4's z = -B has -1/2."""
    family = alike(10, vocab_size=10, weights=WEIGHTS, common_share=0.05)
    t = torch.logspace(4, 99, 200, dtype=torch.float64)
    z = symmetric_exact_flow(family, t, eta_y=1.0, eta_z=1.0).common[:, 0]
    x = t.log().log()
    slope = float(((x - x.mean()) * (z - z.mean())).sum() / ((x - x.mean()) ** 2).sum())
    assert slope == pytest.approx(-0.9906, abs=0.02)


# ---- limits and bad input


def test_equal_classes_have_no_dual_basis():
    same = SequenceClasses(tensor([0.5, 0.5], [0.5, 0.5]), torch.zeros(2, dtype=torch.long), 10)
    for flow in (modified_flow, lemma4_flow):
        with pytest.raises(Infeasible, match="Lemma 3"):
            flow(same, tensor(1.0), eta_y=1.0, eta_z=0.1)


def test_the_second_common_token_grows_in_all_flows():
    for flow in (exact_flow, modified_flow, lemma4_flow):
        move = flow(counterexample(), tensor(1e3), eta_y=1.0, eta_z=0.05).logits[-1, 0]
        assert float(move[1]) > 0 > float(move[0])


@each_case(
    ("make", "error", "message"),
    [
        (
            lambda: exact_flow(one_common(2, 50, 0.2), 1.0, eta_y=1.0, eta_z=0.1),
            ValueError,
            r"times must be a vector \[t\], got \[\]",
        ),
        (
            lambda: symmetric_exact_flow(EQUAL, [[1.0]], eta_y=1.0, eta_z=0.1),
            ValueError,
            r"times must be a vector \[t\], got \[1, 1\]",
        ),
        (
            lambda: exact_flow(EQUAL, [1.0], eta_y=1.0, eta_z=0.1),
            TypeError,
            "SequenceClasses, got SymmetricClasses",
        ),
        (
            lambda: symmetric_exact_flow(one_common(2, 50, 0.2), [1.0], eta_y=1.0, eta_z=0.1),
            TypeError,
            "got SequenceClasses",
        ),
        (
            lambda: with_overlap(3, vocab_size=9, weights=[[1.0]], overlap=0.1),
            ValueError,
            r"weights must be a vector .* \[1, 1\]",
        ),
        (
            lambda: with_overlap(3, vocab_size="9", weights=[1.0], overlap=0.1),
            TypeError,
            "vocab_size must be an integer",
        ),
        (
            lambda: single_common([1.0, 2.0], 0.2, vocab_size=9),
            ValueError,
            r"weights must have shape \[K, D\]",
        ),
        (
            lambda: exact_flow(one_common(2, 50, 0.2), [1.0], eta_y=1.0, eta_z=0.1, tolerance="x"),
            TypeError,
            "tolerance must be a number",
        ),
    ],
)
def test_wrong_types_and_shapes_are_named(make, error, message: str, unchecked):
    with pytest.raises(error, match=message):
        make()


def test_lists_and_numbers_are_accepted(unchecked):
    family = with_overlap(3, vocab_size=9, weights=[1.0, 2.0], overlap=0.1)
    assert_close(family.distinct, EQUAL.distinct)
    assert exact_flow(one_common(2, 50, 0.2), times=[1.0, 2.0], eta_y=1.0, eta_z=0.1).logits.shape[0] == 2
    assert closed_form.B(1.0, classes=2, vocab_size=9, eta_y=1.0, eta_z=1.0, overlap=0.1).shape == ()


@each_case(
    ("make", "message"),
    [
        (lambda: alike(1, vocab_size=9, weights=WEIGHTS, common_share=0.1), "classes .* 1 "),
        (lambda: alike(9, vocab_size=8, weights=WEIGHTS, common_share=0.1), "vocab_size, got 9 and 8"),
        (
            lambda: alike(4, vocab_size=9, weights=WEIGHTS, common_share=0.1, per_query=3),
            "per_query .* 4 classes, got 3",
        ),
        (lambda: alike(4, vocab_size=9, weights=WEIGHTS, common_share=1.0), "common_share .* 1.0"),
        (lambda: alike(4, vocab_size=9, weights=-WEIGHTS, common_share=0.2), "weights"),
        (
            lambda: alike(2, vocab_size=10**400, weights=WEIGHTS, common_share=0.1),
            r"at most 1e\+150, got about 10\^400;",
        ),
        (
            lambda: closed_form.gamma(tensor(1.0), classes=2, vocab_size=10**400, eta_y=1.0),
            r"at most 1e\+150, got about 10\^400;",
        ),
        (lambda: SymmetricClasses(4, 9, WEIGHTS, WEIGHTS, 4), "got sum 11"),
        (lambda: with_overlap(4, vocab_size=9, weights=WEIGHTS, overlap=1.0), "overlap must lie in"),
        (
            lambda: alike(10_000, vocab_size=10**5, weights=WEIGHTS, common_share=0.1).written_out(),
            "10000 classes of 10 tokens",
        ),
        (
            lambda: exact_flow(one_common(2, 50, 0.2), tensor(1.0), eta_y=1.0, eta_z=0.1, tolerance=0.0),
            "tolerance .* got 0;",
        ),
        (
            lambda: exact_flow(one_common(2, 50, 0.2), tensor(math.nan), eta_y=1.0, eta_z=0.1),
            r"times .*\[nan\]",
        ),
        (lambda: modified_flow(one_common(2, 50, 0.2), tensor(1.0), eta_y=0.0, eta_z=0.1), "eta_y"),
        (
            lambda: closed_form.exact_common_logit(tensor(1.0), classes=1, eta_y=1.0, eta_z=1.0, overlap=0.1),
            "classes .* got 1 ",
        ),
        (
            lambda: closed_form.printed_B(
                tensor(1.0), classes=2, vocab_size=9, eta_y=1.0, eta_z=1.0, constant=0.0
            ),
            "constant .* got 0.0",
        ),
    ],
)
def test_bad_input(make, message: str, unchecked):
    with pytest.raises(ValueError, match=message):
        make()
