"""The page of a training: complete where runs stopped early, numbers are missing or networks are deep; what it says is what was stored."""

import math
from dataclasses import replace

import numpy as np
import pytest
from transformer_theory.core.notes import shared, without

from tests.report.markup import well_formed, words
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.report import figures, page, training_page, write
from transformer_theory.report.facts import facts
from transformer_theory.report.readings import Readings, readings
from transformer_theory.report.timeline import Series
from transformer_theory.report.training import _section
from transformer_theory.report.training_figures import DRAWN, panels, theory
from transformer_theory.theories import theory as theory_named

SETTINGS = {"network": "crate", "patch_size": 2, "dim": 96, "depth": 2, "heads": 4, "epochs": 4, "batch_size": 64, "learning_rate": 3e-3}
ACCURACY = (0.1, 0.4, 0.6, 0.5, 0.6)


def trained(accuracy=ACCURACY, *, tested=0.65, layers=2, heads=2, theories=True, **params) -> Result:
    """A made-up training, a reading every ten steps of 64 images: every number here is synthetic."""
    draws, rows = np.random.default_rng(0), []
    note = lambda quantity, value, step, **where: rows.append(  # noqa: E731
        {"theory": "network", "quantity": quantity, "value": value, "model": "crate", "step": step} | where
    )
    for number, share in enumerate(accuracy):
        step = 10 * number
        if number:
            note("loss", 2.3 - number / 4, step)
            note("images per second", 640.0, step)
        note("seconds", 1.0 + 2.0 * number, step)
        note("held-out loss", 2.3 - number / 3, step)
        note("held-out accuracy", share, step)
        for layer in range(layers):
            for head in range(heads):
                note("attention entropy", 2.5 - number * (1 + head) / 10 + 0.01 * draws.random(), step, layer=layer, head=head, null=2.6)
            if theories:
                note("rate reduction", 0.2 + number * layer, step, theory="rate_reduction", layer=layer, null=0.3, source="yu2020learning")
    if tested is not None:
        note("test accuracy", tested, 10 * (len(accuracy) - 1))
        note("test loss", 1.25, 10 * (len(accuracy) - 1))
    params = {"settings": SETTINGS, "objective": {"name": "cross-entropy", "label_smoothing": 0.1}, "data": "digits", **params}
    provenance = {"parameters": 41194, "held_out_images": 126, "test_images": 540, "device": "cpu", "seconds": 9.5}
    return Result("train", {"precision": "32", "images": "1257 images, abc", **params}, rows, {}, (Source("yu2023white"),), provenance)


@pytest.fixture(scope="module")
def made() -> str:
    return training_page(trained(data='cats <script>alert("x")</script> & $dogs (JPEG copy)'))


def test_markup_is_well_formed_self_contained_and_escaped(made):
    reader = well_formed(made)
    assert [tag for tag, _ in reader.tags if tag in ("script", "iframe", "link", "object")] == ["script"]  # the page's own
    for tag, attributes in reader.tags:
        for name in ("src", "href", "xlink:href"):
            address = attributes.get(name, "")
            assert address.startswith(("#", "data:image/png")) or not address or (tag == "a" and address.startswith("https://"))
    assert "&lt;script&gt;alert" in made


def test_the_head_says_what_was_reached_chosen_and_looked_at_once(made):
    text = words(made).replace("\u00a0", " ")
    for piece in (
        "65.00 % test accuracy, 540 images 95 % interval 60.81 % to 69.02 %",  # 351 of 540, as scipy.stats.binomtest
        "JPEG copy The images are a copy compressed as JPEGs",
        "that of step 40, the best of 5 readings by held-out accuracy (60.00 % of 126 images)",  # of equals the last
        "the test images were looked at once",
        "41,194 parameters",
        "1,257 images for training",
        "40 of 64 images, 4 epochs",
        "9.0 s, of which 56 % for 5 readings",  # 40 steps of 64 images at 640 a second are 4 s of 9
        "640 images a second",
        "recipe digits, but epochs 4 in place of 60",
        "above it in 1 of 2 layers",
    ):
        assert piece in text, piece
    order = [made.index(f'id="{name}"') for name in ("summary", "learning", "rate-reduction", "own", "layers", "timeline", "provenance")]
    assert order == sorted(order)


