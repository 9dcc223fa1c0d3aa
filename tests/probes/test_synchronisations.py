"""How often a metric makes an accelerator wait.

While a layer is measured, a metric may wait :data:`MOST` times, whatever the number of heads, sequences and
tokens. What several metrics share is counted for each of them.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.synchronisations import Synchronisations
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.models import ViT, build
from transformer_theory.models.decoder import Decoder
from transformer_theory.probes import probe
from transformer_theory.probes.measure import metrics_of, with_general
from transformer_theory.theories import choose

MOST = 8


def test_what_is_counted():
    x = torch.arange(6.0).reshape(2, 3)
    with Synchronisations() as counted:
        float(x.sum())
        bool((x > 1).all())
        x.sum().item()
        torch.equal(x, x)
        x.cpu()
        x.to("cpu")
        x.double().to(device="cpu")
        x.tolist()
        x[x > 1]
        x[0].nonzero()
        x.unique()
        x[x[:, 0] > 9] = 0.0
        x.to(torch.float64).square().mean(0)[torch.tensor([0, 1])]
    assert counted.counts == {"numbers": 4, "copies": 4, "shapes": 4}
    with Synchronisations() as nothing:
        (x @ x.mT).softmax(-1).sum(0)
    assert nothing.counts.total() == 0


def test_functions_are_counted_where_a_probe_disables_them():
    x = torch.zeros(2)
    with torch._C.DisableTorchFunction(), Synchronisations() as counted:
        x.cpu()
    assert counted.counts["copies"] == 1


def images(heads: int, n: int) -> tuple[nn.Module, Tensor]:
    sizes = {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 8 * heads, "depth": 2, "heads": heads}
    generator = torch.Generator().manual_seed(0)
    return build(lambda: ViT.for_images(**sizes), generator), torch.randn(n, 3, 8, 8, generator=generator)


def ids(heads: int, n: int) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(0)
    network = build(lambda: Decoder(vocabulary=20, dim=8 * heads, depth=2, heads=heads), generator)
    return network, torch.randint(0, 20, (n, 12), generator=generator)


def counts(network: nn.Module, inputs: Tensor) -> Iterator[tuple[str, int]]:
    """Yields each metric with its largest number of synchronisations in a layer."""
    metrics = with_general(metrics_of(choose(None)))
    found: dict[str, list[int]] = {}
    for metric in metrics:
        found[type(metric).__name__] = []
        metric.update = watched(metric, found[type(metric).__name__])
    with torch.no_grad(), probe(network.eval(), metrics, draws=0) as p:
        p.labels = torch.arange(len(inputs)) % 3
        network(inputs)
    for name, layers in found.items():
        yield name, max(layers, default=0)


def watched(metric: Metric, layers: list[int]) -> Callable[[Activations], None]:
    update = metric.update

    def counted(activations: Activations) -> None:
        activations._shared.clear()
        with Synchronisations() as waits:
            update(activations)
        layers.append(waits.counts.total())

    return counted


@pytest.mark.parametrize("made", [images, ids])
def test_a_metric_waits_a_bounded_number_of_times_in_a_layer(made):
    small, large = dict(counts(*made(2, 6))), dict(counts(*made(4, 24)))
    assert {name: n for name, n in large.items() if n > MOST} == {}
    assert sum(large.values()) > 0
    assert {name: (small[name], n) for name, n in large.items() if n > small[name]} == {}
