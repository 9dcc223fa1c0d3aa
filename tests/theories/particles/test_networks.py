"""Whether tokens cluster, in networks and on data, and the bad inputs of both."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.data.synthetic import noise_like
from transformer_theory.models.vit import ViT
from transformer_theory.probes import probe, respond
from transformer_theory.theories import particles
from transformer_theory.theories.particles import in_networks, on_data
from transformer_theory.theories.particles.in_networks import (
    ALIGNMENT,
    BETWEEN,
    DIFFERENCE,
    RISE,
    SHARE,
    WITHIN,
)
from transformer_theory.theories.particles.within_between import pair_sums, position_permutations, shuffled


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(shared: float = 0.3, *, n: int = 60, T: int = 6, d: int = 8, seed: int = 0) -> torch.Tensor:
    own, common = torch.randn(2, n, T, d, generator=generator(seed))
    return (
        2
        + torch.randn(T, d, generator=generator(seed + 1))
        + shared**0.5 * common[:, :1]
        + (1 - shared) ** 0.5 * own
    )


def features(x: torch.Tensor, layer: int = 0) -> Activations:
    return Activations(f"block {layer}", layer, "features", x, x, after_attention=x)


def measured(metric, *activations: Activations, draws: int = 19) -> dict:
    for each in activations:
        metric.update(each)
    return {row.quantity: row for row in metric.compute(draws=draws)}


def test_the_difference_is_that_of_explicit_pairs():
    x = tokens()
    u = torch.nn.functional.normalize(x.double(), dim=-1)
    gram = torch.einsum("sid,rjd->srij", u, u)
    n, T = x.shape[:2]
    same, place = torch.eye(n).bool()[:, :, None, None], torch.eye(T).bool()
    rows = measured(particles.SequenceClusters(), features(x))
    within, between = (float(gram[mask.expand_as(gram)].mean()) for mask in (same & ~place, ~same & ~place))
    at_position = float(gram[(~same & place).expand_as(gram)].mean())
    assert rows[WITHIN].value == pytest.approx(within, abs=1e-6)
    assert rows[BETWEEN].value == pytest.approx(between, abs=1e-6)
    assert rows[DIFFERENCE].value == pytest.approx(within - between, abs=1e-6)
    assert rows[SHARE].value == pytest.approx((within - between) / (1 - at_position), abs=1e-5)
    assert rows[SHARE].value > rows[SHARE].null.high


def test_permuted_draws_are_the_same_statistic_of_shuffled_tokens():
    x = tokens().double()
    u = torch.nn.functional.normalize(x, dim=-1)
    valid = torch.rand(60, 6, generator=generator(5)) < 0.8
    for present in (torch.ones_like(valid), valid):
        draws = pair_sums(u, present, draws=3).chance
        for draw, order in zip(draws, position_permutations(60, 6, 3)):
            assert draw == pytest.approx(
                pair_sums(shuffled(u, order), shuffled(present, order)).difference, abs=1e-12
            )


def test_on_noise_p_values_are_uniform():
    """Of 60 data sets of independent tokens with positions, the share with p <= .1 is near a tenth."""
    small = 0
    for seed in range(60):
        row = measured(particles.SequenceClusters(), features(tokens(0.0, seed=100 + seed, n=30)))[SHARE]
        small += row.null.p(row.value, ">=") <= 0.1
    assert 1 <= small <= 14  # 6 expected; both ends have a probability below .002


def test_a_class_token_padding_and_zero_tokens_are_left_out():
    x = tokens(T=7)
    plain = measured(particles.SequenceClusters(), features(x[:, 1:]))
    first = torch.cat([torch.ones(60, 1, 8), x[:, 1:]], 1)
    content = (torch.arange(7) > 0).expand(60, 7)
    found = measured(particles.SequenceClusters(), replace(features(first), content=content))
    assert found[SHARE].value == pytest.approx(plain[SHARE].value, abs=1e-6)
    padded = torch.cat([x[:, 1:], torch.full((60, 2, 8), 3.0)], 1)
    real = (torch.arange(8) < 6).expand(60, 8)
    rows = measured(particles.SequenceClusters(), replace(features(padded), real=real))
    assert rows[SHARE].value == pytest.approx(plain[SHARE].value, abs=1e-6)
    assert not rows[SHARE].note
    unmasked = measured(particles.SequenceClusters(), features(padded))[SHARE].value
    assert unmasked < 0.9 * plain[SHARE].value
    zero = x[:, 1:].clone()
    zero[::2, 0] = 0
    row = measured(particles.SequenceClusters(), features(zero))[SHARE]
    assert row.note == "30 tokens without a direction are left out"
    assert row.value == pytest.approx(plain[SHARE].value, abs=0.1)


def test_a_causal_mask_leaves_nothing_out():
    x = tokens()
    mask = torch.ones(1, 1, 6, 6).tril().bool()
    rows = measured(
        particles.SequenceClusters(), Activations("attention", 0, "attention", x, x, mask=mask), features(x)
    )
    assert rows[SHARE].value == measured(particles.SequenceClusters(), features(x))[SHARE].value


@each_case(
    ("x", "reason"),
    [
        (torch.zeros(4, 3, 2), "no token has a direction"),
        (torch.full((4, 3, 2), torch.nan), "no token has a direction"),
        (torch.randn(4, 1, 2, generator=generator()), "sequences of one token"),
        (torch.randn(1, 5, 2, generator=generator()), "at least two sequences"),
        (torch.randn(1, 5, 2, generator=generator()).expand(4, 5, 2), "the same tokens"),
    ],
)
def test_tokens_that_do_not_fit_give_one_row_with_the_reason(x: torch.Tensor, reason: str):
    (row,) = measured(particles.SequenceClusters(), features(x)).values()
    assert row.quantity == SHARE
    assert row.value is None
    assert reason in row.reason


def test_long_sequences_have_64_positions():
    x = tokens(T=200, n=8, d=3)
    keep = torch.linspace(0, 199, 64).round().long()
    assert measured(particles.SequenceClusters(), features(x)) == measured(
        particles.SequenceClusters(), features(x[:, keep])
    )


def moved(value: torch.Tensor, *, n: int = 16) -> tuple[Activations, Activations]:
    x = torch.nn.functional.normalize(torch.randn(n, 6, 8, generator=generator(3)), dim=-1)
    A = torch.softmax(3 * x @ x.mT, -1)
    y = x + 0.3 * A @ x @ value
    return Activations("attention", 0, "attention", x, y - x, weights=A[:, None]), Activations(
        "block", 0, "features", x, y, after_attention=y
    )


def test_alignment_says_whether_the_theory_covers_the_block():
    rows = measured(particles.ValueAlignment(), *moved(torch.eye(8)))
    assert rows[ALIGNMENT].value == pytest.approx(1, abs=1e-5)
    assert (rows[ALIGNMENT].verdict, rows[RISE].verdict) == ("holds", "consistent")
    assert rows[ALIGNMENT].value > rows[ALIGNMENT].null.high
    assert rows[RISE].value == pytest.approx(rows[RISE].predicted, abs=1e-6)
    rows = measured(particles.ValueAlignment(), *moved(-torch.eye(8)))
    assert rows[ALIGNMENT].value == pytest.approx(-1, abs=1e-5)
    assert (rows[ALIGNMENT].verdict, rows[RISE].verdict) == ("fails", "not covered")
    assert rows[RISE].value < 0 < rows[RISE].predicted


def test_alignment_without_what_it_needs():
    attention, block = moved(torch.eye(8))
    for activations, reason in (
        ([block], "no addition of attention"),
        ([attention, replace(block, after_attention=None)], "no addition of attention"),
        ([attention, replace(block, after_attention=block.tokens)], "moves no token"),
        ([attention, replace(block, after_attention=block.tokens * torch.nan)], "moves no token"),
    ):
        (row,) = measured(particles.ValueAlignment(), *activations).values()
        assert reason in row.reason


def test_positions_of_unequal_length_lower_the_share():
    """Directions at long positions vary less: with lengths l, D is weighted by 1 / (l_i l_j), the variance by
    1 / l_i^2.
    """
    own, common = torch.randn(2, 400, 8, 256, generator=generator(), dtype=torch.float64)
    places = 16 * torch.nn.functional.normalize(
        torch.randn(8, 256, generator=generator(1), dtype=torch.float64), dim=-1
    )
    lengths = torch.tensor([1.0, 10.0] * 4, dtype=torch.float64)
    weights = (1 + lengths.square()).rsqrt()
    factor = float((weights.sum().square() - weights.square().sum()) / 56 / weights.square().mean())
    for scale, expected in ((1.0, 0.36), (lengths[:, None], 0.36 * factor)):
        found = pair_sums(*particles.directions(scale * places + 0.6 * common[:, :1] + 0.8 * own)).share
        assert found == pytest.approx(expected, abs=0.015)
    assert factor < 0.6


@pytest.mark.parametrize("shape", [(20, 5, 3), (20, 5), (20, 2, 8, 8)])
def test_exchanged_inputs_keep_every_position(shape):
    data = torch.arange(torch.Size(shape).numel()).reshape(shape)
    made = particles.mosaics(data, {}, generator())
    assert torch.equal(made["value"], data)
    assert len(made["null"]) == 19
    for each in made["null"]:
        assert each.shape == data.shape
        assert torch.equal(each.sort(0).values, data)
        assert not torch.equal(each, data)
    assert torch.equal(made["null"][0], particles.mosaics(data, {}, generator(9))["null"][0])


@pytest.mark.parametrize("shape", [(1, 5, 3), (20, 2, 7, 8), (20,)])
def test_inputs_that_cannot_be_exchanged_have_no_null(shape):
    assert set(particles.mosaics(torch.zeros(shape), {}, generator())) == {"value"}


def test_a_network_on_noise_is_within_its_exchanged_inputs():
    """Attention mixes independent tokens: beyond the passive null, within that of exchanged inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ViT.for_tokens(8, 6, 3, dim=16, depth=1, heads=2).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # so that attention moves tokens
            parameter.mul_(4.0 if "attention" in name and parameter.ndim == 2 else 1.0)
    noise = torch.randn(64, 8, 6, generator=generator(4))
    with probe(model, [particles.SequenceClusters()], draws=19) as p, torch.no_grad():
        model(noise)
    (passive,) = (row for row in p.rows if row.quantity == SHARE)
    assert passive.value > passive.null.high
    response = in_networks.MOSAICS
    made = response.inputs(noise, {}, generator())
    row = (
        respond(model, made, response.metrics(), null_kind=response.null_kind)
        .table.select(quantity=SHARE)
        .one()
    )
    assert row.null.kind == "inputs with tokens of other sequences"
    assert len(row.null.draws) == 19
    assert abs(row.value - row.null.median) < abs(row.null.median) / 2
    assert row.null.low - 0.02 < row.value < row.null.high + 0.02


