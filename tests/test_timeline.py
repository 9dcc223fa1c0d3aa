"""The timeline on results whose order, scale and correlations are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.stand_in import THEORY
from transformer_theory.core.measurement import Measurement, Null, Table
from transformer_theory.core.result import Result
from transformer_theory.report.timeline import GEOMETRY, Series, changes, on_timeline, rank_correlations, sentences, series


def rows(quantity, values, *, model="ViT", theory="crate", every=10, **columns):
    kind = "network" if theory == "network" else "in network"
    return [
        Measurement(theory, kind, quantity, value, step=every * i, model=model, reason="lost" if value is None else "", **columns)
        for i, value in enumerate(values)
    ]


def result(*parts):
    return Result("compare", table=Table([row for part in parts for row in part]))


def curve(quantity, values, model="ViT", nulls=None):
    values = np.asarray(values, dtype=float)
    nulls = None if nulls is None else np.full(len(values), float(nulls))
    return Series("crate", quantity, model, 10 * np.arange(len(values)), values, nulls)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_layers_and_heads_are_averaged_and_so_are_their_nulls():
    null = lambda *draws: Null("permuted labels", draws)  # noqa: E731
    (found,) = series(
        result(
            rows("a", [1.0, 2.0], layer=0, head=0, null=null(0.5)),
            rows("a", [3.0, 6.0], layer=0, head=1, null=null(0.0, 1.5, 9.0)),
            rows("a", [5.0, 7.0], layer=1, head=0, null=null(1.0)),
        )
    )
    assert (found.theory, found.quantity, found.model, found.label) == ("crate", "a", "ViT", "a")
    np.testing.assert_array_equal(found.steps, [0, 10])
    np.testing.assert_allclose(found.values, [3.5, 5.5])  # of the layers' means 2, 5 and 4, 7
    np.testing.assert_allclose(found.nulls, [1.0, 1.0])


def test_a_layer_that_appears_late_does_not_make_the_mean_jump():
    (found,) = series(result(rows("a", [1.0, 2.0, 3.0], layer=0), rows("a", [None, None, 100.0], layer=1)))
    np.testing.assert_allclose(found.values, [1.0, 2.0, 3.0])


def test_series_come_in_the_asked_order_and_skip_rows_without_step_value_or_network():
    together = result(
        rows("a", [1.0, 2.0]),
        rows("b", [1.0, 2.0]),
        rows("c", [None, None]),
        [Measurement("crate", "on data", "b", 1.0, model="ViT"), Measurement("crate", "in network", "b", 1.0, step=3)],
        [Measurement("crate", "figure", "d", 1.0, step=3, model="ViT")],
    )
    assert [s.quantity for s in series(together)] == ["a", "b"]
    assert [s.quantity for s in series(together, [("crate", "c"), ("crate", "b"), ("crate", "a"), ("joma", "a")])] == ["b", "a"]
    assert series(Result("compare")) == []


def test_the_timeline_shows_headlines_validation_curves_and_geometry():
    theories = [replace(THEORY, name="crate", claims=(), experiments=(), in_networks=replace(THEORY.in_networks, headline="a"))]
    network = {"theory": "network", "model": "ViT"}
    together = result(
        rows(GEOMETRY[0], [1.0, 2.0], layer=0, split="validation", **network),
        rows("accuracy", [0.1, 0.2], split="train", **network),
        rows("accuracy", [0.1, 0.2], split="validation", **network),
        rows("attention entropy", [0.1, 0.2], layer=0, split="validation", **network),
        rows("b", [1.0, 2.0], layer=0),
        rows("a", [1.0, 2.0], layer=0, split="validation"),
    )
    assert [s.label for s in on_timeline(series(together), theories)] == ["a", "validation accuracy", GEOMETRY[0]]


def test_scaled_has_its_null_at_zero_and_its_farthest_value_at_one():
    np.testing.assert_allclose(curve("a", [1.0, 2.0, 5.0], nulls=1.0).scaled, [0, 0.25, 1])
    np.testing.assert_allclose(curve("a", [3.0, 2.0, -3.0], nulls=1.0).scaled, [0.5, 0.25, -1])
    np.testing.assert_allclose(curve("a", [3.0, 2.0, 5.0]).scaled, [1 / 3, 0, 1])


def test_crossing_is_the_first_step_beyond_half_of_the_change():
    assert curve("a", [0.0, 0.4, 0.5, 1.0]).crossing == 20
    assert curve("a", [1.0, 0.9, 0.2, 0.0]).crossing == 20
    assert curve("a", [0.0, 5.0, 0.01]).crossing is None  # back where it began
    assert curve("a", [0.0, 5.0, 1.2]).crossing is None  # nearly
    assert curve("a", [0.0, 5.0, 1.3]).crossing == 10
    assert curve("a", [2.0, 2.0, 2.0]).crossing is None
    assert curve("a", [2.0]).crossing is None


def test_crossing_belongs_to_the_curve_that_is_drawn():
    """The value and its null rise early; their difference, which is drawn, rises late."""
    values, nulls = np.array([0.0, 8.0, 8.0, 9.0, 10.0]), np.array([0.0, 8.0, 7.9, 6.5, 6.0])
    moving = Series("crate", "a", "ViT", 10 * np.arange(5), values, nulls)
    np.testing.assert_allclose(moving.excess, [0, 0, 0.1, 2.5, 4.0])
    assert moving.crossing == 30
    assert moving.scale == pytest.approx(4.0)
    assert curve("a", values).crossing == curve("a", values, nulls=3.0).crossing == 10
    assert sentences([moving]) == ["In ViT, a crosses half of its change at step 30."]
    along = Series("crate", "a", "ViT", 10 * np.arange(5), values, values - 0.1)
    assert along.still
    assert not along.constant
    assert along.scaled is along.scale is along.crossing is None
    assert sentences([along]) == ["In ViT, a does not move."]


def test_sentences_name_the_order_of_events():
    group = [
        curve("attention sharpness", [0, 0, 0, 1]),
        curve("ΔR", [0, 1, 1, 1]),
        curve("non-zeros", [1, 1, 1, 1]),
        curve("overlap", [0, 1, 1, 0]),
        curve("ΔR", [0, 0, 1, 1], model="CRATE"),
    ]
    assert sentences(group) == [
        "In ViT, ΔR crosses half of its change at step 10, attention sharpness at step 30; overlap ends near where it began; "
        "non-zeros does not move.",
        "In CRATE, ΔR crosses half of its change at step 20.",
    ]
    assert sentences([]) == []
    braces = curve("$R^{c}$", [0, 1, 1, 1])
    assert sentences([braces]) == ["In ViT, $R^{c}$ crosses half of its change at step 10."]


def test_monotone_transforms_correlate_perfectly_and_opposites_negatively():
    x = np.array([0.1, 0.5, 0.2, 0.9, 0.7, 0.3, 0.8])
    found = rank_correlations([curve("x", x), curve("exp", np.exp(5 * x)), curve("minus", -x)], generator=generator(), draws=200)
    np.testing.assert_allclose(np.array(found.values), [[1, 1, -1], [1, 1, -1], [-1, -1, 1]])
    assert found.low[0][1] == pytest.approx(1)
    assert found.high[0][2] == pytest.approx(-1)
    assert found.checkpoints == 7


@pytest.mark.parametrize("checkpoints", [20, 100])
def test_coefficient_agrees_with_scipy_with_ties(checkpoints):
    from scipy.stats import spearmanr

    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 5, checkpoints).astype(float), draw.integers(0, 5, checkpoints).astype(float)
    found = rank_correlations([curve("x", x), curve("y", y)], generator=generator(), draws=10)
    assert found.values[0][1] == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_interval_covers_a_known_correlation():
    """Independent Gaussian pairs with correlation r have Spearman's coefficient 6/pi * asin(r/2); the 95 % interval covers it."""
    truth = 6 / np.pi * np.arcsin(0.6 / 2)
    draw, covered = np.random.default_rng(1), 0
    for trial in range(60):
        x = draw.standard_normal(30)
        y = 0.6 * x + 0.8 * draw.standard_normal(30)
        found = rank_correlations([curve("x", x), curve("y", y)], generator=generator(trial), draws=200)
        low, high = found.low[0][1], found.high[0][1]
        assert low is not None
        assert high is not None
        covered += low <= truth <= high
    assert covered >= 48  # 80 %: block bootstrap intervals are a little narrow


