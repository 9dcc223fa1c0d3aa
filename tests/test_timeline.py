"""The timeline on results whose order, scale and correlations are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.stand_in import THEORY
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import BAND_DRAWS, UNTRAINED
from transformer_theory.core.table import Table
from transformer_theory.report.curve_figures import timeline
from transformer_theory.report.curves import (
    GEOMETRY,
    MIN_DRAWS,
    MIN_OUTSIDE,
    Series,
    changes,
    correlation_table,
    curves,
    on_timeline,
    rank_correlations,
    series,
)
from transformer_theory.report.sentences import timeline_sentences


def rows(quantity, values, *, model="ViT", theory="crate", every=10, **columns):
    kind = "network" if theory == "network" else "in network"
    return [
        Measurement(
            theory,
            kind,
            quantity,
            value,
            step=every * i,
            model=model,
            reason="lost" if value is None else "",
            **columns,
        )
        for i, value in enumerate(values)
    ]


def result(*parts):
    return Result("compare", table=Table([row for part in parts for row in part]))


def curve(quantity, values, model="ViT", nulls=None, width=None, **columns):
    """A series; with ``width``, the band of its null is ``nulls`` plus or minus this number."""
    values = np.asarray(values, dtype=float)
    nulls = None if nulls is None else np.full(len(values), float(nulls))
    if width is not None:
        columns |= {"null_low": nulls - width, "null_high": nulls + width, "draws": 9}
    return Series("crate", quantity, model, 10 * np.arange(len(values)), values, nulls, **columns)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_layers_and_heads_are_averaged_and_so_are_their_nulls():
    null = lambda *draws: Null("permuted labels", draws)  # noqa: E731
    measured = result(
        rows("a", [1.0, 2.0], layer=0, head=0, nulls=(null(0.5),)),
        rows("a", [3.0, 6.0], layer=0, head=1, nulls=(null(0.0),)),
        rows("a", [5.0, 7.0], layer=1, head=0, nulls=(null(1.0),)),
    )
    (found,) = series(curves(measured))
    assert (found.theory, found.quantity, found.model, found.label) == ("crate", "a", "ViT", "a")
    np.testing.assert_array_equal(found.steps, [0, 10])
    np.testing.assert_allclose(found.values, [3.5, 5.5])  # of the layers' means 2, 5 and 4, 7
    np.testing.assert_allclose(found.nulls, [0.625, 0.625])  # draw 0 of each head: 0.5, 0.0 and 1.0
    assert found.draws == 1


def several_seeds(kind, draws):
    """Two seeds with two layers each; the last step has many more draws. ``draws(seed, layer, index)`` is a
    draw of the null.
    """
    parts = []
    for seed in range(2):
        for layer in range(2):
            for step, count in ((0, BAND_DRAWS + 3), (1, 199)):
                null = Null(
                    kind,
                    tuple(draws(seed, layer, index) for index in range(count if kind != UNTRAINED else 19)),
                )
                row = {"step": step, "seed": seed, "layer": layer, "model": "ViT", "nulls": (null,)}
                parts.append([Measurement("crate", "in network", "a", 10.0 * step + seed + 2 * layer, **row)])
    (found,) = series(curves(result(*parts)))
    return found


def test_the_band_is_the_range_of_draws_of_the_mean_over_layers_and_seeds():
    """Draws cancel between layers and seeds; a band of medians, of one seed or of all 199 draws would be
    different.
    """
    found = several_seeds(
        "permuted labels", lambda seed, layer, index: index * ((1, 1), (-1, 0))[seed][layer]
    )
    np.testing.assert_allclose(found.values, [1.5, 11.5])
    np.testing.assert_allclose(found.low, [1.0, 11.0])  # the first seed
    np.testing.assert_allclose(found.high, [2.0, 12.0])
    assert (found.seeds, found.draws) == (2, BAND_DRAWS)
    np.testing.assert_allclose(found.null_low, [0, 0])
    np.testing.assert_allclose(found.null_high, [0.25 * (BAND_DRAWS - 1)] * 2)
    np.testing.assert_allclose(found.nulls, [0.25 * (BAND_DRAWS - 1) / 2] * 2)


def test_untrained_networks_are_averaged_over_layers_only():
    shared = several_seeds(UNTRAINED, lambda seed, layer, index: index + 10 * layer)
    assert shared.draws == 19
    np.testing.assert_allclose(shared.null_low, [5, 5])
    np.testing.assert_allclose(shared.null_high, [23, 23])
    differing = several_seeds(UNTRAINED, lambda seed, layer, index: index + 100 * seed)
    assert differing.draws == 38
    np.testing.assert_allclose(differing.null_high, [118, 118])  # the mean over seeds would be 68


def test_a_seed_that_stopped_early_does_not_make_the_mean_jump():
    whole, stopped = (
        rows("a", values, layer=0, seed=seed) for seed, values in enumerate(([1.0, 2.0, 3.0], [101.0, 102.0]))
    )
    (found,) = series(curves(result(whole, stopped)))
    np.testing.assert_allclose(found.values, [1.0, 2.0, 3.0])
    assert found.seeds == 1


def test_a_layer_that_appears_late_does_not_make_the_mean_jump():
    (found,) = series(
        curves(result(rows("a", [1.0, 2.0, 3.0], layer=0), rows("a", [None, None, 100.0], layer=1)))
    )
    np.testing.assert_allclose(found.values, [1.0, 2.0, 3.0])


def test_series_skip_rows_without_step_value_or_network():
    together = result(
        rows("a", [1.0, 2.0]),
        rows("b", [1.0, 2.0]),
        rows("c", [None, None]),
        [
            Measurement("crate", "on data", "b", 1.0, model="ViT"),
            Measurement("crate", "in network", "b", 1.0, step=3),
        ],
        [Measurement("crate", "figure", "d", 1.0, step=3, model="ViT")],
    )
    assert [s.quantity for s in series(curves(together))] == ["a", "b"]
    assert series(curves(Result("compare"))) == []


def test_the_timeline_shows_headlines_validation_curves_and_geometry():
    theories = [
        replace(
            THEORY,
            name="crate",
            claims=(),
            experiments=(),
            in_networks=replace(THEORY.in_networks, headline="a", side="<="),
        )
    ]
    network = {"theory": "network", "model": "ViT"}
    together = result(
        rows(GEOMETRY[0], [1.0, 2.0], layer=0, split="validation", **network),
        rows("accuracy", [0.1, 0.2], split="train", **network),
        rows("accuracy", [0.1, 0.2], split="validation", **network),
        rows("attention entropy", [0.1, 0.2], layer=0, split="validation", **network),
        rows("b", [1.0, 2.0], layer=0),
        rows("a", [1.0, 2.0], layer=0, split="validation"),
    )
    shown = on_timeline(series(curves(together)), theories)
    assert [s.label for s in shown] == ["a", "validation accuracy", GEOMETRY[0]]
    assert [(s.side, s.title) for s in shown] == [("<=", THEORY.title), (None, ""), (None, "")]


def test_a_curve_leaves_its_band_when_it_stays_outside():
    assert MIN_OUTSIDE == 3
    band = {"nulls": 0.0, "width": 1.0}
    inside = curve("a", [0.0, 1.0, -1.0, 0.5, 0.9], **band)
    assert inside.within
    assert inside.departure is None
    up = curve("a", [0.0, 2.0, 0.0, 1.1, 1.2, 1.3], side=">=", **band)
    assert up.departure == 30
    assert up.as_predicted
    assert not replace(up, side="<=").as_predicted
    down = curve("a", [-2.0, -2.0, -2.0], side="<=", **band)
    assert down.departure == 0
    assert down.as_predicted
    briefly = curve("a", [0.0, 0.0, 0.0, 2.0, 2.0], **band)  # too late to tell
    assert briefly.departure is None
    assert briefly.within
    crosses = curve("a", [0.0, 0.0, -2.0, 2.0, 2.0], **band)  # on different sides
    assert crosses.departure is None
    assert crosses.within
    returns = curve("a", [0.0, 2.0, 2.0, 2.0, 0.0], **band)
    assert returns.departure is None
    assert not returns.within


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
    assert curve("a", values).crossing == curve("a", values, nulls=3.0).crossing == 10
    leaving = replace(moving, null_low=nulls - 0.05, null_high=nulls + 0.05, draws=9, side=">=")
    assert timeline_sentences([leaving]) == [
        "In ViT, a leaves its null band as predicted at step 20 (half of its change: step 30)."
    ]
    along = Series("crate", "a", "ViT", 10 * np.arange(5), values, values - 0.1)
    assert along.still
    assert not along.constant
    assert along.crossing is None
    assert timeline_sentences([along]) == ["In ViT, a does not move."]


def test_sentences_say_what_leaves_its_band_and_when():
    band = {"nulls": 0.0, "width": 0.4, "side": ">="}
    group = [
        curve("attention sharpness", [0, 0, 0.3, 1, 2, 3], **band),
        curve("ΔR", [0, 1, 1, 1, 1, 1], **band),
        curve("stable rank", [0, 0, 0, -1, -1, -1], **(band | {"side": "<="})),
        curve("compression", [-1, -1, -1, -1, -1, -1], **band),
        curve("non-zeros", [0.3, 0, 0, 0.1, 0, 0], **band),
        curve("margin", [0, 0.1, 0, 0, 0.2, 0.4], **band),
        curve("overlap", [0, 1, 1, 1, 0, 0], **band),
        curve("cosine", [0, 0, 0, 0, 1, 0], **band),
        replace(curve("entropy", [0, 0, 0, 0, 1, 0], **band), draws=MIN_DRAWS - 1),
        curve("rank", [0, 1, 2, 3, 4, 5]),
        curve("ΔR", [0, 1, 1, 1, 1, 1], model="CRATE", **(band | {"side": None})),
    ]
    assert timeline_sentences(group) == [
        "In ViT, ΔR leaves its null band as predicted at step 10 (half of its change: step 10), attention "
        "sharpness at step 30 (half of its change: step 40), stable rank at step 30 (half of its change: "
        "step 30); compression leaves its null band on the side opposite to the prediction from the start; "
        "non-zeros and margin stay within their null bands; cosine is outside its null band only briefly; "
        "overlap leaves its null band and returns; entropy has too few null draws; rank has no null.",
        "In CRATE, ΔR leaves its null band at step 10 (half of its change: step 10).",
    ]
    assert timeline_sentences([]) == []
    several = [replace(group[1], quantity="$R^{c}$", seeds=3)]
    assert timeline_sentences(several) == [
        "In ViT, $R^{c}$ leaves its null band as predicted at step 10 (half of its change: step 10).",
        "All curves, and the correlations below, are those of means over 3 seeds.",
    ]


def panels(figure):
    """The panels of a timeline by position of their row and column."""
    return {
        (spec.rowspan.start, spec.colspan.start): ax
        for ax in figure.axes
        if (spec := ax.get_subplotspec()) is not None
    }


def test_upwards_is_as_predicted_and_rows_share_their_axis():
    up = curve("up", [0, 1, 2, 3], nulls=0.0, width=0.1, side=">=")
    down = curve("down", [0, -1, -2, -3], nulls=0.0, width=0.1, side="<=")
    accuracy = replace(
        curve("accuracy", [0.1, 0.2, 0.3, 0.4]), theory="network", split="validation", unit="share"
    )
    other = replace(up, model="CRATE", values=0.1 * up.values)
    drawn = panels(timeline([down, up, accuracy, other]))
    assert sorted(drawn) == [(row, column) for row in range(3) for column in range(2)]
    # accuracy first, then the theories in order
    assert [drawn[row, 0].yaxis_inverted() for row in range(3)] == [False, True, False]
    assert drawn[2, 0].get_ylim() == drawn[2, 1].get_ylim()
    assert [text.get_text() for text in drawn[1, 1].texts] == ["not measured"]
    texts = [text.get_text() for ax in drawn.values() for text in ax.texts]
    assert "crate: up  ↑ predicted" in texts
    assert "crate: down  ↑ predicted: small values (axis reversed)" in texts


def test_noise_stays_small_and_faint():
    noise = curve("a", [0.5, 0.512, 0.49, 0.505, 0.495], nulls=0.5, width=0.05, side=">=")
    ax = panels(timeline([noise]))[0, 0]
    low, high = ax.get_ylim()
    assert high - low > 4 * 0.05  # the band takes at most half of the height
    (line,) = (line for line in ax.get_lines() if list(line.get_ydata()) == list(noise.values))
    finding = curve("a", [0.5, 0.6, 0.8, 0.9, 0.9], nulls=0.5, width=0.05, side=">=")
    ax = panels(timeline([finding]))[0, 0]
    strong, dot = (
        next(line for line in ax.get_lines() if list(line.get_ydata()) == list(finding.values)),
        next(line for line in ax.get_lines() if line.get_marker() == "o"),
    )
    assert line.get_linewidth() < 0.6 * strong.get_linewidth()
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (10, 0.6)


def test_the_figure_fits_on_a_page_and_its_type_is_legible():
    group = [
        replace(
            curve(f"quantity {i}", [0, 1, 2, 3], nulls=0, width=0.5), theory=f"t{i}", model=f"network {j}"
        )
        for i in range(9)
        for j in range(3)
    ]
    figure = timeline(group)
    width, height = figure.get_size_inches()
    assert width <= 7.2
    assert height <= 6.5
    figure.draw_without_rendering()
    from matplotlib.text import Text

    sizes = [
        text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()
    ]
    assert min(sizes) >= 6.5


def test_monotone_transforms_correlate_perfectly_and_opposites_negatively():
    x = np.array([0.1, 0.5, 0.2, 0.9, 0.7, 0.3, 0.8])
    found = rank_correlations(
        [curve("x", x), curve("exp", np.exp(5 * x)), curve("minus", -x)], generator=generator(), draws=200
    )
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
    """Independent Gaussian pairs with correlation r have Spearman's coefficient 6/pi * asin(r/2); the 95 %
    interval covers it.
    """
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
    """Independent growths: rank correlation 1 on every seed, while the interval of their changes contains 0
    on most.
    """
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
    few = rank_correlations([curve("a", [1, 2]), curve("b", [1, 2])], generator=generator())
    assert few.values[0][1] is None
    four = rank_correlations([curve("a", [1, 2, 3, 4]), curve("b", [1, 2, 4, 3])], generator=generator())
    assert four.values[0][1] == pytest.approx(0.8)
    assert four.low[0][1] is None


def test_correlations_are_those_of_means_over_seeds():
    noisy = [
        rows(name, [i + (-1) ** (i + seed) * 5.0 for i in range(6)], seed=seed)
        for seed in range(2)
        for name in "ab"
    ]
    table = correlation_table(series(curves(result(*noisy))))
    assert table["seeds"] == 2
    assert table["cells"][1][0]["value"] == "+1.00"
    both = series(curves(result(*noisy, rows("c", list(range(6))))))
    # of one seed: less
    assert rank_correlations(both, generator=generator(), draws=2).values[2][0] == pytest.approx(1)


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
        rank_correlations(
            [curve("a", [1, 2, 3]), curve("a", [1, 2, 3], model="CRATE")], generator=generator()
        )
    with pytest.raises(ValueError, match="draws"):
        rank_correlations([curve("a", [1, 2, 3])], generator=generator(), draws=0)
