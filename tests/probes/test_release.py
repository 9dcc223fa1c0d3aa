"""The tensors of a forward pass are freed at its end, without the garbage collector."""

import gc
import weakref

import pytest
import torch
from torch import nn

from transformer_theory.core.metric import Metric
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.models import ViT, build
from transformer_theory.probes import probe
from transformer_theory.probes.emission import Emitter


class Watch(Metric):
    """Keeps weak references to the tensors that it receives."""

    def reset(self) -> None:
        super().reset()
        self.seen: list[weakref.ref] = []

    def update(self, activations) -> None:
        names = ("tokens", "output", "weights", "query", "key", "value", "after_attention")
        found = (getattr(activations, name) for name in names)
        self.seen += [weakref.ref(x.untyped_storage()) for x in found if isinstance(x, torch.Tensor)]
        self.seen.append(weakref.ref(activations))

    def compute(self, *, draws=0, generator=None):
        return ()


@pytest.mark.parametrize("gradients", [False, True])
def test_nothing_of_a_pass_lives_after_it(gradients):
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 2, "heads": 2}
    network = build(lambda: ViT.for_images(**sizes), torch.Generator().manual_seed(0))
    metric = Watch()
    gc.disable()
    try:
        with probe(network, [metric]) as p, torch.set_grad_enabled(gradients), p.accumulate():
            for _ in range(2):
                network(torch.randn(5, 3, 8, 8))
                assert len(metric.seen) > 20
                assert [reference() for reference in metric.seen] == [None] * len(metric.seen)
    finally:
        gc.enable()


class Block(nn.Module):
    """Attention and a layer of 29 features, with residual additions."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 29), nn.Linear(29, 8)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(self.up(x).relu())


class Chain(nn.Module):
    """Blocks behind a projection of the inputs, so that the stream is a sum of projections."""

    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Linear(6, 8), nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x):
        return self.blocks(self.embedding(x))


def test_inputs_of_projections_live_until_no_queries_can_come_from_them(monkeypatch):
    """At the end of a pass, only the operations after the last attention have hidden features."""
    counts = []
    finish = Emitter.finish

    def hidden() -> set[int]:
        """Addresses of the hidden features that are alive."""
        alive = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape[-1:] == (29,)]
        return {x.untyped_storage().data_ptr() for x in alive if x.ndim == 3}

    def counted(self, activations_of):
        counts.append(len(hidden() - before))
        finish(self, activations_of)

    monkeypatch.setattr(Emitter, "finish", counted)
    model = build(Chain, torch.Generator().manual_seed(0)).eval()
    gc.disable()  # so that those of earlier tests stay where they are
    try:
        before = hidden()
        with probe(model, [AttentionStatistics(), Geometry()]), torch.no_grad():
            model(torch.randn(3, 5, 6))
    finally:
        gc.enable()
    assert len(counts) == 1
    assert counts[0] <= 2
