"""The page of a training: what was reached and kept, how it learned, what was measured in it; and the curves
behind it.
"""

import numpy as np
import pytest

from tests.report.markup import well_formed, words
from tests.report.synthetic import THEORIES, in_network, trained
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.plotting import axes
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.report import page, write
from transformer_theory.report.curve_figures import (
    MAX_POINTS,
    _steps,
    every_quantity,
    in_training,
    timeline,
)
from transformer_theory.report.curves import Curves, Series, curves
from transformer_theory.report.training import training_summary


def page_of(result):
    return page(result, theories=THEORIES)


@pytest.fixture(scope="module")
def made() -> str:
    return page_of(trained(data='cats <script>alert("x")</script> & $dogs'))


def test_markup_is_well_formed_self_contained_and_escaped(made):
    reader = well_formed(made)
    # the page's own
    assert [tag for tag, _ in reader.tags if tag in ("script", "iframe", "link", "object")] == ["script"]
    assert "&lt;script&gt;alert" in made


def test_the_head_holds_what_was_reached_kept_and_tested(made):
    text = words(made).replace("\u00a0", " ")
    for piece in (
        # 351 of 540, as scipy.stats.binomtest
        "65.0 % test accuracy, 540 samples 95 % interval [60.8 %, 69.0 %]",
        "1.25 test loss null, shuffled pixels: 1.50",
        "from step 40. Of 5 measurements",  # of equals the last
        "validation accuracy (60.00 % of 126 samples)",
        "test data were used once",
        "41,194 parameters",
        "1,131 train, 126 validation, 540 test",
        "digits, but epochs 4 instead of",
        "9.0 s on cpu",
        "640 images per second",
        "above it in 1 of 2 layers",
    ):
        assert piece in text, piece
    order = [
        made.index(f'id="{name}"')
        for name in ("summary", "learning", "timeline", "rate-reduction", "own", "layers", "provenance")
    ]
    assert order == sorted(order)


def test_data_that_are_a_copy_in_jpeg_are_named_so():
    text = words(page_of(trained(layers=0, theories=False, data="cats, JPEG copy")))
    assert "JPEG copy The images are a copy compressed as JPEGs" in text


def test_the_same_result_gives_the_same_bytes(tmp_path):
    result = trained(layers=0, theories=False)
    result.save(tmp_path / "run")
    path = write(Result.load(tmp_path / "run"), tmp_path / "run", theories=THEORIES)
    assert path.read_text(encoding="utf-8") == page_of(result)
    assert {file.name for file in path.parent.iterdir()} >= {"report.html", "references.bib", "table.jsonl"}


def test_a_training_that_stopped_says_so():
    text = words(page_of(trained((0.1,), tested=None, theories=False, layers=0)))
    assert "not finished The training stopped before its end, at step 0 or later" in text
    assert "One timeline" not in text


def test_no_rows_and_no_settings_still_give_a_page():
    assert "not finished" in words(page_of(Result("train")))


def test_numbers_that_are_missing_leave_gaps():
    result = trained((0.1, None, 0.3), layers=1, heads=1, theories=False)
    missing = Measurement(
        "rate_reduction",
        "in network",
        "ΔR of the features",
        None,
        reason="<b>nothing</b> was measured",
        step=0,
    )
    result = Result("train", result.settings, Table([*result.table, missing]))
    found = training_summary(result)
    assert (found.kept, found.kept_score.value) == (20, 0.3)
    text = words(page_of(result))
    assert "<b>nothing</b> was measured" in text
    assert "nan" not in text.split()


def test_an_objective_names_its_own_score():
    rows = []
    for step, (subspaces, accuracy) in enumerate(((0.2, 0.0), (0.7, 0.9), (0.6, 1.0))):
        for quantity, value in (("accuracy", accuracy), ("accuracy of nearest subspaces", subspaces)):
            rows.append(
                in_network(
                    "network", quantity, value, step=step, model="crate", split="validation", unit="share"
                )
            )
    rows.append(
        in_network(
            "network",
            "accuracy",
            1.0,
            step=0,
            model="crate",
            split="validation",
            unit="share",
            at={"setting": "equal steps"},
        )
    )
    settings = {"score": "accuracy of nearest subspaces"}
    found = training_summary(Result("train", settings, Table(rows)))
    assert (found.score, found.kept) == ("validation accuracy of nearest subspaces", 1)
    assert training_summary(Result("train", {}, Table(rows))).kept == 2  # by default the first share


def test_an_untrained_network_that_was_kept_is_named_so():
    assert "No later measurement was as good as the first" in words(
        page_of(trained((0.7, 0.1), layers=0, theories=False))
    )


def test_a_network_that_no_theory_measures_says_so_once_and_has_no_empty_parts():
    result = trained(theories=False, layers=0)
    none = Measurement(
        "network",
        "network",
        "attention",
        None,
        reason="the network has no attention maps",
        model="crate",
        step=0,
    )
    made = page_of(Result("train", result.settings | {"theories": ["crate"]}, Table([*result.table, none])))
    assert words(made).count("the network has no attention maps") == 1
    for name in ("own", "layers", "timeline"):
        assert f'id="{name}"' not in made


