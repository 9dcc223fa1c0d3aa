"""The programs that recompute the reference numbers of the figures give the numbers that the
figures store.
"""

import importlib
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import NAMES as BENCHMARKS
from benchmarks.references import NAMES, Reference, convergence_types, global_convergence, rank, table
from benchmarks.references.__main__ import main
from tests.cases import each_case
from transformer_theory.core.measurement import Basis

ROOT = Path(__file__).parents[1]
FAST = ("joint", "multi_input", "relatives", "single_input", "trajectories", "two_phases")


def references(name):
    return list(importlib.import_module(f"benchmarks.references.{name}").references())


@each_case("name", FAST)
def test_stored_numbers_are_those_of_their_programs(name):
    found = references(name)
    assert {r.kind for r in found} <= {"recomputed", "printed", "read off the figure"}
    judged = [r for r in found if r.kind != "read off the figure"]
    assert judged
    for r in judged:
        assert r.agrees, r


@pytest.mark.parametrize("name", ["local_convergence", "redunet_gaussians"])
def test_other_draws_come_close(name):
    for r in references(name):
        assert r.kind == "another draw"
        assert r.computed == pytest.approx(r.stored, abs=1e-3)


def test_one_size_of_the_sweeps():
    assert global_convergence.share(5, 5, 2) == global_convergence.figure.KNOWN[5, 5][0]
    for r in convergence_types.references(dims=()):  # the shares without descent
        assert r.agrees, r
    for r in rank.references(dims=(4,), wanted=4):
        assert r.computed == pytest.approx(r.stored, abs=0.8)  # a mean over 4 of the 100 problems


def test_every_figure_with_recomputed_numbers_has_a_program():
    """A program is named after the figure. B's growth computes its reference numbers when it is measured."""
    recomputed: Basis = "recomputed"
    figures = {
        p.stem
        for p in (ROOT / "transformer_theory/theories").glob("*/figures/*.py")
        if f'"{recomputed}"' in p.read_text("utf-8")
    }
    assert figures - {"common", "b_growth"} <= set(NAMES)


def test_a_number_agrees_if_it_rounds_to_the_stored_one():
    assert Reference("x", 0.25, 0.2549).agrees
    assert not Reference("x", 0.25, 0.2551).agrees
    assert Reference("x", 669, 669).digits == 1
    assert [line.split()[-1] for line in table([Reference("x", 0.25, 0.3), Reference("x", 0.25, 0.25)])] == [
        "DIFFERS",
        "agrees",
    ]
    assert next(iter(table([Reference("x", 0.25, 0.3, "another draw")]))).endswith("another draw")


def test_the_command_prints_a_figure_and_refuses_an_unknown_one(capsys, monkeypatch):
    assert not set(NAMES) & set(BENCHMARKS)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    assert main(["relatives"]) == 0
    assert capsys.readouterr().out.count("recomputed; agrees") == 3
    assert main(["nothing"]) == 2
    assert "unknown figure 'nothing'; there are: convergence_types" in capsys.readouterr().err