def data(x: torch.Tensor) -> TokenData:
    return TokenData(tokens=x.double(), name="test")


def rows_on(x: torch.Tensor, draws: int = 19) -> dict:
    problem = on_data.read(data(x))
    assert not isinstance(problem, Unsupported)
    return {row.quantity: row for row in collect(on_data.measure(problem, generator(), draws=draws))[0]}


def test_data_that_cluster_and_their_noise():
    rows = rows_on(tokens(0.5))
    assert rows[SHARE].value == pytest.approx(0.5, abs=0.1)
    assert rows[SHARE].value > rows[SHARE].null.high
    noise = noise_like(data(tokens(0.5)), generator(1))
    row = rows_on(noise.tokens)[SHARE]
    assert row.null.low < row.value < row.null.high


def test_clusters_of_the_flow_and_the_half_space():
    signs = torch.tensor([1.0, -1, 1, -1, 1, -1])[:, None]
    x = tokens(0.9, n=24) - 2
    assert rows_on(x)[on_data.CLUSTERS].value < rows_on(x * signs)[on_data.CLUSTERS].value
    assert rows_on(x.abs())[on_data.HALF_SPACE].verdict == "holds"
    assert rows_on(torch.cat([x, -x], 1))[on_data.HALF_SPACE].verdict == "fails"


