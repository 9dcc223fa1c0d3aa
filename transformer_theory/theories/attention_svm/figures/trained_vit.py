"""Norm of the attention weights and sparsity of attention while a small vision transformer learns
the digits.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, RANGE, Panel, Reading, bands, figure, reading, with_range
from ....core.sources import Source
from ....data import digits
from ....data.tokens import TokenData
from ....models import ViT, build
from ....training.supervised import train_classifier

TRUE, PERMUTED = "true labels", "permuted labels"
NORM = "norm of W relative to that before training"
WEIGHT = "largest attention weight"
AT_START = "largest attention weight with W at its norm before training"
SHARE = "share of the rise of the largest attention weight that is lost with the norm"
ACCURACY = "validation accuracy"
CURVES = (NORM, WEIGHT, AT_START)
HEADS = 4
HELD = {
    TRUE: {"label": "norm as at step 0", "linestyle": DASHED, "band": False},
    PERMUTED: {"label": "_", "linestyle": DASHED, "band": False},
}


@cache
def load() -> TokenData:
    """Returns the digits as sequences of 16 patches."""
    return digits(words=2)


def bilinear(model: nn.Module) -> Tensor:
    """Returns W per layer and head, ``[layers, heads, dim, dim]``, with the gains of the layer's
    normalisation on both sides.
    """
    gains = [block.attention_norm.weight for block in model.blocks]  # pyright: ignore[reportGeneralTypeIssues]
    return torch.stack([g[:, None] * block.attention.bilinear() * g for g, block in zip(gains, model.blocks)])  # pyright: ignore


def largest_weight(model: nn.Module, tokens: Tensor, scale: Tensor) -> float:
    """Returns the largest attention weight of a query, averaged over queries, images, heads and layers.

    The forward pass is that of the network; only the scores of which the weights are taken are multiplied by
    ``scale`` ``[layers, heads]``.
    """
    weights = []

    def record(layer: int):
        def hook(attention, inputs, output):
            x = inputs[0]
            scores = (
                torch.einsum("bke,hef,bqf->bhqk", x, attention.bilinear(), x) * scale[layer, :, None, None]
            )
            weights.append(scores.softmax(-1).amax(-1).mean())

        return hook

    hooks = [block.attention.register_forward_hook(record(k)) for k, block in enumerate(model.blocks)]  # pyright: ignore
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return float(torch.stack(weights).mean())


def train(
    labels: str, seed: int, steps: int, every: int, dim: int, depth: int, rate: float
) -> dict[str, np.ndarray]:
    """Trains one network; returns ``CURVES`` at the checkpoints ``[checkpoints, 3]`` and the accuracy on the
    validation images.
    """
    generator, data = torch.Generator().manual_seed(seed), load()
    assert data.labels is not None
    if labels == PERMUTED:
        data = replace(data, labels=data.labels[torch.randperm(len(data.labels), generator=generator)])
    training, validation = data.split(0.8, generator)
    size = {"seq": data.tokens.shape[1], "token_dim": data.tokens.shape[2], "num_classes": data.classes}
    model = build(lambda: ViT.for_tokens(**size, dim=dim, depth=depth, heads=HEADS), generator)
    tokens, rows = validation.tokens[:200].float(), []
    before = torch.linalg.matrix_norm(bilinear(model).detach())

    def measure(_: int, network: nn.Module) -> None:
        norm = torch.linalg.matrix_norm(bilinear(network))
        weights = [largest_weight(network, tokens, scale) for scale in (torch.ones_like(norm), before / norm)]
        rows.append([float((norm / before).mean()), *weights])

    settings = {
        "steps": steps,
        "learning_rate": rate,
        "checkpoints": range(0, steps + 1, every),
        "callback": measure,
    }
    trained = train_classifier(model, training, validation, generator=generator, **settings)
    return {"rows": np.array(rows), "accuracy": np.array(trained.accuracy[-1])}


def mean_of_seeds(quantity: str, values: np.ndarray, **columns: Any) -> Reading:
    """Returns the mean over the seeds, with the range in its note."""
    note = f"mean over the seeds; range {values.min():.3g} to {values.max():.3g}"
    return reading(quantity, float(values.mean()), n=len(values), note=note, **columns)


def check_last(steps: int, every: int) -> None:
    """Checks that the last step is measured.

    Raises:
        ValueError: ``every`` does not divide ``steps``.
    """
    if steps % every:
        raise ValueError(f"every must divide steps = {steps}, got {every}; the last step is measured")


@figure(
    "attention_svm.trained_vit",
    source=(
        Source("tarzanagh2023maxmargin"),
        Source("dosovitskiy2021image"),
        Source("alpaydin1998optical"),
    ),
    view=bands(
        spread=RANGE,
        panels=(
            Panel("Norm of W, relative", NORM, lines="labels"),
            (
                Panel("Largest attention weight", WEIGHT, lines="labels"),
                Panel("", AT_START, lines=("labels", HELD)),
            ),
        ),
        caption="Means over {seeds} networks, all heads and layers, and 200 validation images; bands: "
        "smallest to largest. Dashed: scores of the trained W at the norm before training.",
    ),
    quick={"seeds": 1, "steps": 10, "every": 5, "depth": 1},
    check=check_last,
)
def trained_vit(
    *,
    seeds: int = setting(3, ge=1, help="number of networks for each kind of labels"),
    steps: int = setting(400, ge=1, help="optimiser steps, 64 images per step"),
    every: int = setting(40, ge=1, help="steps between two measurements"),
    dim: int = setting(32, ge=4, multiple_of=4, help="width, in four heads"),
    depth: int = setting(2, ge=1, help="layers"),
    rate: float = setting(3e-3, gt=0, le=1, help="learning rate"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    r"""Norm of W and largest attention weight while a vision transformer learns the digits, with true and
    with permuted labels.

    The theory predicts that the norm of W grows and that attention becomes sparse by this growth: the
    direction of W settles, and the scores grow in proportion to the norm. The control takes the scores of the
    trained W at the norm before training: what then remains of the rise comes from the direction of W and
    from the tokens. A network that learns permuted labels shows what memorising does. Everything is trained,
    by AdamW with weight decay, so that none of the theorems applies.
    """
    fixed = {"steps": steps, "every": every, "dim": dim, "depth": depth, "rate": rate}
    for labels in (TRUE, PERMUTED):
        settings = [{"labels": labels, "seed": 1000 * seed + k, **fixed} for k in range(seeds)]
        runs, at = sweep(train, settings), {"labels": labels}
        curves = np.stack([run["rows"] for run in runs])  # [seeds, checkpoints, curves]
        for column, quantity in enumerate(CURVES):
            for number, step in enumerate(range(0, steps + 1, every)):
                values = curves[:, number, column]
                yield with_range(mean_of_seeds(quantity, values, at=at, step=step), values)
        start, end, held = curves[:, 0, 1], curves[:, -1, 1], curves[:, -1, 2]
        here = {"unit": "share", "at": at, "step": steps}
        yield mean_of_seeds(SHARE, (end - held) / (end - start), **here)
        yield mean_of_seeds(ACCURACY, np.array([run["accuracy"] for run in runs]), **here)
