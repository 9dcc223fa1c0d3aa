"""Errors become rows, and the model never sees them; rows go to a file; passes and copies that a probe leaves
alone.
"""

import importlib

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.problems.networks import WIDE, Keep, Net, built, tokens
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.models import ViT
from transformer_theory.probes import probe
from transformer_theory.theories.crate.in_networks import Sparsity


def written_out(query, key, value, dropout_p=0.0, **options):
    weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
    return weights @ value


class Broken(Keep):
    """Raises in one of its methods, from the second call on."""

    def __init__(self, method: str):
        self.method, self.calls = method, 0
        super().__init__()

    def fails(self, method: str) -> None:
        if method == self.method:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError(f"broken {method}")

    def update(self, activations):
        self.fails("update")

    def compute(self, *, draws=0, generator=None):
        self.fails("compute")
        return super().compute()

    def reset(self):
        super().reset()
        self.fails("reset")


@pytest.mark.parametrize("method", ["update", "compute", "reset"])
def test_an_error_in_a_metric_is_a_row_and_the_model_does_not_see_it(method):
    model, beside = built(Net).eval(), Keep()
    x = tokens(2, 5, 8)
    with torch.no_grad():
        plain = model(x)
        with probe(model, [Broken(method), beside]) as p:
            for _ in range(2):
                assert torch.equal(model(x), plain)
    failed = [row for row in p.result().table if row.quantity == "Broken"]
    assert failed
    assert {row.reason for row in failed} == {f"RuntimeError: broken {method}"}
    # once per measurement, or per layer of it
    assert len({(row.step, row.layer, row.reason) for row in failed}) == len(failed)
    assert len(beside.seen) == 4


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    "where",
    ["flow.Flow.record", "emission.Emitter.attention", "streams.Streams.attended", "layers.Layers.left"],
)
def test_an_error_of_the_probe_is_a_row_and_the_model_does_not_see_it(where, monkeypatch):
    monkeypatch.setattr(f"transformer_theory.probes.{where}", lambda *args, **kwargs: {}["fault"])
    model = built(Net).train()
    x = tokens(2, 5, 8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = model(x)
        torch.manual_seed(0)
        with probe(model, [Keep()]) as p:
            assert torch.equal(model(x), plain)
    rows = [row for row in p.rows if row.quantity == "forward pass"]
    assert all("KeyError" in row.reason for row in rows)
    of_one_layer = where == "emission.Emitter.attention"
    assert [row.layer for row in rows] == ([0, 1] if of_one_layer else [None])


class OneLayer(Sparsity):
    """Fails at one layer, in one of its methods."""

    def __init__(self, method: str, layer: int = 1):
        self.method, self.layer = method, layer
        super().__init__()

    def statistics(self, activations):
        if self.method == "statistics" and activations.layer == self.layer:
            raise RuntimeError("broken statistics")
        return super().statistics(activations)

    def rows(self, place, *sums, **options):
        if self.method == "rows" and place[0] == self.layer:
            raise RuntimeError("broken rows")
        return super().rows(place, *sums, **options)


@pytest.mark.parametrize("method", ["statistics", "rows"])
def test_an_error_at_one_layer_costs_the_rows_of_that_layer(method):
    model, x = built(lambda: ViT.for_tokens(9, 4, 3, **{**WIDE, "depth": 3})).eval(), tokens(5, 9, 4)
    with torch.no_grad():
        with probe(model, [Sparsity()]) as whole:
            model(x)
        with probe(model, [OneLayer(method)]) as p, p.accumulate(step=0):
            model(x)
    assert [row for row in p.rows if row.layer != 1] == [row for row in whole.rows if row.layer != 1]
    (row,) = (row for row in p.rows if row.layer == 1)
    assert (row.quantity, row.value, row.reason) == ("OneLayer", None, f"RuntimeError: broken {method}")


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("where", ["forward_pass.ForwardPass._arranged", "emission.Emitter.features"])
def test_an_error_of_the_probe_at_one_layer_costs_that_layer(where, monkeypatch):
    model, x = built(Net).eval(), tokens(2, 5, 8)
    metrics = lambda: [AttentionStatistics(), Geometry()]  # noqa: E731
    with torch.no_grad(), probe(model, metrics()) as whole:
        model(x)
    module, kind, method = where.split(".")
    owner = getattr(importlib.import_module(f"transformer_theory.probes.{module}"), kind)
    original, calls = getattr(owner, method), []

    def fails_first(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("broken probe")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, method, fails_first)
    with torch.no_grad(), probe(model, metrics()) as p:
        model(x)
    (row,) = (row for row in p.rows if row.reason)
    assert (row.quantity, row.layer) == ("forward pass", 0)
    assert "RuntimeError: broken probe" in row.reason
    kept = [row for row in whole.rows if row.layer == 1 or (row.head is None) == (method == "_arranged")]
    assert [row for row in p.rows if not row.reason] == kept


def test_rows_of_a_long_training_go_to_a_file(tmp_path):
    model, path = built(Net).eval(), tmp_path / "rows.jsonl"
    path.write_text("rows of an earlier run\n")
    metrics = [AttentionStatistics(), Geometry()]
    with torch.no_grad():
        with probe(model, metrics) as memory:
            for i in range(3):
                model(tokens(2, 5, 8) + i)
        with probe(model, metrics, file=path) as p:
            for i in range(3):
                model(tokens(2, 5, 8) + i)
                assert {row.step for row in p.rows} == {i}
                assert len(path.read_text().splitlines()) == 1 + (i + 1) * len(p.rows)
    assert p.result().table == memory.result().table


@pytest.mark.parametrize("fused", [True, False])
def test_a_pass_inside_vmap_is_left_alone(fused, monkeypatch):
    """No number can be read there: the pass runs as it is, and a row says that it was not observed."""
    if not fused:
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", written_out)
    model, x = built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)).eval(), tokens(2, 5, 9, 4)
    model = nn.Sequential(model.embed, *model.blocks)
    with torch.no_grad(), probe(model, [AttentionStatistics()]) as p:
        mapped = torch.vmap(model)(x)
        assert_close(mapped[0], model(x[0]))
    (row,) = (row for row in p.result().table if row.step == 0 and row.reason)
    assert "torch.vmap" in row.reason
    assert {row.step for row in p.result().table if row.value is not None} == {1}


def test_a_model_saved_inside_is_a_model_of_its_own(tmp_path):
    model, x = built(Net).eval(), tokens(2, 5, 8)
    with probe(model, [Keep()]) as p, torch.no_grad():
        torch.save(model, tmp_path / "model.pt")
        twin = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(twin(x), model(x))
    assert len(p.rows) == 1
