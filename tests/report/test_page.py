"""The page of a comparison: escaped, self-contained, reproducible, and complete where data, arrays or
theories are missing.
"""

import base64
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.report import synthetic
from tests.report.markup import Reader, well_formed, words
from tests.report.synthetic import HEADLINE, MODELS, SVM, THEORIES, in_network, on_data, small
from transformer_theory.core.math_text import mathml
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.report import page as page_of
from transformer_theory.report import write
from transformer_theory.report.figures import view, views
from transformer_theory.report.pictures import displayed_image


def curve(theory, quantity, model="ViT", steps=6, **columns):
    return [
        in_network(theory, quantity, 0.1 * step, step=step, model=model, **columns) for step in range(steps)
    ]


def accuracy(model="ViT", steps=6):
    return curve("network", "accuracy", model, steps, split="validation", unit="share")


def test_markup_is_well_formed_and_ids_are_unique(page):
    well_formed(page)


def test_broken_markup_is_found():
    for page in (
        "<p><b></p></b>",
        "<p>",
        '<i id="a"></i><i id="a"></i>',
        '<a href="#b"></a>',
        '<use xlink:href="#b"/>',
        "url(#b)",
    ):
        with pytest.raises(AssertionError):
            well_formed(page)


def test_one_script_runs_and_nothing_is_loaded(page):
    tags = Reader(page).tags
    assert not [tag for tag, _ in tags if tag in ("iframe", "link", "object", "embed", "b", "img")]
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            address = attributes.get(name, "")
            assert (
                address.startswith(("#", "data:image/png"))
                or not address
                or (tag == "a" and address.startswith("https://"))
            )
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "@import" not in style
    assert "url(" not in style
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert {attributes.get("type") for tag, attributes in tags if tag == "script"} == {
        None,
        "application/json",
    }
    (policy,) = (
        attributes["content"]
        for _, attributes in tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}';"
        in policy
    )


def test_data_and_reasons_are_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "needs next_id &amp; &lt;b&gt;ids&lt;/b&gt;" in page
    assert "compare --data &lt;x&gt;" in page


def test_figures_and_sliders_with_markup_in_a_name_stay_escaped():
    name = "<script>alert(2)</script>"
    rows = curve("network", "accuracy </script>", name, split="validation", unit="share")
    draws = np.random.default_rng(0)
    arrays = {
        "steps": np.arange(5),
        "attention": draws.random((5, 1, 1, 2, 4, 4)),
        "features": draws.random((8, 2)),
        "features over training": draws.random((5, 8, 2)),
    }
    arrays = {f"network/{name}/{key}": array for key, array in arrays.items()} | {
        "network/labels": np.arange(8) % 2
    }
    made = page_of(small(rows, arrays), theories=THEORIES)
    assert name not in made
    assert "accuracy </script>" not in made
    assert "accuracy \\u003c/script\\u003e" in made  # in the captions of the slider
    assert Reader(made).crossed == []


def test_three_findings_and_their_figure_stand_before_the_contents(page):
    """All findings follow in a fold."""
    found, contents = page.index('<section id="findings">'), page.index("<nav")
    assert found < page.index("<figure", found) < contents
    assert page.count("<nav") == 1
    first = page[found : page.index("<figure", found)]
    folded = re.search(r"All findings in words \((\d+)\)</summary>(.*?)</details>", page, re.DOTALL)
    assert first.count("<li>") == 3
    assert folded[2].count("<li>") == int(folded[1]) > 3
    assert "<details" not in first


def test_the_summary_comes_first_and_holds_the_numbers(page):
    text = words(page).replace("\u00a0", " ")
    order = [
        page.index(f'id="{name}"')
        for name in ("summary", "claims", "timeline", "attention-svm", "networks", "provenance")
    ]
    assert order == sorted(order)
    summary = words(page[: page.index('id="claims"')]).replace("\u00a0", " ")
    for piece in (
        "→ 1 (≥ 0.990)",
        "0.999 0.118 permuted labels, 0.100 … 0.200 ✓ consistent",
        "features of CRATE (paper form) 0.410 0.118 permuted labels, 0.100 … 0.200 ○ not covered",
        "≥ null 0.420 0.230 untrained networks above its null",
        "trained CRATE (paper form) 0.110 0.230 untrained networks below its null",
        "no layer has attention",
        "2 claims, 3 seeds each: 2 consistent on every seed; every control fails",
    ):
        assert piece in summary, piece
    assert "1,797 sequences of 16 tokens in 4 dimensions" in text
    assert "18 more numbers" not in text


