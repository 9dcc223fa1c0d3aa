"""The tensors of a forward pass are freed at its end, without the garbage collector."""

import gc
import weakref

import pytest
import torch

from transformer_theory.core.metric import Metric
from transformer_theory.models import ViT, build
from transformer_theory.probes import probe


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
    gc.collect()
    gc.disable()
    try:
        with probe(network, [metric]) as p, torch.set_grad_enabled(gradients), p.accumulate():
            for _ in range(2):
                network(torch.randn(5, 3, 8, 8))
                assert len(metric.seen) > 20
                assert [reference() for reference in metric.seen] == [None] * len(metric.seen)
    finally:
        gc.enable()