def test_growth_alone_correlates_but_its_changes_do_not():
    """Independent growths: rank correlation 1 on every seed, while the interval of their changes contains 0 on most."""
    contain = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        up = [curve(name, np.cumsum(1 + 0.5 * draw.random(40))) for name in "ab"]
        assert rank_correlations(up, generator=generator(), draws=2).values[0][1] == pytest.approx(1)
        found = rank_correlations(changes(up), generator=generator(), draws=200)
        assert found.checkpoints == 39
        low, high = found.low[0][1], found.high[0][1]
        assert low is not None
        assert high is not None
        contain += low < 0 < high
    assert contain >= 15


def test_undefined_is_none():
    group = [curve("still", [2.0] * 8), curve("moves", [0, 3, 1, 2, 5, 4, 7, 6])]
    found = rank_correlations(group, generator=generator(), draws=100)
    assert found.values == ((None, None), (None, pytest.approx(1)))
    assert found.low[0][1] is None
    assert group[0].scaled is None
    few = rank_correlations([curve("a", [1, 2]), curve("b", [1, 2])], generator=generator())
    assert few.values[0][1] is None
    four = rank_correlations([curve("a", [1, 2, 3, 4]), curve("b", [1, 2, 4, 3])], generator=generator())
    assert four.values[0][1] == pytest.approx(0.8)
    assert four.low[0][1] is None


def test_the_seed_decides_the_interval():
    draw = np.random.default_rng(3)
    group = [curve("a", draw.random(12)), curve("b", draw.random(12))]
    first, again, other = (rank_correlations(group, generator=generator(s), draws=200) for s in (0, 0, 1))
    assert first == again
    assert first.low != other.low


def test_only_shared_steps_are_compared():
    a = curve("a", [1, 2, 3, 4, 5])
    b = Series("crate", "b", "ViT", np.array([0, 20, 30, 40, 50]), np.array([5.0, 4, 3, 2, 9]))
    found = rank_correlations([a, b], generator=generator(), draws=10)
    assert found.checkpoints == 4
    assert found.values[0][1] == pytest.approx(-1)


def test_series_of_two_networks_are_refused():
    with pytest.raises(ValueError, match="one network"):
        rank_correlations([curve("a", [1, 2, 3]), curve("a", [1, 2, 3], model="CRATE")], generator=generator())
    with pytest.raises(ValueError, match="draws"):
        rank_correlations([curve("a", [1, 2, 3])], generator=generator(), draws=0)