def test_the_side_of_the_null_that_a_theory_does_not_predict_is_bold():
    theory = THEORIES[0]
    sides = (("A", 0.4, ">="), ("B", 0.6, ">="), ("C", 0.4, "<="), ("D", 0.6, "<="))
    rows = [
        in_network(
            theory.name, theory.in_networks.headline, value, model=name, side=side, nulls=(Null("n", (0.5,)),)
        )
        for name, value, side in sides
    ]
    made = page_of(small(rows), theories=THEORIES)
    assert re.findall(r'<strong class="note">(\w+ its null)</strong>', made) == [
        "below its null",
        "above its null",
    ]
    assert re.findall(r'<span class="note">(\w+ its null)</span>', made) == [
        "above its null",
        "below its null",
    ]


def test_a_claim_is_stated_once(page):
    assert [page.count(str(mathml(claim.statement))) for theory in THEORIES for claim in theory.claims] == [
        1
    ] * 4


def folds_of(page, theory, following):
    """The visible part of a theory's section, and its folds."""
    start, end = (page.index(f'<section id="{name}">') for name in (theory, following))
    return page[start:end].split('<details class="view">')


def test_a_theory_shows_its_first_figure_and_folds_the_rest(page):
    shown, *folds = folds_of(page, "crate", "networks")
    assert [f'id="crate-{name}-r1-figure_1"' in shown for name in ("raw-tokens", "features-of-vit")] == [
        True,
        False,
    ]
    assert [words(fold)[:22] for fold in folds if 'id="crate-features-of-vit-r1-figure_1"' in fold] == [
        "On the features of ViT"
    ]
    assert "<table" not in shown
    shown, *folds = folds_of(page, "attention-svm", "scan-snap")
    assert not re.search("<table|<article", shown)
    titles = [words(fold.partition("</summary>")[0]) for fold in folds]
    assert titles[0].startswith("On the raw tokens")
    assert titles[-2:] == ["2 claims ✓ consistent 2", "Assumptions of the theory"]
    assert folds[-2].count("<article") == 2


def test_no_box_is_a_tab_stop_before_the_script_has_measured_it(page):
    assert {attributes["tabindex"] for _, attributes in Reader(page).tags if "tabindex" in attributes} == {
        "-1"
    }


def test_claims_have_cards_and_a_table_with_sortable_numbers(page):
    tags = Reader(page).tags
    cards = [attributes["id"] for tag, attributes in tags if tag == "article"]
    assert cards == [
        f"claim-{one.id.replace('/', '-').replace('_', '-')}" for theory in THEORIES for one in theory.claims
    ]
    keys = [
        float(attributes["data-key"]) for _, attributes in tags if attributes.get("data-label") == "control"
    ]
    assert keys == [0.4] * 4  # the numbers, not the words below them
    assert page.count("note ok") == 4


@pytest.mark.parametrize(
    ("control", "shouted"),
    [({"value": 1.0}, "PASSES: no power"), ({"converged": False}, "inconclusive: power unknown")],
    ids=["passes", "inconclusive"],
)
def test_a_control_that_does_not_fail_is_an_alarm(control, shouted):
    one = synthetic.violated(THEORIES[0].claims[0].verify(range(2)), **control)
    made = page_of(small(verifications=[one]), theories=THEORIES)
    assert f'<strong class="note alarm">{shouted}</strong>' in made
    assert "fails as it must" not in made


def test_a_claim_that_this_version_does_not_know_is_shown_as_it_was_stored():
    one = replace(
        THEORIES[0].claims[0].verify(range(2)), id="phlogiston/heat", statement="$Q$ is <conserved>"
    )
    made = page_of(small(verifications=[one], theories=["phlogiston"]), theories=THEORIES)
    assert 'id="claim-phlogiston-heat"' in made
    assert "is &lt;conserved&gt;" in made


