"""What the pages say about interventions: sentences, counts and tables, from rows that are written here."""

from dataclasses import replace

import pytest

import transformer_theory as tt
from transformer_theory.comparison.interventions import judged_interventions
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.report import page, tables
from transformer_theory.report.interventions import picture, sentences
from transformer_theory.theories import list_theories

HEAVIEST, HALVED = "heaviest key of every query removed", "skip connections halved"
FAR = Null("another key of every query removed", tuple(-0.001 * index for index in range(99)))
NEAR = Null("tokens moved as far in random directions", tuple(0.001 * (index - 49) for index in range(99)))


def changed(value: float | None, model: str, **columns) -> Measurement:
    """The change of the accuracy of a network without the heaviest keys."""
    own = {
        "at": {"measure": "accuracy"},
        "unit": "share",
        "interval": None if value is None else (value - 0.1, value + 0.1),
        "nulls": (FAR,),
        "side": "<=",
        "n": 128,
        "model": model,
    }
    return Measurement("router", "intervention", HEAVIEST, value, **(own | columns))


def halved(value: float, model: str) -> Measurement:
    return replace(changed(value, model, nulls=(NEAR,)), theory="collapse", quantity=HALVED)


def result(*rows: Measurement, name: str = "intervene") -> Result:
    return Result(name, {"model": rows[0].model}, Table(rows))


@pytest.fixture(scope="module")
def two() -> Result:
    """In the first network one of two is as predicted, in the second one is opposite and one not measured."""
    reason = "no attention <b> was found"
    missing = changed(None, "B", nulls=(), side=None, at={}, reason=reason)
    return result(changed(-0.517, "A"), halved(0.001, "A"), missing, halved(0.2, "B"))


def test_each_network_is_a_family_of_its_own(two):
    found = judged_interventions(two)
    assert [(each.row.model, each.row.theory, each.outcome) for each in found] == [
        ("A", "router", "as predicted"),
        ("A", "collapse", "not significant"),
        ("B", "router", "not measured"),
        ("B", "collapse", "opposite"),
    ]
    # p = .01 among two tests of the network A, and alone in B
    assert found[0].q == pytest.approx(0.02)
    assert found[3].other_q == pytest.approx(0.01)


def test_sentences_have_the_effect_and_the_median_of_the_controls(two):
    said = [
        (title, text.replace("\N{NO-BREAK SPACE}", " "))
        for title, text in sentences(judged_interventions(two), list_theories())
    ]
    assert said == [
        (
            "Routing",
            "Heaviest key of every query removed: in A accuracy −51.7 % against −4.9 % (another key of every "
            "query removed), as predicted",
        ),
        (
            "Collapse",
            "Skip connections halved: in B accuracy 20 % against 0 % (tokens moved as far in random "
            "directions), opposite",
        ),
    ]
    alone = sentences(judged_interventions(result(changed(-0.517, "A"))), list_theories())
    assert alone[0][1].startswith("Heaviest key of every query removed: accuracy −51.7")


def test_the_table_names_theories_and_networks(two):
    found = tables.interventions(judged_interventions(two), list_theories())
    assert [block.theory for block in found.blocks] == ["router", "collapse"]
    assert str(found.blocks[0].title[0]).startswith("Routing")
    below = [str(line.cells[0][1]) for block in found.blocks for line in block.lines]
    assert below == ["A, accuracy", "B", "A, accuracy", "B, accuracy"]
    assert [str(line.cells[0][0]) for line in found.blocks[0].lines] == [HEAVIEST, ""]
    assert "the mean difference over sequences, changed less unchanged" in found.legend


def test_seeds_are_judged_together():
    far, few = FAR, replace(FAR, draws=FAR.draws[:30], stopped=True)
    seeds = [changed(-0.517, "A", seed=seed, nulls=(null,)) for seed, null in enumerate((far, far, few))]
    (found,) = judged_interventions(result(*seeds))
    assert found.row.n == 3
    assert found.outcome == "too few draws"  # 30 of the mean, which was never without hope
    (found,) = judged_interventions(result(*seeds[:2]))
    assert found.outcome == "as predicted"
    reason = "no attention"
    missing = changed(None, "A", seed=3, nulls=(), side=None, at={}, reason=reason)
    for order in ((missing, *seeds[:2]), (*seeds[:2], missing)):
        (found,) = judged_interventions(result(*order))
        assert found.outcome == "as predicted"
        assert found.row.n == 2


def test_a_sentence_has_the_effect_on_the_sequences_of_the_draws():
    null = replace(FAR, value=-0.2)
    ((_, text),) = sentences(
        judged_interventions(result(changed(-0.517, "A", nulls=(null,)))), list_theories()
    )
    assert "accuracy −20" in text


def test_without_an_effect_the_page_has_reasons_and_no_figure():
    missing = changed(None, "A", nulls=(), side=None, at={}, reason="no attention was found")
    text = page(result(missing))
    assert "No change of the forward pass has another effect" in text
    assert ">None<" not in text
    assert "no attention was found" in text


def test_theories_of_others_come_last():
    strange = replace(changed(-0.5, "A"), theory="mine")
    found = judged_interventions(result(strange, changed(-0.5, "A")))
    figure = picture({"A": found}, list_theories())
    words = [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]
    assert words[:2] == [HEAVIEST, HEAVIEST]


def test_the_page_shows_them_and_escapes_reasons(two):
    text = page(two)
    assert "What is lost when a theory’s structure is changed" in text
    assert 'href="#interventions"' in text
    assert "no attention &lt;b&gt; was found" in text
    assert "<b> was" not in text


def test_the_page_of_a_network_counts_them_beside_its_headline():
    row = Measurement("router", "in network", "heaviest key", 0.5, layer=0, head=0, model="A")
    assert tt.theory("router").in_networks.headline
    headline = replace(row, quantity=tt.theory("router").in_networks.headline)
    text = page(result(headline, changed(-0.517, "A"), name="probe"))
    assert "interventions: 1 of 1 as predicted" in text
    assert "What is lost when a theory’s structure is changed" in text
    without = page(result(headline, name="probe"))
    assert "interventions:" not in without
    assert 'id="interventions"' not in without
