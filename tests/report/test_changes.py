"""What is said about two networks: sentences about means and about single heads, their order, and the table,
from rows written by hand.
"""

from transformer_theory.comparison.changes import changes
from transformer_theory.comparison.judged import is_of_one_network, quantities
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import exchanged_networks
from transformer_theory.core.table import Table
from transformer_theory.probes.paired import AGAINST, OVER_PAIRED_INPUTS, SUBTRACTED
from transformer_theory.report.changes import heading, of_result, others, sentences
from transformer_theory.report.md import table as markdown
from transformer_theory.report.tex import longtable
from transformer_theory.theories import choose, theory

OTHER = "step_1$"
STEADY = (1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0)  # mean 1: the largest of all patterns of signs
UNSTEADY = (9.0, -7.0, 5.0, -3.0, 2.0, 1.0, 4.0, -3.0)  # mean 1


def pair(
    name: str,
    value: float,
    other: float,
    pattern: tuple[float, ...] = STEADY,
    layer: int | None = None,
    head: int | None = None,
    **columns,
) -> list[Measurement]:
    """A difference, whose pseudo-values are a multiple of a pattern, and what was subtracted."""
    headline = theory(name).in_networks.headline
    difference = value - other
    half = abs(difference) * (0.02 if pattern is STEADY else 3)
    columns = {"model": "later", "layer": layer, "head": head} | columns
    own = {
        "interval": (difference - half, difference + half),
        "interval_kind": OVER_PAIRED_INPUTS,
        "nulls": (exchanged_networks([difference * one for one in pattern]),) if difference else (),
    }
    return [
        Measurement(name, "in network", headline, difference, at={AGAINST: OTHER}, **own, **columns),
        Measurement(name, "in network", headline, other, at={SUBTRACTED: OTHER}, **columns),
    ]


def heads(name: str, *values: tuple[float, float], layers: int = 1) -> list[Measurement]:
    """Pairs of values in the heads of several layers, in order."""
    each = len(values) // layers
    return [
        row
        for index, (value, other) in enumerate(values)
        for row in pair(name, value, other, layer=index // each, head=index % each)
    ]


def result(*rows: list[Measurement]) -> Result:
    whole = [Measurement("scan_snap", "in network", "sharpness", 0.5, model="later", layer=0, head=0)]
    return Result(
        "probe", {"model": "later", "against": OTHER}, Table([*whole, *(r for part in rows for r in part)])
    )


def found(*rows: list[Measurement]):
    return changes(result(*rows), choose(None))


def text(*rows: list[Measurement]) -> list[str]:
    return [said.replace("\u00a0", " ") for _, said, _ in sentences(found(*rows))]


def test_a_mean_that_differs_is_said_with_both_values():
    rows = heads("scan_snap", (0.4, 0.4), (0.4, 0.4), (0.5, 0.4), (0.9, 0.4), layers=2)
    (said,) = text(pair("scan_snap", 0.55, 0.4), rows)
    assert said == (
        "sharpness differs: 0.5500, and 0.4000 in step_1\\$, a difference of +0.1500 [0.1470, 0.1530] (p = "
        ".008, +.38 of the value there); 2 of 4 heads differ by themselves, most of all layer 1, head 1 "
        "(+0.500); no difference in layer 0"
    )


def test_heads_that_differ_are_said_if_their_mean_hardly_does():
    same = (0.4, 0.4)
    rows = heads("scan_snap", same, same, (0.52, 0.4), (0.3, 0.4), (0.401, 0.4), same, layers=3)
    (said,) = text(pair("scan_snap", 0.4002, 0.4), rows)
    # the third head of those that differ does so by .0025 of the value, too little for a sentence
    assert said == (
        "sharpness differs in 2 of 6 heads (layer 1), most of all in layer 1, head 0 (0.5200, and 0.4000 "
        "in step_1\\$; p ≤ .008); on average the difference is +0.0002 [0.0002, 0.0002]; no "
        "difference in layer 0"
    )
    assert not found(pair("scan_snap", 0.4002, 0.4)).all[0].is_large


def test_small_unsteady_and_missing_differences_have_no_sentence():
    small = pair("scan_snap", 0.412, 0.4)
    unsteady = pair("collapse", 0.9, 0.4, UNSTEADY)
    equal = pair("joma", 7.0, 7.0)
    reason = "no labels"
    router = theory("router").in_networks.headline
    missing = [
        Measurement("router", "in network", router, None, reason=reason, at={AGAINST: OTHER}, model="later")
    ]
    all_rows = (small, unsteady, equal, missing)
    assert text(*all_rows) == []
    assert others(found(*all_rows)) == [
        ("differs, by a small effect", "Scan and snap"),
        ("not significant", "Collapse"),
        ("no difference", theory("joma").short_title),
        ("not measured", theory("router").short_title),
    ]
    shown = markdown(of_result(result(*all_rows), choose(None)))
    assert heading(found(*all_rows)) == f"Changed against {OTHER}"
    lines = [line for line in shown.splitlines() if line.startswith("| **")]
    assert [line.split("**")[1] for line in lines] == [
        theory(name).short_title for name in ("scan_snap", "collapse", "joma")
    ]
    numbers = "| 0.4120 | 0.4000 | **+0.0120**<br>\\[0.0118, 0.0122\\]<br>+.03 of the other value | .0"
    assert numbers in lines[0]
    assert f"Not measured: {theory('router').short_title}: no labels." in shown
    # if the network itself has a reason, that one is said
    own = Measurement("router", "in network", router, None, reason="needs labels", model="later")
    shown = markdown(of_result(result(*all_rows, [own]), choose(None)))
    assert f"Not measured: {theory('router').short_title}: needs labels." in shown


def test_the_largest_effect_comes_first_and_falls_are_negative():
    first, second = pair("scan_snap", 0.5, 0.4), pair("collapse", 0.1, 0.4)
    assert [said.partition(" differs")[0] for said in text(first, second)] == [
        theory(name).in_networks.headline for name in ("collapse", "scan_snap")
    ]
    fall = "a difference of −0.3000 [−0.3060, −0.2940] (p = .008, −.75 of the value there)"
    assert fall in text(first, second)[0]


def test_a_value_of_zero_in_the_other_network_has_no_relative_effect():
    (change,) = found(pair("scan_snap", 0.3, 0.0)).all
    assert change.effect is None
    assert change.is_large
    assert "(p = .008)" in text(pair("scan_snap", 0.3, 0.0))[0]


def test_differences_are_in_no_other_table():
    one = result(pair("scan_snap", 0.5, 0.4), heads("scan_snap", (0.5, 0.4), (0.6, 0.4)))
    assert is_of_one_network(one)
    assert [(each.name, len(each.rows)) for each in quantities(one, choose(None))] == [("sharpness", 1)]
    assert len(aggregate(one).entries) == 1
    assert changes(result(), choose(None)) is None
    assert of_result(result(), choose(None)) is None


def test_the_reason_for_missing_heads_is_in_the_legend():
    left_out = Measurement(
        "network", "network", "places", None, reason="a_b has 2 layers", at={AGAINST: OTHER}, model="later"
    )
    shown = of_result(result(pair("scan_snap", 0.5, 0.4), [left_out]), choose(None))
    assert found(pair("scan_snap", 0.5, 0.4), [left_out]).left_out == "a_b has 2 layers"
    assert "A\\_b has 2 layers. Both networks" in markdown(shown)
    assert r"A\_b has 2 layers. Both networks" in longtable(shown)
    assert r"Changed against step\_1\$." in longtable(shown)