def test_a_view_restores_what_the_theory_measured(compared):
    own = view(compared, "ViT")
    assert {row.model for row in own.table} == {"ViT"}
    assert {row.kind for row in own.table} == {"on data", "assumption"}
    np.testing.assert_array_equal(own.arrays["crate/curve"], compared.arrays["ViT::crate/curve"])
    raw = view(compared, "")
    np.testing.assert_array_equal(raw.arrays["crate/curve"], compared.arrays["crate/curve"])
    assert not [name for name in raw.arrays if "::" in name]
    assert views(compared) == ["", "ViT", "CRATE (paper form)"]
    seeds = view(small([on_data(1.0, seed=3), on_data(2.0, seed=4)]), "")
    assert seeds.table.column("value") == [1.0]  # arrays are of one seed


def test_shares_are_in_per_cent_and_other_numbers_in_their_unit():
    rows = [
        on_data(0.65789, quantity=name, unit=unit)
        for name, unit in (("p", "share"), ("q", "nats"), ("r", ""))
    ]
    text = words(page_of(small(rows), theories=THEORIES)).replace("\u00a0", " ")
    for piece in ("65.79 %", "0.658 nats", "0.658 —"):
        assert piece in text or piece.rstrip(" —") in text


def test_given_networks_come_first_with_their_accuracy_on_test_data():
    rows = [
        Measurement(
            "network",
            "network",
            quantity,
            value,
            unit=unit,
            split="test",
            model=model,
            n=5000,
            interval=(0.6, 0.63),
        )
        for model, value in (("crate", 0.6156), ("vit", 0.6458))
        for quantity, unit in (("accuracy", "share"), ("loss", "nats"))
    ]
    rows.append(
        Measurement("network", "network", "accuracy at equal steps", None, reason="the runs saw other images")
    )
    made = page_of(small(rows), theories=THEORIES)
    text = words(made).replace("\u00a0", " ")
    assert "61.6 % crate , test accuracy, 5,000 samples 95 % interval [60.0 %, 63.0 %]" in text
    assert text.index("61.6 %") < text.index("The networks")
    assert "the runs saw other images" in text


def test_pictures_in_colour_are_shown_in_colour_and_drawings_as_ink():
    colour, drawing = np.random.default_rng(0).random((3, 4, 4)), np.eye(4)[None]
    np.testing.assert_array_equal(displayed_image(colour), np.moveaxis(colour, 0, -1))
    np.testing.assert_array_equal(displayed_image(drawing), np.eye(4))
    normalised = displayed_image(4 * colour - 2)
    assert (normalised.min(), normalised.max()) == (0, 1)


def test_nothing_measured_still_makes_a_page():
    text = words(page_of(small(), theories=THEORIES))
    assert all(theory.title in text for theory in THEORIES)
    assert "One timeline" not in text


def test_a_theory_without_data_and_networks_is_absent_from_these_parts():
    bare = replace(THEORIES[3], on_data=None, in_networks=None)
    rows = [Measurement("attention_svm", "on data", HEADLINE, None, reason="needs labels")]
    made = page_of(small(rows), theories=(THEORIES[0], bare))
    well_formed(made)
    text = words(made)
    # in the matrix, in the table of headlines and in the theory's section
    assert text.count("needs labels") == 3
    assert "not applicable" not in text
    assert made.count('id="crate') == 1


def test_missing_arrays_draw_words_instead(compared, theories):
    made = page_of(replace(compared, arrays={}), theories=theories)
    assert 'id="attention-svm-raw-tokens-r1-figure_1"' in made
    assert 'id="attention-0-vit-figure_1"' not in made
    assert "could not be drawn" not in made


def test_a_figure_that_fails_states_why_and_spares_the_page():
    def broken(part):
        raise KeyError("no <array>")

    first, last = THEORIES[0], THEORIES[3]
    rows = [Measurement(theory.name, "on data", theory.on_data.headline, 1.0) for theory in (first, last)]
    made = page_of(small(rows), theories=(replace(first, on_data=replace(first.on_data, plot=broken)), last))
    assert "This figure could not be drawn (KeyError: &#39;no &lt;array&gt;&#39;)" in made
    assert 'id="attention-svm-raw-tokens-r1-figure_1"' not in made
    assert 'id="crate-raw-tokens-r1-figure_1"' in made


def test_constant_series_and_a_single_step_are_survived():
    still = [
        in_network("crate", THEORIES[3].in_networks.headline, 1.0, step=step, model="ViT")
        for step in range(6)
    ]
    text = words(page_of(small([*still, *accuracy()]), theories=THEORIES))
    assert "does not move" in text
    assert "—" in text  # its correlations
    once = words(page_of(small([*still[:1], *accuracy(steps=1)]), theories=THEORIES))
    assert "One timeline" not in once


