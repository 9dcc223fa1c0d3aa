"""The prompt figures' references, the maps' numbers and the legends: what stands in a picture is what its result says."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from transformer_theory.core.result import Result
from transformer_theory.theories.attention_svm.experiments import (
    Joint,
    LossComparison,
    MultiInput,
    ProbabilityMap,
    RankMap,
    SingleInput,
    Trajectories,
)
from transformer_theory.theories.attention_svm.figures.size_map import short


def beside(result: Result, *bases: str) -> dict[tuple[str, int | None], float]:
    return {(r["quantity"], r.get("step")): r["predicted"] for r in result.table if r.get("basis") in bases and "predicted" in r}


def crosses(ax, marker: str) -> set[tuple[float, float]]:
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return {(float(x), float(y)) for line in lines for x, y in zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))}


def test_three_inputs_show_what_was_read_off_apart_from_what_was_computed(run):
    result = run(MultiInput.quick())  # the paper's numbers lie within its 200 steps
    _, attention, norm = MultiInput().draw(result).axes
    assert crosses(norm, "x") == {(199, 19.5), (199, 3.85)}
    assert crosses(attention, "+") == {(50, 0.9931), (50, 0.8177), (199, 0.9719)}
    assert not crosses(norm, "+")
    assert not crosses(attention, "x")
    for row in result.table:
        if row.get("basis") in ("recomputed", "printed") and row["value"] is not None:
            digits = len(str(row["predicted"]).split(".")[1])
            assert round(row["value"], digits) == row["predicted"], row


def test_three_inputs_drop_numbers_of_other_settings(monkeypatch, unchecked):
    for descent in ("normalised_descent", "plain_descent"):
        monkeypatch.setattr(inspect.getmodule(MultiInput), descent, standing)
    plain = beside(MultiInput(rate=0.2).run(), "figure", "recomputed")
    assert {quantity.split(", ")[1] for quantity, _ in plain} == {"plain steps"}
    assert beside(MultiInput(rate=0.2, plain_rate=0.5).run(), "figure", "recomputed") == {}


def standing(_, state, *, steps, **settings):
    """A descent that goes nowhere: whether a number of the paper stands beside a row must not depend on what was measured."""
    return replace(state, step=state.step + steps)


def test_one_input_drops_numbers_of_other_settings(run):
    objectives = {("|p_mm|^2 / 2, token 0", None): 0.49505, ("|p_mm|^2 / 2, token 1", None): 0.5}
    assert beside(run(SingleInput.quick()), "recomputed") == objectives
    assert beside(run(SingleInput(rate=0.05)), "recomputed") == objectives
    assert len(beside(run(SingleInput()), "recomputed")) == 2 + 6 + 5  # objectives, tokens of the local case, cosines


def test_joint_training_drops_numbers_of_other_settings(run, monkeypatch, unchecked):
    early = beside(run(Joint.quick()), "recomputed")
    assert not any(quantity.startswith("cosine") for quantity, _ in early)
    assert early["attention on the selected token, tight", 90] == 0.996
    monkeypatch.setattr(inspect.getmodule(Joint), "joint_descent", standing)
    usual, slow = (beside(experiment.run(), "recomputed") for experiment in (Joint(), Joint(rate=0.05)))
    assert {quantity.split()[0] for quantity, _ in usual} == {"|p_mm|^2", "|v_mm|^2", "cosine", "attention", "probability"}
    assert all(quantity.startswith("|") for quantity, _ in slow)
    assert not crosses(Joint().draw(Joint(rate=0.05).run()).axes[2], "+")


def test_the_plane_says_its_axes_and_the_cosines_it_reached(run):
    result = run(Trajectories.quick())
    for number, ax in zip((1, 1, 2, 2), Trajectories.quick().draw(result).axes):
        assert ax.get_ylabel() == "second coordinate"
        assert ax.get_xlabel().startswith("first coordinate")
        if "paths" in ax.get_title(loc="left"):
            values = {row["quantity"]: row["value"] for row in result.table}
            assert f"{values[f'picture {number}: cosine to the Frobenius solution, descent on W']:.5f}" in ax.get_xlabel()
    assert not any(r.get("basis") == "recomputed" and r["quantity"].split(": ")[1].startswith("cosine") for r in result.table)


def test_the_published_eps_is_drawn_where_it_stalls(run):
    result = run(LossComparison())
    last = LossComparison().draw(result).axes[2]
    assert [text.get_text() for text in last.texts] == ["−11.92", "−47.04"]
    (stalled,) = (row["value"] for row in result.table if "logistic" in row["quantity"] and "released" in row["quantity"])
    assert any(y == stalled for _, y in crosses(last, "s"))


@pytest.mark.parametrize(("number", "text"), [(0.0, ".00"), (0.054, ".05"), (1.0, "1.00"), (9.996, "10.0"), (15.0, "15.0")])
def test_numbers_of_a_map_are_short(number, text):
    assert short(number) == text


@pytest.mark.parametrize("kind", [ProbabilityMap, RankMap])
def test_maps_give_the_farther_end_of_their_intervals(kind, run):
    result = run(kind.quick())
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    figure = kind.quick().draw(result)
    share, low, high = (a[name][0, 0, 0] for name in ("feasible", "feasible_low", "feasible_high"))
    assert figure.axes[0].texts[0].get_text() == f"{short(share)}\n±{short(max(high - share, share - low))}"
    assert f"{result.params['trials']} random problems" in " ".join(figure.get_supxlabel().split())
