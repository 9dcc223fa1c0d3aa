"""Figures of scan-and-snap: panels and legends without empty entries, one name and one colour
per dynamics.
"""

from itertools import product

import numpy as np
import pytest

from transformer_theory.core.plotting import shades
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.metrics.networks import ENTROPY
from transformer_theory.theories.scan_snap.figures.regime_map import regime_map
from transformer_theory.theories.scan_snap.figures.syn_medium import DISTINCT_ENTROPY, SPREAD, syn_medium
from transformer_theory.theories.scan_snap.figures.syn_small import syn_small
from transformer_theory.theories.scan_snap.figures.text_attention import SHUFFLED, text_attention
from transformer_theory.theories.scan_snap.figures.token_growth import COMMON_LOGIT, GAIN_ERROR, token_growth
from transformer_theory.theories.scan_snap.flow import CLOSED, EXACT, LEMMA4, MODIFIED
from transformer_theory.theories.scan_snap.plots import DYNAMICS_COLOURS


def titles(figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.axison and ax.get_title(loc="left")]


def test_the_legend_of_the_regime_map_lists_occurring_patterns():
    # the closed form alone; the modified flow alone
    errors = np.array([[0.5, 0.7, 0.02], [0.01, 0.3, 0.9], [0.01, 0.3, 0.9]])
    cells = np.concatenate([errors, np.zeros((3, 3))], axis=-1).reshape(1, 1, 1, 3, 6)
    settings = {
        "within": 0.1,
        "decades": 4.0,
        "classes": [2],
        "overlaps": [0.1],
        "vocabularies": [10.0],
        "ratios": [0.1, 1.0, 10.0],
    }
    figure = regime_map().plot(Result("scan_snap.regime_map", settings, arrays={"scan_snap/map": cells}))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        MODIFIED,
        f"{CLOSED} alone (errors cancel)",
    ]


@pytest.mark.parametrize("known", [(), (0,), (0, 1)])
def test_released_values_are_marked_where_there_are_some(known: tuple[int, ...]):
    experiment, rows = syn_medium(last=(1, 3), eta_z=(1.0,), ratios=(1.0, 5.0), seeds=1), []
    for (k, K), ratio in product(enumerate((2, 6)), experiment.ratios):
        at, reference = {"K": K, "eta_Z": 1.0, "ratio": ratio}, (1.9, "printed") if k in known else None
        rows.append(experiment.row(DISTINCT_ENTROPY, 2.0, at=at, reference=reference))
        rows.append(experiment.row(SPREAD, 0.0, at=at))
    figure = experiment.plot(Result("scan_snap.syn_medium", {"seeds": 1}, Table(rows)))
    assert titles(figure) == ["$K$ = 2", "$K$ = 6"]
    marks = [[line for line in ax.lines if line.get_marker() == "x"] for ax in figure.axes]
    assert [len(of_panel) for of_panel in marks] == [1 if k in known else 0 for k in range(2)]
    assert all(line.get_ydata().tolist() == [1.9, 1.9] for of_panel in marks for line in of_panel)


def test_the_quick_table_has_no_published_cells():
    experiment = syn_medium.quick()
    result = experiment.run()
    figure = experiment.plot(result)
    assert titles(figure) == ["$K$ = 2", "$K$ = 6"]
    assert not any(line.get_marker() == "x" for ax in figure.axes for line in ax.lines)
    bands = [band.get_paths()[0].vertices for ax in figure.axes for band in ax.collections]
    widths = [np.ptp(band[band[:, 0] == ratio, 1]) for band in bands for ratio in experiment.ratios]
    assert widths == pytest.approx([2 * row.value for row in result.select(quantity=SPREAD)])


def test_the_four_dynamics_have_their_own_names_colours_and_verdicts():
    experiment = token_growth.quick()
    result = experiment.run()
    figure = experiment.plot(result)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [EXACT, MODIFIED, LEMMA4, CLOSED]
    assert len(set(DYNAMICS_COLOURS.values())) == 4
    assert list(DYNAMICS_COLOURS.values())[:3] == shades(3)
    assert all(ax.get_ylabel() for ax in figure.axes)
    assert "$t_0'$" in figure.get_supxlabel()
    exact, lemma4 = (
        result.select(quantity=COMMON_LOGIT, at={"dynamics": dynamics}, op="<=").one()
        for dynamics in (EXACT, LEMMA4)
    )
    assert lemma4.value < exact.value < 0
    # Theorem 4 describes Lemma 4's flow only
    assert (lemma4.verdict, exact.verdict) == ("consistent", "not covered")
    errors = [
        result.select(quantity=GAIN_ERROR, at={"dynamics": dynamics}).one().value
        for dynamics in (LEMMA4, EXACT)
    ]
    assert errors[0] < 1e-9 < 1e-6 < errors[1]


def test_the_legend_of_the_losses_does_not_cover_them():
    experiment = syn_small.quick()
    figure = experiment.plot(experiment.run())
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert figure.axes[0].get_legend() is None
    assert not any(legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in figure.axes)


def test_ticks_are_whole_steps():
    experiment = text_attention(layers=(1,))
    arrays = {"pictured": np.array([0, 20]), "1/maps": np.ones((2, 1, 4, 4))}
    rows = [
        experiment.row(ENTROPY, 1.0, model="1 layer", layer=0, step=step, at=at)
        for step, at in product((0, 10, 20), ({}, {"text": SHUFFLED}))
    ]
    stored = {f"scan_snap/text/{key}": value for key, value in arrays.items()}
    result = Result("scan_snap.text_attention", {"layers": [1]}, Table(rows), stored)
    figure = experiment.plot(result)
    figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in figure.axes[-1].get_xticks())
