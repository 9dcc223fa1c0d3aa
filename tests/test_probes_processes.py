"""A reading of a model on two processes is a reading of all their data."""

import pickle
from multiprocessing import get_context

import pytest
import torch
from torch import multiprocessing

from tests.problems.networks import Net, all_reducers, built, tokens
from tests.problems.two_processes import one_process, work
from transformer_theory.probes import across_processes, probe


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> list[dict]:
    """What each process read."""
    folder = tmp_path_factory.mktemp("processes")
    get_context("forkserver").set_forkserver_preload(["tests.problems.two_processes"])  # imported once for both, which takes the time
    multiprocessing.start_processes(work, (str(folder),), 2, start_method="forkserver")
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in (0, 1)]


def assert_same(rows: list, expected: list) -> None:
    for row, twin in zip(rows, expected, strict=True):
        assert {**row, "value": 0, "null": 0} == {**twin, "value": 0, "null": 0}
        for column in ("value", "null"):
            value, other = row.get(column), twin.get(column)
            assert value == other or value == pytest.approx(other, rel=1e-12, abs=1e-14), row["quantity"]


@pytest.mark.parametrize("how", ["ddp", "empty batch"])
def test_every_process_has_the_rows_of_the_union(tables, how):
    """Equal shares, unequal shares, nothing for the second process; overlaps with the previous reading are of unions too."""
    first, second = tables[0][how], tables[1][how]
    assert first == second
    assert {row["step"] for row in first if "step" in row} == {0, 1, 2}
    assert {row["theory"] for row in first} >= {"network", "rate_reduction", "crate", "scan_snap", "joma"}
    assert_same(first, one_process())


def test_a_sharded_model_is_read(tables):
    first, second = (table["fsdp"] for table in tables)
    assert first == second
    expected = [row for row in one_process() if row["theory"] == "network" and row.get("step") == 0 and row["value"] is not None]
    assert_same(first, expected)


def test_one_process_merges_nothing():
    model, reducers = built(Net).eval(), all_reducers()
    with probe(model, reducers) as p, torch.no_grad():
        assert not p.shared
        model(tokens(4, 5, 8))
    before = [list(reducer.compute()) for reducer in reducers]
    across_processes(reducers)
    assert [list(reducer.compute()) for reducer in reducers] == before
