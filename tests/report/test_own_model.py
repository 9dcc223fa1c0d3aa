"""The page about one network: outcomes against each kind of null, sentences, and what the first
screen names.
"""

import re

import pytest

from transformer_theory import report
from transformer_theory.comparison.judged import headlines, is_of_one_network, notable, quantities
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.core.table import Table
from transformer_theory.report.figures import pictures
from transformer_theory.report.sentences import MAX_OF_NETWORK
from transformer_theory.report.sentences import network_statements as statements
from transformer_theory.report.sentences import other_outcomes as rest
from transformer_theory.theories import list_theories, theory

WIDE, NARROW, FEW = 199, 19, 3  # draws
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


def untrained(name: str, value: float, low: float, high: float) -> Measurement:
    owner = theory(name).in_networks
    assert owner is not None
    null = Null(UNTRAINED, tuple(low + (high - low) * index / (NARROW - 1) for index in range(NARROW)))
    place = {
        "quantity": owner.headline,
        "nulls": (null,),
        "side": owner.side,
        "model": MODEL,
    }
    return Measurement(name, "in network", value=value, **place)


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
    # too few draws for a p-value: their range counts
    assert outcome(rows("scan_snap", 0.7, 0.8, draws=NARROW)) == "as predicted"
    assert outcome(rows("scan_snap", 0.2, 0.3, draws=NARROW)) == "opposite"
    assert outcome(rows("scan_snap", 0.49, 0.51, draws=NARROW)) == "not significant"
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


def test_what_untrained_networks_give_as_well_does_not_stand_out():
    """In scan_snap they give as much, in vision more, in crate less, and in bottleneck less on the other side
    of the null.
    """
    parts = [rows("scan_snap", 0.9), rows("vision", 0.7), rows("crate", 0.8), rows("bottleneck", 0.2)]
    beside = [
        untrained("scan_snap", 0.9, 0.85, 0.95),
        untrained("vision", 0.7, 0.8, 0.9),
        untrained("crate", 0.8, 0.4, 0.6),
    ]
    one = result(*parts, [*beside, untrained("bottleneck", 0.2, 0.3, 0.4)])
    found = quantities(one, list_theories())
    chosen = headlines(found, list_theories())
    texts = statements(chosen, found)
    assert [title for title, *_ in texts] == [theory("crate").title, theory("bottleneck").title]
    assert "networks with random weights have 0.400 … 0.600" in texts[0][1]
    assert dict(rest(chosen, found)) == {
        "matched by untrained networks": theory("scan_snap").short_title,
        "beyond permuted labels but on the opposite side of untrained networks": theory("vision").short_title,
    }
    # on the first screen and in the table of headlines
    page = report.page(one)
    assert page.lower().count("matched by untrained networks") == 2
    assert page.lower().count("opposite side of untrained networks") == 2


def test_every_headline_says_what_it_is_and_places_have_their_own_chance():
    """The second head has the smaller value and is farther from its own null."""
    parts = [rows("scan_snap", 0.9), rows("scan_snap", 0.8, centre=0.2, layer=1)]
    found = quantities(result(*parts), list_theories())
    ((_, text, meaning),) = statements(headlines(found, list_theories()), found)
    assert "most of all layer 1, head 0 (0.800, chance 0.200)" in text
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
    assert outcomes.keys() == {"also as predicted", "not measured"}


def test_places_stand_out_if_chance_does_not_explain_their_number():
    # one of sixteen, of which chance gives as many in more than half of all cases
    one = rows("scan_snap", 0.9, *[0.5] * 15)
    three = rows("crate", 0.9, 0.9, 0.9, *[0.5] * 13)
    assert [each.theory for each in notable(quantities(result(one, three), list_theories()))] == ["crate"]


def test_the_page_escapes_names_and_speaks_of_this_network():
    page = report.page(result(rows("scan_snap", 0.7, 0.8), rows("vision", 0.4)))
    assert "<em>a &lt;b&gt; &#34;$net&#34;</em>" in page
    assert "Net has 1 layer of 2 heads, 1,234 parameters. It was measured on 8 sequences." in page
    assert "<b>" not in page
    assert re.search(
        r"sharpness: 0\.750.* on average over 2 heads in 1 layer, above chance, as predicted", page
    )


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
