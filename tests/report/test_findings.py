"""Findings: outcomes, one family of tests, the matrix and the sentences."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.judgement import OUTCOMES
from transformer_theory.core.math_text import escape, plain, prose
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED
from transformer_theory.core.table import Table
from transformer_theory.report import effects, tables
from transformer_theory.report.judged_figures import matrix
from transformer_theory.report.sentences import MAX_LEADS, OUTCOME_TEXT, leads, overview, sentences
from transformer_theory.theories import theory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import demo_rows  # noqa: E402

RR, SVM, JOMA = theory("rate_reduction"), theory("attention_svm"), theory("joma")
NORMAL = tuple(np.random.default_rng(0).normal(0.2, 0.02, 199))
NETWORKS = tuple(np.random.default_rng(1).normal(10.0, 1.0, 19))


def on_data(one, values, null=NORMAL, **columns) -> list[Measurement]:
    """One row per seed of a theory's headline on raw tokens."""
    columns = {"side": ">=", "predicted": 1.0, "nulls": (Null("permuted labels", null),), **columns}
    return [
        Measurement(one.name, "on data", one.on_data.headline, value, seed=seed, **columns)
        for seed, value in enumerate(values)
    ]


def in_network(one, values, side=">=", **columns) -> list[Measurement]:
    columns = {
        "side": side,
        "nulls": (Null(UNTRAINED, NETWORKS),),
        "model": "ViT",
        "scope": "training",
        **columns,
    }
    return [
        Measurement(one.name, "in network", one.in_networks.headline, value, seed=seed, **columns)
        for seed, value in enumerate(values)
    ]


def compared(*rows: Measurement, data: str = "mine") -> Result:
    return Result(
        "compare", {"data": data, "seeds": [0, 1, 2]}, Table(replace(row, data=data) for row in rows)
    )


def found(*rows: Measurement) -> Findings:
    return findings(aggregate(compared(*rows)))


def outcome(*rows: Measurement) -> str:
    (finding,) = found(*rows).all
    return finding.judged.outcome


def test_outcomes_on_data():
    assert outcome(*on_data(RR, (0.4, 0.41, 0.42))) == "as predicted"
    assert outcome(*on_data(RR, (0.2, 0.21, 0.19))) == "not significant"
    assert outcome(*on_data(RR, (0.05, 0.06, 0.04))) == "opposite"
    near = sorted(NORMAL)[9] + 1e-9  # 10 draws below: p = .055 on that side
    assert outcome(*on_data(RR, (near,) * 3)) == "not significant"
    assert outcome(*on_data(RR, (0.4, 0.41, 0.42), scope="any data")) == "not tested"
    assert outcome(*on_data(RR, (0.4, 0.41, 0.42), null=NORMAL[:19])) == "too few draws"
    missing = Measurement(RR.name, "on data", RR.on_data.headline, None, reason="needs labels")
    assert outcome(missing) == "not measured"


@pytest.mark.parametrize(
    ("values", "side", "expected"),
    [((14, 15, 16), ">=", "as predicted"), ((14, 15, 16), "<=", "opposite")],
)
def test_outcomes_in_networks_are_by_ranks(values, side, expected):
    (finding,) = found(*in_network(RR, values, side)).all
    assert finding.judged.outcome == expected
    assert min(finding.judged.row.p, 1 - finding.judged.row.p) < 0.01
    assert "1 trained network" in found(*in_network(RR, values[:1], side)).all[0].judged.reason


def test_a_theory_that_predicts_no_side_is_not_tested():
    (finding,) = found(*in_network(RR, (14, 15, 16), None)).all
    assert (finding.judged.outcome, finding.judged.row.p) == ("not tested", None)
    assert finding.judged.reason == "the theory does not predict a side of the null"


def test_the_false_discovery_rate_is_controlled_over_all_headlines():
    p = (1 + sum(draw >= 0.236 for draw in NORMAL)) / 200
    assert 0.02 < p < 0.05
    assert outcome(*on_data(RR, (0.236,) * 3)) == "as predicted"
    others = [row for one in (SVM, JOMA) for row in on_data(one, (0.2, 0.2, 0.2))]
    family = found(*on_data(RR, (0.236,) * 3), *others)
    assert family.tests == 3
    # another family: they do not lower the bar
    others = [row for one in (SVM, JOMA) for row in in_network(one, (30, 31, 32))]
    (finding,) = (one for one in found(*on_data(RR, (0.236,) * 3), *others).all if one.theory is RR)
    assert finding.judged.q == pytest.approx(p)
    (finding,) = (finding for finding in family.all if finding.theory is RR)
    assert finding.judged.q > 0.05
    assert finding.judged.outcome == "not significant"


