"""Numbers, formulas, BibTeX and the tables in the terminal."""

import io
import re

import pytest
from rich.console import Console

from tests.cases import each_case
from tests.report.synthetic import THEORIES, on_data, small
from transformer_theory import report
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core import claim_table, format
from transformer_theory.core.format import (
    amount,
    label,
    number,
    place,
    portable_command,
    prediction,
    relative_to_null,
    slug,
    unexpected_side,
    unique,
    verdict_style,
    with_unit,
)
from transformer_theory.core.math_text import spans
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.sources import entries
from transformer_theory.report import bibtex, mathml, number_tables, terminal
from transformer_theory.report.macros import macros
from transformer_theory.report.md import table as formatted
from transformer_theory.report.tex import longtable
from transformer_theory.theories import list_theories


@each_case(
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


@each_case(
    ("value", "unit", "text"),
    [
        (0.5685, "share", "56.85 %"),
        (1.0, "share", "100.00 %"),
        (2e-6, "share", "2.00·10⁻⁴ %"),
        (0.5685, "", "0.569"),
        (None, "share", "—"),
    ],
)
def test_only_shares_are_in_per_cent(value, unit, text):
    assert amount(value, unit).replace("\u00a0", " ") == text


def test_units_are_named_once():
    assert with_unit(61.91, "nats") == "61.9\u00a0nats"
    assert with_unit(0.5, "share") == "50.00\u00a0%"
    assert with_unit(None, "nats") == "—"


def test_predictions_name_limit_and_threshold():
    null = Null("n", (0.2,))
    rows = (
        {"predicted": 1.0, "threshold": 0.99, "op": ">="},
        {"predicted": 0.0, "threshold": 0.0, "op": ">="},
        {"predicted": 0.5},
        {"threshold": 1e-12, "op": "<="},
        {"op": None},
        {"predicted": 0.0, "threshold": -1e-9, "op": ">="},
        {"predicted": 1.0, "threshold": 1 - 1e-6, "op": ">="},
        {"predicted": -1.0, "threshold": -0.9999, "op": "<="},
        {"side": ">=", "nulls": (null,), "op": None},
        {"side": ">=", "nulls": (null,), "predicted": 0.2, "threshold": 0.2, "op": ">="},
    )
    shown = [prediction(on_data(1.0, **columns)).replace("\u00a0", " ") for columns in rows]
    assert shown[:5] == ["→ 1 (threshold: ≥ 0.990)", "≥ 0", "→ 0.500", "≤ 1.00·10⁻¹²", "—"]
    assert shown[5:] == ["≥ 0", "≥ 1", "→ −1 (threshold: ≤ −1.00)", "≥ null", "≥ 0.200"]


@pytest.mark.parametrize(
    ("value", "null", "side"), [(0.1371, 0.1369, "at"), (0.138, 0.137, "above"), (0.136, 0.137, "below")]
)
def test_values_that_print_as_their_null_are_on_no_side(value, null, side):
    row = on_data(value, nulls=(Null("n", (null,)),), side=">=")
    assert relative_to_null(row) == side
    assert unexpected_side(row) == (side == "below")


def test_names_and_places():
    assert verdict_style("consistent") == ("good", "✓")
    assert verdict_style("control PASSES: no power")[0] == "bad"
    assert slug("CRATE (paper form)") == "crate-paper-form"
    assert unique(["a", "a", "b", "a"]) == ["a", "a-2", "b", "a-3"]
    row = Measurement("crate", "figure", "rate", 1.0, at={"setting": "modified flow"}, layer=2, step=1000)
    assert place(row) == "modified flow, layer 2, step 1,000"
    assert label(Measurement("network", "network", "accuracy", 0.5, split="test")) == "test accuracy"


def test_formulas_are_converted_and_text_is_escaped():
    made = mathml(r"for $x_t^\top W z \ge 1$ & <b>")
    assert made.startswith("for <math")
    assert r'data-latex="x_t^\top W z \ge 1"' in made
    assert "<msubsup>" in made
    assert made.endswith("&amp; &lt;b&gt;")
    assert 'display="block"' in mathml(r"$$\frac{a}{b}$$")
    assert mathml(r"costs \$5") == "costs $5"
    assert "<mi>softmax</mi>" in mathml(r"$\mathrm{softmax}(z)$")
    assert "<mo>*</mo>" not in mathml(r"$\operatorname*{arg\,min}_W f$")


@each_case(
    "latex_code",
    [r"\frac{", r"\unknowncommand{x}", r"\text{<script>alert(1)</script>}", r"\text{<img src=x onerror=y>}"],
)
def test_what_cannot_be_converted_is_shown_as_code(latex_code):
    made = mathml(f"see ${latex_code}$")
    assert made.startswith("see <code>")
    assert "<script" not in made
    assert "<img" not in made


def test_a_text_has_formulas_code_and_powers():
    assert list(spans(r"$\|W\|$ costs \$5: `a_b`, R^c of $$x$$")) == [
        ("inline", r"\|W\|"),
        ("text", " costs $5: "),
        ("code", "a_b"),
        ("text", ", "),
        ("inline", "R^c"),
        ("text", " of "),
        ("block", "x"),
    ]
    assert list(spans("10^6 or W^mm")) == [("text", "10^6 or W^mm")]


def test_links_cannot_be_made_in_formulas():
    assert "href" not in mathml(r"$\href{javascript:alert(1)}{x}$").split("<code>")[0]


@each_case(
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


def test_every_formula_of_the_registry_becomes_mathml():
    """A formula that the converter cannot read would be shown as its LaTeX, in <code>."""
    for theory in list_theories():
        texts = [theory.question, theory.statement, *theory.assumptions]
        for claim in theory.claims:
            texts += [
                claim.statement,
                *claim.assumptions,
                claim.measures,
                claim.control_description,
                claim.corrects,
            ]
        formulas = [part for text in texts for kind, part in spans(text) if kind in ("inline", "block")]
        assert [formula for formula in formulas if "<code>" in mathml(f"${formula}$")] == []
        shown = [re.sub(r' data-latex="[^"]*"', "", mathml(text)) for text in texts]
        assert [text for text in shown if "\\" in text] == []
        assert any("<math" in mathml(text) for text in texts)


def test_bibtex_holds_each_entry_once(compared, theories):
    made = bibtex(compared, theories=theories)
    keys = re.findall(r"^@\w+\{([^,]+),", made, re.MULTILINE)
    # those of the theories, the data, and the methods behind intervals of shares and adjusted p-values
    assert len(keys) == len(set(keys)) == 7
    assert {"alpaydin1998optical", "clopper1934use", "benjamini1995controlling"} <= set(keys)
    assert set(keys) <= set(entries())
    assert bibtex(small(theories=[]), theories=()) == ""


def printed(shown, width=100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(shown)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_summary_in_the_terminal_fits_and_cuts_no_word(compared, theories, width):
    text = printed(terminal.summary(compared, theories=theories), width)
    assert max(map(len, text.splitlines())) <= width
    # rich cuts a word with this sign; between the ends of a range it stands apart
    assert not re.search(r"\S…", text)
    for word in (
        "white-box",
        "consistent",
        "0.999",
        "0.118",
        "permuted labels",
        "too few draws",
        "the page explains",
        "<script>",
    ):
        assert word in text, word


def test_digits_follow_the_interval():
    """The last digit is worth between a hundredth and a tenth of the half-width of the interval."""
    for value, interval, text in (
        (0.5978, (0.516, 0.680), "59.8 % [51.6 %, 68.0 %]"),
        (0.5978, (0.5971, 0.5985), "59.78 % [59.71 %, 59.85 %]"),
        (0.5978, (0.597799, 0.597801), "59.78 % [59.78 %, 59.78 %]"),
        (0.5978, (0.30, 0.90), "60 % [30 %, 90 %]"),
        (0.5978, None, "59.78 %"),
    ):
        row = Measurement("network", "network", "accuracy", value, unit="share", interval=interval)
        assert format.value_text(row).replace("\u00a0", " ") == text
    assert format.amount(1234.4, interval=(1200.0, 1270.0)) == "1,234"
    assert format.amount(0.41, interval=(0.4085, 0.4115)) == "0.4100"
    assert format.amount(-0.001, interval=(-0.5, 0.5)) == "0.00"
    assert format.amount(0.41) == "0.410"
    assert format.amount(None) == "—"


def test_effects_have_two_digits():
    numbers = (0.974, 1.03, -0.117, 0.999, -0.001, 0.0, -3.44)
    texts = [".97", "1.03", "−.12", "1.00", ".00", ".00", "−3.4"]
    assert [format.effect(number) for number in numbers] == texts


def test_an_accuracy_reads_the_same_everywhere():
    """On the terminal, on the page, in LaTeX, in Markdown and as a macro."""
    rows = [
        Measurement("network", "network", "accuracy", value, "share", split="test", model="vit", seed=seed)
        for seed, value in enumerate((0.58, 0.60, 0.62))
    ]
    result = small(rows)
    combined = aggregate(result, theories=THEORIES)
    text = "60.0 % [54.9 %, 64.9 %]"
    assert format.value_text(combined.entries[0].row).replace("\u00a0", " ") == text
    table = number_tables.networks(combined)
    for shown in (longtable(table), formatted(table)):
        shown = (
            shown.replace("\\%", "%")
            .replace("\\[", "[")
            .replace("\\]", "]")
            .replace("~", " ")
            .replace("\u00a0", " ")
        )
        assert "60.0 %" in shown
        assert "[54.9 %, 64.9 %], 3 seeds" in shown
    macro = {
        one.suffix: one.text.replace("\u00a0", " ")
        for one in macros(combined)
        if one.name.startswith("TTnetwork")
    }
    assert (macro[""], macro["Low"], macro["High"]) == ("60.0 %", "54.9 %", "64.9 %")
    page = report.page(result, theories=THEORIES).replace("\u00a0", " ")
    assert "60.0 %" in page
    assert "60.00 %" not in page


def test_names_in_the_terminal_are_no_markup():
    assert "[red]x[/red]" in printed(terminal.summary(small(data="[red]x[/red]"), theories=THEORIES))


def test_verifications_take_one_line_each_where_that_fits():
    claims = [theory.claims[0].verify(range(2)) for theory in THEORIES[:2]]
    for width, lines in ((160, 3), (80, 6)):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        text = printed(claim_table.verifications(claims, console), width)
        assert len(text.splitlines()) == lines
        for piece in (
            "attention_svm/global-direction",
            "consistent",
            "2/2 ",
            "[0.16, 1.00]",
            "≥\u00a00.990",
            "fails as it",
            "Tarzanagh et al. (2023a), Thm. 3",
        ):
            assert piece in text, piece


def test_measurements_show_the_columns_that_hold_something():
    rows = [
        Measurement(
            "crate",
            "figure",
            "rate",
            0.25,
            predicted=0.3,
            basis="printed",
            step=7,
            at={"setting": "paper form"},
        ),
        Measurement(
            "crate", "figure", "bound", 0.1, op="<=", threshold=0.5, predicted=0.5, verdict="consistent"
        ),
    ]
    text = printed(terminal.measurements(rows))
    assert text.split() == [
        *("quantity", "measured", "reference", "origin", "threshold", "verdict"),
        *("rate", "(paper", "form,", "step", "7)", "0.250", "0.300", "printed"),
        *("bound", "0.100", "≤", "0.500", "✓", "consistent"),
    ]


def test_networks_show_quantity_value_and_reason():
    rows = [
        Measurement(
            "network",
            "network",
            "accuracy",
            0.6458,
            unit="share",
            split="test",
            model="vit",
            n=5000,
            note="step 40",
        ),
        Measurement(
            "network", "network", "accuracy", None, at={"setting": "equal steps"}, reason="other images"
        ),
    ]
    text = " ".join(printed(terminal.networks(small(rows))).split()).replace("\u00a0", " ")
    for piece in ("test accuracy", "vit", "64.58 %", "5,000 samples", "step 40", "other images"):
        assert piece in text, piece


def test_a_stored_command_stays_a_command():
    """Of absolute paths only the last part is kept, also behind an equals sign; what a shell would split or
    read stays quoted.
    """
    stored = (
        "transformer-theory compare --data '/my data/a  b & c.npz' --out=/results/x runs/d "
        "tcp://10.0.0.1:8786"
    )
    assert (
        portable_command({"command": stored})
        == "transformer-theory compare --data 'a  b & c.npz' --out=x runs/d tcp://10.0.0.1:8786"
    )
    assert portable_command({"command": "it's no command"}) == "it's no command"
    assert portable_command({}) == ""


def test_verdicts_in_a_terminal_have_the_colour_of_their_group():
    assert [str(claim_table.verdict(name).style) for name in ("consistent", "violated", "fails", "")] == [
        "green",
        "bold red",
        "yellow",
        "dim",
    ]
    assert claim_table.verdict("violated").plain.endswith(" violated")
    assert not claim_table.verdict("").plain
