"""The statements about the figures of JoMA, checked at the published settings."""

import pytest

from tests.cases import each_case
from transformer_theory.theories.joma.figures import (
    hierarchy,
    invariant,
    linear_orbit,
    lower_layer,
    relatives,
    text_depth,
    two_phases,
)

CORNERS = (
    lower_layer.lower_layer(units=60, seeds=1),
    lower_layer.lower_layer(scale=2, seeds=1),
    lower_layer.lower_layer(units=500, tokens=2, scale=3, until=1e5, seeds=1),
    lower_layer.lower_layer(units=2, tokens=2, scale=1e-6, until=1, seeds=2),
    two_phases.two_phases(steps=10, temperature=0.1, rate=1, start=1, until=1e5),
    two_phases.two_phases(steps=10, temperature=100, rate=1e-6, start=0, until=2),
    linear_orbit.linear_orbit(discriminancy=(1e3, -1e3, 0.0, 1e-300), end=1e-12),
    linear_orbit.linear_orbit(discriminancy=(5.0,), end=0.999999),
    relatives.relatives(rho=0.01, levels=8, rate=1e-6, draws=1000, samples=200, steps=10, seeds=1),
    relatives.relatives(rho=0.99, levels=2, rate=10, draws=1000, samples=200, steps=10, seeds=1),
    invariant.invariant(steps=10, rate=10, temperature=0.1, scale=1, seeds=1),
    invariant.invariant(steps=10, rate=1e-6, temperature=100, scale=1e-6, seeds=1),
    hierarchy.hierarchy(steps=2, rate=1, decay=1, dim=4, seeds=1, settings=1),
    text_depth.text_depth(
        layers=(1,), rates=(1.0,), steps=1, words=10, dim=2, measurements=1, windows=1, seeds=1
    ),
)


def test_the_correlation_hides_what_the_error_shows(unchecked):
    """The setting of Fig. 2: the correlation stays above .98 while the size of the prediction goes wrong."""
    result = invariant.invariant(seeds=1).run()

    def value(quantity: str, step: int, way: str = "both terms") -> float:
        return (
            result.select(quantity=quantity, at={"contexts": "Gaussian", "prediction": way}, step=step)
            .one()
            .value
        )

    assert all(value(invariant.CORRELATION, step) > 0.98 for step in (100, 1000, 2000))
    assert value(invariant.ERROR, 100) < 0.3
    assert value(invariant.ERROR, 2000) > 5
    assert value(invariant.ERROR, 2000, "moving mean") < 1
    judged = result.select(quantity=invariant.ERROR, seed=0)
    assert judged.select(at={"contexts": "Gaussian"}, step=100).one().verdict == "consistent"
    # Attention has moved .08 of its mass only, but the second moment does not factorise.
    assert judged.select(at={"contexts": "random"}, step=1000).one().verdict == "not covered"


@each_case("experiment", CORNERS, ids=lambda experiment: experiment.name)
def test_settings_work_at_the_ends_of_their_ranges(unchecked, experiment):
    result = experiment.run()
    assert result.table
    assert all(row.value is not None or row.reason for row in result.table)
    experiment.plot(result)


def test_legends_cover_no_points_and_colours_have_a_bar(unchecked):
    experiment = invariant.invariant.quick()
    assert all(ax.get_legend() is None for ax in experiment.plot(experiment.run()).axes)
    experiment = lower_layer.lower_layer.quick()
    assert experiment.plot(experiment.run()).axes[-1].get_ylabel() == "V / largest entry"


@pytest.mark.parametrize(
    ("units", "tokens", "shape", "text"),
    [(500, 20, (40, 20), "the first 40 of 500 units"), (3, 50, (3, 6), "the first 6 of 50 tokens")],
)
def test_long_matrices_are_drawn_in_part(unchecked, units, tokens, shape, text):
    experiment = lower_layer.lower_layer(units=units, tokens=tokens, seeds=1)
    figure = experiment.plot(experiment.run())
    assert {ax.images[0].get_array().shape for ax in figure.axes if ax.images} == {shape}
    assert text in " ".join(figure.get_supxlabel().split())
    assert "the first" not in " ".join(
        experiment.quick().plot(experiment.quick().run()).get_supxlabel().split()
    )


def test_released_entropies_are_predictions_only_for_their_vocabulary(unchecked):
    for (_, layers), (lowest, final) in text_depth.RELEASED.items():
        assert len(lowest) == len(final) == layers
        # uniform causal attention over 35 words has the entropy log(35!) / 35 = 2.634
        assert all(0 <= low <= end < 2.634 for low, end in zip(lowest, final))
    sizes = {"steps": 2, "measurements": 2, "windows": 2, "words": 30, "dim": 4, "seeds": 2}
    result = text_depth.text_depth(layers=(1,), rates=(1e-3,), **sizes).run()
    assert not any(row.predicted for row in result.table)
    row = result.select(quantity=text_depth.LOWEST).one()
    assert "1.65" in row.note
    assert row.n == 2
    assert row.interval[0] < row.value < row.interval[1]
    rank = result.select(quantity=text_depth.RANK_FINAL).one()
    assert 1 <= rank.value <= 4
    curve = result.select(quantity=text_depth.ENTROPY, at={"rate": 1e-3}, model="1 layer", layer=0)
    assert curve.column("step") == [0, 1, 2]
    assert row.value <= min(curve.column("value"))  # the mean of the smallest values
    assert curve[-1].value == pytest.approx(result.select(quantity=text_depth.FINAL).one().value)


def test_the_stable_rank_falls_and_comes_back(unchecked):
    result = lower_layer.lower_layer(seeds=4).run()
    drop, rebound = (
        result.select(quantity=quantity).one() for quantity in (lower_layer.DROP, lower_layer.REBOUND)
    )
    assert drop.value > 0.1 > 1e-9 > drop.null.high
    assert rebound.value > 0.1
    assert rebound.null.high == 0