def test_agreement_and_interval_belong_to_the_mean():
    (finding,) = found(*on_data(RR, (0.4, 0.5, 0.6))).all
    median = float(np.median(NORMAL))
    assert finding.judged.row.agreement == pytest.approx((0.5 - median) / (1 - median))
    assert finding.judged.seeds == 3
    assert finding.judged.row.interval[0] == pytest.approx(0.5 - 4.302653 * 0.1 / 3**0.5, rel=1e-6)


def test_sentences_say_what_noise_gives_and_how_many_networks_moved():
    rows = [
        *on_data(SVM, (0.99, 0.991, 0.992), scope="any data", on_noise=0.993),
        *in_network(SVM, (30.0, 31.0, 32.0)),
        *in_network(SVM, (10.0, 10.1, 9.9), model="CRATE (paper form)"),
        *on_data(RR, (0.4, 0.41, 0.42), unit="share"),
    ]
    first, second = sentences(found(*rows))
    assert first.startswith("Attention as a support vector machine: On the raw tokens of mine, the cosine")
    assert "0.991" in first
    assert "Noise gives 0.9930 as well, so this is no finding about these data." in first
    assert (
        "Training raised the cosine to the max-margin direction, as predicted, in ViT (31 against 10.3)."
        in first
    )
    assert (
        "It cannot be distinguished from untrained networks in CRATE (paper form) (10 against 10.3)." in first
    )
    assert "41.0\u00a0%" in second
    assert "p = .005), so this is a property of these data." in second
    other = sentences(found(*on_data(SVM, (0.99, 0.991, 0.992), scope="any data", on_noise=0.3)))[0]
    assert "Noise gives 0.3000." in other
    assert "no finding" not in other
    # as on noise: within a tenth of the distance to the median of the null
    distance = 0.991 - float(np.median(NORMAL))
    for share, same in ((0.09, True), (0.11, False)):
        rows = on_data(SVM, (0.99, 0.991, 0.992), scope="any data", on_noise=0.991 - share * distance)
        assert ("no finding" in sentences(found(*rows))[0]) == same


@pytest.mark.parametrize("name", ["a_50% x^2 & #1", "`x` for $y$", "R^c"])
def test_a_name_in_a_sentence_is_no_formula(name):
    result = compared(*on_data(RR, (0.4, 0.41, 0.42), unit="share"), data=name)
    (text,) = sentences(findings(aggregate(result)))
    assert f"On the raw tokens of {name}, the" in plain(text)
    assert f"On the raw tokens of {escape(name)}, the" in prose(text)


def test_networks_that_disagree_about_their_own_null_are_no_finding():
    """The mean leaves the narrow null of a mean, but a network lies inside its own, and the differences vary
    too much over networks.
    """

    def outcome_of(values, centres):
        nulls = [
            Null("maps of other images", tuple(np.linspace(centre - 0.01, centre + 0.01, 19)))
            for centre in centres
        ]
        rows = [with_second(row, null) for row, null in zip(in_network(SVM, values), nulls)]
        (finding,) = found(*rows).all
        assert finding.judged.row.value > finding.judged.second.high  # of the mean
        return finding.judged.outcome

    assert outcome_of((30.0, 31.0, 32.0), (29.0, 30.0, 30.0)) == "as predicted"  # every network
    assert outcome_of((30.005, 30.005, 30.006), (30.0, 30.0, 30.0 - 0.1)) == "matched by a second null"
    assert outcome_of((30.005, 30.3, 30.3), (30.0, 30.0, 30.0)) == "matched by a second null"
    # one inside, the interval excludes 0
    assert outcome_of((30.009, 30.012, 30.014), (30.0, 30.0, 30.0)) == "as predicted"


def with_second(row: Measurement, null: Null) -> Measurement:
    """A row in a network with the metric's own null behind untrained networks."""
    return replace(row, nulls=(*row.nulls, null))


def own_null(low: float, high: float, draws: int = 19) -> Null:
    return Null("sign flips", tuple(np.linspace(low, high, draws)))


def beside(null: Null, side: str = ">=") -> list[Measurement]:
    return [with_second(row, null) for row in in_network(SVM, (30.0, 31.0, 32.0), side)]


