"""Numbers read off attention weights: closed forms, bounds and refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import metrics


def weights(generator: torch.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1)


UNIFORM = torch.full((2, 3, 8), 1 / 8, dtype=torch.float64)
ONE_HOT = torch.eye(8, dtype=torch.float64)[:3].expand(2, 3, 8)
PAIR = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)


def test_closed_forms():
    assert_close(metrics.entropy(UNIFORM), torch.full((2, 3), math.log(8), dtype=torch.float64))
    assert_close(metrics.entropy(PAIR), torch.tensor([math.log(2)], dtype=torch.float64))
    assert_close(metrics.effective_support(UNIFORM), torch.full((2, 3), 8.0, dtype=torch.float64))
    assert_close(metrics.effective_support(PAIR), torch.tensor([2.0], dtype=torch.float64))
    assert_close(metrics.sharpness(UNIFORM), torch.zeros(2, 3, dtype=torch.float64), atol=1e-15, rtol=0)
    assert_close(metrics.sharpness(PAIR), torch.tensor([0.5], dtype=torch.float64))
    for value, expected in (
        (metrics.entropy(ONE_HOT), 0),
        (metrics.sharpness(ONE_HOT), 1),
        (metrics.effective_support(ONE_HOT), 1),
        (metrics.top1_mass(ONE_HOT), 1),
    ):
        assert bool((value == expected).all())
    assert_close(metrics.top1_mass(UNIFORM), torch.full((2, 3), 1 / 8, dtype=torch.float64))


def test_entropy_is_torchs(generator):
    a = weights(generator, 2, 4, 5, 7)
    assert_close(metrics.entropy(a), torch.distributions.Categorical(probs=a).entropy())


def test_sharpness_counts_the_allowed_keys(generator):
    """Uniform attention under a causal mask is not sharp at all; a row with one key expresses nothing."""
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    uniform = allowed.double() / allowed.sum(-1, keepdim=True)
    assert_close(
        metrics.sharpness(uniform, allowed=allowed), torch.zeros(6, dtype=torch.float64), atol=1e-15, rtol=0
    )
    assert float(metrics.sharpness(uniform)[2]) > 0.3  # without the mask it would look sharp
    a = (
        torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
        .masked_fill(~allowed, -math.inf)
        .softmax(-1)
    )
    for t in range(1, 6):
        assert_close(
            metrics.sharpness(a, allowed=allowed)[:, t], metrics.sharpness(a[:, t : t + 1, : t + 1])[:, 0]
        )


def test_sink_mass_of_a_map_by_hand():
    a = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.1, 0.4]], dtype=torch.float64)
    assert_close(metrics.sink_mass(a), torch.tensor(0.6, dtype=torch.float64))
    assert_close(metrics.sink_mass(a, position=2), torch.tensor(0.25, dtype=torch.float64))
    assert_close(metrics.sink_mass(a, position=-2), torch.tensor(0.15, dtype=torch.float64))
    assert metrics.sink_mass(a.expand(4, 5, 2, 3)).shape == (4, 5)


def test_hard_max_gap_bounds_what_softmax_leaves_to_the_others(generator):
    scores = 3 * torch.randn(200, 1, 9, generator=generator, dtype=torch.float64)
    gap = metrics.hard_max_gap(scores)
    ordered = scores.sort(-1, descending=True).values
    assert_close(gap, ordered[..., 0] - ordered[..., 1])
    a = scores.softmax(-1)
    assert bool((1 - metrics.top1_mass(a) <= 8 * torch.exp(-gap) + 1e-12).all())
    assert_close(metrics.hard_max_gap(a.log()), gap)
    assert float(metrics.hard_max_gap(torch.tensor([[2.0, 2.0, 1.0]]))) == 0.0
    allowed = torch.tensor([[True, False, True]])
    assert float(metrics.hard_max_gap(torch.tensor([[2.0, 2.0, 1.0]]), allowed=allowed)) == 1.0
    assert float(metrics.hard_max_gap(torch.tensor([[2.0]]))) == math.inf


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), keys=st.integers(2, 40), scale=st.floats(0.01, 20))
def test_no_entropy_is_below_its_bound(seed, keys, scale):
    scores = scale * torch.randn(20, keys, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = torch.linalg.vector_norm(scores - scores.mean(-1, keepdim=True), dim=-1)
    bound = metrics.entropy_lower_bound(spread, keys=keys)
    assert bool((metrics.entropy(scores.softmax(-1)) >= bound - 1e-10).all())


@each_case("keys", [2, 5, 64])
@each_case("spread", [0.0, 0.3, 2.0, 9.0])
def test_the_bound_is_met_by_one_score_above_equal_others(keys, spread):
    scores = torch.full((1, keys), -1.0, dtype=torch.float64)
    scores[0, 0] = keys - 1
    scores *= spread / torch.linalg.vector_norm(scores)
    bound = metrics.entropy_lower_bound(torch.tensor(spread, dtype=torch.float64), keys=keys)
    assert_close(metrics.entropy(scores.softmax(-1))[0], bound, rtol=1e-9, atol=1e-12)
    assert_close(
        metrics.entropy_lower_bound(torch.tensor(0.0, dtype=torch.float64), keys=keys),
        torch.tensor(math.log(keys)).double(),
    )


def test_the_bound_stays_finite():
    assert metrics.entropy_lower_bound(torch.tensor([1e300, math.inf]).double(), keys=5).tolist() == [
        0.0,
        0.0,
    ]
    assert metrics.entropy_lower_bound(torch.tensor([2.0]), keys=1).tolist() == [0.0]


def test_entropy_does_not_depend_on_the_order_of_keys(generator):
    a = weights(generator, 3, 4, 9)
    order = torch.randperm(9, generator=generator)
    assert_close(metrics.entropy(a[..., order]), metrics.entropy(a))
    assert_close(metrics.sink_mass(a[..., order]), metrics.sink_mass(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shorter_types_agree(generator, dtype):
    a = torch.randn(8, 16, 32, generator=generator).softmax(-1)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    assert_close(metrics.entropy(a.to(dtype)).double(), metrics.entropy(a.double()), atol=tolerance, rtol=0)


@pytest.mark.usefixtures("unchecked")
@each_case("of", ["entropy", "sharpness", "effective_support", "top1_mass", "sink_mass"])
@each_case("bad", [[[0.5, 0.6]], [[1.5, -0.5]], [[math.nan, 1.0]], [[0.0, 0.0]], [[]]])
def test_what_is_no_distribution_is_refused(of, bad):
    with pytest.raises(ValueError, match="weights must"):
        getattr(metrics, of)(torch.tensor(bad))


@pytest.mark.usefixtures("unchecked")
def test_bad_input_says_what_to_do():
    with pytest.raises(ValueError, match="zero on keys that are not allowed"):
        metrics.sharpness(UNIFORM, allowed=torch.ones(3, 8, dtype=torch.bool).tril())
    with pytest.raises(ValueError, match=r"position must lie in \[-8, 8\), got 8"):
        metrics.sink_mass(UNIFORM, position=8)
    with pytest.raises(ValueError, match="keys must be at least 1"):
        metrics.entropy_lower_bound(torch.tensor(1.0), keys=0)
    with pytest.raises(ValueError, match="spread must be >= 0"):
        metrics.entropy_lower_bound(torch.tensor(-1.0), keys=3)
    for bad in ([[math.nan, 1.0]], [[math.inf, 1.0]], [[-math.inf, -math.inf]]):
        with pytest.raises(ValueError, match="scores must be below infinity"):
            metrics.hard_max_gap(torch.tensor(bad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(dtype):
    # 70,000 keys do not fit into float16
    keys = 2**17
    uniform = torch.full((1, keys), 2.0**-17, dtype=dtype)
    assert float(metrics.entropy(uniform)) == pytest.approx(17 * math.log(2), rel=1e-6)
    assert float(metrics.sharpness(uniform)) == pytest.approx(0, abs=1e-6)
    assert float(metrics.effective_support(uniform)) == pytest.approx(keys, rel=1e-4)
    assert float(metrics.entropy_lower_bound(torch.zeros((), dtype=dtype), keys=keys)) == pytest.approx(
        17 * math.log(2), rel=1e-6
    )
    scores = torch.tensor([[-60000.0, 60000.0, -60000.0]], dtype=dtype)
    exact = 2 * float(scores[0, 1])
    assert float(metrics.hard_max_gap(scores)) == exact
    maps = torch.eye(3, dtype=dtype).expand(40, 1, 3, 3) * 0.75 + 0.125
    maps = maps - 0.125 * torch.eye(3, dtype=dtype).roll(1, 0)
    expected = torch.linalg.matrix_power((maps[0, 0].double() + torch.eye(3)) / 2, 40)
    assert_close(metrics.rollout(maps).double(), expected, rtol=1e-5, atol=0)


@pytest.mark.usefixtures("unchecked")
@each_case("entropies", [[99.0], [-1.0], [0.2], [math.nan], [[0.0]]])
def test_entropies_of_other_weights_are_refused(entropies):
    with pytest.raises(ValueError, match="entropies must"):
        metrics.sharpness(PAIR, entropies=torch.tensor(entropies, dtype=torch.float64))


def test_known_entropies_give_the_same_sharpness(generator):
    a = weights(generator, 4, 6, 9, scale=3.0)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()[:6]
    a = (a * causal) / (a * causal).sum(-1, keepdim=True)
    for rows in (a, a.float(), ONE_HOT, UNIFORM):
        mask = causal if rows.shape[-1] == 9 else None
        known = metrics.sharpness(rows, allowed=mask, entropies=metrics.entropy(rows))
        assert torch.equal(known, metrics.sharpness(rows, allowed=mask))
