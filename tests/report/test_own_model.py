"""The page about one network: outcomes against each kind of null, sentences, and what the first
screen names.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from transformer_theory import report
from transformer_theory.comparison.judged import headlines, is_of_one_network, notable, quantities
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, HELD_INPUTS, UNTRAINED, studentised_maximum
from transformer_theory.core.table import Table
from transformer_theory.report.figures import pictures
from transformer_theory.report.sentences import MAX_OF_NETWORK
from transformer_theory.report.sentences import network_statements as statements
from transformer_theory.report.sentences import other_outcomes as rest
from transformer_theory.theories import list_theories, theory

WIDE, NARROW, FEW = 199, 19, 3  # draws
COPIED = tuple(float(share) for share in np.random.default_rng(3).permutation(np.linspace(0, 1, 99)))
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


def copied(name: str, value: float, *, width: float = 0.1, centre: float = 0.5, beside=(), **columns):
    """One head beside 99 copies of equal scale, with an interval on held-out inputs."""
    draws = tuple(centre + width * (share - 0.5) for share in COPIED)
    (row,) = rows(name, value, nulls=(Null(EQUAL_SCALE, draws), *beside), **columns)
    return [replace(row, interval=(value - 0.01, value + 0.01), interval_kind="over held-out inputs")]


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


def test_untrained_networks_are_shown_and_copies_decide():
    """In scan_snap untrained networks give as much, which decides nothing; in vision copies whose inputs are
    held give as much, and in bottleneck they are on the other side.
    """
    held = Null(HELD_INPUTS, tuple(0.65 + 0.01 * index for index in range(9)))
    opposite = Null(HELD_INPUTS, tuple(0.05 + 0.01 * index for index in range(9)))
    parts = [
        copied("scan_snap", 0.9),
        copied("vision", 0.7, beside=(held,)),
        copied("bottleneck", 0.2, beside=(opposite,)),
    ]
    one = result(*parts, [untrained("scan_snap", 0.9, 0.85, 0.95)])
    found = quantities(one, list_theories())
    chosen = headlines(found, list_theories())
    texts = statements(chosen, found)
    assert [title for title, *_ in texts] == [theory("scan_snap").title]
    assert "networks with random weights have 0.850 … 0.950" in texts[0][1]
    assert dict(rest(chosen, found)) == {
        f"matched by {HELD_INPUTS}": theory("vision").short_title,
        f"on the opposite side of {EQUAL_SCALE} but beyond {HELD_INPUTS}": theory("bottleneck").short_title,
    }
    # on the first screen and in the table of headlines
    page = report.page(one)
    assert page.lower().count(f"matched by {HELD_INPUTS}") == 2
    assert page.lower().count(f"but beyond {HELD_INPUTS}") == 2


def test_untrained_networks_without_copies_decide_nothing():
    (only,) = headlines(
        quantities(result([untrained("scan_snap", 0.9, 0.1, 0.2)]), list_theories()), list_theories()
    )
    assert only.judged.side is None
    assert not only.is_large


def test_the_row_of_the_mean_has_the_nulls_that_decide():
    """It replaces the mean over places, with the nulls of the places that it lacks behind its own."""
    names = rows("scan_snap", 0.7, 0.9)
    whole = replace(
        names[0],
        layer=None,
        head=None,
        value=0.81,
        nulls=(Null(UNTRAINED, (0.1, 0.2)), Null(EQUAL_SCALE, COPIED, value=1.2)),
    )
    (only,) = headlines(quantities(result([*names, whole]), list_theories()), list_theories())
    assert [null.kind for null in only.mean.nulls] == [EQUAL_SCALE, "permuted labels", UNTRAINED]
    assert (only.mean.value, only.places, len(only.rows)) == (0.81, "2 heads in 1 layer", 2)
    assert only.judged.q == pytest.approx(0.01)


def test_every_headline_says_what_it_is_and_places_have_their_own_chance():
    """The second head has the smaller value and is farther from its own copies."""
    parts = [copied("scan_snap", 0.9), copied("scan_snap", 0.8, centre=0.2, layer=1)]
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


def test_a_place_is_named_only_if_it_is_significant_in_the_family_and_stable():
    """All places of all headlines are one family: 80 independent heads, with two effects."""
    generator = np.random.default_rng(0)

    def heads(name, *values, intervals=None):
        shown = []
        for index, value in enumerate([*values, *generator.uniform(0.4, 0.6, 40 - len(values))]):
            null = Null(EQUAL_SCALE, tuple(generator.normal(0.5, 0.1, 99)))
            interval = (intervals or {}).get(index, (value - 0.01, value + 0.01))
            (row,) = rows(name, value, nulls=(null,), interval=interval)
            shown.append(replace(row, head=index))
        return shown

    # Heads 0 and 1 are far from their copies, but the interval of head 1 is not. Head 2 lies beyond most of
    # its own copies, as others among 80 do by chance.
    first = heads("scan_snap", 1.2, 1.4, 0.75, intervals={1: (0.6, 2.2)})
    found = quantities(result(first, heads("crate"), rows("vision", 0.9, 0.9)), list_theories())
    beyond = {each.theory: [row.head for row in each.beyond] for each in found}
    assert beyond == {"scan_snap": [0], "crate": [], "vision": []}  # those of vision have no copies
    assert {each.theory: each.tested for each in found} == {"scan_snap": 40, "crate": 40, "vision": 0}
    assert [each.theory for each in notable(found)] == ["scan_snap"]
    # the family has the same p-values as the maximum over the 80 columns
    family = [row for each in found if each.tested for row in each.rows]
    p = studentised_maximum(
        np.array([row.value for row in family]), np.array([row.null.draws for row in family]).T
    )
    assert {row.head for row, one in zip(family, p) if one <= 0.05} == {0, 1}
    assert family[2].null.p(family[2].value, ">=") <= 0.05

    stable = heads("scan_snap", 1.2, 1.4, intervals={1: (1.0, 1.8)})
    (only,) = quantities(result(stable), list_theories())
    distances = [(row.value - np.mean(row.null.draws)) / np.std(row.null.draws) for row in only.beyond]
    assert [row.head for row in only.beyond] == [1, 0]
    assert distances == sorted(distances, reverse=True)
    assert only.largest_p == pytest.approx(0.01)
    without = [replace(row, interval=None) for row in stable]
    assert not quantities(result(without), list_theories())[0].beyond

    # joma expects small values: the mirror image
    small = [0.05, 0.05, 0.95]
    (only,) = quantities(result(heads("joma", *small, intervals={1: (-0.1, 0.5)})), list_theories())
    assert [row.head for row in only.beyond] == [0]


def test_the_first_screen_needs_an_effect_beside_significance():
    """The headline of scan_snap is a share here: an effect of 1 is the distance from the copies to 1."""
    near = copied("scan_snap", 0.52, width=0.01, unit="share")
    far = copied("scan_snap", 0.53, width=0.01, unit="share")
    found = []
    for part in (near, far):
        (only,) = headlines(quantities(result(part), list_theories()), list_theories())
        assert (only.judged.outcome, only.judged.q) == ("as predicted", pytest.approx(0.01))
        found.append(only.is_large)
    assert found == [False, True]  # .02 / .5 and .03 / .5, where .05 is needed


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