def test_missing_tokens_do_not_attract():
    x = tokens(n=4).double()
    u = torch.nn.functional.normalize(x, dim=-1)
    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[:, 4:] = False
    velocity = on_data.field(u * valid[..., None], beta=2.0, valid=valid)
    assert torch.equal(velocity[:, 4:], torch.zeros(4, 2, 8, dtype=torch.float64))
    assert torch.allclose(velocity[:, :4], particles.softmax_field(u[:, :4], beta=2.0))


def test_a_difference_of_exactly_zero():
    x = torch.cartesian_prod(torch.tensor([1.0, -1]), torch.tensor([1.0, -1]))[..., None]
    rows = rows_on(x)
    assert rows[SHARE].value == rows[DIFFERENCE].value == 0
    assert max(rows[SHARE].null.draws) > 0


@pytest.mark.parametrize(
    ("x", "reason"), [(torch.zeros(5, 4, 3), "no token has a direction"), (torch.ones(5, 1, 3), "one token")]
)
def test_data_without_pairs_are_refused(x: torch.Tensor, reason: str):
    problem = on_data.read(data(x))
    assert isinstance(problem, Unsupported)
    assert reason in problem.reason


@each_case(
    ("shared", "one_length", "expected"),
    [
        (0.2, True, 0.15),
        (0.5, True, 0.39),
        (0.8, True, 0.62),
        (0.2, False, 0.14),
        (0.5, False, 0.36),
        (0.8, False, 0.58),
    ],
)
def test_the_share_in_four_dimensions_is_smaller_than_that_of_the_contents(shared, one_length, expected):
    """The numbers that the claim states, by numpy, from the mean cosines of explicit pairs of sequences."""
    random, n, T, d = np.random.default_rng(0), 50, 8, 4
    shares = []
    for _ in range(30):
        places = random.normal(size=(T, d))
        if one_length:
            places *= d**0.5 / np.linalg.norm(places, axis=1, keepdims=True)
        common, own = random.normal(size=(n, 1, d)), random.normal(size=(n, T, d))
        x = 2 * places + shared**0.5 * common + (1 - shared) ** 0.5 * own
        u = x / np.linalg.norm(x, axis=-1, keepdims=True)
        cosines = np.einsum("sid,rjd->srij", u, u)
        same, place = np.eye(n, dtype=bool), np.eye(T, dtype=bool)
        within, across = cosines[same][:, ~place].mean(), cosines[~same]
        shares.append((within - across[:, ~place].mean()) / (1 - across[:, place].mean()))
    assert np.mean(shares) == pytest.approx(expected, abs=0.015)
