"""The page: escaped, self-contained, reproducible, and complete where data, arrays or theories are missing."""

import base64
import hashlib
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.report.markup import Reader, well_formed, words
from tests.report.synthetic import THEORIES, small
from transformer_theory.core.claims import Evidence
from transformer_theory.core.measurement import by_construction, finding, not_applicable
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.report import html, mathml, view, write
from transformer_theory.report.attended import seen
from transformer_theory.report.claimtable import ClaimLine, board
from transformer_theory.report.views import checked, summary, views
from transformer_theory.theories import THEORIES as REGISTERED


def test_markup_is_well_formed_and_ids_are_unique(page):
    well_formed(page)


def test_broken_markup_is_found():
    for page in ("<p><b></p></b>", "<p>", '<i id="a"></i><i id="a"></i>', '<a href="#b"></a>', '<use xlink:href="#b"/>', "url(#b)"):
        with pytest.raises(AssertionError):
            well_formed(page)


def test_one_script_runs_and_nothing_is_loaded(page):
    tags = Reader(page).tags
    assert not [tag for tag, _ in tags if tag in ("iframe", "link", "object", "embed", "b", "img")]
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            address = attributes.get(name, "")
            assert address.startswith(("#", "data:image/png")) or not address or (tag == "a" and address.startswith("https://"))
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "@import" not in style
    assert all(address.startswith("data:font/woff;base64,") for address in re.findall(r"url\(([^)]*)\)", style))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert {attributes.get("type") for tag, attributes in tags if tag == "script"} == {None, "application/json"}
    (policy,) = (attributes["content"] for _, attributes in tags if attributes.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; script-src 'sha256-{digest}';" in policy


def test_data_and_notes_are_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "needs next_id &amp; &lt;b&gt;ids&lt;/b&gt;" in page
    assert "compare --data &lt;x&gt;" in page


def test_figures_and_frames_with_markup_in_a_name_stay_escaped():
    name = "<script>alert(2)</script>"
    rows = [{"theory": "network", "quantity": "accuracy </script>", "value": s / 9, "step": s, "model": name} for s in range(5)]
    draws = np.random.default_rng(0)
    arrays = {
        "steps": np.arange(5),
        "attention": draws.random((5, 1, 1, 2, 4, 4)),
        "features": draws.random((8, 2)),
        "features over training": draws.random((5, 8, 2)),
    }
    arrays = {f"network/{name}/{key}": array for key, array in arrays.items()} | {"network/labels": np.arange(8) % 2}
    made = html(small(rows, arrays), theories=THEORIES)
    assert name not in made
    assert "accuracy </script>" not in made
    assert "accuracy \\u003c/script\\u003e" in made  # in the captions of the frames
    assert Reader(made).crossed == []


def test_summary_comes_first_and_holds_the_numbers(page):
    text = words(page)
    assert page.index('id="summary"') < page.index('id="timeline"') < page.index('id="attention-svm"') < page.index('id="provenance"')
    for piece in (
        "→\u00a01 (line:\u00a0≥\u00a00.990)",
        "0.999",
        "0.118",
        "✓ consistent",
        "○ outside assumptions",
        "Tarzanagh et al. (2023a), Thm. 3",
    ):
        assert piece.replace("\u00a0", " ") in text.replace("\u00a0", " ")
    assert 'href="https://arxiv.org/abs/2308.16898"' in page


def test_formulas_become_mathml(page):
    assert page.count("<math") > 20
    assert 'display="block"' in page
    assert "$" not in words(page)
    assert "\\" not in words(page)
    assert "font/woff" in page


def test_the_pictures_are_there(page):
    for name in ("timeline", "learning", "attention-vit", "attention-crate-paper-form", "features", "attention-svm-raw", "crate-vit"):
        assert f'id="{name}-figure_1"' in page
    assert "could not be drawn" not in page


def test_claims_show_check_control_and_interval(page, compared, theories):
    text = words(page)
    assert "3 of 3 0.292 … 1" in text  # Clopper-Pearson: (0.025)^(1/3)
    assert "fails as it must" in text
    (first, second) = checked(compared, theories[0])
    assert (first.id, first.summary.worst, first.summary.control_value) == ("attention_svm/global-direction", 1.0, 0.4)
    assert first.summary.interval == pytest.approx((0.025 ** (1 / 3), 1.0))
    assert second.verdict == "consistent"


@pytest.mark.parametrize(("control", "shouted"), [("passes", "PASSES: no power"), ("inconclusive", "inconclusive: power unknown")])
def test_a_control_that_does_not_fail_is_shouted(theories, control, shouted):
    first = theories[0].claims[0]
    row = {"theory": "attention_svm", "quantity": f"claim: {first.id}", "value": 1.0, "bound": 0.9, "op": ">=", "null": 1.0}
    total = {"theory": "attention_svm", "quantity": f"claim verdict: {first.id}", "value": 1.0, "verdict": f"control {shouted}"}
    page = html(small([{**row, "verdict": "consistent", "control": control}, total]), theories=theories)
    assert f'<strong class="note alarm">{shouted}</strong>' in page
    assert "fails as it must" not in page


def test_the_numbers_of_a_claim_are_of_its_worst_seed_with_its_own_line(theories):
    row = {
        "theory": "attention_svm",
        "quantity": f"claim: {theories[0].claims[0].id}",
        "op": ">=",
        "source": str(theories[0].claims[0].source),
    }
    seeds = [(0.99, 0.9, "consistent", 0.1), (0.95, 0.94, "consistent", 0.93), (0.2, 0.9, "outside assumptions", 0.5)]
    made = small([{**row, "value": v, "bound": b, "verdict": name, "null": c, "seed": i} for i, (v, b, name, c) in enumerate(seeds)])
    (claim,) = checked(made, theories[0])
    found = claim.summary
    assert (found.worst, found.bound, found.median, found.control_value) == (0.95, 0.94, 0.95, 0.93)
    assert (found.decided, found.consistent) == (2, 2)
    (line,) = board([ClaimLine(theories[0], claim)]).lines
    assert (line.line, line.anchor) == ("≥\u00a00.940", "claim-attention-svm-global-direction")


def test_a_claim_whose_first_seed_gave_up_keeps_its_line(theories):
    row = {"theory": "attention_svm", "quantity": f"claim: {theories[0].claims[0].id}", "source": "gone2001, Thm. 1", "control": "fails"}
    nothing = {**row, "op": "<=", "value": math.nan, "bound": math.nan, "null": 0.4, "verdict": "inconclusive", "seed": 0}
    seeds = [{**row, "op": ">=", "value": v, "bound": 0.5, "null": 0.4, "verdict": "consistent", "seed": v} for v in (0.6, 0.9)]
    (claim,) = checked(small([nothing, *seeds]), theories[0])
    assert (claim.summary.op, claim.summary.worst, claim.summary.bound) == (">=", 0.6, 0.5)
    assert (claim.verdict, claim.summary.source, claim.source) == ("consistent", None, "gone2001, Thm. 1")  # no paper of this version
    assert board([ClaimLine(theories[0], claim)]).lines[0].line == "≥\u00a00.500"


def test_an_assumption_that_does_not_say_whether_it_holds_is_shown(theories):
    row = {"theory": "crate", "quantity": "assumption: tokens are unit vectors", "value": 0.5, "model": "raw"}
    page = words(html(small([row]), theories=theories))
    assert "0 of 1 hold" in page
    assert "tokens are unit vectors" in page


def test_every_formula_of_the_registry_becomes_mathml():
    """A formula that the converter cannot read would be shown as its LaTeX, in <code>."""
    texts = {}
    for theory in REGISTERED:
        own = [theory.question, theory.statement, *theory.assumptions]
        for claim in theory.claims:
            own += [claim.statement, *claim.assumptions, claim.control_says, claim.corrects]
        texts[theory.name] = own
    raw = {text for own in texts.values() for text in own if "<code>" in mathml(text) or "\\" in mathml(text)}
    assert raw == set()
    assert all(any("<math" in mathml(text) for text in own) for own in texts.values())


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"2\ln\ln t", "2 ln ln t"),
        (r"\log_2 x + \exp(x)", "log2 x + exp(x)"),
        (r"\arg\min_W L(W)", "arg minW L(W)"),
        (r"\log\big\|x/\|y\|\big\|_F", "log‖x/‖y‖‖F"),
        (r"W^{\mathrm{mm}} z", "Wmmz"),
    ],
)
def test_functions_stand_apart_and_bars_are_bars(latex, text):
    made = re.sub(r"<mo>\+</mo>", " + ", str(mathml(f"${latex}$"))).replace('<mspace width="0.167em" />', " ")
    assert re.sub(r"<[^>]*>", "", made) == text


