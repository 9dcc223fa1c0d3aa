"""The page about one network: outcomes against each kind of null, sentences, and what the first
screen names.
"""

import re
from dataclasses import replace

import pytest
import torch

from transformer_theory import report
from transformer_theory.comparison.judged import headlines, is_of_one_network, notable, quantities
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import (
    EQUAL_NORM,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HELD_INPUTS,
    UNTRAINED,
)
from transformer_theory.core.table import Table
from transformer_theory.report.figures import pictures
from transformer_theory.report.html_page import head_of_network
from transformer_theory.report.sentences import MAX_OF_NETWORK, OF_LABELS
from transformer_theory.report.sentences import network_statements as statements
from transformer_theory.report.sentences import other_outcomes as rest
from transformer_theory.theories import list_theories, theory

WIDE, NARROW, FEW = 199, 19, 3  # draws
HELD_WORDS = "copies of equal scale with held inputs"
MODEL = 'a <b> "$net"'


def rows(
    name: str,
    *values: float,
    draws: int = WIDE,
    kind: str = "permuted labels",
    centre: float = 0.5,
    **columns,
) -> list[Measurement]:
    """The headline of a theory in the heads of one layer, beside draws evenly spaced within .05 of the
    centre.
    """
    owner = theory(name).in_networks
    assert owner is not None
    null = Null(kind, tuple(centre + 0.1 * (index / (draws - 1) - 0.5) for index in range(draws)))
    columns = {
        "quantity": owner.headline,
        "nulls": (null,),
        "side": ">=",
        "model": MODEL,
        "layer": 0,
    } | columns
    return [
        Measurement(name, "in network", value=value, head=head, **columns)
        for head, value in enumerate(values)
    ]


def beside(row: Measurement, *nulls: Null) -> Measurement:
    """The row with copies of equal scale, evenly spaced within .05 of .5, in an order that differs from head
    to head, as its first null.
    """
    order = torch.randperm(99, generator=torch.Generator().manual_seed(row.head or 0)).tolist()
    copies = Null(EQUAL_SCALE, tuple(0.5 + 0.1 * (index / 98 - 0.5) for index in order))
    return replace(row, nulls=(copies, *nulls))


def between(kind: str, low: float, high: float, draws: int = 9) -> Null:
    return Null(kind, tuple(low + (high - low) * index / (draws - 1) for index in range(draws)))


def result(*parts: list[Measurement]) -> Result:
    table = Table(row for part in parts for row in part)
    return Result(
        "probe",
        {
            "model": MODEL,
            "class": "Net",
            "parameters": 1234,
            "inputs": "8 sequences",
            "causal": False,
            "labels": 0,
        },
        table,
    )


def outcome(*parts: list[Measurement]) -> str:
    """The outcome of the only headline."""
    found = quantities(result(*parts), list_theories())
    (only,) = headlines(found, list_theories())
    return only.judged.outcome


def test_the_outcome_depends_on_the_side_and_on_the_number_of_draws():
    assert outcome(rows("scan_snap", 0.7, 0.8)) == "as predicted"
    assert outcome(rows("scan_snap", 0.2, 0.3)) == "opposite"
    assert outcome(rows("scan_snap", 0.49, 0.51)) == "not significant"
    # one in ten values leaves the range of 19 draws by chance: a headline is not called so
    for values in ((0.7, 0.8), (0.2, 0.3), (0.49, 0.51)):
        assert outcome(rows("scan_snap", *values, draws=NARROW)) == "too few draws"
    assert outcome(rows("scan_snap", 0.7, 0.8, draws=FEW)) == "too few draws"
    assert outcome(rows("scan_snap", 0.7, 0.8, nulls=())) == "not tested"
    assert outcome(rows("joma", 0.2, 0.3)) == "as predicted"  # which expects small values
    assert outcome(rows("collapse", 0.7, 0.8)) == "not tested"  # no side is predicted
    missing = [Measurement("scan_snap", "in network", "sharpness", None, reason="no attention", model=MODEL)]
    assert outcome(missing) == "not measured"


def test_the_mean_of_many_places_is_tested_against_the_null_of_the_mean():
    """A single head on the edge of its null does not leave it; the mean of heads that all lie there does not
    either.
    """
    edge = rows("scan_snap", *[0.54] * 8)
    (only,) = headlines(quantities(result(edge), list_theories()), list_theories())
    null = edge[0].null
    assert null is not None
    assert only.mean.null is not None
    assert only.mean.null.draws == pytest.approx(null.draws)
    assert only.mean.p == pytest.approx((1 + sum(draw >= 0.54 for draw in null.draws)) / 200)


