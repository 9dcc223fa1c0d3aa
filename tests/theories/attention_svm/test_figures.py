"""Reference numbers, maps and legends: each figure shows what its result holds."""

from dataclasses import replace

import numpy as np
import pytest

from transformer_theory.core.figure import published
from transformer_theory.core.format import effect
from transformer_theory.core.result import Result
from transformer_theory.theories.attention_svm.figures import joint as joint_module
from transformer_theory.theories.attention_svm.figures import loss_comparison as loss_module
from transformer_theory.theories.attention_svm.figures import multi_input as input_module
from transformer_theory.theories.attention_svm.figures import single_input as single_module
from transformer_theory.theories.attention_svm.figures.joint import joint as joint_training
from transformer_theory.theories.attention_svm.figures.loss_comparison import loss_comparison
from transformer_theory.theories.attention_svm.figures.multi_input import multi_input
from transformer_theory.theories.attention_svm.figures.probability_map import probability_map
from transformer_theory.theories.attention_svm.figures.rank_map import rank_map
from transformer_theory.theories.attention_svm.figures.single_input import single_input
from transformer_theory.theories.attention_svm.figures.trajectories import COSINES, W, trajectories


def crosses(ax, marker: str) -> set[tuple[float, float]]:
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return {
        (float(x), float(y))
        for line in lines
        for x, y in zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
    }


def compared(result: Result) -> set[str]:
    """The quantities with a reference number."""
    return set(published(result.table).column("quantity"))


def stationary(_, state, *, steps, **settings):
    """A descent that does not move: whether a row has a reference number must not depend on
    the measurement.
    """
    return replace(state, step=state.step + steps)


def test_three_inputs_separate_numbers_read_off_from_numbers_computed(run):
    result = run(multi_input.quick())  # the paper's numbers lie within its 200 steps
    _, attention, norm = multi_input.quick().plot(result).axes
    assert crosses(norm, "x") == {(199, 19.5), (199, 3.85)}
    assert crosses(attention, "+") == {(50, 0.9931), (50, 0.8177), (199, 0.9719)}
    assert not crosses(norm, "+")
    assert not crosses(attention, "x")
    for row in published(result.table).select(basis=("recomputed", "printed")):
        digits = len(str(row.predicted).partition(".")[2])
        assert round(row.value, digits) == row.predicted, row


def test_three_inputs_drop_numbers_of_other_settings(monkeypatch, unchecked):
    for descent in ("normalised_descent", "plain_descent"):
        monkeypatch.setattr(input_module, descent, stationary)
    plain = published(multi_input(rate=0.2).run().table).select(basis=("figure", "recomputed"))
    assert {row.at.get("descent") for row in plain} == {input_module.PLAIN}
    assert compared(multi_input(rate=0.2, plain_rate=0.5).run()) == {input_module.OBJECTIVE}


def test_one_input_drops_numbers_of_other_settings(run):
    for experiment in (single_input.quick(), single_input(rate=0.05)):
        known = published(run(experiment).table)
        assert known.select(quantity=single_module.OBJECTIVE) == known
        assert known.column("predicted") == [0.49505, 0.5]
    # objectives, tokens of the local case, cosines
    assert len(published(run(single_input()).table)) == 2 + 6 + 5


def test_joint_training_drops_numbers_of_other_settings(run, monkeypatch, unchecked):
    objectives, probabilities = (
        {"|p_mm|^2 / 2", "|v_mm|^2 / 2"},
        {joint_module.ATTENTION, joint_module.PROBABILITY},
    )
    early = run(joint_training.quick())
    assert compared(early) == objectives | probabilities
    assert (
        early.select(quantity=joint_module.ATTENTION, at={"case": "tight"}, step=90).one().predicted == 0.996
    )
    monkeypatch.setattr(joint_module, "joint_descent", stationary)
    usual, slow = (experiment.run() for experiment in (joint_training(), joint_training(rate=0.05)))
    assert compared(usual) == objectives | probabilities | {
        "cosine of p to p_mm",
        "cosine of p to p_relax",
        "cosine of v to v_mm",
    }
    assert compared(slow) == objectives
    assert not crosses(joint_training(rate=0.05).plot(slow).axes[2], "+")


def test_the_plane_names_its_axes_and_the_cosines(run):
    experiment = trajectories.quick()
    result = run(experiment)
    for number, ax in zip((1, 1, 2, 2), experiment.plot(result).axes):
        assert ax.get_ylabel() == "second coordinate"
        assert "first coordinate" in ax.get_xlabel()
        if "paths" in ax.get_title(loc="left"):
            row = result.select(quantity=COSINES["frobenius"], at={"picture": number, "descent": W}).one()
            assert f"{row.value:.5f}" in ax.get_xlabel()
    assert not compared(result) & set(COSINES.values())


def test_the_published_eps_is_plotted_where_it_stalls(run):
    experiment = loss_comparison()
    result = run(experiment)
    last = experiment.plot(result).axes[2]
    variant = {"loss": "logistic", "C": 100.0, "gradient": loss_module.RELEASED}
    row = result.select(quantity=loss_module.COORDINATE, at=variant).one()
    assert (round(row.value, 2), round(row.predicted, 2)) == (-11.92, -47.04)
    assert any(y == row.value for _, y in crosses(last, "s"))


@pytest.mark.parametrize("kind", [probability_map, rank_map])
def test_maps_give_the_farther_end_of_their_intervals(kind, run):
    experiment = kind.quick()
    result = run(experiment)
    figure = experiment.plot(result)
    share, (low, high) = result.table[0].value, result.table[0].interval
    assert figure.axes[0].texts[0].get_text() == f"{effect(share)}\n±{effect(max(high - share, share - low))}"
    assert f"{experiment.trials} random problems" in " ".join(figure.get_supxlabel().split())
