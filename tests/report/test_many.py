"""One page of several results: runs are averaged and seeds pooled, and what each result was is said."""

import re
from dataclasses import dataclass, replace

import pytest
from transformer_theory.core.verification import verification

from tests.report.markup import well_formed, words
from tests.report.synthetic import MODELS, small
from tests.report.test_training_page import trained
from transformer_theory.core.experiment import Experiment
from transformer_theory.core.plotting import axes
from transformer_theory.core.result import Result
from transformer_theory.report import html, page


@dataclass(frozen=True)
class Drawn(Experiment):
    """Draws two points."""

    name = "crate.drawn"
    size: int = 3

    def draw(self, result):
        figure, (ax,) = axes()
        ax.plot([0, self.size], [0, 1])
        return figure


@pytest.fixture(scope="module")
def known(theories):
    return tuple(replace(theory, experiments=(Drawn,)) if theory.name == "crate" else theory for theory in theories)


def other(result: Result) -> Result:
    """The same with another seed: values 0.1 higher, claims of three further seeds."""
    rows = [{**row, "value": None if row["value"] is None else row["value"] + 0.1} for row in result.table]
    for row in rows:
        if row["quantity"].startswith("claim: "):
            row |= {"seed": row["seed"] + 3, "value": row["value"] - 0.1}
    record = result.provenance | {"commit": "0123456789abcdef", "date": "2001-01-02T00:00:00Z"}
    pictures = {
        name: array for name, array in result.arrays.items() if name.startswith(("network/ViT", "network/labels", "network/images"))
    }
    return replace(result, table=rows, arrays=pictures, params=result.params | {"seed": 1}, provenance=record)


@pytest.fixture(scope="module")
def made(compared, known) -> str:
    drawn = Result("crate.drawn", {"size": 4}, [{"theory": "crate", "quantity": "points", "value": 2.0}])
    return page([compared, other(compared), drawn, trained(data="shapes & co")], theories=known)


def test_markup_is_well_formed_and_ids_are_unique(made):
    well_formed(made)
    assert "<script>alert" not in made


def test_what_was_merged_is_told(made):
    text = words(made[made.index('id="results"') : made.index('id="claims"')])
    assert "R1 compare synthetic digits <script>alert(1)</script> seed 0 2001-01-01" in text
    assert "seed 1 2001-01-02 01234567 61.2 transformer-theory compare --data <x>" in text
    assert "R4 train shapes & co" in text
    assert "different versions" in text
    assert 'id="r2-provenance"' in made


def test_seeds_are_pooled_and_runs_averaged(made):
    text = words(made)
    assert text.count("6 of 6 0.541 … 1") == 4  # 0.025^(1/6): two results with three seeds each, four claims
    room = text[text.index("fall of R^c through") :] if "fall of R^c through" in text else text
    assert "1.05 ± 0.0707" in room  # 0.9987 and 1.0987 on the raw tokens
    assert "2 R1, R2" in room


def test_pictures_curves_and_figures_are_there_once_each(made):
    for name in ("r1-attention-vit", "r2-features", "r3-crate-drawn", "learning-shapes-co"):
        assert made.count(f'id="{name}-figure_1"') == 1
    for theory in ("attention-svm", "crate"):  # of a comparison what the raw tokens show
        assert len(re.findall(rf'id="r1-[\w-]+-{theory}-raw-figure_1"', made)) == 1
    assert not re.search(r'id="r1-[\w-]+-vit-figure_1"(?<!r1-attention-vit-figure_1")', made)
    assert made.count("data-film") - made.count("[data-film]") == len(MODELS) + 1
    assert "could not be drawn" not in made


def test_an_experiment_that_cannot_be_drawn_spares_the_page(known):
    unknown = Result("crate.drawn", {"size": 4, "colour": "red"}, [{"theory": "crate", "quantity": "points", "value": 2.0}])
    text = words(page(unknown, theories=known))
    assert "could not be drawn (TypeError" in text
    assert "points crate.drawn" in text


def test_a_verification_alone_makes_a_page(theories):
    made = page(verification(theories[0].claims, range(2)), theories=theories)
    text = words(made)
    assert "Theories of transformers: claims" in text
    assert text.count("2 of 2") == 2
    well_formed(made)


def test_one_comparison_keeps_its_own_page(theories):
    assert page([small()], theories=theories) == page(small(), theories=theories) == html(small(), theories=theories)
    with pytest.raises(ValueError, match="at least one, got none"):
        page([], theories=theories)