def test_a_view_restores_what_the_room_yielded(compared):
    own = view(compared, "ViT")
    assert {row["model"] for row in own.table} == {"ViT"}
    assert not [row for row in own.table if "step" in row or row["quantity"].startswith("claim")]
    assert "crate/curve" in own.arrays
    np.testing.assert_array_equal(own.arrays["crate/curve"], compared.arrays["ViT::crate/curve"])
    raw = view(compared, "raw")
    np.testing.assert_array_equal(raw.arrays["crate/curve"], compared.arrays["crate/curve"])
    assert not [name for name in raw.arrays if "::" in name]
    assert views(compared) == ["raw", "ViT", "CRATE (paper form)"]


def test_a_finding_without_model_is_raw():
    row = finding("crate", "fall of R^c through the layers", Evidence(1.0, 0.0, ">="), source=Source("yu2023white"))
    lines = {line.theory.name: line.row for line in summary(small([row]), THEORIES)}
    assert lines["crate"] is row
    assert lines["scan_snap"] is None


def test_the_summary_shows_each_trained_network_beside_its_null(page, compared, theories):
    lines = [line for line in summary(compared, theories) if line.trained]
    assert [(line.theory.name, line.subject) for line in lines[:2]] == [
        ("attention_svm", "trained ViT"),
        ("attention_svm", "trained CRATE (paper form)"),
    ]
    assert len(lines) == 2 * len(THEORIES)
    assert not [line for line in summary(compared, theories) if not line.trained and "in the trained network" in line.row["quantity"]]
    text = words(page[: page.index('id="timeline"')]).replace("\u00a0", " ")
    assert "≥ null 0.420 0.230 ○ outside assumptions above its null" in text
    assert "trained CRATE (paper form) 0.110 0.230 ○ outside assumptions below its null" in text
    assert "no layer of CRATE (paper form) shows its attention sharpness" in text


