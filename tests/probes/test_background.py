"""Metrics in a second process: the same rows as in this one, later, and nothing left of it."""

import contextlib
import os
import signal
import time

import pytest
import torch
from torch import nn

from transformer_theory import probe
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.metrics.networks import AttentionStatistics, Geometry
from transformer_theory.models import CRATE, ViT
from transformer_theory.probes.background import Background, SharedMemory, is_possible
from transformer_theory.theories import list_theories

pytestmark = pytest.mark.skipif(
    not is_possible(), reason="needs a system with fork and memory without a name"
)


def all_metrics() -> list[Metric]:
    found = [
        metric for theory in list_theories() if theory.in_networks for metric in theory.in_networks.metrics()
    ]
    return [*found, AttentionStatistics(), Geometry()]


def padded_encoder() -> tuple[nn.Module, dict]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.arange(6) >= torch.tensor([6, 4, 6, 3, 6, 5, 2, 6])[:, None]
    return network, {"src": torch.randn(8, 6, 8), "src_key_padding_mask": padding}


def vit() -> tuple[nn.Module, dict]:
    return ViT.for_tokens(5, 4, 3, dim=16, depth=2, heads=2), {"inputs": torch.randn(12, 5, 4)}


def crate() -> tuple[nn.Module, dict]:
    return CRATE.for_tokens(5, 4, 3, dim=16, depth=2, heads=2), {"inputs": torch.randn(12, 5, 4)}


