"""Randomised copies are measured in an order that gives a test early, until they or the time are over."""

import math
import os
import signal
import sys

import pytest
import torch
from torch import nn

from transformer_theory.core.journal import Pieces
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.statistics import EQUAL_NORM, EQUAL_SCALE, RANGE_DRAWS, UNTRAINED
from transformer_theory.models.copies import Copies
from transformer_theory.probes.randomised import measure_randomised

PLANNED = {EQUAL_SCALE: 99, EQUAL_NORM: 2, UNTRAINED: 1}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


def rows_of(network: nn.Module, whole: bool = True) -> list[Measurement]:
    """The first entry of the first matrix, which permutations exchange with the others; and its sign, which
    is not tested.
    """
    value = float(network.get_parameter("0.weight")[0, 0])
    rest = Measurement("t", "in network", "r", None, reason="nothing")
    found = [Measurement("t", "in network", "q", value, layer=0), rest]
    return [*found, Measurement("t", "in network", "sign", 1.0 if value > 0 else -1.0)] if whole else found


def measured(network: nn.Module, planned=PLANNED, deadline: float = math.inf, **options):
    names: list[str] = []
    found = measure_randomised(
        network,
        rows_of,
        rows_of(network),
        planned=planned,
        deadline=deadline,
        families=lambda rows: [{row.quantity: row.value for row in rows if row.quantity == "q"}],
        seed=0,
        stored=Pieces(),
        progress=names.append,
        **options,
    )
    return found, names


def test_a_first_test_comes_first_and_every_kind_is_measured():
    network = net()
    before = [parameter.clone() for parameter in network.parameters()]
    with torch.no_grad():
        network.get_parameter("0.weight")[0, 0] = 100.0  # beyond all other entries
    found, names = measured(network)
    assert [name.partition(",")[0] for name in names[RANGE_DRAWS : RANGE_DRAWS + 3]] == [
        EQUAL_NORM,
        EQUAL_NORM,
        UNTRAINED,
    ]
    assert {kind: len(each) for kind, each in found.networks.items()} == PLANNED
    assert not found.reasons
    entries = set(network.get_parameter("0.weight").flatten().tolist())
    draws = [rows[0].value for rows in found.networks[EQUAL_SCALE]]
    assert set(draws) <= entries
    assert len(set(draws)) > 10
    # rows without value are dropped; all quantities are measured in the first copies, then those tested
    sizes = {kind: [len(rows) for rows in each] for kind, each in found.networks.items()}
    assert sizes == {EQUAL_SCALE: 19 * [2] + 80 * [1], EQUAL_NORM: [1, 1], UNTRAINED: [2]}
    assert all(torch.equal(a, b) for a, b in zip(before[1:], list(network.parameters())[1:]))


def test_copies_end_where_no_test_can_succeed():
    network = net()
    with torch.no_grad():  # the median of all entries
        weight = network.get_parameter("0.weight")
        weight[0, 0] = weight.median()
    found, _ = measured(network)
    assert RANGE_DRAWS < len(found.networks[EQUAL_SCALE]) < 99
    assert "no test can succeed any more" in found.reasons[EQUAL_SCALE]


def test_after_the_deadline_only_what_a_test_needs_is_measured():
    found, _ = measured(net(), deadline=-math.inf)
    assert {kind: len(each) for kind, each in found.networks.items()} == {EQUAL_SCALE: RANGE_DRAWS}
    assert found.reasons[EQUAL_NORM] == "0 of 2 copies: the time was over"


def test_a_network_without_copies_has_a_reason_and_the_next_null():
    network = net()
    for module in network.children():
        module.register_buffer("qweight", torch.zeros(1, dtype=torch.int8))
    found, _ = measured(network)
    assert "quantised" in found.reasons[EQUAL_SCALE]
    assert list(found.networks) == [UNTRAINED]
    assert measured(network, planned={})[0].networks == {}


@pytest.mark.parametrize("seed", range(3))
def test_copies_depend_on_their_numbers_alone(seed):
    torch.manual_seed(seed)
    one, other = (measured(net(), {EQUAL_SCALE: 3})[0].networks for _ in range(2))
    assert one == other


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_two_processes_measure_the_same_copies():
    network = net()
    with torch.no_grad():
        network.get_parameter("0.weight")[0, 0] = 100.0
    (one, names), (two, other_names) = (measured(network, processes=number) for number in (1, 2))
    assert (one, names) == (two, other_names)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_process_that_is_ended_leaves_the_copies_before_it(monkeypatch):
    parent, draw = os.getpid(), Copies.draw

    def ended(self, kind: str, seed: int) -> nn.Module:
        if os.getpid() != parent and seed >= 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(self, kind, seed)

    monkeypatch.setattr(Copies, "draw", ended)
    network = net()
    with torch.no_grad():
        network.get_parameter("0.weight")[0, 0] = 100.0
    found, _ = measured(network, {EQUAL_SCALE: 60, UNTRAINED: 1}, processes=2)
    assert RANGE_DRAWS - 2 <= len(found.networks[EQUAL_SCALE]) <= 20
    assert found.reasons[EQUAL_SCALE].startswith("a process was ended from outside")
