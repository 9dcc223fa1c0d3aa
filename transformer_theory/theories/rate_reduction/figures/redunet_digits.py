"""ReduNet on handwritten digits: the rate reduction by layer, and accuracy on unseen samples, over random
splits.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Reading, figure, reading
from ....core.table import Arrays
from ....metrics.coding import unit_norm
from ..digit_training import digit_images
from ..evaluation import nearest_subspace
from ..on_data import LAYERS_RAISE, class_spectra, cosines, plot
from ..optimum import optimum
from ..problem import MCR2, NAME, REDUNET
from ..redunet import TrainableReduNet, construct

BATCH = 100


@figure(
    "rate_reduction.redunet_digits",
    source=REDUNET,
    view=plot,
    quick={"splits": 1, "layers": 20, "epochs": 1},
)
def redunet_digits(
    *,
    splits: int = setting(5, ge=1, help="random splits into training samples and unseen samples"),
    training: int = setting(1300, ge=100, help="training samples; the rest are unseen"),
    layers: int = setting(100, ge=1, help="gradient steps"),
    step: float = setting(0.5, gt=0, le=1e3, help="step size η"),
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    rank: int = setting(6, ge=1, help="dimension of the nearest subspaces"),
    short: int = setting(5, ge=1, help="layers of the network for back-propagation"),
    epochs: int = setting(10, ge=1, help="epochs of back-propagation, in batches of 100"),
    rate: float = setting(1e-3, gt=0, le=1.0, help="learning rate of back-propagation; the momentum is 0.9"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """ReduNet on 8 x 8 handwritten digits, and a network of fewer layers that is also trained by
    back-propagation.

    Permuted labels are the null: with them the ascent reaches nearly the same rate reduction but learns
    nothing.
    """

    def trained(
        x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor, generator: torch.Generator
    ) -> list[Reading]:
        module = TrainableReduNet(construct(x, y, layers=short, eps=eps, step=step))

        def hits() -> dict[str, Tensor]:
            with torch.no_grad():
                known, new = module(x).argmax(1), module(unseen).argmax(1)
            return {"training accuracy": known == y, "accuracy": new == truth}

        before = hits()
        optimiser = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
        for _ in range(epochs):
            for batch in torch.randperm(len(y), generator=generator).split(BATCH):
                loss = torch.nn.functional.cross_entropy(module(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        states = {"as built": before, "after back-propagation": hits()}
        return [
            _accuracy(f"{kind}, {short} layers {state}", found[kind])
            for kind in before
            for state, found in states.items()
        ]

    images, labels = digit_images()
    net = {"layers": layers, "step": step, "eps": eps}
    yield from on_splits(
        unit_norm(images.flatten(1)), labels, splits, training, net, rank=rank, seed=seed, further=trained
    )


def on_splits(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    splits: int,
    training: int,
    net: dict[str, Any],
    *,
    rank: int,
    seed: int,
    further: Callable[..., list[Reading]] | None = None,
) -> Iterator[Reading | Arrays]:
    """Yields means over random splits for ReduNet and its null, a ReduNet built from permuted labels; then
    curves and cosines of the first split.

    Args:
        features: features ``[n, d]`` of norm 1.
        labels: classes ``[n]``.
        splits: number of splits.
        training: number of training samples.
        net: settings of :func:`~..redunet.construct`.
        rank: dimension of the nearest subspaces.
        seed: seed of the splits.
        further: further readings of a split, from training features, labels, unseen features, their labels
            and the generator.
    Raises:
        ValueError: all samples are training samples.
    """
    if training >= len(labels):
        raise ValueError(f"training must leave unseen samples, got {training} of {len(labels)}; take fewer")
    generator, found = torch.Generator().manual_seed(seed), []
    for split in range(splits):
        order = torch.randperm(len(labels), generator=generator)
        (x, unseen), (y, truth) = (values[order].tensor_split([training]) for values in (features, labels))
        built = construct(x, y, **net)
        null = construct(x, y[torch.randperm(len(y), generator=generator)], **net)
        best = optimum(torch.bincount(y).tolist(), x.shape[1], eps=net["eps"]).value
        transformed = built.transform(unseen)
        if split == 0:
            curves = {
                "rates": built.rates.numpy(),
                "null_reductions": null.reductions.numpy(),
                "spectra_before": class_spectra(x, y),
                "spectra_after": class_spectra(built.features, y),
                "optimum": torch.tensor(best).numpy(),
            }
            yield Arrays({f"{NAME}/{name}": values for name, values in curves.items()})
            yield Arrays(cosines(unseen, transformed, truth))
        nearest_before = nearest_subspace(x, y, unseen, rank=rank)
        nearest_after = nearest_subspace(built.features, y, transformed, rank=rank)
        last = float(built.reductions[-1])
        rising = float((built.reductions.diff() > 0).double().mean())
        permuted = null.predict(null.transform(unseen))
        of_split = [
            reading("rate reduction before ReduNet", float(built.reductions[0]), unit="nats", source=MCR2),
            reading("rate reduction after one layer", float(built.reductions[1]), unit="nats"),
            reading("rate reduction after ReduNet", last, unit="nats"),
            reading(
                "rate reduction after ReduNet of permuted labels", float(null.reductions[-1]), unit="nats"
            ),
            reading("share of the optimum after ReduNet", last / best, unit="share", source=MCR2),
            reading(LAYERS_RAISE, rising, unit="share"),
            _accuracy(
                "accuracy of the nearest subspace before ReduNet", nearest_before == truth, source=MCR2
            ),
            _accuracy("accuracy of the nearest subspace after ReduNet", nearest_after == truth),
            _accuracy(
                "accuracy of the least ||x C_j|| before ReduNet",
                built.layers[0].distances(unseen).argmin(1) == truth,
                source=MCR2,
            ),
            _accuracy("accuracy of the least ||x C_j|| after ReduNet", built.predict(transformed) == truth),
            _accuracy("accuracy of ReduNet of permuted labels", permuted == truth),
        ]
        found.append(of_split + (further(x, y, unseen, truth, generator) if further else []))
    for one, *others in zip(*found):
        values = [one.value, *(other.value for other in others)]
        note = f"mean over splits, {min(values):.4g} to {max(values):.4g}; {training} training samples, "
        columns = {**one.columns, "n": splits, "note": note + f"{len(labels) - training} unseen"}
        if one.quantity == LAYERS_RAISE:
            yield reading(one.quantity, sum(values) / splits, at_least=1.0, predicted=1.0, **columns)
        else:
            yield reading(one.quantity, sum(values) / splits, **columns)


def _accuracy(quantity: str, hits: Tensor, **columns: Any) -> Reading:
    return reading(quantity, float(hits.double().mean()), unit="share", **columns)