def trained(make, metrics, *, background: bool, steps: int = 5, **options):
    """Result and weights of a training with a measurement at every second step."""
    torch.manual_seed(0)
    network, inputs = make()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    x = next(iter(inputs.values()))
    with probe(network, metrics, every=2, background=background, **options) as p:
        for _ in range(steps):
            p.labels = torch.arange(len(x)) % 3
            loss = network(*inputs.values()) if make is not padded_encoder else network(**inputs)
            optimiser.zero_grad()
            loss.square().mean().backward()
            optimiser.step()
    return p, [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.parametrize("make", [vit, crate, padded_encoder])
def test_the_rows_are_those_of_one_process(make):
    (here, weights), (there, others) = (
        trained(make, all_metrics(), background=background) for background in (False, True)
    )
    assert all(map(torch.equal, weights, others))
    expected, found = here.result().table, there.result().table
    assert len(expected) == len(found) > 100
    assert {row.step for row in found} == {0, 2, 4}
    for one, other in zip(expected, found):
        assert (one.theory, one.quantity, one.layer, one.head, one.step) == (
            other.theory,
            other.quantity,
            other.layer,
            other.head,
            other.step,
        )
        assert other.value == (
            one.value if one.value is None else pytest.approx(one.value, rel=1e-6, abs=1e-9)
        )
        assert one.reason == other.reason


class Weights(Metric):
    """A metric of parameters, which an optimiser changes in place."""

    kinds = ("attention",)

    def update(self, activations: Activations) -> None:
        module = activations.module
        assert isinstance(module, nn.Module)
        self.add((activations.layer,), torch.stack([x.detach().square().sum() for x in module.parameters()]))

    def compute(self, *, draws=0, generator=None):
        from transformer_theory.core.measurement import Measurement

        return [Measurement("stand_in", "in network", f"{x.sum():.6f}", 1.0) for x in self.sums.values()]


def test_parameters_are_those_of_the_step():
    here, there = (
        trained(vit, [Weights()], background=background)[0].result().table for background in (False, True)
    )
    assert [row.quantity for row in here] == [row.quantity for row in there]
    assert len({row.quantity for row in there}) == len(there) == 6  # they change from step to step


def test_passes_are_combined_and_a_file_is_written(tmp_path):
    results = []
    for background in (False, True):
        torch.manual_seed(0)
        network, inputs = vit()
        file = tmp_path / f"{background}.jsonl"
        with probe(network, all_metrics(), background=background, draws=0, file=file) as p:
            for _ in range(2):
                with p.accumulate():
                    for part in inputs["inputs"].split(4):
                        network(part)
        results.append([(row.quantity, row.step, row.value) for row in p.result().table])
        assert len(file.read_text().splitlines()) > 50
    assert results[0] == results[1]


def test_a_resumed_probe_goes_on_with_what_metrics_carry():
    """A metric that compares a measurement with the one before it needs the state of the second process."""
    tables = []
    for background in (False, True):
        torch.manual_seed(0)
        network, inputs = vit()
        with probe(network, all_metrics(), background=background, draws=0) as first:
            network(**inputs)
            state = first.state_dict()
        torch.manual_seed(1)
        with probe(network, all_metrics(), background=background, draws=0) as second:
            second.load_state_dict(state)
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(0.1)
            network(**inputs)
        tables.append([(row.quantity, row.layer, row.head, row.value) for row in second.result().table])
    assert tables[0] == tables[1]


class Broken(Metric):
    """A metric that fails in a layer."""

    kinds = ("attention",)

    def update(self, activations: Activations) -> None:
        raise RuntimeError("no such head")

    def compute(self, *, draws=0, generator=None):
        return []


def test_an_error_of_a_metric_is_a_row():
    p, _ = trained(vit, [Broken(), AttentionStatistics()], background=True)
    reasons = {row.reason for row in p.result().table if row.value is None}
    assert "RuntimeError: no such head" in reasons


class Slow(Metric):
    """A metric that takes longer than a step of training."""

    kinds = ("attention",)

    def update(self, activations: Activations) -> None:
        time.sleep(0.05)
        self.add((activations.layer,), activations.tokens.mean()[None])

    def compute(self, *, draws=0, generator=None):
        from transformer_theory.core.measurement import Measurement

        return [Measurement("stand_in", "in network", "mean", float(x)) for x in self.sums.values()]


def test_no_measurement_is_lost_if_the_metrics_are_slow():
    p, _ = trained(vit, [Slow()], background=True, steps=9)
    assert [row.step for row in p.result().table] == [step for step in (0, 2, 4, 6, 8) for _ in range(2)]


def test_results_are_complete_before_the_block_ends():
    torch.manual_seed(0)
    network, inputs = vit()
    with probe(network, [Slow()], background=True) as p:
        network(**inputs)
        assert {row.step for row in p.result().table} == {0}
        network(**inputs)
        assert {row.step for row in p.result().table} == {0, 1}


def test_rows_are_read_when_they_are_asked_for(monkeypatch):
    """The training does not wait for hundreds of rows at each measurement."""
    torch.manual_seed(0)
    network, inputs = vit()
    with probe(network, [Geometry()], background=True) as p:
        monkeypatch.setattr(Background, "read", lambda self: pytest.fail("rows were read"))
        for _ in range(5):
            network(**inputs)
        monkeypatch.undo()
        deadline = time.monotonic() + 60
        while {row.step for row in p.rows} != {0, 1, 2, 3, 4}:  # they arrive
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = list(p.rows)
        assert p.rows == found
    assert p.rows == found


def measured(work) -> None:
    """A measurement, after which something happens to the probe while its rows are on the way."""
    network, inputs = vit()
    with probe(network, [Slow()], background=True) as p:
        network(**inputs)
        work(p, network)


def test_the_training_goes_on_if_the_second_process_is_killed():
    """The measurements on their way are lost, which rows say; another process measures the next ones."""
    network, inputs = vit()
    before = sorted(os.listdir("/proc/self/fd"))
    with probe(network, [Slow()], background=True) as p:
        network(**inputs)
        p.result()
        network(**inputs)
        first = p._background.process.pid
        os.kill(first, signal.SIGKILL)
        time.sleep(0.1)
        network(**inputs)
        network(**inputs)
        assert p._background.process.pid != first
    rows = p.result().table
    lost = [row for row in rows if row.value is None]
    assert {row.reason for row in lost} == {
        "not measured: the process that computes the metrics has ended by signal 9"
    }
    assert {row.step for row in rows if row.value is not None} | {row.step for row in lost} == {0, 1, 2, 3}
    assert 0 not in {row.step for row in lost}
    assert not {row.step for row in lost} & {row.step for row in rows if row.value is not None}
    assert {row.step for row in lost} >= {1}
    assert [row.step for row in rows if row.value is not None][-1] == 3
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_error_of_the_second_process_is_a_row():
    network, inputs = vit()
    with probe(network, [AttentionStatistics()], background=True) as p:
        network(**inputs)
        network.register_buffer("another", torch.zeros(2))  # unknown to the process
        network(**inputs)
        network(**inputs)
    lost = [row for row in p.result().table if row.value is None]
    assert {row.step for row in lost} in ({1}, {1, 2})  # the next step may begin before the error arrives
    assert all("the process that computes the metrics has failed: ValueError" in row.reason for row in lost)
    assert {row.step for row in p.result().table} == {0, 1, 2}


def test_nothing_is_left_of_the_second_process():
    seen = []

    def kept(p, network):
        seen[:] = [p, p._background.process]

    def fails(p, network):
        kept(p, network)
        raise ZeroDivisionError

    before = sorted(os.listdir("/proc/self/fd"))
    for work in (kept, fails):
        with contextlib.suppress(ZeroDivisionError):
            measured(work)
        p, process = seen
        with pytest.raises(ValueError, match="closed"):
            process.is_alive()
        assert len(p.result().table) == 2  # an error in the block costs no rows
        assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).T,
        torch.ones(3, dtype=torch.bool)[None, :, None].expand(4, 3, 5),
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.arange(5, dtype=torch.bfloat16),
        nn.Parameter(torch.ones(2)),
        torch.randn(3, 3, dtype=torch.complex64),
    ],
)
def test_tensors_survive_the_shared_memory(x):
    memory = SharedMemory()
    places = [memory.put(torch.ones(7, dtype=torch.int8)), memory.put(x), memory.put(torch.zeros(100_000))]
    found = memory.take(places[1])
    assert found.dtype == x.dtype
    assert torch.equal(found, x)
    assert memory.used < 1.1 * 400_000 + 1_000
    os.close(memory.file)


def test_a_second_process_is_refused_where_states_are_wanted():
    def states(p, network):
        with p.accumulate(compute=False):
            raise AssertionError

    with pytest.raises(ValueError, match="compute must be True with background=True"):
        measured(states)
