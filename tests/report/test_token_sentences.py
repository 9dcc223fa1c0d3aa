"""Sentences about sinks, previous-token heads and outlier tokens: names of tokens, and heads that are named
with evidence only.
"""

import numpy as np

from tests.cases import each_case
from transformer_theory import report
from transformer_theory.comparison.judged import quantities
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE
from transformer_theory.core.table import Table
from transformer_theory.metrics import named_tokens
from transformer_theory.metrics.named_tokens import LAST, LEARNT
from transformer_theory.report.token_sentences import token_name, token_statements

TEXT = {"same_tokens": {"0": "[CLS]", "-1": "[SEP]"}, "leading": 1}
IMAGE = {"grid": [2, 3], "leading": 1}


@each_case(
    ("place", "settings", "name"),
    [
        (0, TEXT, "the first token “[CLS]”"),
        (LAST, TEXT, "the last token “[SEP]”"),
        (4, TEXT, "token 5"),
        (0, {}, "the first token"),
        (LEARNT, TEXT, "a learnt key without a token"),
        (0, IMAGE, "the class token"),
        (1, IMAGE, "the patch in row 1 and column 1"),
        (6, IMAGE, "the patch in row 2 and column 3"),
        (LAST, IMAGE, "the patch in row 2 and column 3"),
        (5, {"grid": [2, 3], "leading": 0}, "the patch in row 2 and column 3"),
        (2, {"grid": [2, 3], "leading": 5}, "token 3 of the 5 without a patch"),
        (7, IMAGE, "token 8, behind the patches"),
    ],
)
def test_tokens_have_names(place: int, settings: dict, name: str):
    assert token_name(place, settings) == name


def row(quantity: str, value: float, *, head: int | None, layer: int = 0, **columns) -> Measurement:
    return Measurement(
        "network",
        "network",
        quantity,
        value,
        layer=layer,
        head=head,
        model="net",
        scope="training",
        **columns,
    )


def beside_copies(
    quantity: str, value: float, *, head: int | None, draws: int = 99, half: float = 0.01, **columns
) -> Measurement:
    """A row beside copies around .05, whose draws are a sample of their own, with an interval."""
    seed = len(quantity) + 100 * (head or 0) + 1000 * columns.get("layer", 0)
    null = 0.05 + 0.01 * np.random.default_rng(seed).standard_normal(draws)
    interval = value - half, value + half
    return row(
        quantity,
        value,
        head=head,
        nulls=(Null(EQUAL_SCALE, tuple(null)),),
        interval=interval,
        unit="share",
        **columns,
    )


def network(*rows: Measurement, **settings) -> Result:
    return Result("probe", {"model": "net", "inputs": "8 sequences", **TEXT, **settings}, Table(rows))


def said(result: Result) -> dict[str, str]:
    return {
        title: text.replace("\u00a0", " ")
        for title, text, _ in token_statements(result, quantities(result, []))
    }


def sinks(*masses: float, place: int = 0, value: float = 0.07, **columns) -> list[Measurement]:
    rows = []
    for head, mass in enumerate(masses):
        rows += [
            beside_copies(named_tokens.SINK_MASS, mass, head=head, **columns),
            row(named_tokens.SINK_PLACE, float(place), head=head),
            row(named_tokens.SINK_VALUE, value, head=head),
        ]
    return rows


def test_the_sink_has_its_token_its_mass_and_its_value():
    text = said(network(*sinks(0.5, 0.7, 0.05, 0.2)))["Sinks"]
    # .2 is beyond its copies, but no sink
    assert text.startswith("the first token “[CLS]” is the sink of 2 of 4 heads, where it takes 60 % of ")
    assert "copies of equal scale 4.8 %" in text
    assert "p ≤ .010" in text
    assert "its value has 7 % of the mean norm" in text
    assert "most of all in layer 0, head 1 (70 %)" in text


def test_a_head_is_not_named_without_evidence():
    assert not said(network(*sinks(0.5, 0.6, half=0.58))), "the intervals over inputs contain the copies"
    assert not said(network(*sinks(0.05, 0.06)))
    few = said(network(*sinks(0.5, 0.6, draws=9)))["Sinks"]
    assert "too few draws" in few
    assert "head 1" not in few
    assert "p ≤" not in few


def test_previous_token_heads_are_named_with_the_largest_first():
    rows = [
        beside_copies(named_tokens.PREVIOUS_MASS, value, head=head)
        for head, value in enumerate([0.05, 0.4, 0.9, 0.04, 0.2])
    ]
    text = said(network(*rows))["Previous-token heads"]
    assert text.startswith("2 heads of 5 put at least 30 % of the attention on the token before the query: ")
    assert "layer 0, head 2 (90 %), layer 0, head 1 (40 %) (copies" in text
    assert not said(network(*[beside_copies(named_tokens.PREVIOUS_MASS, 0.9, head=0, draws=9)]))


def test_outlier_tokens_have_their_layers_places_and_attention():
    rows = []
    for layer, number in enumerate([0.05, 1.0, 3.0]):
        rows += [
            beside_copies(named_tokens.OUTLIERS, number, head=None, layer=layer),
            row(named_tokens.LARGEST_NORM, 1 + number, head=None, layer=layer),
        ]
    rows += [
        row(named_tokens.OUTLIER_MASS, 0.4, head=None, layer=2),
        row(named_tokens.OUTLIER_PLACE, -1.0, head=None, layer=2),
        row(named_tokens.OUTLIER_SHARE, 0.25, head=None, layer=2),
    ]
    text = said(network(*rows))["Outlier tokens"]
    assert text.startswith(
        "the stream that enters layers 1, 2 has tokens with outlying norms; most in layer 2, 3.0"
    )
    assert "the largest norm is 4.0 times the median and they get 40 % of the attention" in text
    assert text.endswith("25 % of them are the last token “[SEP]”")


def test_the_sentences_are_on_the_first_screen_and_places_are_in_no_table():
    page = report.page(network(*sinks(0.5, 0.7)))
    first = page[page.index('id="summary"') : page.index("How to read the table")]
    assert "“[CLS]” is the sink of 2 of 2 heads" in first
    assert "It supports no theory by itself" in first
    assert named_tokens.SINK_PLACE not in page
    assert "mass on the sink&#39;s place" in page