def test_the_same_result_gives_the_same_bytes_and_report_makes_it_again(tmp_path, capsys):
    result = trained(layers=0)
    result = replace(result, table=[row for row in result.table if row["quantity"].startswith("test")])  # without figures
    result.save(tmp_path / "run")
    path = write(result, tmp_path / "run")
    first = path.read_bytes()
    assert {file.name for file in path.parent.iterdir()} >= {"report.html", "references.bib", "table.jsonl"}
    path.unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert f"report: {path}" in capsys.readouterr().out
    assert path.read_bytes() == first


def test_a_training_that_stopped_says_so():
    result = trained((0.1,), tested=None, theories=False, layers=0)
    text = words(training_page(result))
    assert "not finished The training stopped before its end, at step 0 or later; the test images have not been looked at" in text
    assert "of 4 epochs that were planned" in text
    assert "One timeline" not in text


def test_no_rows_and_no_settings_still_give_a_page():
    assert "not finished" in words(page(Result("train")))


def test_numbers_that_are_missing_leave_gaps():
    result = trained((0.1, math.nan, 0.3), layers=1, heads=1, theories=False)
    rows = [{**row, "value": None if row.get("layer") == 0 and row["step"] == 10 else row["value"]} for row in result.table]
    rows.append({"theory": "joma", "quantity": "all", "value": None, "verdict": "not applicable: <b>nothing</b> was read", "step": 0})
    told = facts(replace(result, table=rows), readings(replace(result, table=rows)))
    assert (told.kept, told.kept_score.value) == (20, 0.3)
    text = words(training_page(replace(result, table=rows)))
    assert text.count("<b>nothing</b> was read") == 1
    assert "nan" not in text.split()


def test_an_objective_of_its_own_score_is_shown_with_its_nulls():
    rows = []
    for step, (accuracy, reduction) in enumerate(((0.2, 1.0), (0.7, 5.0), (0.6, 6.0))):
        told = {"held-out accuracy of nearest subspaces": accuracy, "held-out rate reduction": reduction}
        told |= {"held-out rate reduction, labels shuffled": 1.0, "held-out accuracy": 0.9 * step}
        rows += [{"theory": "network", "quantity": name, "value": value, "model": "crate", "step": step} for name, value in told.items()]
    result = replace(trained(objective={"name": "rate-reduction"}), table=rows)
    told = facts(result, readings(result))
    assert (told.score, told.kept) == ("held-out accuracy of nearest subspaces", 1)
    stranger = replace(result, params={**result.params, "objective": {"name": "of another version"}})
    assert facts(stranger, readings(stranger)).score == "held-out accuracy of nearest subspaces"
    assert "step 1, the best of 3 readings" in words(training_page(result))


def test_what_was_tested_stands_with_its_number_of_images_and_its_nulls():
    rows = [{"theory": "network", "quantity": "held-out accuracy of a linear probe", "value": 0.7 - s, "step": s} for s in (0, 1)]
    for name, value in (("rate reduction", 5.0), ("rate reduction, labels shuffled", 1.5), ("accuracy of a linear probe", 0.5)):
        rows.append({"theory": "network", "quantity": f"test {name}", "value": value, "step": 1})
    result = replace(trained(objective={"name": "masked-autoencoding"}), table=rows)
    tests = {test.quantity: test for test in facts(result, readings(result)).tests}
    assert list(tests) == ["test accuracy of a linear probe", "test rate reduction"]
    assert tests["test rate reduction"].nulls == (("labels shuffled", 1.5),)
    text = words(training_page(result)).replace("\u00a0", " ")
    assert "5 untrained: test rate reduction, 540 images null, labels shuffled: 1.5" in text
    assert "No later reading was as good as the first" in text


def test_a_network_that_no_theory_reads_says_so_once_and_has_no_empty_parts():
    result = trained(theories=False, layers=0)
    none = {"theory": "network", "quantity": "all", "value": None, "verdict": "not applicable: it has no attention maps", "step": 0}
    made = training_page(replace(result, params={**result.params, "theories": ["joma", "crate"]}, table=[*result.table, none]))
    assert words(made).count("it has no attention maps") == 1
    for name in ("joma", "crate", "own", "layers", "timeline"):
        assert f'id="{name}"' not in made


