"""Numbers, formulas, BibTeX and the table in the terminal."""

import io
import re

import pytest

from tests.report.synthetic import THEORIES, small
from transformer_theory.core.sources import entries
from transformer_theory.report import bibtex, mathml, table
from transformer_theory.report.wording import beside_null, formulas, kind, missed, number, prediction, slug, symbols, verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (float("inf"), "—"),
        (0.0, "0"),
        (1.0, "1"),
        (-3, "−3"),
        (1797, "1,797"),
        (0.9137, "0.914"),
        (0.9999, "1.00"),
        (-0.02, "−0.0200"),
        (12.34, "12.3"),
        (123.4, "123"),
        (999.9, "1,000"),
        (1234.5, "1,234"),
        (1.2e-13, "1.20·10⁻¹³"),
        (-2.5e7, "−2.50·10⁷"),
    ],
)
def test_three_significant_digits(value, text):
    assert number(value) == text


def test_predictions_name_limit_and_line():
    said = [
        prediction(row).replace("\u00a0", " ")
        for row in (
            {"predicted": 1.0, "bound": 0.99, "op": ">="},
            {"predicted": 0.0, "bound": 0.0, "op": ">="},
            {"predicted": 0.5},
            {"bound": 1e-12, "op": "<="},
            {"predicted": float("nan"), "bound": float("nan"), "op": ">="},
            {},
            {"predicted": 0.0, "bound": -1e-9, "op": ">="},
            {"predicted": 1.0, "bound": 1 - 1e-6, "op": ">="},
            {"predicted": -1.0, "bound": -0.9999, "op": "<="},
            {"quantity": "sharpness in the trained network", "predicted": 0.2, "bound": 0.2, "null": 0.2, "op": ">="},
            {"quantity": "sharpness", "predicted": 0.2, "bound": 0.2, "null": 0.2, "op": ">="},
        )
    ]
    assert said[:6] == ["→ 1 (line: ≥ 0.990)", "≥ 0", "→ 0.500", "≤ 1.00·10⁻¹²", "—", "—"]
    assert said[6:] == ["≥ 0", "≥ 1", "→ −1 (line: ≤ −1.00)", "≥ null", "≥ 0.200"]


@pytest.mark.parametrize(
    ("ascii", "formula", "unicode"),
    [
        ("eps^2 = 0.1", r"$\varepsilon^2$ = 0.1", "ε² = 0.1"),
        ("eps^4 < (n_j/n) d^2/r_j^2", r"$\varepsilon^4$ < ($n_j$/n) $d^2$/$r_j^2$", "ε⁴ < (n_j/n) d²/r_j²"),
        ("far out along W_a, they", "far out along $W_a$, they", "far out along W_a, they"),
        ("the smallest ||x C_j||, after", r"the smallest $\lVert x C_j \rVert$, after", "the smallest ‖x C_j‖, after"),
        ("where gamma(t) peaks; ln M / eta_Y", r"where $\gamma(t)$ peaks; ln M / $\eta_Y$", "where γ(t) peaks; ln M / η_Y"),
        ("below T - 1 = 15", "below T − 1 = 15", "below T − 1 = 15"),
        ("class R^c after $R^c$ and $T - 1$", "class $R^c$ after $R^c$ and $T - 1$", None),
        ("next_id - a word, attention_svm, e.g. a-b, 5 - five", "next_id - a word, attention_svm, e.g. a-b, 5 − five", None),
    ],
)
def test_ascii_mathematics_is_set(ascii, formula, unicode):
    assert formulas(ascii) == formula
    assert unicode is None or symbols(ascii) == unicode


def test_verdicts_are_split_and_coloured():
    assert verdict({"verdict": "not applicable: needs ids"}) == ("not applicable", "needs ids")
    assert verdict({}) == ("", "")
    assert kind("consistent") == ("good", "✓")
    assert kind("control passes: no power")[0] == "bad"
    assert slug("CRATE (paper form)") == "crate-paper-form"


def test_formulas_are_converted_and_text_is_escaped():
    made = mathml(r"for $x_t^\top W z \ge 1$ & <b>")
    assert made.startswith("for <math")
    assert "<msubsup>" in made
    assert made.endswith("&amp; &lt;b&gt;")
    assert 'display="block"' in mathml(r"$$\frac{a}{b}$$")
    assert mathml(r"costs \$5") == "costs $5"
    assert "<mi>softmax</mi>" in mathml(r"$\mathrm{softmax}(z)$")
    assert "<mo>*</mo>" not in mathml(r"$\operatorname*{arg\,min}_W f$")


@pytest.mark.parametrize(
    "latex_code", [r"\frac{", r"\unknowncommand{x}", r"\text{<script>alert(1)</script>}", r"\text{<img src=x onerror=y>}"]
)
def test_what_cannot_be_converted_is_shown_as_code(latex_code):
    made = mathml(f"see ${latex_code}$")
    assert made.startswith("see <code>")
    assert "<script" not in made
    assert "<img" not in made


def test_links_cannot_be_made_in_formulas():
    assert "href" not in mathml(r"$\href{javascript:alert(1)}{x}$").split("<code>")[0]


def test_bibtex_holds_each_entry_once(compared, theories):
    made = bibtex(compared, theories=theories)
    keys = re.findall(r"^@\w+\{([^,]+),", made, re.MULTILINE)
    assert len(keys) == len(set(keys)) == 5
    assert set(keys) <= set(entries())
    assert bibtex(small(), theories=()) == ""


def test_the_terminal_table_cuts_no_word_in_80_columns(compared, theories):
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(table(compared, theories=theories))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(word in text for word in ("consistent", "assumptions", "applicable", "null 0.118", "Tarzanagh"))


@pytest.mark.parametrize(("value", "null", "told"), [(0.1371, 0.1369, "at"), (0.138, 0.137, "above"), (0.136, 0.137, "below")])
def test_what_is_shown_as_the_same_number_is_on_no_side(value, null, told):
    row = {"theory": "crate", "quantity": "x", "value": value, "null": null, "op": ">="}
    assert beside_null(row) == f"{told} its null"
    assert missed(row) == (told == "below")


@pytest.mark.parametrize("width", [100, 120])
def test_the_terminal_table_fits_and_tells_all(compared, theories, width):
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table(compared, theories=theories))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(stream.getvalue().split())
    for piece in (
        "Attention as a",
        "prediction on this data",
        "0.999",
        "null 0.118",
        "✓ consistent",
        "– not applicable",
        "Thm. 3",
    ):
        assert piece in text
    assert "<script>" in text  # a name is only text here, and no markup of rich
    assert not [line for line in lines if "…" in line]


def test_the_terminal_table_of_nothing():
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=100).print(table(small(data="[red]x[/red]"), theories=THEORIES))
    assert stream.getvalue().count("not measured") == len(THEORIES)
    assert "[red]x[/red]" in stream.getvalue()