def test_what_other_nulls_give_as_well_does_not_stand_out():
    """Beyond copies of equal scale: scan_snap, as much as the metric's own null; vision, but other copies lie
    on the other side; crate, which rotated copies cannot test, since they keep it; particles, on the other
    side, with fewer untrained networks than count.
    """
    copies = {
        "scan_snap": (0.9, [between("permuted labels", 0.8, 1.0, WIDE)]),
        "vision": (0.7, [between(HELD_INPUTS, 0.8, 0.9)]),
        "crate": (0.8, [between(EQUAL_SPECTRUM, 0.8, 0.8), between(UNTRAINED, 0.9, 1.0)]),
        "particles": (0.2, [between(EQUAL_NORM, 0.6, 0.7), between(UNTRAINED, 0.0, 0.1, 3)]),
    }
    one = result(*([beside(*rows(name, value), *nulls)] for name, (value, nulls) in copies.items()))
    found = quantities(one, list_theories())
    chosen = headlines(found, list_theories())
    texts = {title: text for title, text, _ in statements(chosen, found)}
    assert texts.keys() == {theory("crate").title, theory("particles").title}
    assert "0.800, above copies of equal scale with 0.500 (p = .010, effect" in texts[theory("crate").title]
    assert texts[theory("particles").title].endswith("opposite to the prediction")
    assert dict(rest(chosen, found)) == {
        "matched by permuted labels": theory("scan_snap").short_title,
        f"beyond copies of equal scale but on the opposite side of {HELD_WORDS}": theory(
            "vision"
        ).short_title,
    }
    # on the first screen, in the table of headlines and in the section of the theory
    page = report.page(one)
    assert page.lower().count("matched by permuted labels") == 3
    assert page.lower().count(f"opposite side of {HELD_WORDS}") == 3
    assert "supports no theory by itself" in page


def test_a_small_effect_has_no_sentence():
    """Copies lie around .5 and the bound is 1: .53 is 6 % of the way, .52 is 4 %."""
    row = replace(beside(*rows("scan_snap", 0.53)), bounds=(0.0, 1.0))
    tight = replace(row.nulls[0], draws=tuple(0.5 + (draw - 0.5) / 100 for draw in row.nulls[0].draws))
    found = quantities(result([replace(row, nulls=(tight,))]), list_theories())
    chosen = headlines(found, list_theories())
    assert chosen[0].judged.outcome == "as predicted"
    assert chosen[0].judged.effect == pytest.approx(0.06, abs=1e-3)
    assert len(statements(chosen, found)) == 1
    smaller = [replace(row, value=0.52, nulls=(tight,))]
    found = quantities(result(smaller), list_theories())
    chosen = headlines(found, list_theories())
    assert (chosen[0].judged.outcome, chosen[0].judged.effect) == (
        "as predicted",
        pytest.approx(0.04, abs=1e-3),
    )
    assert not statements(chosen, found)
    assert dict(rest(chosen, found)) == {"as predicted, by a small effect": theory("scan_snap").short_title}


def test_heads_are_named_if_they_are_significant_together_and_stable():
    """Of four heads beyond all of their copies one has no interval and one an interval that reaches them."""
    intervals = [(0.8, 0.95), None, (0.52, 0.95), (0.7, 0.75)]
    heads = [
        beside(replace(row, interval=interval))
        for row, interval in zip(rows("scan_snap", 0.9, 0.9, 0.9, 0.72), intervals)
    ]
    inside = [beside(row) for row in rows("scan_snap", *[0.5] * 12, layer=1)]
    found = quantities(result(heads, inside), list_theories())
    (one,) = notable(found)
    assert [(row.layer, row.head) for row in one.beyond] == [(0, 0), (0, 3)]
    assert one.tested == 16
    ((_, text, _),) = statements(headlines(found, list_theories()), found)
    assert "2 of 16 heads are so by themselves, most of all layer 0, head 0 (0.900, copies 0.500)" in text
    # 18 copies cannot reach p = .05
    few = [replace(row, nulls=(replace(row.nulls[0], draws=row.nulls[0].draws[:18]),)) for row in heads]
    assert not notable(quantities(result(few), list_theories()))


