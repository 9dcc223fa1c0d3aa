"""The variants of a layer: four compressions and three sparsifications, trained for the same number of steps.

Sources: :cite:t:`yu2023white`, :cite:t:`wu2024token`, :cite:t:`beck2009fast`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ....core.experiment import RANGE, RandomExperiment, range_rows, setting, sweep
from ....core.measurement import Measurement, Unit
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
MEASURED: tuple[tuple[str, Unit], ...] = (
    (ACCURACY, "share"),
    ("R^c of the last layer over the first", ""),
    ("R^c of the last layer", "nats"),
    ("share of non-zeros, last layer", "share"),
    ("trainable parameters", ""),
)
TITLES = {  # quantity -> title of its panel
    ACCURACY: "Accuracy, test part",
    "R^c of the last layer over the first": "$R^c$, last over first layer",
    "share of non-zeros, last layer": "Non-zeros, last layer",
}
LEARNING_RATE = 3e-3
BATCH = 64  # digits per step
MARKERS = ("o", "s", "^")


def train_variant(attention: str, sparsify: str, seed: int, steps: int, dim: int, depth: int) -> list[float]:
    """Trains one variant on digits; returns its values in the order of :data:`MEASURED`."""
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


@dataclass(frozen=True)
class Variants(RandomExperiment):
    """Accuracy, rates, non-zeros and speed of the twelve variants of a CRATE layer on digits: equal steps,
    batches and learning rate.

    Width, depth and heads are equal. All sparsifications have the same number of parameters, and so have the
    exact and the paper form of attention. Token statistics have one parameter more per head. The released
    form, with its free output, has d^2 + d more per layer.
    """

    seeds: int = setting(3, ge=1, help="number of splits and initial weights per variant")
    steps: int = setting(500, ge=1, help="optimiser steps, 64 digits per step")
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=1, help="layers")
    rounds: int = setting(
        7, ge=1, help="rounds of timing; each round times one training step of every variant"
    )

    name = "crate.variants"
    sources = (PAPER, Source("wu2024token"), LASSO, Source("alpaydin1998optical"))

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the values of every variant; with their ranges; an array with the times."""
        variants = [(attention, sparsify) for attention in ATTENTION for sparsify in SPARSIFY]
        settings = [
            {
                "attention": a,
                "sparsify": s,
                "seed": 1000 * self.seed + k,
                "steps": self.steps,
                "dim": self.dim,
                "depth": self.depth,
            }
            for a, s in variants
            for k in range(self.seeds)
        ]
        table = np.array(sweep(train_variant, settings)).reshape(len(variants), self.seeds, len(MEASURED))
        for (attention, sparsify), numbers in zip(variants, table):
            for (quantity, unit), values in zip(MEASURED, numbers.T):
                p = (
                    networks.guessing_p(values.tolist(), networks.digit_parts(seed=1000 * self.seed).test)
                    if quantity == ACCURACY
                    else None
                )
                row = self.row(
                    quantity,
                    float(values.mean()),
                    unit=unit,
                    at={"attention": attention, "sparsification": sparsify},
                    model=f"{attention}, {sparsify}",
                    n=self.seeds,
                    p=p,
                    side=None if p is None else ">=",
                    note=f"mean of the seeds, {values.min():.4g} to {values.max():.4g}; {self.steps} steps "
                    f"of {BATCH}",
                    source=None,
                )
                yield row
                if quantity in TITLES:
                    yield from range_rows(row, values.tolist())
        yield Arrays({"crate/variants/seconds": self._seconds(variants)})

    def _seconds(self, variants: list[tuple[str, str]]) -> np.ndarray:
        """Returns the seconds of a forward and backward pass, [variants, rounds]; each round times all
        variants in turn.
        """
        data = networks.digit_parts(seed=self.seed)
        assert data.train.labels is not None
        inputs, labels = data.train.tokens[:BATCH].float(), data.train.labels[:BATCH]
        models = [_network(data, a, s, seed=self.seed, dim=self.dim, depth=self.depth) for a, s in variants]
        seconds = np.zeros((len(models), self.rounds))
        for turn in range(-1, self.rounds):  # round -1 warms up and is not recorded
            for position, model in enumerate(models):
                started = time.perf_counter()
                cross_entropy(model(inputs), labels).backward()
                if turn >= 0:
                    seconds[position, turn] = time.perf_counter() - started
                model.zero_grad(set_to_none=True)
        return seconds

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots four panels with one row per compression and one marker per sparsification."""
        seconds = result.arrays["crate/variants/seconds"]
        # relative to the first variant of the same round, which cancels drifts of the machine
        relative = iter(seconds / seconds[:1])
        figure, panels = axes(1, 4, width=8.4, height=2.8)
        for (row, attention), (column, name) in product(enumerate(ATTENTION), enumerate(SPARSIFY)):
            rows = result.table.select(at={"attention": attention, "sparsification": name})
            points = [
                [
                    rows.select(quantity=of).one().value
                    for of in (quantity, *(f"{end} of {quantity}" for end in RANGE))
                ]
                for quantity in TITLES
            ]
            times = next(relative)
            points.append([float(np.median(times)), times.min(), times.max()])
            height, label = row + 0.22 * (column - 1), name if row == 0 else "_"
            for ax, (mean, *ends) in zip(panels, points):
                ax.plot(ends, [height, height], color=TINTS[column], linewidth=1.2)
                ax.plot([mean], [height], MARKERS[column], color=TINTS[column], label=label)
        for ax, title in zip(panels, (*TITLES.values(), "Time of a training step")):
            ax.set_yticks(
                range(len(ATTENTION)), list(ATTENTION) if ax is panels[0] else [""] * len(ATTENTION)
            )
            ax.invert_yaxis()
            ax.set_title(title)
        panels[3].set_xlabel(f"{next(iter(ATTENTION))}, {next(iter(SPARSIFY))} = 1")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        caption(
            figure,
            "Rows: compressions; markers: sparsifications, at the mean of the seeds (for times, at the "
            "median of the rounds); bars: range. Token statistics: attention that needs only one second "
            "moment per channel." + networks.chance_note(result, ACCURACY),
        )
        return figure

    @classmethod
    def quick(cls) -> "Variants":
        return cls(seeds=1, steps=1, dim=16, depth=2, rounds=1)


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
