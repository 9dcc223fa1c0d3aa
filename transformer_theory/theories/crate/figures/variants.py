"""The variants of a layer: four compressions and three sparsifications, trained for the same number of steps.

Sources: :cite:t:`yu2023white`, :cite:t:`wu2025token`, :cite:t:`beck2009fast`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ....core.experiment import setting, sweep
from ....core.figure import Reading, figure, with_range
from ....core.measurement import Unit
from ....core.plotting import TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....models.crate import (
    ExactAttention,
    Fista,
    Ista,
    PaperAttention,
    ReleasedAttention,
    TokenStatisticsAttention,
)
from .. import networks
from ..in_networks import AFTER, NONZEROS
from ..layer_curves import curves
from ..problem import LASSO, PAPER
from .common import seed_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTION: dict[str, Callable[..., nn.Module]] = {
    "exact": ExactAttention,
    "paper": PaperAttention,
    "released": ReleasedAttention,
    "token statistics": TokenStatisticsAttention,
}
SPARSIFY: dict[str, Callable[[int], nn.Module]] = {
    "one ISTA step": Ista,
    "four ISTA steps": partial(Ista, steps=4),
    "FISTA, four steps": partial(Fista, steps=4),
}
ACCURACY = "test accuracy"
LAST_OVER_FIRST, LAST_NONZEROS = "R^c of the last layer over the first", "share of non-zeros, last layer"
UNITS: dict[str, Unit] = {  # of the measured quantities
    ACCURACY: "share",
    LAST_OVER_FIRST: "",
    "R^c of the last layer": "nats",
    LAST_NONZEROS: "share",
    "trainable parameters": "",
}
TITLES = {  # quantity -> title of its panel
    ACCURACY: "Accuracy, test part",
    LAST_OVER_FIRST: "$R^c$, last over first layer",
    LAST_NONZEROS: "Non-zeros, last layer",
}
LEARNING_RATE = 3e-3
BATCH = 64  # digits per step


def train_variant(attention: str, sparsify: str, seed: int, steps: int, dim: int, depth: int) -> list[float]:
    """Trains one variant on digits; returns its values in the order of :data:`UNITS`."""
    data = networks.digit_parts(seed=seed)
    model = _network(data, attention, sparsify, seed=seed, dim=dim, depth=depth)
    networks.fit(model, data, steps=steps, learning_rate=LEARNING_RATE, seed=seed)
    table = curves(model, data.test.tokens)
    rates, shares = (
        [value or 0.0 for value in table.select(quantity=quantity).column("value")]
        for quantity in (AFTER, NONZEROS)
    )
    count = float(networks.parameter_count(model))
    return [networks.accuracy(model, data.test), rates[-1] / rates[0], rates[-1], shares[-1], count]


@style()
def draw(result: Result) -> "Figure":
    """Draws four panels with one row per compression and one marker per sparsification."""
    seconds = result.arrays["crate/variants/seconds"]
    relative = seconds / seconds[:1]  # to the first variant of the same round: cancels drifts of the machine
    drawn, panels = axes(1, 4, width=8.4, height=2.8)
    rows = np.arange(len(ATTENTION))
    for number, name in enumerate(SPARSIFY):
        table, times = result.table.select(at={"sparsification": name}), relative[number :: len(SPARSIFY)]
        shown: list[Any] = [
            [
                table.select(quantity=f"{end}{of}").column("value")
                for end in ("", "smallest of ", "largest of ")
            ]
            for of in TITLES
        ]
        shown.append([np.median(times, 1), times.min(1), times.max(1)])
        heights = rows + 0.22 * (number - 1)
        for ax, (middle, low, high) in zip(panels, shown):
            ax.hlines(heights, low, high, color=TINTS[number], linewidth=1.2)
            ax.plot(middle, heights, "os^"[number], color=TINTS[number], label=name)
    for ax, title in zip(panels, (*TITLES.values(), "Time of a training step")):
        ax.set_yticks(rows, list(ATTENTION) if ax is panels[0] else [""] * len(rows))
        ax.invert_yaxis()
        ax.set_title(title)
    panels[3].set_xlabel(f"{next(iter(ATTENTION))}, {next(iter(SPARSIFY))} = 1")
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    caption(
        drawn,
        "Rows: compressions; markers: sparsifications, at the mean of the seeds (for times, at the median of "
        "the rounds); bars: range. Token statistics: attention that needs only one second moment per channel."
        + networks.chance_note(result, ACCURACY),
    )
    return drawn


@figure(
    "crate.variants",
    source=(PAPER, Source("wu2025token"), LASSO, Source("alpaydin1998optical")),
    view=draw,
    quick={"seeds": 1, "steps": 1, "dim": 16, "depth": 2, "rounds": 1},
)
def variants(
    *,
    seeds: int = setting(3, ge=1, help="number of splits and initial weights per variant"),
    steps: int = setting(500, ge=1, help="optimiser steps, 64 digits per step"),
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(3, ge=1, help="layers"),
    rounds: int = setting(
        7, ge=1, help="rounds of timing; each round times one training step of every variant"
    ),
    seed: int = 0,
) -> Iterator[Reading | list[Reading] | Arrays]:
    """Accuracy, rates, non-zeros and speed of the twelve variants of a CRATE layer on digits: equal steps,
    batches and learning rate.

    Width, depth and heads are equal. All sparsifications have the same number of parameters, and so have the
    exact and the paper form of attention. Token statistics have one parameter more per head. The released
    form, with its free output, has d^2 + d more per layer.
    """
    kinds, sizes = list(product(ATTENTION, SPARSIFY)), {"steps": steps, "dim": dim, "depth": depth}
    settings = [
        {"attention": a, "sparsify": s, "seed": 1000 * seed + k, **sizes}
        for a, s in kinds
        for k in range(seeds)
    ]
    table = np.array(sweep(train_variant, settings)).reshape(len(kinds), seeds, len(UNITS))
    test = networks.digit_parts(seed=1000 * seed).test
    for (attention, sparsify), numbers in zip(kinds, table):
        columns = {"at": {"attention": attention, "sparsification": sparsify}, "source": None}
        columns |= {"model": f"{attention}, {sparsify}", "digits": 4, "more": f"; {steps} steps of {BATCH}"}
        for (quantity, unit), values in zip(UNITS.items(), numbers.T):
            guessing = {"p": networks.guessing_p(values.tolist(), test), "side": ">="}
            more = guessing if quantity == ACCURACY else {}
            row = seed_mean(quantity, values, unit=unit, **columns, **more)
            yield with_range(row, values) if quantity in TITLES else row
    data = networks.digit_parts(seed=seed)
    models = [_network(data, a, s, seed=seed, dim=dim, depth=depth) for a, s in kinds]
    yield Arrays({"crate/variants/seconds": step_seconds(models, data, rounds)})


def step_seconds(models: Sequence[nn.Module], data: networks.DataParts, rounds: int) -> np.ndarray:
    """Returns the seconds of a forward and backward pass, [models, rounds]; each round times all models in
    turn.
    """
    assert data.train.labels is not None
    inputs, labels = data.train.tokens[:BATCH].float(), data.train.labels[:BATCH]
    seconds = np.zeros((len(models), rounds))
    for turn in range(-1, rounds):  # round -1 warms up and is not recorded
        for position, model in enumerate(models):
            started = time.perf_counter()
            cross_entropy(model(inputs), labels).backward()
            if turn >= 0:
                seconds[position, turn] = time.perf_counter() - started
            model.zero_grad(set_to_none=True)
    return seconds


def _network(
    data: networks.DataParts, attention: str, sparsify: str, *, seed: int, dim: int, depth: int
) -> nn.Module:
    """Returns an untrained network of one variant."""
    with torch.no_grad():
        return networks.crate(
            data.train,
            seed=seed,
            attention=ATTENTION[attention],
            sparsify=SPARSIFY[sparsify],
            dim=dim,
            depth=depth,
        )