def test_a_value_that_its_own_null_matches_is_no_finding():
    rows = beside(own_null(25, 40))
    (finding,) = found(*rows).all
    assert (
        finding.judged.outcome,
        finding.judged.row.null.kind,
        finding.judged.second.kind,
    ) == ("matched by a second null", UNTRAINED, "sign flips")
    assert (
        "Training raised the cosine to the max-margin direction in ViT (31 against 10.3), but sign flips "
        "give as much" in sentences(found(*rows))[0]
    )
    # Training may move a value to the opposite side of untrained networks without leaving the metric's own
    # null there.
    rows = beside(own_null(25, 40), "<=")
    (finding,) = found(*rows).all
    assert (finding.judged.outcome, finding.judged.side) == ("matched by a second null", -1)
    assert (
        "Training raised the cosine to the max-margin direction in ViT (31 against 10.3), but sign flips give"
        in sentences(found(*rows))[0]
    )
    assert outcome(*beside(own_null(5, 20), "<=")) == "opposite"
    rows = beside(own_null(40, 60), "<=")
    assert outcome(*rows) == "nulls conflict"
    assert "but sign flips put it on the other side" in sentences(found(*rows))[0]
    assert outcome(*beside(own_null(5, 20))) == "as predicted"
    assert outcome(*beside(own_null(40, 60))) == "nulls conflict"
    (few,) = found(*beside(own_null(5, 20, draws=4))).all
    assert few.judged.outcome == "too few draws"
    assert "too few draws" in few.judged.reason


def test_leads_are_what_is_as_predicted_networks_first():
    """Networks that are not as predicted are left out. Without one, the data are named; at most three."""
    on_digits = on_data(RR, (0.4, 0.41, 0.42), unit="share")
    both = [*in_network(SVM, (30.0, 31.0, 32.0)), *in_network(SVM, (10.0, 10.1, 9.9), model="CRATE")]
    assert leads(found(*on_digits, *both)) == [
        (
            SVM.title,
            "Training raised the cosine to the max-margin direction, as predicted, in ViT (31 against 10.3)",
        ),
        (
            RR.title,
            f"On the raw tokens of mine, the {RR.on_data.headline} is 41.0\u00a0% [38.5\u00a0%, 43.5\u00a0%] "
            "(predicted 100\u00a0%). The chance level is 20.1\u00a0% (permuted labels, p = .005), so this is "
            "a property of these data",
        ),
    ]
    assert leads(found(*on_data(JOMA, (0.19, 0.2, 0.21)))) == []  # within its null
    copies = Null(EQUAL_SCALE, tuple(np.random.default_rng(2).normal(10.0, 1.0, 99)))
    ((_, text),) = leads(found(*in_network(SVM, (30.0, 31.0, 32.0), nulls=(copies,))))
    assert text.endswith("in ViT (31 against 9.99 in copies)")
    four = [*in_network(JOMA, (30.0, 31.0, 32.0)), *in_network(theory("crate"), (30.0, 31.0, 32.0))]
    assert len(leads(found(*on_digits, *both, *four))) == MAX_LEADS


def test_at_most_five_sentences():
    rows = [row for one in (SVM, RR, JOMA) for row in on_data(one, (0.4, 0.4, 0.5))]
    assert len(sentences(found(*rows))) == 3
    assert sentences(found()) == []


def test_several_data_sets_stand_in_one_matrix():
    results = [
        compared(*on_data(RR, (0.4, 0.41, 0.42)), *in_network(RR, (30, 31, 32)), data=data)
        for data in ("digits", "shapes")
    ]
    both = findings(aggregate(results))
    assert [column[0] for column in both.columns] == ["digits", "digits", "shapes", "shapes"]
    assert both.tests == 4
    assert both.at(RR, ("shapes", "raw tokens", "")).data == "shapes"


def test_the_figure_and_the_table_of_the_matrix():
    both = found(*on_data(RR, (0.4, 0.41, 0.42)), *in_network(SVM, (30, 31, 32)))
    figure = matrix(both)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "0.410" in texts
    assert {"effect .26", "✓ p = .005", "[0.385, 0.435]"} <= set(texts)
    table = tables.findings(both)
    assert [column.head for column in table.columns][:3] == ["on", "value", "prediction"]
    assert len(table.lines) == 2
    assert "2 tests" in table.legend
    assert matrix(found()) is None
    assert tables.findings(found()) is None


@pytest.mark.parametrize("column", [False, True])
def test_the_effects_of_headlines_fit_a_column_and_a_page(column):
    rows = [*on_data(RR, (0.4, 0.41, 0.42)), *in_network(SVM, (30, 31, 32))]
    figure = effects.figure(effects.of_findings(found(*rows)), column=column)
    assert figure.get_size_inches()[0] == (3.4 if column else 7.2)
    texts = figure.axes[0].texts
    shown = " ".join(text.get_text() for text in texts)
    assert all(word in shown for word in ("raw tokens", RR.short_title, "prediction", "opposite"))
    assert min(text.get_fontsize() for text in texts) >= 6
    boxes = [text.get_window_extent(FigureCanvasAgg(figure).get_renderer()) for text in texts]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes), "cut off"
    signs = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "")]
    assert sum(line.get_markerfacecolor() != "white" for line in signs) >= 1
    assert effects.figure(effects.of_findings(found()), column=column) is None


