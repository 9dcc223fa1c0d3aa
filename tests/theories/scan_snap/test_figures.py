"""Pictures of scan-and-snap: only what there is, one name and one colour for each dynamics."""

import numpy as np
import pytest

from transformer_theory.core.plotting import shades
from transformer_theory.core.result import Result
from transformer_theory.theories.scan_snap.experiments import Fates, SynMedium, SynSmall
from transformer_theory.theories.scan_snap.figures import regime_map, syn_medium
from transformer_theory.theories.scan_snap.figures.text import attention
from transformer_theory.theories.scan_snap.figures.tints import DYNAMICS
from transformer_theory.theories.scan_snap.predictions import CLOSED, EXACT, LEMMA4, MODIFIED


def titles(figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.axison and ax.get_title(loc="left")]


def test_the_regime_map_names_what_occurs():
    errors = np.array([[0.5, 0.7, 0.02], [0.01, 0.3, 0.9], [0.01, 0.3, 0.9]])  # the closed form alone; the modified flow alone
    found = np.concatenate([errors, np.zeros((3, 3))], axis=-1).reshape(1, 1, 1, 3, 6)
    given = {"within": 0.1, "decades": 4.0, "classes": [2], "overlaps": [0.1], "vocabularies": [10.0], "ratios": [0.1, 1.0, 10.0]}
    figure = regime_map(Result("scan_snap.regime_map", given, [], {"scan_snap/map": found}))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [MODIFIED, f"{CLOSED} alone (errors cancel)"]


@pytest.mark.parametrize("known", [(), (0,), (0, 1)])
def test_only_panels_with_numbers_are_drawn(known: tuple[int, ...]):
    published = np.full((2, 1, 2), np.nan)
    published[list(known)] = 1.9
    arrays = {"entropy": np.full((2, 1, 2), 2.0), "published": published, "classes": np.array([2, 6])}
    arrays |= {"eta_z": np.array([1.0]), "ratios": np.array([1.0, 5.0])}
    figure = syn_medium(Result("scan_snap.syn_medium", {}, [], {f"scan_snap/{key}": value for key, value in arrays.items()}))
    columns = [f"$K$ = {2 + 4 * k}" for k in known]
    rows = [*(f"Released, {k}" for k in columns), "Ours, $K$ = 2", "Ours, $K$ = 6", *(f"Difference, {k}" for k in columns)]
    assert titles(figure) == rows
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert len(bars) == (3 if known else 1)


def test_the_quick_table_has_no_published_cells():
    experiment = SynMedium.quick()
    assert titles(experiment.draw(experiment.run())) == ["Ours, $K$ = 2", "Ours, $K$ = 6"]


def test_the_four_dynamics_are_named_and_told_apart():
    experiment = Fates.quick()
    figure = experiment.draw(experiment.run())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [EXACT, MODIFIED, LEMMA4, CLOSED]
    assert len(set(DYNAMICS.values())) == 4
    assert list(DYNAMICS.values())[:3] == shades(3)
    assert all(ax.get_ylabel() for ax in figure.axes)
    assert "$t_0'$" in figure.get_supxlabel()


def test_the_legend_of_the_losses_stands_beside_them():
    experiment = SynSmall.quick()
    figure = experiment.draw(experiment.run())
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert figure.axes[0].get_legend() is None
    assert not any(legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in figure.axes)


def test_ticks_stand_at_whole_steps():
    arrays = {"steps": np.array([0, 10, 20]), "pictured": np.array([0, 20]), "1/maps": np.ones((2, 1, 4, 4))}
    arrays |= {f"1/{name}": np.ones((3, 1)) for name in ("entropy", "shuffled")}
    stored = {f"scan_snap/text/{key}": value for key, value in arrays.items()}
    figure = attention(Result("scan_snap.text_attention", {"layers": [1]}, [], stored))
    figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in figure.axes[-1].get_xticks())