def test_what_holds_by_construction_has_no_verdict(theories):
    made = finding("rate_reduction", theories[2].answer, Evidence(0.3, -1e-9, ">="), source=Source("yu2020learning"), predicted=0.0)
    text = words(html(small([by_construction(made)]), theories=theories)).replace("\u00a0", " ")
    assert "holds by construction, so it is no evidence ≥ 0 0.300 — Yu et al. (2020)" in text
    assert "10⁻⁹" not in text


def test_bold_is_the_side_of_the_null_that_the_theory_does_not_expect(theories):
    order = theories[0].order_parameter + " in the trained network"
    row = {"theory": "attention_svm", "quantity": order, "bound": 0.5, "null": 0.5, "verdict": "outside assumptions"}
    sides = (("A", 0.4, ">="), ("B", 0.6, ">="), ("C", 0.4, "<="), ("D", 0.6, "<="))
    made = html(small([{**row, "model": name, "value": value, "op": op} for name, value, op in sides]), theories=theories)
    found = [attributes["class"] for _, attributes in Reader(made).tags if attributes.get("class", "").startswith("beside")]
    assert found == ["beside missed", "beside", "beside", "beside missed"]
    assert "Bold under a verdict" in words(made)


def test_given_networks_come_first_with_accuracies_in_per_cent(theories):
    rows = [
        {"theory": "network", "quantity": quantity, "value": value, "model": model, "note": "5,000 images, 95 % interval 60.20% to 62.91%"}
        for model, value in (("crate", 0.6156), ("vit", 0.6458))
        for quantity in ("test accuracy", "held-out accuracy at equal steps", "test loss")
    ]
    refused = {"theory": "network", "quantity": "held-out measures side by side", "value": None, "verdict": "not applicable: other images"}
    made = html(small([*rows, refused], models={"crate": "a", "vit": "b"}), theories=theories)
    text = words(made).replace("\u00a0", " ")
    assert "61.56 % crate , test accuracy 5,000 images, 95 % interval 60.20 % to 62.91 %" in text
    assert text.count("64.58 %") == 2  # of test images, and at equal steps
    assert text.index("64.58 %") < text.index("What the theories say")
    assert text.index("not applicable other images") < text.index("2 more numbers")  # losses


def test_pictures_in_colour_are_shown_in_colour_and_drawings_as_ink():
    colour, drawing = np.random.default_rng(0).random((3, 4, 4)), np.eye(4)[None]
    np.testing.assert_array_equal(seen(colour), np.moveaxis(colour, 0, -1))
    np.testing.assert_array_equal(seen(drawing), np.eye(4))
    normalised = seen(4 * colour - 2)
    assert (normalised.min(), normalised.max()) == (0, 1)