def test_results_of_different_settings_have_their_own_columns():
    first, second = (
        compared(*on_data(RR, (0.4, 0.41, 0.42))),
        compared(*on_data(RR, (0.3, 0.31, 0.32)), *on_data(SVM, (0.2, 0.2, 0.2))),
    )
    second = replace(second, settings={**second.settings, "n": 100})
    both = findings(aggregate([first, second]))
    assert [column[0] for column in both.columns] == ["mine (R2)", "mine (R1)"]
    assert [both.at(RR, column).judged.row.value for column in both.columns] == pytest.approx([0.31, 0.41])


def test_the_overview_names_every_theory_once_per_group(compared, theories):
    """The first screen of a page: all theories by outcome, on the data and in the networks; those without
    headlines come last.
    """
    combined = aggregate(compared, theories=theories)
    found = findings(combined)
    groups = dict(overview(found, combined.theories))
    for title, view in (("On the data", "raw tokens"), ("In networks", "network")):
        named = [one.name for _, members in groups[title] for one in members]
        assert sorted(named) == sorted({finding.theory.name for finding in found.all if finding.view == view})
    outcomes = {one.name: outcome for outcome, members in groups["On the data"] for one in members}
    for finding in found.all:
        if finding.view == "raw tokens":
            any_data = finding.judged.scope == "any data"
            outcome = "any data" if any_data else finding.judged.outcome
            assert outcomes[finding.theory.name] == OUTCOME_TEXT[outcome]
    only = theory("turing")
    assert dict(overview(found, (*combined.theories, only)))["Neither"] == [
        ("claims and figures only", [only])
    ]
    assert set(OUTCOMES) | {"differs", "any data"} == set(OUTCOME_TEXT)


def test_an_outcome_that_differs_between_networks_is_said(compared, theories):
    combined = aggregate(compared, theories=theories)
    found = findings(combined)
    first = next(finding for finding in found.all if finding.view == "network")
    judged = replace(first.judged, outcome="not measured")
    other = replace(first, judged=judged)
    assert first.judged.outcome != other.judged.outcome
    lines = dict(overview(Findings((first, other)), [first.theory]))["In networks"]
    assert lines == [("different from case to case", [first.theory])]


def test_the_page_for_beginners_shows_the_rows_of_a_demo():
    """docs/demo_rows.py copies them; a row that its text does not explain is refused."""
    null = own_null(30, 40, draws=199)
    random = np.random.default_rng(0)
    copies = (Null("equal scale", tuple(random.normal(10.0, 1.0, 39))),)
    labels = Null("permuted labels", tuple(random.normal(0.2, 0.02, 1199)))
    single = in_network(SVM, (30.0, 31.0, 32.0), nulls=copies)
    rows = [
        *on_data(RR, (0.4, 0.41, 0.42), nulls=(labels,)),
        *in_network(JOMA, (1.0, 1.1, 1.2), side="<=", nulls=copies),
        *(with_second(row, null) for row in single),
    ]
    demo = replace(compared(*rows), provenance={"date": "2026-11-27T01:02:03Z", "machine": "two cores"})
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    shown = demo_rows.written(page, demo).splitlines()
    assert "Three of its rows, as `make demo` printed them on 27 November 2026 (two cores):" in shown
    for where, value, outcome in (
        ("raw tokens", "0.410", "as predicted"),
        ("trained ViT", "1.10", "as predicted"),
        ("trained ViT", "31.0", "matched by"),
    ):
        assert any(line.strip().startswith(where) and value in line and outcome in line for line in shown), (
            where
        )
    assert page.splitlines()[0] == shown[0]
    assert page.splitlines()[-1] == shown[-1]
    with pytest.raises(
        ValueError,
        match=r"explains the row .*'attention_svm', 'trained ViT'.* but the demo has no such row",
    ):
        demo_rows.block(compared(*rows[:-3]))
    with pytest.raises(ValueError, match=r"but the demo has \('as predicted', 39, 3\)"):
        demo_rows.block(compared(*rows[:-3], *single))
    stored = json.loads(demo_rows.stored(demo))
    assert stored["about"]["headlines"] == 3
    assert [row["outcome"] for row in stored["rows"] if "outcome" in row] == [
        "matched by a second null",
        "as predicted",
        "as predicted",
    ]
