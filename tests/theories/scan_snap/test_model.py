"""Sequence classes, gradients, closed forms and flows against independent routes."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.scan_snap import SYN_SMALL_PLATEAU, counterexample, explicit_loss, one_common
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.scan_snap import (
    Batch,
    HeavyBall,
    SequenceClasses,
    Weights,
    closed_form,
    count_sequences,
    exact_flow,
    forward,
    gradient_descent,
    lemma4_flow,
    minibatches,
    population,
    relative_gains,
    sampled,
    single_common,
    synthetic,
)
from transformer_theory.theories.scan_snap.claims.theorems import several_common, weakly_overlapping

ONE_QUERY = torch.zeros(2, dtype=torch.long)
P2 = torch.full((2, 2), 0.5, dtype=torch.float64)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- the data


def test_arrays_and_single_precision_are_converted(unchecked):
    classes = SequenceClasses(P2.float().numpy(), [0, 0], 10, [0.5, 0.5])
    assert (classes.conditional.dtype, classes.query.dtype) == (torch.float64, torch.int64)
    assert_close(
        closed_form.B([1, 2], classes=2, vocab_size=9, eta_y=1.0, eta_z=1.0, overlap=0.1).shape,
        torch.Size([2]),
    )
    flow = lemma4_flow(one_common(2, 50, 0.2), [1.0, 2.0], eta_y=1.0, eta_z=0.1)
    assert_close(
        flow.logits, lemma4_flow(one_common(2, 50, 0.2), tensor(1.0, 2.0), eta_y=1.0, eta_z=0.1).logits
    )
    with pytest.raises(TypeError, match="query"):
        SequenceClasses(P2, P2[0], 10)


def test_distinct_common_and_overlap_of_a_small_example():
    classes = SequenceClasses(tensor([0.6, 0.8, 0.0], [0.6, 0.0, 0.8]) / 1.4, ONE_QUERY, 10)
    assert classes.distinct().tolist() == [[False, True, False], [False, False, True]]
    assert classes.common().tolist() == [True, False, False]
    assert_close(classes.features(), tensor([0.6, 0.8, 0.0], [0.6, 0.0, 0.8]))
    assert_close(classes.overlap(), tensor([0.0, 0.36], [0.36, 0.0]))
    assert classes.share is not None
    assert classes.share.tolist() == [0.5, 0.5]


def test_the_papers_synthetic_data():
    classes = synthetic(4, per_query=2)
    assert (classes.classes, classes.tokens, classes.queries, classes.vocab_size) == (4, 50, 2, 56)
    # 1 / 15.5
    assert_close(
        classes.conditional[:, 0], torch.full((4,), 0.0645161290), rtol=1e-7, atol=0, check_dtype=False
    )
    assert_close(
        classes.conditional[:, :10].sum(1),
        torch.full((4,), 0.645161290),
        rtol=1e-7,
        atol=0,
        check_dtype=False,
    )
    assert int(classes.common().sum()) == 10
    assert classes.distinct().sum(1).tolist() == [10] * 4
    assert synthetic(2).vocab_size == 34


@pytest.mark.parametrize(
    ("classes", "rho", "vocab_size", "holds"),
    [(2, 0.3, 1000, True), (2, 0.6, 1000, False), (2, 0.05, 1000, False)],
)
def test_assumption_2_of_equal_overlaps(classes: int, rho: float, vocab_size: int, holds: bool):
    share = 1 / (1 + math.sqrt((1 - rho) / rho))  # one distinct token: f_common^2 = rho
    found = single_common(
        torch.ones(classes, 1, dtype=torch.float64), share, vocab_size=vocab_size
    ).weak_overlap()
    assert found.largest == pytest.approx((classes - 1) * rho)
    assert found.smallest == pytest.approx(rho)
    assert found.holds is holds


def test_sampled_counts_have_the_multinomial_moments(generator):
    P = tensor([0.5, 0.2, 0.0, 0.3], [0.0, 0.1, 0.9, 0.0])
    classes = SequenceClasses(P, ONE_QUERY, 8, tensor(0.25, 0.75))
    counts, n = classes.sample_counts(20_000, context=17, generator=generator)
    assert bool((counts.sum(1) == 17).all())
    assert float((n == 0).double().mean()) == pytest.approx(0.25, abs=0.015)
    for k in range(2):
        own = counts[n == k]
        assert_close(own.mean(0), 17 * P[k], rtol=0, atol=0.1)
        assert_close(own.T.cov(), 17 * (torch.diag(P[k]) - torch.outer(P[k], P[k])), rtol=0, atol=0.2)
        assert bool((own[:, P[k] == 0] == 0).all())


def test_sampled_sequences_lead_back_to_their_classes(generator):
    classes = synthetic(3, common=2, distinct=3)
    data = classes.sample(6000, seq=31, generator=generator)
    assert data.ids is not None
    assert data.next_id is not None
    assert data.vocab_size is not None
    counted = count_sequences(data.ids[:, :-1], data.ids[:, -1], data.next_id, data.vocab_size)
    assert_close(counted.conditional(), classes.conditional, rtol=0, atol=0.01)
    assert torch.equal(counted.query, classes.query[counted.target])
    assert_close(counted.shares(), classes.weights, rtol=0, atol=0.03)


def test_counting_by_hand():
    ids = torch.tensor([[3, 3, 7], [7, 3, 9], [9, 9, 9]])
    found = count_sequences(ids, torch.tensor([1, 1, 0]), torch.tensor([5, 6, 5]), 10)
    assert found.token_ids.tolist() == [3, 7, 9]
    assert found.counts.tolist() == [[2, 1, 0], [1, 1, 1], [0, 0, 3]]
    assert (found.query.tolist(), found.target.tolist()) == ([1, 1, 0], [0, 1, 0])
    assert_close(found.conditional(), tensor([2, 1, 3], [2, 2, 2]) / 6)
    assert_close(found.shares(), tensor(2, 1) / 3)


# ---- exact gradient descent


@pytest.mark.parametrize(("vocab_size", "classes"), [(9, 3), (3, 3), (4, 3)])
def test_gradients_agree_with_the_explicit_model(vocab_size: int, classes: int, generator):
    S, Q, batch, context = 5, 3, 8, 12
    ids = torch.randint(S, (batch, context), generator=generator)
    query, target = (torch.randint(k, (batch,), generator=generator) for k in (Q, classes))
    Y = torch.randn(S, vocab_size, generator=generator, dtype=torch.float64)
    Y[:, classes:] = Y[:, classes : classes + 1]
    Z = torch.randn(Q, S, generator=generator, dtype=torch.float64)
    leaves = Y.clone().requires_grad_(), Z.clone().requires_grad_()
    loss = explicit_loss(*leaves, ids, query, target)
    dY, dZ = torch.autograd.grad(loss, leaves)
    counts = torch.nn.functional.one_hot(ids, S).double().sum(1)
    columns = min(vocab_size, classes + 1)
    found = forward(Weights(Y[:, :columns], Z, vocab_size - classes), Batch(counts, query, target))
    assert_close(found.loss, loss.detach(), rtol=1e-13, atol=0)
    assert_close(found.decoder, -dY[:, :columns], rtol=1e-11, atol=1e-14)
    assert_close(found.attention, -dZ, rtol=1e-11, atol=1e-14)


def test_row_sums_of_attention_and_decoder_are_conserved():
    classes = synthetic(4, per_query=2, common=3, distinct=4)
    start = Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size, runs=(1,))
    path = gradient_descent(
        start, sampled(classes, 16, context=20, seeds=[0]), steps=60, eta_y=1.0, eta_z=1.0
    )
    total = path.final.decoder[..., :-1].sum(-1) + path.final.rest * path.final.decoder[..., -1]
    assert float(path.final.decoder.abs().max()) > 0.1
    assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-13)
    rows = path.attention.sum(-1)
    assert float(path.attention[-1].abs().max()) > 0.1
    assert_close(rows, torch.zeros_like(rows), rtol=0, atol=1e-13)


def test_runs_are_independent_and_batches_can_be_anything(generator):
    classes = synthetic(2, common=2, distinct=3)
    data = classes.sample(40, seq=9, generator=generator)
    assert data.ids is not None
    assert data.next_id is not None
    counted = count_sequences(data.ids[:, :-1], data.ids[:, -1], data.next_id, 20)
    other = counted.target.flip(0)
    Q, K = len(counted.query_ids), len(counted.next_ids)
    S = len(counted.token_ids)
    seeds = [torch.Generator().manual_seed(5) for _ in range(3)]
    setting = {"steps": 30, "eta_y": 1.0, "eta_z": 0.5, "optimiser": HeavyBall(0.5), "keep": (10,)}
    both = gradient_descent(
        Weights.zeros(S, Q, K, 20, runs=(2,)),
        minibatches(counted, 7, generator=seeds[0], targets=torch.stack([counted.target, other])),
        **setting,
    )
    first = gradient_descent(
        Weights.zeros(S, Q, K, 20), minibatches(counted, 7, generator=seeds[1]), **setting
    )
    second = gradient_descent(
        Weights.zeros(S, Q, K, 20), minibatches(counted, 7, generator=seeds[2], targets=other), **setting
    )
    assert both.steps.tolist() == [0, 10, 30]
    assert_close(both.attention, torch.stack([first.attention, second.attention], dim=1))
    assert_close(both.loss, torch.stack([first.loss, second.loss], dim=1))


def test_long_sequences_follow_the_population():
    classes = synthetic(2)
    start = Weights.zeros(classes.tokens, classes.queries, 2, classes.vocab_size)
    flow = exact_flow(classes, tensor(1000.0), eta_y=1.0, eta_z=1.0).logits[0]
    whole = gradient_descent(start, population(classes), steps=1000, eta_y=1.0, eta_z=1.0).final.attention
    assert_close(whole, flow, rtol=0, atol=0.01)
    assert float(flow[0, 19]) == pytest.approx(0.601, abs=5e-4)  # the likeliest distinct token
    assert float(flow[0, 0]) == pytest.approx(-0.319, abs=5e-4)  # a common token
    start = Weights.zeros(classes.tokens, classes.queries, 2, classes.vocab_size, runs=(1,))
    noisy = gradient_descent(
        start, sampled(classes, 128, context=4000, seeds=[0]), steps=150, eta_y=1.0, eta_z=1.0
    )
    long = exact_flow(classes, tensor(150.0), eta_y=1.0, eta_z=1.0).logits[0]
    assert float(long.abs().max()) > 0.25
    assert_close(noisy.final.attention[0], long, rtol=0, atol=0.02)


def test_syn_small_starts_and_ends_as_published():
    classes = synthetic(2)
    start = Weights.zeros(classes.tokens, 2, 2, classes.vocab_size, runs=(1,))
    batches = sampled(classes, 128, context=127, seeds=[0])
    path = gradient_descent(start, batches, steps=100, eta_y=1.0, eta_z=1.0, optimiser=HeavyBall(0.9))
    assert float(path.loss[0]) == pytest.approx(math.log(34), rel=1e-12)
    assert SYN_SMALL_PLATEAU[0] < float(path.loss[-5:].mean()) < SYN_SMALL_PLATEAU[1]
    c = classes.attended(path.attention[-1, 0])
    assert 0.3 < float(c[0, :10].sum()) < 0.5  # common tokens, .645 at the start
    assert c[0, 10:20].argmax() == 9


def test_training_that_diverges_names_the_step():
    classes = synthetic(2, common=1, distinct=2)
    start = Weights.zeros(classes.tokens, 2, 2, classes.vocab_size)
    broken = Weights(start.decoder + math.inf, start.attention, start.rest)
    with pytest.raises(NotConverged, match="step 1") as caught:
        gradient_descent(broken, population(classes), steps=5, eta_y=1.0, eta_z=1.0)
    assert caught.value.residuals == 1


# ---- closed forms


@each_case("M", [2, 34, 1000, 10**6])
@each_case("eta_y", [0.1, 3.0])
def test_h_solves_its_equation(M: int, eta_y: float):
    t = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-12, 30, 300, dtype=torch.float64)])
    x = M * closed_form.h(t, vocab_size=M, eta_y=eta_y)
    right = M * eta_y * t
    assert float(x[0]) == 0.0
    assert bool((x.diff() > 0).all())
    assert_close(torch.expm1(x) + (M - 1) * x, right, rtol=1e-13 * 100, atol=0)


def test_h_is_the_limit_of_the_discrete_decoder():
    t = torch.arange(400, dtype=torch.float64)
    coarse = closed_form.h_discrete(400, vocab_size=50, eta_y=1.0)
    fine = closed_form.h_discrete(40_000, vocab_size=50, eta_y=0.01)[::100]
    exact = closed_form.h(t, vocab_size=50, eta_y=1.0)
    assert float((coarse - exact).abs().max()) < 2 / 50
    assert float((fine - exact).abs().max()) < float((coarse - exact).abs().max()) / 90


def test_gamma_is_the_derivative_of_its_integral():
    setting = {"classes": 3, "vocab_size": 200, "eta_y": 0.7}
    t = torch.logspace(-1, 5, 50, dtype=torch.float64)
    step = 1e-4 * t
    slope = (
        closed_form.Gamma(t + step, eta_z=0.2, **setting) - closed_form.Gamma(t - step, eta_z=0.2, **setting)
    ) / (2 * step)
    assert_close(slope, 0.2 * closed_form.gamma(t, **setting), rtol=1e-6, atol=0)
    assert float(closed_form.B(tensor(0.0), eta_z=0.2, overlap=0.3, **setting)[0]) == 0.0


def test_exponents_of_growth():
    t0 = closed_form.scanning_time(classes=2, vocab_size=1000, eta_y=1.0)
    t = t0 * tensor(0.01, 0.1, 0.5, 5, 1e2, 1e6, 1e20, 1e100)

    def log_b(times):
        return closed_form.B(times, classes=2, vocab_size=1000, eta_y=1.0, eta_z=0.01, overlap=0.3).log()

    slope = (log_b(1.001 * t) - log_b(t / 1.001)) / (2 * math.log(1.001))
    assert_close(slope, tensor(2.0, 1.997, 1.917, 0.231, 0.119, 0.055, 0.0135, 0.0016), rtol=0, atol=6e-4)


# ---- flows


def test_the_relative_gain_is_exact_in_lemma_4_and_not_in_the_exact_flow():
    classes = one_common(5, 5000, 0.06)
    t = tensor(10.0, 1e4, 1e8)
    lemma4, exact = (
        relative_gains(classes, flow(classes, t, eta_y=1.0, eta_z=0.1).logits)
        for flow in (lemma4_flow, exact_flow)
    )
    assert len(lemma4.pairs) == 5 * 45
    assert lemma4.error < 1e-9
    assert exact.error > 1e-5
    chi = float((lemma4.predicted[-1] / lemma4.start).max())
    assert chi == pytest.approx(1.0315, abs=1e-4)
    z = float(lemma4_flow(classes, t[-1:], eta_y=1.0, eta_z=0.1).logits[0, 0, 0])
    assert z == pytest.approx(-0.2967, abs=1e-4)


def test_the_conserved_quantity_is_the_same_for_all_distinct_tokens():
    classes = one_common(2, 1000, 0.2)
    z = lemma4_flow(classes, tensor(1e5), eta_y=1.0, eta_z=0.5).logits[0, 0]
    P = classes.conditional[0]
    ratio = torch.expm1(-2 * z[10]) / torch.expm1(-2 * z[1:10])
    assert_close(ratio, (P[10] / P[1:10]) ** 2, rtol=1e-8, atol=0)


def test_common_tokens_fall_only_if_there_is_one():
    t = tensor(10.0, 1e3)
    for flow in (lemma4_flow, exact_flow):
        move = flow(counterexample(), t, eta_y=1.0, eta_z=0.05).logits[-1, 0]
        assert float(move[1]) > 0 > float(move[0])
        alone = flow(one_common(2, 1000, 0.2), t, eta_y=1.0, eta_z=0.05).logits[-1, 0]
        assert float(alone[0]) < 0 < float(alone[1:].min())


def test_equal_classes_have_no_lemma_4_flow():
    classes = SequenceClasses(tensor([0.5, 0.5], [0.5, 0.5]), ONE_QUERY, 10)
    with pytest.raises(Infeasible, match="Lemma 3") as caught:
        lemma4_flow(classes, tensor(1.0), eta_y=1.0, eta_z=0.1)
    assert caught.value.certificate is not None
    flow = exact_flow(classes, tensor(1.0, 10.0), eta_y=1.0, eta_z=0.1)
    assert_close(flow.logits, torch.zeros_like(flow.logits), rtol=0, atol=1e-12)


# ---- claims


def test_instances_of_the_claims_meet_their_assumptions():
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        assert weakly_overlapping(generator).weak_overlap().holds
        assert int(several_common(generator).common().sum()) == 2


# ---- bad input


@each_case(
    ("make", "message"),
    [
        (lambda: SequenceClasses(P2 * 1.1, ONE_QUERY, 10), "row 0 sums to 1.1"),
        (lambda: SequenceClasses(tensor([1.0, 0.0], [0.0, 0.0]), ONE_QUERY, 10), "row 1 is zero"),
        (
            lambda: SequenceClasses(tensor([1.5, -0.5], [0.5, 0.5]), ONE_QUERY, 10),
            "negative, infinite or NaN",
        ),
        (
            lambda: SequenceClasses(tensor([math.nan, 1.0], [0.5, 0.5]), ONE_QUERY, 10),
            "negative, infinite or NaN",
        ),
        (lambda: SequenceClasses(P2, ONE_QUERY[:1], 10), "query .* 2 integers"),
        (lambda: SequenceClasses(P2, ONE_QUERY - 1, 10), "query .* at least 0"),
        (lambda: SequenceClasses(P2, ONE_QUERY, 1), "vocab_size must be .* got 1"),
        (lambda: SequenceClasses(P2, ONE_QUERY, 10.5), "vocab_size .*10.5"),
        (
            lambda: SequenceClasses(P2, ONE_QUERY, math.nan),
            "vocab_size .*nan",
        ),
        (
            lambda: SequenceClasses(tensor([1.0], [1.0], [1.0]), ONE_QUERY.new_zeros(3), 2),
            "vocab_size .* 3 classes, got 2",
        ),
        (lambda: SequenceClasses(P2, ONE_QUERY, 10, tensor(math.nan, 0.5)), r"share .*\[nan"),
        (lambda: SequenceClasses(P2, ONE_QUERY, 10, tensor(0.2, 0.2)), "share .* 0.2"),
        (lambda: synthetic(3, per_query=2), "classes=3, per_query=2"),
        (lambda: single_common(tensor([0.0, 1.0]), 0.5, vocab_size=9), "weights"),
        (lambda: single_common(tensor([1.0, 1.0]), 1.0, vocab_size=9), "common_share"),
        (
            lambda: count_sequences(torch.tensor([[12]]), torch.tensor([0]), torch.tensor([1]), 10),
            "ids must lie in \\[0, 10\\), got 12",
        ),
        (
            lambda: count_sequences(torch.tensor([[1]]), torch.tensor([0]), torch.tensor([-1]), 10),
            "next_ids must lie in",
        ),
        (
            lambda: count_sequences(tensor([1.0]), torch.tensor([0]), torch.tensor([1]), 10),
            "ids must be a tensor .* got torch.float64",
        ),
        (
            lambda: count_sequences(torch.tensor([[1]]), torch.tensor([[0]]), torch.tensor([1]), 10),
            "query_ids must have shape \\[n\\]",
        ),
        (
            lambda: count_sequences(torch.zeros(2, 0, dtype=torch.long), ONE_QUERY, ONE_QUERY, 10),
            "ids must have shape \\[n, context\\] with at least one of each, got \\[2, 0\\]",
        ),
        (
            lambda: count_sequences(torch.tensor([[1]]), ONE_QUERY, torch.tensor([1]), 10),
            "one entry for each of the 1 sequences, got 2",
        ),
        (lambda: closed_form.h(tensor(-1.0), vocab_size=10, eta_y=1.0), "times"),
        (lambda: closed_form.h(tensor(1.0), vocab_size=1, eta_y=1.0), "vocab_size .* got 1"),
        (lambda: closed_form.h(tensor(1.0), vocab_size=10, eta_y=0.0), "eta_y must be positive .*0.0"),
        (lambda: closed_form.gamma(tensor(1.0), classes=0, vocab_size=10, eta_y=1.0), "classes .* got 0"),
        (
            lambda: closed_form.B(tensor(1.0), classes=2, vocab_size=9, eta_y=1.0, eta_z=1.0, overlap=1.0),
            "overlap .* got 1.0",
        ),
        (
            lambda: lemma4_flow(one_common(2, 50, 0.2), tensor(2.0, 1.0), eta_y=1.0, eta_z=0.1),
            r"times .*\[2.0, 1.0\]",
        ),
        (lambda: lemma4_flow(one_common(2, 50, 0.2), tensor(1.0), eta_y=1.0, eta_z=-0.1), "eta_z"),
        (lambda: descent(steps=0), "steps .* got 0"),
        (lambda: descent(eta_y=-1.0), "eta_y .* got -1.0"),
        (lambda: HeavyBall(1.0), "momentum .* got 1.0"),
        (lambda: synthetic(2).sample_counts(0, context=3, generator=torch.Generator()), "batch .* got 0"),
        (
            lambda: synthetic(2).sample_counts(1, context=2**63, generator=torch.Generator()),
            "context .*92233",
        ),
        (lambda: synthetic(2).sample(3, seq=1, generator=torch.Generator()), "seq .* got 1"),
    ],
)
def test_bad_input(make, message: str, unchecked):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def descent(**changed):
    classes = one_common(2, 50, 0.2)
    setting = {"steps": 3, "eta_y": 1.0, "eta_z": 0.1} | changed
    return gradient_descent(Weights.zeros(classes.tokens, 1, 2, 50), population(classes), **setting)
