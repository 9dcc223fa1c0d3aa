"""Networks on another device than their inputs.

There is no second device with values in these tests. Torch's ``meta`` device has none, but it shows where a
tensor was moved to; conversions to the network's precision take the same way and show the values.
"""

import pytest
import torch
from torch import nn

from transformer_theory.core.theory import Response
from transformer_theory.metrics.networks import AttentionStatistics
from transformer_theory.metrics.responses import OutputChange
from transformer_theory.probes.emission import Emitter
from transformer_theory.probes.evaluation import device_of
from transformer_theory.probes.main_input import MainInput
from transformer_theory.probes.passes import Batch, measure_metrics, run
from transformer_theory.probes.respond import respond, response

META, CPU = torch.device("meta"), torch.device("cpu")


class Elsewhere(nn.Module):
    """Has its weight on another device, and remembers where its inputs are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, device=META, dtype=torch.float16))
        self.seen: dict[str, tuple[torch.device, torch.dtype]] = {}

    def forward(self, tokens=None, attention_mask=None):
        given = {"tokens": tokens, "attention_mask": attention_mask}
        self.seen = {name: (x.device, x.dtype) for name, x in given.items() if x is not None}


def test_inputs_are_moved_to_the_device_of_the_network():
    network = Elsewhere()
    run(network, torch.zeros(2, 3))
    assert network.seen == {"tokens": (META, torch.float16)}
    run(network, {"tokens": torch.zeros(2, 3), "attention_mask": torch.ones(2, 3, dtype=torch.long)})
    assert network.seen == {"tokens": (META, torch.float16), "attention_mask": (META, torch.int64)}


def test_the_device_of_a_network():
    assert device_of(Elsewhere()) == META
    only_buffers = nn.Module()
    only_buffers.register_buffer("table", torch.zeros(1, device=META))
    assert device_of(only_buffers) == META
    assert device_of(nn.Module()) == CPU


def test_labels_and_targets_are_moved_to_the_outputs():
    emitted = []
    emitter = Emitter(emitted.append, torch.tensor([0, 1]), None, targets=torch.tensor([1, 0]))
    emitter.outputs(torch.zeros(2, 5, 4, device=META), torch.zeros(2, 3, device=META), 0, nn.Module())
    (activations,) = emitted
    assert activations.labels.device == META
    assert activations.targets.device == META


class Double(nn.Module):
    """One layer of attention in double precision, which takes several inputs by name."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
        self.passes: list[int] = []

    def forward(self, tokens, scale=None):
        self.passes.append(len(tokens))
        tokens = tokens if scale is None else tokens * scale[:, None, None]
        assert tokens.dtype == torch.float64
        return tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]


@pytest.fixture
def network() -> Double:
    torch.manual_seed(0)
    return Double()


def test_several_float_inputs_are_converted_to_the_precision_of_the_network(network):
    tokens, scale = torch.randn(3, 5, 4), torch.tensor([1.0, 2.0, 0.5])
    with torch.no_grad():
        expected = network((tokens * scale[:, None, None]).double())
    assert torch.equal(run(network.eval(), {"tokens": tokens, "scale": scale}), expected)


def test_metrics_of_converted_inputs_equal_those_of_inputs_that_fit(network):
    tokens, scale = torch.randn(3, 5, 4), torch.tensor([1.0, 2.0, 0.5])
    options = {"name": "network", "draws": 0, "n": 3}
    low, high = (
        measure_metrics(network, [Batch(inputs)], [AttentionStatistics()], **options)[0]
        for inputs in (
            {"tokens": tokens, "scale": scale},
            {"tokens": tokens.double(), "scale": scale.double()},
        )
    )
    assert [row.value for row in low] == [row.value for row in high]
    assert len(low) > 0


def changed(data: torch.Tensor, limits: object, generator: torch.Generator) -> dict[str, object]:
    """The inputs in reverse order, compared with the outputs for the inputs themselves; the null inputs
    are three and five times as large.
    """
    return {"value": data.flip(1), "null": [data * 3, data * 5], "reference": data}


REVERSED = Response("reversed", changed, lambda: (OutputChange(),))


def test_a_response_runs_in_batches_with_its_reference_outputs_and_nulls(network):
    data = torch.randn(7, 5, 4)
    options = {"limits": {}, "generator": torch.Generator().manual_seed(0)}
    whole = response(network, "theory", REVERSED, MainInput(data), batch_size=7, **options)
    assert network.passes == [7, 7, 7, 7]
    network.passes.clear()
    parts = response(network, "theory", REVERSED, MainInput(data), batch_size=3, **options)
    assert network.passes == [3, 3, 1] * 4  # the reference, two nulls, the value
    assert [row.quantity for row in parts] == [row.quantity for row in whole]
    for row, other in zip(parts, whole, strict=True):
        assert row.value == pytest.approx(other.value, rel=1e-12)
        assert row.null.draws == pytest.approx(other.null.draws, rel=1e-12)
    with torch.no_grad():
        first, second, third = (network(x.double()) for x in (data, data.flip(1), data * 5))
    (row,) = whole
    assert row.value == pytest.approx(float((second - first).norm() / first.norm()), rel=1e-6)
    assert row.null.draws[1] == pytest.approx(float((third - first).norm() / first.norm()), rel=1e-6)


def test_passes_are_bounded_by_default(network):
    respond(network, torch.randn(70, 2, 4), [AttentionStatistics()])
    assert network.passes == [32, 32, 6]


def test_a_test_reads_no_more_sequences_than_its_limit(network):
    options = {"generator": torch.Generator().manual_seed(0), "batch_size": 2}
    response(network, "theory", REVERSED, MainInput(torch.randn(7, 5, 4)), limits={"sequences": 4}, **options)
    assert network.passes == [2, 2] * 4
