"""Curve, onset and Gaussian case against second routes; bad input; words, bias and metrics."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.cases import each_case
from tests.contract.instances import sequences
from transformer_theory.core.errors import NotConverged
from transformer_theory.core.metric import Activations
from transformer_theory.core.theory import Unsupported
from transformer_theory.theories.bottleneck import (
    GaussianPair,
    VariationalBottleneck,
    WordInformation,
    gaussian_bottleneck,
    information_bottleneck,
    on_data,
    onset,
    plug_in_bias,
    random_joint,
    rare_cluster,
    sample_information,
    variational_bound,
)
from transformer_theory.theories.bottleneck.claims import gerber, random_encoder
from transformer_theory.theories.bottleneck.curve import iterate, point
from transformer_theory.theories.bottleneck.in_networks import COMPRESSION, SHARE
from transformer_theory.theories.bottleneck.information import words
from transformer_theory.theories.bottleneck.on_data import HELD_OUT, ON_DATA


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_curve_is_monotone_and_keeps_all_information_in_the_limit():
    joint = random_joint(7, 4, generator())
    curve = information_bottleneck(joint, [2.0, 6.0, 10.0, 30.0, 100.0, 3000.0])
    for name in ("compression", "relevance"):
        values = curve.column(name)
        assert all(low <= high + 1e-7 for low, high in pairwise(values))
    assert all(each.relevance <= each.compression + 1e-12 and each.gap <= 1e-6 for each in curve.points)
    p = joint.numpy()
    exact = (p * np.log(p / p.sum(1, keepdims=True) / p.sum(0))).sum()
    assert curve.points[-1].relevance == pytest.approx(exact, abs=1e-4)


def test_solver_is_not_above_random_starts():
    joint = random_joint(6, 3, generator(1))
    beta = 5 * onset(joint).beta
    best = information_bottleneck(joint, beta).points[0].lagrangian
    starts = [
        point(joint, iterate(joint, random_encoder(6, 6, generator(s)), beta, 300), beta, math.inf).lagrangian
        for s in range(10)
    ]
    assert best <= min(starts) + 1e-6


def test_erasures_scale_the_information():
    """Of a uniform x, y shows a share e; every encoder has I(Z;Y) = e I(X;Z), and eta is e."""
    e = 0.4
    joint = torch.cat([e * torch.eye(4), torch.full((4, 1), 1 - e)], 1).double() / 4
    found = onset(joint)
    assert found.eta == pytest.approx(e, abs=1e-6)
    assert found.correlation == pytest.approx(e, abs=1e-6)
    each = information_bottleneck(joint, 1.5 / e).points[0]
    assert each.relevance == pytest.approx(e * math.log(4), abs=1e-5)
    assert each.compression == pytest.approx(math.log(4), abs=1e-5)


def test_onset_equals_a_numerical_maximum():
    from scipy.optimize import minimize

    joint = random_joint(4, 3, generator(3))
    p, channel, q_y = joint.sum(1).numpy(), (joint / joint.sum(1, keepdim=True)).numpy(), joint.sum(0).numpy()

    def negative(logits):
        q = np.exp(logits - logits.max())
        q /= q.sum()
        r = q @ channel
        return -(r * np.log(r / q_y)).sum() / (q * np.log(np.maximum(q, 1e-300) / p)).sum()

    rng = np.random.default_rng(0)
    best = max(
        -minimize(negative, 3 * rng.normal(size=4), method="Nelder-Mead", options={"maxiter": 3000}).fun
        for _ in range(12)
    )
    assert onset(joint).eta == pytest.approx(best, rel=1e-3)
    assert onset(joint).eta >= best - 1e-6


def test_rare_cluster_has_the_posterior():
    joint = random_joint(5, 3, generator(4))
    posterior = torch.softmax(torch.arange(5.0).double(), 0)
    encoder = rare_cluster(joint, posterior, 0.01)
    assert float((encoder[:, 0] * joint.sum(1)).sum()) == pytest.approx(0.01)
    torch.testing.assert_close(encoder[:, 0] * joint.sum(1) / 0.01, posterior)


def test_closed_forms_agree():
    assert gerber(math.log(2), 0.1) == pytest.approx(math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    pair = GaussianPair(torch.tensor([[1.0]], dtype=torch.float64), 1.0)
    assert pair.eigenvalues().tolist() == pytest.approx([0.5])
    rate, gain = gaussian_bottleneck([0.5], 4.0)
    grid = torch.linspace(0.01, 5, 5000, dtype=torch.float64)
    values = 0.5 * torch.log(grid.square() + 1) - 4 * (
        0.5 * torch.log(grid.square() + 1) - 0.5 * torch.log(0.5 * grid.square() + 1)
    )
    assert rate - 4 * gain == pytest.approx(float(values.min()), abs=1e-5)
    assert gaussian_bottleneck([0.5], 1.9) == (0, 0)


def test_sample_information_and_its_bias():
    x = torch.randint(4, (30_000,), generator=generator())
    value, bias = sample_information(x, x)
    assert value == pytest.approx(math.log(4), abs=1e-3)
    assert bias == plug_in_bias(4, 4, 30_000) == 9 / 60_000
    noise, bias = sample_information(x.numpy(), torch.randint(5, (30_000,), generator=generator(1)).numpy())
    assert 0 < noise < 5 * bias


def test_independent_variables_have_no_onset():
    found = onset(np.outer([0.3, 0.7], [0.4, 0.6]))
    assert (found.eta, found.beta, found.local_beta) == (0, math.inf, math.inf)


@pytest.mark.usefixtures("unchecked")
def test_only_active_directions_of_a_gaussian_count():
    pair = GaussianPair(np.diag([1.5, 0.4]).astype("float32"), 1.0)
    assert gaussian_bottleneck(pair.eigenvalues(), 4.0) == pytest.approx(
        gaussian_bottleneck(pair.eigenvalues()[:1], 4.0)
    )


def test_large_integers_need_no_large_table():
    assert sample_information([10**12, 0], [0, 10**12])[0] == pytest.approx(math.log(2))


def test_float32_numpy_and_zero_rows():
    joint = np.array([[0.4, 0.1, 0], [0, 0, 0], [0.1, 0.4, 0]], dtype="float32")
    assert information_bottleneck(joint, [4]).joint.shape == (2, 2)


def test_an_interrupted_solver_raises():
    with pytest.raises(NotConverged, match=r"gap .* nats after 1 rounds"):
        information_bottleneck(random_joint(8, 4, generator(1)), [5.0], rounds=1)


LAW, EYE = [[0.4, 0.1], [0.1, 0.4]], torch.eye(2, dtype=torch.float64)
BAD = [
    (
        lambda: information_bottleneck([[0.4, 0.1], [0.1, 0.3]], 2.0),
        "expected joint that sums to 1, got 0.9; divide",
    ),
    (
        lambda: information_bottleneck([[0.6, -0.1], [0.1, 0.4]], 2.0),
        "expected joint without negative entries, got -0.1",
    ),
    (lambda: information_bottleneck([[0.6, math.nan], [0.1, 0.4]], 2.0), "joint must be finite, got 1 NaN"),
    (lambda: information_bottleneck([0.5, 0.5], 2.0), r"expected joint of shape \[x, y\], got \[2\]"),
    (lambda: information_bottleneck([[0.5, 0.5]], 2.0), "expected joint with two rows"),
    (lambda: information_bottleneck([[0.5, 0], [0.5, 0]], 2.0), "expected joint with two rows"),
    (lambda: information_bottleneck(LAW, 0.0), "expected betas that are positive and finite"),
    (lambda: information_bottleneck(LAW, [1.0, -2.0]), "expected betas that are positive and finite"),
    (lambda: information_bottleneck(LAW, [math.nan]), "expected betas that are positive and finite"),
    (lambda: information_bottleneck(LAW, []), "expected betas that are positive and finite"),
    (lambda: information_bottleneck("law", 1.0), "joint must be a torch.Tensor"),
    (lambda: onset([[0.5, 0.6], [0.1, 0.4]]), "expected joint that sums to 1"),
    (lambda: rare_cluster(torch.tensor(LAW), torch.tensor([0.9, 0.1]), 0.9), "expected a mass in"),
    (lambda: gaussian_bottleneck([0.0], 2.0), r"expected eigenvalues in \(0, 1\]"),
    (lambda: gaussian_bottleneck([0.5], -2.0), "beta must be positive and finite"),
    (lambda: gaussian_bottleneck(np.eye(2) / 2, 4.0), "eigenvalues must be a vector"),
    (lambda: GaussianPair(torch.ones(2).double(), 1.0), "map must be a matrix"),
    (
        lambda: variational_bound(
            VariationalBottleneck(2, 2, 2, generator()), GaussianPair(EYE, 1.0), 0, generator()
        ),
        "n must be at least 1",
    ),
    (
        lambda: variational_bound(
            VariationalBottleneck(3, 3, 2, generator()), GaussianPair(EYE, 1.0), 9, generator()
        ),
        "dimensions",
    ),
    (lambda: onset(LAW, starts=-1), "starts must be at least 0"),
    (lambda: onset(LAW, steps=0), "steps must be at least 1"),
    (
        lambda: rare_cluster(torch.tensor(LAW), torch.tensor([5.0, 3.0]), 0.01),
        "expected a posterior of 2 probabilities",
    ),
    (lambda: words(torch.zeros(0, 2), 3), "at least one point"),
    (lambda: information_bottleneck(LAW, 4.0).at(math.nan), "expected a compression of at least 0"),
    (lambda: sample_information([0, 1], [0, 1, 1]), "expected two vectors of one length"),
    (lambda: sample_information([0.5, 1.0], [0, 1]), "first must hold integers"),
    (lambda: sample_information([-1, 1], [0, 1]), "expected integers from 0"),
    (lambda: plug_in_bias(2, 2, 0), "n must be at least 1"),
    (lambda: random_joint(1, 4, generator()), "x must be at least 2"),
]


@each_case(("call", "message"), BAD)
@pytest.mark.usefixtures("unchecked")
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def features(n: int, *, classes: int = 3, noise: float = 0.3, seed: int = 0) -> Activations:
    labels = torch.arange(n) % classes
    draw = generator(seed)
    tokens = torch.eye(max(8, classes), 8, dtype=torch.float64)[labels][:, None] + noise * torch.randn(
        n, 4, 8, generator=draw, dtype=torch.float64
    )
    return Activations(name="blocks.0", layer=0, kind="features", tokens=tokens, output=tokens, labels=labels)


def test_separated_features_reach_the_curve():
    metric = WordInformation()
    metric.update(features(240, noise=0.01))
    share, _, compression = metric.compute(draws=19)
    assert share.quantity == SHARE
    assert share.value == pytest.approx(1.0, abs=0.05)
    assert share.null is not None
    assert share.value > share.null.high
    assert compression.quantity == COMPRESSION
    assert compression.value >= math.log(3)


def test_merging_equals_one_pass():
    whole, first, second = WordInformation(), WordInformation(), WordInformation(seed=5)
    one, two = features(120), features(120, seed=2)
    for metric, parts in ((whole, (one, two)), (first, (one,)), (second, (two,))):
        for part in parts:
            metric.update(part)
    first.merge(second)
    merged, expected = first.compute()[0], whole.compute()[0]
    assert merged.n == expected.n == 240
    assert merged.value == pytest.approx(expected.value, abs=0.15)
    restored = WordInformation()
    restored.load_state_dict(first.state_dict())
    assert restored.compute()[0].value == merged.value


@pytest.mark.parametrize(
    ("activations", "reason"),
    [
        (features(10), "needs 16 samples"),
        (features(40, classes=1), "needs two classes"),
        (features(40, classes=40), "needs two samples per class"),
    ],
)
def test_metric_without_value_has_a_reason(activations, reason):
    metric = WordInformation()
    metric.update(activations)
    (row,) = metric.compute(draws=3)
    assert row.value is None
    assert reason in row.reason


def test_words_repeat():
    points = torch.randn(200, 3, generator=generator(), dtype=torch.float64)
    codes = words(points, 8)
    assert torch.equal(codes, words(points, 8))
    assert int(codes.max()) == 7


def test_noise_is_not_a_finding(unchecked, monkeypatch):
    """The search for the onset, which the headline hardly needs, is short."""
    monkeypatch.setattr(on_data, "STARTS", 4)
    monkeypatch.setattr(on_data, "STEPS", 30)
    found = 0
    for seed in range(8):
        data = sequences(n=80, seq=6, classes=4, words=10, seed=seed)
        labels = torch.randint(4, (80,), generator=generator(100 + seed))
        problem = ON_DATA.read(type(data)(tokens=data.tokens, ids=data.ids, labels=labels))
        assert not isinstance(problem, Unsupported)
        rows = list(ON_DATA.measure(problem, generator(), draws=39))
        row = next(row for row in rows if getattr(row, "quantity", "") == HELD_OUT)
        assert row.null is not None
        assert row.value is not None
        found += row.null.p(row.value, ">=") <= 0.05
    assert found <= 3