def test_samples_and_attention_maps_are_on_the_page():
    result = trained(layers=0, theories=False)
    images = np.arange(3 * 64, dtype=np.uint8).reshape(3, 1, 8, 8)
    columns = {"images": images, "labels": [0, 1, 1], "answers": [0, 0, 1], "confidences": [0.5, 0.75, 0.9]}
    columns |= {"rules": ["right", "wrong", "right"], "names": ["<cat>", "dog"]}
    arrays = {f"samples/{name}": np.array(column) for name, column in columns.items()}
    maps = np.full((2, 1, 1, 2, 16, 16), 1 / 16)
    arrays |= {
        "network/crate/attention": maps,
        "network/crate/steps": np.array([0, 40]),
        "network/images": images[:2] / 255,
    }
    made = page_of(Result("train", result.settings, result.table, arrays))
    text = words(made).replace("\u00a0", " ")
    assert "Right Of 540 test images in random order" in text
    assert "✗ <cat> 75.00 % label: dog" in text
    assert "Where the network looks" in text
    assert made.count("data:image/png;base64") >= 3
    well_formed(made)


def test_many_quantities_of_one_network_have_two_columns():
    steps = np.arange(4)
    few, many = (
        [Series("crate", f"q{number}", "crate", steps, np.arange(4.0)) for number in range(count)]
        for count in (6, 9)
    )
    assert [
        len({round(ax.get_position().x0, 2) for ax in timeline(group).axes if ax.get_visible()})
        for group in (few, many)
    ] == [1, 2]


def test_curves_are_means_over_heads():
    draws = np.random.default_rng(1)
    values, nulls = draws.random((3, 2, 4)), draws.random((3, 2, 4))
    values[1, 0, 2] = np.nan
    rows = [
        in_network(
            "t",
            "q",
            values[at],
            nulls=(Null("n", (nulls[at],)),),
            step=7 * at[0],
            layer=at[1],
            head=at[2],
            model="m",
            reason="",
        )
        for at in np.ndindex(3, 2, 4)
    ]
    (found,) = curves(Result("train", {}, Table(rows)))
    np.testing.assert_allclose(found.values, np.nanmean(values, axis=2))
    np.testing.assert_allclose(found.spread, np.nanstd(values, axis=2))
    np.testing.assert_allclose(found.nulls, nulls.mean(axis=2))
    assert (found.steps.tolist(), found.layers) == ([0, 7, 14], (0, 1))
    assert found.at(14) == pytest.approx(values[2].mean())
    assert found.at(15) is None


def test_rows_of_other_splits_and_settings_have_curves_of_their_own():
    rows = [
        in_network("network", "l1 norm", float(layer), step=5, layer=layer, model="m", split="validation")
        for layer in (0, 1)
    ]
    rows.append(in_network("network", "l1 norm", 99.0, step=5, layer=0, model="m", split="test"))
    rows.append(
        in_network(
            "network",
            "l1 norm",
            98.0,
            step=5,
            layer=0,
            model="m",
            split="validation",
            at={"setting": "untrained"},
        )
    )
    found = curves(Result("train", {}, Table(rows)))
    assert [(one.label, one.layers, one.values.tolist()) for one in found] == [
        ("l1 norm", (0, 1), [[0.0, 1.0]]),
        ("l1 norm", (0,), [[99.0]]),
        ("l1 norm (untrained)", (0,), [[98.0]]),
    ]


def test_deep_networks_with_many_steps_become_heat_maps_and_thinned_lines():
    steps, layers = 10 * np.arange(3 * MAX_POINTS), 24
    values = np.random.default_rng(0).random((len(steps), layers))
    own = Curves(
        "crate",
        "compression",
        "",
        "",
        "m",
        "",
        steps,
        tuple(range(layers)),
        values,
        np.full_like(values, np.nan),
        values / 2,
    )
    lines, maps = in_training(own, []), every_quantity([own])
    assert all(len(curve.get_xdata()) == MAX_POINTS for curve in lines.axes[0].get_lines())
    assert [image.get_array().shape for ax in maps.axes for image in ax.get_images()] == [
        (layers, len(steps))
    ] * 2
    (low,), (high,) = (
        {image.get_clim()[end] for ax in maps.axes for image in ax.get_images()} for end in (0, 1)
    )
    assert (low, high) == (values.min() / 2, values.max())  # one scale for the values and their nulls


def test_the_band_of_a_headlines_null_is_filled():
    null = Null("permuted labels", (0.1, 0.4, 0.2))
    rows = [
        in_network("crate", "q", 1.0 * step, nulls=(null,), step=step, layer=layer, model="m")
        for step in range(4)
        for layer in range(2)
    ]
    (headline,) = curves(Result("train", {}, Table(rows)))
    filled = in_training(headline, []).axes[0].collections
    assert [
        (part.get_paths()[0].vertices[:, 1].min(), part.get_paths()[0].vertices[:, 1].max())
        for part in filled
    ] == [(0.1, 0.4)] * 2


def test_a_short_last_gap_does_not_bend_the_axis_of_steps():
    steps = np.array([0, 100, 200, 300, 400, 410])
    regular = Series("network", "loss", "m", steps, np.arange(6.0))
    crowded = Series("network", "loss", "m", np.array([0, 1, 4, 9, 16, 25, 600]), np.arange(7.0))
    _, (left, right) = axes(1, 2)
    assert not _steps([regular], left)
    assert _steps([crowded], right)