def test_every_headline_says_what_it_is():
    parts = [rows("scan_snap", 0.9), rows("scan_snap", 0.8, layer=1)]
    found = quantities(result(*parts), list_theories())
    ((_, _, meaning),) = statements(headlines(found, list_theories()), found)
    assert all(each.in_networks.meaning for each in list_theories() if each.in_networks is not None)
    assert f"{meaning[0].upper()}{meaning[1:]}." in report.page(result(*parts))


def test_the_first_screen_names_every_theory():
    sides = {
        each.name: each.in_networks.side
        for each in list_theories()
        if each.in_networks is not None and each.in_networks.side
    }
    names = list(sides)
    assert len(names) > MAX_OF_NETWORK + 2
    parts = [rows(name, 0.9 if sides[name] == ">=" else 0.1) for name in names[:-1]]
    missing = [Measurement(names[-1], "in network", "something", None, reason="no labels", model=MODEL)]
    page = report.page(result(*parts, missing))
    first = page[page.index('id="summary"') : page.index("<figure")]
    for name in names:
        assert theory(name).short_title in first, name
    assert first.count("<li>") == MAX_OF_NETWORK
    found = quantities(result(*parts, missing), list_theories())
    outcomes = dict(rest(headlines(found, list_theories()), found))
    assert outcomes.keys() == {"also as predicted", f"as predicted, {OF_LABELS}", "not measured"}


def test_the_page_escapes_names_and_speaks_of_this_network():
    page = report.page(result(rows("scan_snap", 0.7, 0.8), rows("vision", 0.4)))
    assert "<em>a &lt;b&gt; &#34;$net&#34;</em>" in page
    assert "Net has 1 layer of 2 heads, 1,234 parameters. It was measured on 8 sequences." in page
    assert "<b>" not in page
    assert re.search(
        r"sharpness: 0\.750.* on average over 2 heads in 1 layer, above permuted labels with 0\.500.*, as "
        r"predicted",
        page,
    )


def test_the_page_says_when_the_network_was_measured():
    measured = result(rows("scan_snap", 0.7, 0.8))
    dated = replace(measured, provenance={**measured.provenance, "date": "2026-01-02T03:04:05Z"})
    assert head_of_network(dated)["facts"].split(" · ")[-1] == "2026-01-02"
    assert head_of_network(dated)["facts"] in report.page(dated)


def test_measurements_over_a_training_have_the_general_page():
    several = result(rows("scan_snap", 0.7, step=0), rows("scan_snap", 0.8, step=10))
    assert not is_of_one_network(several)
    assert "What stands out in this network" not in report.page(several)
    assert "What stands out in this network" in report.page(result(rows("scan_snap", 0.7, step=5)))


def test_the_figure_can_be_written_alone():
    combined = report.aggregate(result(rows("scan_snap", 0.7, 0.8), rows("joma", 0.4)))
    (layers, attention) = pictures(combined)
    assert layers.draw() is not None
    assert attention.draw() is None  # no maps are stored


def test_the_table_says_which_further_nulls_agree():
    nulls = between(EQUAL_SPECTRUM, 0.4, 0.6), between(EQUAL_NORM, 0.7, 0.8), between(HELD_INPUTS, 0.9, 0.95)
    parts = [[beside(row, *nulls) for row in rows("crate", 0.74, 0.76)]]
    (only,) = headlines(quantities(result(*parts), list_theories()), list_theories())
    assert dict(only.judged.against) == {EQUAL_SPECTRUM: 1, EQUAL_NORM: 0, HELD_INPUTS: -1}
    page = report.page(result(*parts))
    text = f"agree: {EQUAL_SPECTRUM}; give as much: {EQUAL_NORM}; contradict: {HELD_INPUTS}"
    assert page.count(text) == 1
    # a value within its copies has nothing to bear out
    parts = [[beside(row, *nulls) for row in rows("crate", 0.49, 0.51)]]
    assert "agree: " not in report.page(result(*parts))


@pytest.mark.parametrize(("value", "said"), [(-0.25, True), (0.9, False)])
def test_a_negative_compression_is_called_an_expansion(value: float, said: bool):
    parts = [[beside(row) for row in rows("crate", value, value)]]
    found = quantities(result(*parts), list_theories())
    ((_, text, _),) = statements(headlines(found, list_theories()), found)
    assert text.startswith("compression by attention")
    assert (", which is an expansion, on average over 2 heads" in text) == said