def test_a_theory_that_this_version_does_not_know_is_named():
    rows = [Measurement("phlogiston", "on data", "heat", 2.0)]
    text = words(page_of(small(rows, theories=["phlogiston"]), theories=THEORIES))
    assert "phlogiston" in text
    assert "heat" in text


def test_attention_without_images_or_square_grid_shows_the_maps():
    maps = np.random.default_rng(0).random((3, 1, 2, 2, 7, 7))
    made = page_of(
        small(accuracy(), {"network/ViT/attention": maps, "network/ViT/steps": np.arange(3)}),
        theories=THEORIES,
    )
    assert 'id="attention-0-vit-figure_1"' in made
    wrong = page_of(small(accuracy(), {"network/ViT/attention": maps[0]}), theories=THEORIES)
    assert 'id="attention-0-vit-figure_1"' not in wrong


def test_several_results_are_one_page(theories):
    rows = [on_data(0.9, verdict="consistent", data="tiny"), *accuracy()]
    first = small(rows, seed=0, verifications=[theories[0].claims[0].verify(range(2))])
    second = replace(
        first, settings=first.settings | {"seed": 1}, table=first.table.replace(value=0.7), verifications=()
    )
    made = page_of([first, second, synthetic.trained(layers=0, theories=False)], theories=theories)
    well_formed(made)
    text = words(made).replace("\u00a0", " ")
    assert "Theories of transformers on tiny and digits" in text
    assert "0.8 [−0.5, 2.1], 2 seeds" in text  # Student's interval of 0.9 and 0.7
    assert "tiny: raw tokens" in text
    assert made.count('id="r3-provenance"') == 1
    with pytest.raises(ValueError, match="at least one"):
        page_of([], theories=theories)


def test_an_experiment_has_its_figure_and_its_numbers():
    rows = [
        Measurement("crate", "figure", "rate", float(step), step=step, at={"setting": "paper form"})
        for step in range(20)
    ]
    made = page_of(Result("crate.made_up", {"eta": 0.5}, Table(rows)), theories=THEORIES)
    text = words(made)
    assert "crate.made_up, paper form, step 3" in text
    assert "12 more numbers" in text


def test_a_stored_result_gives_the_same_bytes(compared, theories, tmp_path):
    # all figures take seconds
    kept = [row for row in compared.table if row.theory == "crate" and row.step is None]
    fresh = replace(
        compared,
        table=Table(kept),
        arrays={name: array for name, array in compared.arrays.items() if "crate/" in name},
    )
    stored = Result.load(fresh.save(tmp_path / "stored"))
    (tmp_path / "pages").mkdir()
    path = write(stored, tmp_path / "pages", theories=theories)
    assert path == tmp_path / "pages" / "report.html"
    assert path.read_text(encoding="utf-8") == page_of(fresh, theories=theories)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "references.bib",
        "report.html",
        "table.tex",
    ]
    with pytest.raises(ValueError, match="existing folder"):
        write(fresh, tmp_path / "nowhere", theories=theories)


def test_a_large_comparison_stays_below_five_megabytes(page):
    assert len(page) < 5_000_000
    assert SVM.label in page
    assert all(model in page for model in MODELS)


def test_long_lists_are_folded_and_every_number_is_there_once():
    rows = [
        Measurement("network", "network", f"thing {n:02d}", float(n), model="ViT", split="test")
        for n in range(60)
    ]
    rows += [on_data(0.1 * n, quantity=f"number {n:02d}") for n in range(20)]
    tables = re.findall("<table.*?</table>", page_of(small(rows), theories=THEORIES), re.DOTALL)
    found = [re.findall(r"(?:thing|number) (\d\d)", table) for table in tables]
    expected = [(0, 8), (8, 20), (0, 24), (24, 60)]
    assert [names for names in found if names] == [[f"{n:02d}" for n in range(*part)] for part in expected]
    few = page_of(small([on_data(0.1 * n, quantity=f"number {n:02d}") for n in range(12)]), theories=THEORIES)
    tables = re.findall("<table.*?</table>", few, re.DOTALL)
    assert [len(names) for table in tables if (names := re.findall(r"number \d\d", table))] == [12]
