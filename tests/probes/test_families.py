"""Families of ``transformers`` in tiny sizes: stream, W and weights, and nothing changes. The families are
those of the benchmark.
"""

from importlib.util import find_spec

import pytest
import torch
from torch.testing import assert_close

from benchmarks._families import FAMILIES, inputs_of, model_of
from benchmarks.probe_families import exact_layers, metrics_for, observed, streams_of, trained
from tests.cases import each_case
from transformer_theory.probes import NoAttention, probe

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
INSTALLED = {
    name: family
    for name, family in FAMILIES.items()
    if not family.make or not family.model or find_spec(family.model)
}
CASES = [(name, how) for name, family in INSTALLED.items() for how in family.implementations]
HALF = [(*case, dtype) for case in CASES for dtype in (torch.bfloat16, torch.float16) if case[1] != "sdpa"]
HALF.remove(("CRATE of this library", "", torch.float16))  # which refuses float16 on a CPU


@each_case(("name", "implementation"), CASES)
def test_the_stream_and_the_attention_are_seen(name, implementation):
    family = FAMILIES[name]
    model = model_of(family, implementation)
    streams, keep = streams_of(family, model), observed(family, model)
    assert exact_layers(family, streams, keep.of("features")) == len(streams)
    attentions = keep.of("attention")
    assert len(attentions) == family.attentions
    for seen in attentions:
        totals = seen.weights.sum(-1)
        real = torch.ones_like(totals) if seen.real is None else seen.real[:, None].expand_as(totals)
        assert_close(totals, real.to(totals))
    assert sum(seen.bilinear is not None for seen in attentions) == family.bilinear


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_nothing_changes(name, implementation):
    """Outputs, gradients and random state of a training step with all metrics, none of which fails."""
    family = FAMILIES[name]
    model = model_of(family, implementation)
    plain, _, _ = trained(family, model, [])
    plain = [x.clone() for x in plain]
    probed, errors, _ = trained(family, model, metrics_for(family))
    assert not errors
    assert all(torch.equal(x, y) for x, y in zip(plain, probed, strict=True))


@pytest.mark.parametrize(("name", "implementation", "dtype"), HALF)
def test_half_precision(name, implementation, dtype):
    family = FAMILIES[name]
    model = model_of(family, implementation).to(dtype)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs_of(family).items()}
    with torch.no_grad(), probe(model, metrics_for(family)) as p:
        p.labels = torch.arange(4) % 2
        model(**inputs)
    assert not [row.reason for row in p.rows if "Error" in row.reason]
    assert any(row.value is not None for row in p.rows)


def test_the_registry_shows_what_the_operations_do_not():
    """The eager weights of a model with sinks are those that it returns itself; the sink is the last key."""
    family = FAMILIES["GPT-OSS, sinks"]
    model = model_of(family, "eager")
    with torch.no_grad():
        own = model(**inputs_of(family), output_attentions=True).attentions
    for seen, weights in zip(observed(family, model).of("attention"), own, strict=True):
        assert seen.weights.shape[-1] == weights.shape[-1] + 1
        assert_close(seen.weights[..., :-1], weights, rtol=1e-4, atol=1e-6)
        assert float(seen.weights[..., -1].min()) > 0


def test_a_network_without_attention_has_none_to_measure():
    family = FAMILIES["Mamba, features only"]
    with pytest.raises(NoAttention), probe(model_of(family, ""), metrics_for(FAMILIES["BERT"])) as p:
        p.model(**inputs_of(family))
