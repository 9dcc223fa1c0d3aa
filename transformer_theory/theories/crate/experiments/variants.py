"""The variants of a layer beside one another: four compressions, three sparsifications, the same steps.

Source: :cite:t:`yu2023white`, :cite:t:`wu2024token`, :cite:t:`beck2009fast`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....models.crate import ExactAttention, Fista, Ista, PaperAttention, ReleasedAttention, TokenStatisticsAttention
from ....training.supervised import accuracy
from .. import trained
from ..figures.variants import draw
from ..layer_curves import AFTER, NONZEROS, curves
from ..unrolled import LASSO, PAPER

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
MEASURED = ("accuracy on the test part", "R^c last over first", "R^c last layer", "non-zeros, last layer", "trainable parameters")
RATE = 3e-3
BATCH = 64


def learn(attention: str, sparsify: str, seed: int, steps: int, dim: int, depth: int) -> list[float]:
    """Trains one variant on digits and reads it, in the order of MEASURED. Source: :cite:t:`yu2023white`."""
    data = trained.digit_split(seed=seed)
    model = _network(data, attention, sparsify, seed=seed, dim=dim, depth=depth)
    trained.fit(model, data, steps=steps, learning_rate=RATE, seed=seed)
    rows = curves(model, data.test.tokens)
    curve = {quantity: [row["value"] or 0.0 for row in rows if row["quantity"] == quantity] for quantity in (AFTER, NONZEROS)}
    rates = curve[AFTER]
    return [accuracy(model, data.test), rates[-1] / rates[0], rates[-1], curve[NONZEROS][-1], float(trained.parameters(model))]


@dataclass(frozen=True)
class Variants(RandomExperiment):
    """Accuracy, rates, non-zeros and speed of the twelve variants of a CRATE layer on digits: equal steps, batches and learning rate.

    Of equal width, depth and heads. All sparsifications have as many parameters; exact and paper form have as many, token statistics one
    more a head, the released form d^2 + d more a layer for its free output matrix.
    """

    seeds: int = setting(3, ge=1, help="splits and initial weights of each variant")
    steps: int = setting(500, ge=1, help="optimiser steps, 64 digits each")
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=1, help="layers")
    rounds: int = setting(7, ge=1, help="interleaved rounds in which a training step of each variant is timed")

    name = "crate.variants"
    sources = (PAPER, Source("wu2024token"), LASSO, Source("alpaydin1998optical"))

    def measure(self) -> Iterator[Row | Arrays]:
        variants = [(attention, sparsify) for attention in ATTENTION for sparsify in SPARSIFY]
        settings = [
            {"attention": a, "sparsify": s, "seed": 1000 * self.seed + k, "steps": self.steps, "dim": self.dim, "depth": self.depth}
            for a, s in variants
            for k in range(self.seeds)
        ]
        table = np.array(sweep(learn, settings)).reshape(len(variants), self.seeds, len(MEASURED))
        for (attention, sparsify), values in zip(variants, table):
            for quantity, of_seeds in zip(MEASURED, values.T):
                yield Row(
                    theory="crate",
                    quantity=quantity,
                    value=float(of_seeds.mean()),
                    model=f"{attention}, {sparsify}",
                    note=f"{self.seeds} seeds, {of_seeds.min():.4g} to {of_seeds.max():.4g}; {self.steps} steps of {BATCH}",
                )
        yield Arrays({"crate/variants/table": table, "crate/variants/seconds": self._seconds(variants)})

    def _seconds(self, variants: list[tuple[str, str]]) -> np.ndarray:
        """Seconds of a forward and backward pass of each variant, [variants, rounds], one after the other in each round."""
        data = trained.digit_split(seed=self.seed)
        assert data.train.labels is not None
        inputs, labels = data.train.tokens[:BATCH].float(), data.train.labels[:BATCH]
        models = [_network(data, a, s, seed=self.seed, dim=self.dim, depth=self.depth) for a, s in variants]
        seconds = np.zeros((len(models), self.rounds))
        for turn in range(-1, self.rounds):  # the first, unrecorded, warms up
            for position, model in enumerate(models):
                started = time.perf_counter()
                cross_entropy(model(inputs), labels).backward()
                if turn >= 0:
                    seconds[position, turn] = time.perf_counter() - started
                model.zero_grad(set_to_none=True)
        return seconds

    def draw(self, result: Result) -> "Figure":
        """Four panels, a row a compression, a mark a sparsification."""
        return draw(result.arrays, list(ATTENTION), list(SPARSIFY))

    @classmethod
    def quick(cls) -> "Variants":
        return cls(seeds=1, steps=2, dim=16, depth=2, rounds=1)


def _network(data: trained.Split, attention: str, sparsify: str, *, seed: int, dim: int, depth: int) -> nn.Module:
    with torch.no_grad():
        return trained.crate(data.train, seed=seed, attention=ATTENTION[attention], sparsify=SPARSIFY[sparsify], dim=dim, depth=depth)
