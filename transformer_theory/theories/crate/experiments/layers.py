"""Layer-wise curves of trained networks: CRATE in two forms beside a ViT of the same width, depth and heads, on handwritten digits.

Source: :cite:t:`yu2023white`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ....models.crate import PaperAttention
from ....training.supervised import accuracy
from .. import trained
from ..figures.layers import draw
from ..layer_curves import AFTER, BEFORE, INPUT, NONZEROS, REDUCTION, layerwise
from ..unrolled import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = {
    "CRATE (released form)": trained.crate,
    "CRATE (paper form)": partial(trained.crate, attention=PaperAttention),
    "ViT": trained.vit,
}
RATES = (1e-3, 2e-3, 4e-3)  # of which the validation part chooses one for each network
ACCURACY = "accuracy on the test part"


def validate(name: str, seed: int, rate: float, steps: int, dim: int, depth: int) -> float:
    """Trains one network: its accuracy on the validation part, by which the learning rate is chosen. Source: :cite:t:`yu2023white`."""
    data = trained.digit_split(seed=seed)
    model = NETWORKS[name](data.train, seed=seed, dim=dim, depth=depth)
    return trained.fit(model, data, steps=steps, learning_rate=rate, seed=seed).accuracy[-1]


def learn(name: str, seed: int, rate: float, steps: int, dim: int, depth: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Trains one network: its accuracies and, layer by layer, its curves with the null of an untrained one, [2, layers] each.

    Source: :cite:t:`yu2023white`.
    """
    data = trained.digit_split(seed=seed)
    model, untrained = (NETWORKS[name](data.train, seed=s, dim=dim, depth=depth) for s in (seed, seed + 1))
    run = trained.fit(model, data, steps=steps, learning_rate=rate, seed=seed)
    rows = layerwise(model, data.test.tokens, data.test.labels, untrained=[untrained])
    curves: dict[str, list] = {}
    for row in rows:
        curves.setdefault(row["quantity"], []).append((row["value"], row.get("null")))
    numbers = {
        "accuracy on the validation part": run.accuracy[-1],
        ACCURACY: accuracy(model, data.test),
        "trainable parameters": float(trained.parameters(model)),
    }
    return numbers, {quantity: np.array(pairs).T for quantity, pairs in curves.items()}


@dataclass(frozen=True)
class Layers(RandomExperiment):
    """Rates before and after attention, non-zeros and rate reduction by layer, in CRATE and a ViT that learned digits in as many steps.

    Each network's learning rate is the best of three on the validation part of another split than those that are reported.
    """

    seeds: int = setting(3, ge=1, help="splits and initial weights that are reported")
    steps: int = setting(600, ge=1, help="optimiser steps of each network, 64 digits each")
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(4, ge=2, help="layers")

    name = "crate.layers"
    sources = (PAPER, Source("dosovitskiy2021image"), Source("alpaydin1998optical"))

    def measure(self) -> Iterator[Row | Arrays]:
        sizes = {"steps": self.steps, "dim": self.dim, "depth": self.depth}
        first = 1000 * self.seed
        tried = [{"name": name, "seed": first, "rate": rate, **sizes} for name in NETWORKS for rate in RATES]
        found = sweep(validate, tried)
        rates = {}
        for position, name in enumerate(NETWORKS):
            of_rates = found[position * len(RATES) : (position + 1) * len(RATES)]
            rates[name] = RATES[int(np.argmax(of_rates))]
        runs = [{"name": name, "seed": first + 2 * k, "rate": rates[name], **sizes} for name in NETWORKS for k in range(1, self.seeds + 1)]
        results = sweep(learn, runs)
        for position, name in enumerate(NETWORKS):
            own = results[position * self.seeds : (position + 1) * self.seeds]
            yield Row(theory="crate", quantity="learning rate, chosen by validation", value=rates[name], model=name)
            yield from self._numbers(name, [numbers for numbers, _ in own])
            curves = {quantity: np.stack([found[quantity] for _, found in own]) for quantity in own[0][1]}
            yield from self._curves(name, curves)
            yield Arrays({f"crate/layers/{name}/{quantity}": values for quantity, values in curves.items()})

    def _numbers(self, name: str, numbers: list[dict[str, float]]) -> Iterator[Row]:
        for quantity in numbers[0]:
            values = [one[quantity] for one in numbers]
            note = f"mean of {len(values)} seeds, {min(values):.4g} to {max(values):.4g}; {self.steps} steps of 64 digits"
            yield Row(theory="crate", quantity=quantity, value=float(np.mean(values)), model=name, note=note)

    def _curves(self, name: str, curves: dict[str, np.ndarray]) -> Iterator[Row]:
        for quantity, values in curves.items():
            for layer, (value, null) in enumerate(values.mean(0).T.tolist()):
                yield Row(theory="crate", quantity=quantity, value=value, null=null, model=name, layer=layer)
        for quantity in (INPUT, AFTER, NONZEROS):
            ratio, null = curves[quantity][:, :, -1].mean(0) / curves[quantity][:, :, 0].mean(0)
            yield finding(
                "crate",
                f"{quantity}: last layer over first",
                Evidence(float(ratio), 1.0, "<=", covered=name != "ViT"),
                source=PAPER,
                null=float(null),
                model=name,
                note="should fall with depth in CRATE; null: random weights",
            )
            yield finding(
                "crate",
                f"{quantity}: last layer over first, trained minus random weights",
                Evidence(float(ratio - null), 0.0, "<=", covered=name != "ViT"),
                source=PAPER,
                model=name,
                note="a fall that random weights show as well is nothing learned",
            )
        ratio, null = (curves[AFTER] / curves[BEFORE]).mean((0, 2))
        yield finding(
            "crate",
            "R^c after attention over before, mean of the layers",
            Evidence(float(ratio), 1.0, "<=", covered=name != "ViT"),
            source=PAPER,
            null=float(null),
            model=name,
            note="attention should compress; null: random weights",
        )

    def draw(self, result: Result) -> "Figure":
        """Five panels, a curve a network with its null dashed."""
        return draw(result.arrays, (INPUT, BEFORE, AFTER, NONZEROS, REDUCTION))

    @classmethod
    def quick(cls) -> "Layers":
        return cls(seeds=1, steps=5, dim=16, depth=2)
