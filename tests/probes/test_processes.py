"""A measurement of a model on two processes is one of all their data."""

import functools
import pickle
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from torch import multiprocessing

from tests.problems.networks import Net, all_metrics, built, tokens
from transformer_theory.probes import across_processes, probe


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> list[dict]:
    """The tables of each process."""
    from tests.problems.two_processes import work

    folder = tmp_path_factory.mktemp("processes")
    # imported once for both, which takes the time
    get_context("forkserver").set_forkserver_preload(["tests.problems.two_processes"])
    multiprocessing.start_processes(work, (str(folder),), 2, start_method="forkserver")
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in (0, 1)]


@functools.cache
def alone() -> list:
    """The table of one process with all sequences."""
    from tests.problems.two_processes import one_process

    return one_process()


def assert_same(rows: list, expected: list) -> None:
    for row, twin in zip(rows, expected, strict=True):
        rounded = {"value": None, "nulls": (), "reason": "removed"}
        assert replace(row, **rounded) == replace(twin, **rounded)
        assert (row.value is None) == (twin.value is None)
        assert row.value is None or row.value == pytest.approx(twin.value, rel=1e-12, abs=1e-14), row.quantity
        assert (row.null is None) == (twin.null is None)
        if row.null is not None:
            assert row.null.draws == pytest.approx(twin.null.draws, rel=1e-12, abs=1e-14), row.quantity


@pytest.mark.parametrize("how", ["ddp", "empty batch"])
def test_every_process_has_the_rows_of_the_union(tables, how):
    """Equal shares, unequal shares, nothing for the second process; metrics that compare measurements compare
    unions.
    """
    first, second = tables[0][how], tables[1][how]
    assert first == second
    assert {row.step for row in first} == {0, 1, 2}
    assert {row.theory for row in first} >= {"network", "rate_reduction", "crate", "scan_snap", "joma"}
    assert_same(first, alone())


def test_a_sharded_model_is_measured(tables):
    first, second = (table["fsdp"] for table in tables)
    assert first == second
    expected = [row for row in alone() if row.theory == "network" and row.step == 0 and row.value is not None]
    assert_same(first, expected)


def test_one_process_merges_nothing():
    model, metrics = built(Net).eval(), all_metrics()
    with probe(model, metrics) as p, torch.no_grad():
        assert not p.shared
        model(tokens(4, 5, 8))
    before = [list(metric.compute()) for metric in metrics]
    across_processes(metrics)
    assert [list(metric.compute()) for metric in metrics] == before
