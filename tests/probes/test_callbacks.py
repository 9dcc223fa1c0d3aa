"""The callback for Lightning in a real Trainer, a model that Fabric wrapped, and the errors without the
packages.
"""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.problems.networks import Keep, Net, all_metrics, built, seen_in, tokens
from transformer_theory.metrics import AttentionStatistics
from transformer_theory.probes import probe
from transformer_theory.probes.background import is_possible
from transformer_theory.probes.callbacks import lightning_callback, trainer_callback
from transformer_theory.theories import list_theories

IN_BACKGROUND = pytest.mark.skipif(not is_possible(), reason="needs Linux")


@pytest.mark.parametrize("background", [False, pytest.param(True, marks=IN_BACKGROUND)])
def test_lightnings_trainer_is_measured(tmp_path, monkeypatch, background):
    """A module that calls a network inside it: steps 0, 2 and 4 are measured, with the labels of their
    batches.
    """
    import pytorch_lightning as lightning
    from pytorch_lightning.loggers.logger import DummyLogger

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = built(Net)

        def training_step(self, batch, index):
            return functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Log(DummyLogger):
        def log_metrics(self, metrics, step=None):
            logged.append((step, metrics))

    monkeypatch.chdir(tmp_path)
    logged: list = []
    trained = []
    x, y = tokens(24, 5, 8), torch.arange(24) % 3
    options = {"every": 2, "max_samples": 6, "background": background}
    for callbacks in ([lightning_callback(all_metrics(), **options)], []):
        module, data = Module(), torch.utils.data.TensorDataset(x, y)
        options = {
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "accelerator": "cpu",
        }
        with torch.random.fork_rng():
            torch.manual_seed(0)
            trainer = lightning.Trainer(max_steps=5, devices=1, logger=Log(), callbacks=callbacks, **options)
            trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
        assert "training_step" not in module.__dict__
        trained.append(list(module.parameters()))
        if callbacks:
            table = callbacks[0].result.table
    assert all(torch.equal(one, other) for one, other in zip(*trained))
    assert set(table.column("step")) == {0, 2, 4}
    measured = {
        theory.name for theory in list_theories() if theory.in_networks and theory.in_networks.metrics()
    }
    measured -= {"universal", "bottleneck"}  # no token repeats, and six samples are too few
    assert {row.theory for row in table if row.value is not None} == {"network", *measured}
    assert set(table.column("model")) == {"Module"}
    name = "network/attention entropy/layer 1/head 0"
    measured = {step: numbers[name] for step, numbers in logged if name in numbers}
    assert list(measured) == [0, 2, 4]
    assert measured[0] == table.select(quantity="attention entropy", step=0, layer=1, head=0).one().value
    assert not list(tmp_path.iterdir())


def test_a_model_in_fabric_shows_its_own_names():
    """Fabric around DistributedDataParallel, in a group of one process."""
    from lightning_fabric.strategies import SingleDeviceStrategy
    from lightning_fabric.wrappers import _FabricModule

    model = built(Net).eval()
    reference = seen_in(model, tokens(2, 5, 8), layers="blocks.0*")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = _FabricModule(
            nn.parallel.DistributedDataParallel(model), SingleDeviceStrategy(), original_module=model
        )
        keep = Keep()
        with probe(wrapped, [keep], layers="blocks.0*") as p, torch.no_grad():
            wrapped(tokens(2, 5, 8))
        assert p.shared
    finally:
        torch.distributed.destroy_process_group()
    assert p.result().table[0].model == "Net"
    assert (
        [seen.name for seen in keep.seen]
        == [seen.name for seen in reference.seen]
        == ["blocks.0.attention", "blocks.0"]
    )
    assert_close(keep.seen[0].weights, reference.seen[0].weights)
    assert not probe(_FabricModule(model, SingleDeviceStrategy()), []).shared


@pytest.mark.usefixtures("unchecked")
def test_errors_are_raised_when_a_callback_is_made(monkeypatch):
    for make in (lightning_callback, trainer_callback):
        with pytest.raises(ValueError, match="every must be at least 1, got 0"):
            make([], every=0)
        with pytest.raises(ValueError, match="metrics must be a list of metrics, got AttentionStatistics"):
            make(AttentionStatistics())
        with pytest.raises(ValueError, match="the callback has measured nothing yet"):
            make([]).result  # noqa: B018
    for name in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError,
        match=r"needs lightning\.pytorch or pytorch_lightning, which is not installed; pip install",
    ):
        lightning_callback([])
    with pytest.raises(
        ImportError, match="needs transformers, which is not installed; pip install transformers"
    ):
        trainer_callback([])