def test_without_the_number_of_images_there_is_no_interval():
    result = replace(trained(), provenance={})
    assert facts(result, readings(result)).tests[0].interval is None


def test_readings_are_the_means_over_heads():
    draws = np.random.default_rng(1)
    values, nulls = draws.random((3, 2, 4)), draws.random((3, 2, 4))
    values[1, 0, 2] = math.nan
    rows = [
        {"theory": "t", "quantity": "q", "value": values[at], "null": nulls[at], "step": 7 * at[0], "layer": at[1], "head": at[2]}
        for at in np.ndindex(3, 2, 4)
    ]
    (read,) = readings(Result("train", table=rows))
    np.testing.assert_allclose(read.values, np.nanmean(values, axis=2))
    np.testing.assert_allclose(read.spread, np.nanstd(values, axis=2))
    np.testing.assert_allclose(read.nulls, nulls.mean(axis=2))
    assert (read.steps.tolist(), read.layers) == ([0, 7, 14], (0, 1))
    assert read.at(14) == pytest.approx(values[2].mean())


def test_notes_tell_what_all_of_them_say_once_and_the_rest_where_it_belongs():
    notes = [f"{n} constraints; null: flipped; 3 untrained networks: {low} to 0.2" for n, low in ((80, 0.15), (79, 0.1))]
    assert shared(notes) == "null: flipped; 3 untrained networks: 0.1 to 0.2"
    assert (shared(["a; b"]), shared(["a", ""]), shared(["x: 1 to 2", "y: 1 to 3"])) == ("a; b", "", "")
    assert without("a; b; c", "a; c") == "b"
    result = trained()
    own = {"rate reduction": "of classes; 5,000 held-out images", "coding rate": "5,000 held-out images"}
    rows = [{**result.table[-1], "theory": "rate_reduction", "quantity": name, "layer": 0, "note": note} for name, note in own.items()]
    section = _section(theory_named("rate_reduction"), readings(replace(result, table=rows)))
    assert section["note"] == "5,000 held-out images"
    assert [row["note"] for row in section["rows"]] == ["of classes", ""]


def test_what_an_objective_measures_of_a_layer_is_read_as_of_that_layer_and_the_test_row_does_not_replace_it():
    rows = [{"theory": "network", "quantity": f"l1 norm, layer {k}", "value": float(k), "step": 5} for k in (0, 1)]
    rows.append({**rows[0], "value": 99.0})  # of the test images, noted at the last step too
    (read,) = readings(Result("train", table=rows))
    assert (read.quantity, read.layers, read.values.tolist()) == ("l1 norm", (0, 1), [[0.0, 1.0]])


def test_deep_networks_with_many_readings_become_pictures_and_thinned_lines():
    steps, layers = 10 * np.arange(3 * DRAWN), 24
    values = np.random.default_rng(0).random((len(steps), layers))
    read = Readings("crate", "compression", steps, tuple(range(layers)), values, np.full_like(values, np.nan), values / 2)
    lines, pictures = theory(read, []), panels([read])
    assert all(len(curve.get_xdata()) == DRAWN for curve in lines.axes[0].get_lines())
    assert [image.get_array().shape for ax in pictures.axes for image in ax.get_images()] == [(layers, len(steps))] * 2
    (low,), (high,) = ({image.get_clim()[end] for ax in pictures.axes for image in ax.get_images()} for end in (0, 1))
    assert (low, high) == (values.min() / 2, values.max())  # one scale for what was measured and its null


def test_a_short_last_gap_does_not_bend_the_axis_of_steps():
    from transformer_theory.core.plotting import axes

    steps = np.array([0, 100, 200, 300, 400, 410])
    regular = Series("network", "loss", "m", steps, np.arange(6.0))
    crowded = Series("network", "loss", "m", np.array([0, 1, 4, 9, 16, 25, 600]), np.arange(7.0))
    _, (left, right) = axes(1, 2)
    assert not figures._steps([regular], left)
    assert figures._steps([crowded], right)