def test_nothing_measured_still_makes_a_page():
    text = words(html(small(), theories=THEORIES))
    assert text.count("not measured") == len(THEORIES)
    assert "One timeline" not in text


def test_not_applicable_everywhere_is_explained():
    rows = [not_applicable(theory.name, "needs labels") for theory in THEORIES]
    text = words(html(small(rows), theories=THEORIES))
    assert text.count("needs labels") >= 2 * len(THEORIES)
    assert "– not applicable" in text


def test_an_answer_that_could_not_be_measured_gives_its_reason():
    row = {
        "theory": "crate",
        "quantity": "fall of R^c through the layers",
        "value": None,
        "verdict": "not applicable: one token only",
        "note": "n",
    }
    assert "one token only" in words(html(small([row]), theories=THEORIES))


def test_missing_arrays_draw_words_instead(compared, theories):
    bare = replace(compared, arrays={})
    made = html(bare, theories=theories)
    assert 'id="attention-svm-raw-figure_1"' in made
    assert 'id="attention-vit-figure_1"' not in made
    assert "could not be drawn" not in made


def test_a_figure_that_fails_says_why_and_spares_the_page(theories):
    def broken(part):
        raise KeyError("no <array>")

    rows = [finding(t.name, t.answer, Evidence(1.0, 0.0, ">="), source=t.sources[0]) for t in theories]
    made = html(small(rows), theories=(replace(theories[0], draw=broken), *theories[1:]))
    assert "This figure could not be drawn (KeyError: &#39;no &lt;array&gt;&#39;)" in made
    assert 'id="attention-svm-raw-figure_1"' not in made
    assert 'id="crate-raw-figure_1"' in made


def test_constant_series_and_a_single_reading_are_survived():
    rows = [{"theory": "crate", "quantity": "R^c before minus after attention", "value": 1.0, "step": s, "model": "ViT"} for s in range(6)]
    rows += [{"theory": "network", "quantity": "validation accuracy", "value": 0.1 * s, "step": s, "model": "ViT"} for s in range(6)]
    text = words(html(small(rows), theories=THEORIES))
    assert "does not move" in text
    assert "—" in text  # its correlations
    once = words(html(small([row for row in rows if row["step"] == 0]), theories=THEORIES))
    assert "One timeline" not in once


def test_a_theory_that_this_version_does_not_know_is_named():
    row = {"theory": "phlogiston", "quantity": "heat", "value": 2.0}
    text = words(html(Result("compare", {"data": "tiny", "theories": ["phlogiston"]}, [row], {}), theories=THEORIES))
    assert "phlogiston" in text
    assert "heat" in text


def test_attention_without_images_or_square_grid_shows_the_maps():
    rows = [{"theory": "network", "quantity": "validation accuracy", "value": 0.1 * s, "step": s, "model": "ViT"} for s in range(3)]
    maps = np.random.default_rng(0).random((3, 1, 2, 2, 7, 7))
    made = html(small(rows, {"network/ViT/attention": maps, "network/ViT/steps": np.arange(3)}), theories=THEORIES)
    assert 'id="attention-vit-figure_1"' in made
    wrong = html(small(rows, {"network/ViT/attention": maps[0]}), theories=THEORIES)
    assert 'id="attention-vit-figure_1"' not in wrong


def test_write_makes_three_files_and_a_stored_result_gives_the_same_bytes(compared, theories, tmp_path):
    rows = [row for row in compared.table if row["theory"] == "crate" and "step" not in row]  # all figures take seconds
    fresh = replace(compared, table=rows, arrays={name: array for name, array in compared.arrays.items() if "crate/" in name})
    stored = Result.load(fresh.save(tmp_path / "stored"))
    (tmp_path / "pages").mkdir()
    path = write(stored, tmp_path / "pages", theories=theories)
    assert path == tmp_path / "pages" / "report.html"
    page = html(fresh, theories=theories)
    assert path.read_text(encoding="utf-8") == page
    assert 'id="crate-raw-figure_1"' in page
    assert sorted(file.name for file in path.parent.iterdir()) == ["references.bib", "report.html", "table.tex"]
    with pytest.raises(ValueError, match="existing folder"):
        write(fresh, tmp_path / "nowhere", theories=theories)
