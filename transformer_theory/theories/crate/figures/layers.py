"""Layer-wise curves of trained networks: CRATE in two forms and a ViT of the same width, depth and heads, on
handwritten digits.

Sources: :cite:t:`yu2023white`, :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from ....core.experiment import RANGE, RandomExperiment, range_rows, setting, sweep
from ....core.figure import Panel, bands
from ....core.measurement import Measurement, Null, judge, present
from ....core.sources import Source
from ....models.crate import PaperAttention
from .. import networks
from ..in_networks import AFTER, BEFORE, NONZEROS
from ..layer_curves import CURVES, INPUT, REDUCTION, curves, layerwise
from ..problem import CURVES as SOURCE

NETWORKS = {
    "CRATE (released form)": networks.crate,
    "CRATE (paper form)": partial(networks.crate, attention=PaperAttention),
    "ViT": networks.vit,
}
ACCURACY, VALIDATION_ACCURACY, PARAMETERS = "test accuracy", "validation accuracy", "trainable parameters"
LEARNING_RATE = "learning rate chosen by validation"
LAST_OVER_FIRST, LEARNT = "last layer over first", "last layer over first, trained minus random weights"
ATTENTION_CHANGE = "R^c after attention over before, mean of the layers"
UNTRAINED = "random weights"
NATS = "nats, $\\varepsilon^2$ = .01"
TITLES = {  # quantity -> title and axis label of its panel
    INPUT: ("$R^c$, input side", NATS),
    BEFORE: ("$R^c(Z^\\ell)$, before", NATS),
    AFTER: ("$R^c(Z^{\\ell+1/2})$, after", NATS),
    NONZEROS: ("Share of non-zeros", "of all entries"),
    REDUCTION: ("$\\Delta R$ by class", "nats, $\\varepsilon^2$ = .5"),
}
SOLID = {name: {"color": name, "label": name} for name in NETWORKS}
DOTTED = {
    name: look | {"label": "_", "linestyle": (0, (1, 1)), "linewidth": 1.0, "band": False}
    for name, look in SOLID.items()
}


def validate(name: str, seed: int, rate: float, steps: int, dim: int, depth: int) -> float:
    """Trains one network; returns its accuracy on the validation part, which selects the learning rate."""
    data = networks.digit_parts(seed=seed)
    model = NETWORKS[name](data.train, seed=seed, dim=dim, depth=depth)
    return networks.fit(model, data, steps=steps, learning_rate=rate, seed=seed).accuracy[-1]


def train_network(
    name: str, seed: int, rate: float, steps: int, dim: int, depth: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Trains one network. Returns its accuracies and, per quantity, three curves, [3, layers].

    The curves are those of the network and of an untrained one on the test part, and of the network on as
    many training sequences.
    """
    data = networks.digit_parts(seed=seed)
    model, untrained = (NETWORKS[name](data.train, seed=s, dim=dim, depth=depth) for s in (seed, seed + 1))
    run = networks.fit(model, data, steps=steps, learning_rate=rate, seed=seed)
    table = layerwise(model, data.test.tokens, data.test.labels, untrained=[untrained])
    numbers = {
        VALIDATION_ACCURACY: run.accuracy[-1],
        ACCURACY: networks.accuracy(model, data.test),
        PARAMETERS: float(networks.parameter_count(model)),
    }
    assert data.train.labels is not None
    count = len(data.test)
    seen = curves(model, data.train.tokens[:count], data.train.labels[:count])
    rows = {quantity: table.select(quantity=quantity) for quantity in CURVES}
    untrained_values = {
        quantity: [row.null.mean if row.null else None for row in rows[quantity]] for quantity in CURVES
    }
    arrays = {
        quantity: np.array(
            [
                rows[quantity].column("value"),
                untrained_values[quantity],
                seen.select(quantity=quantity).column("value"),
            ],
            dtype=float,
        )
        for quantity in CURVES
        if len(rows[quantity])
    }
    return numbers, arrays


@dataclass(frozen=True)
class Layers(RandomExperiment):
    """Rates before and after attention, non-zeros and rate reduction by layer, in CRATE and a ViT that learnt
    digits in the same steps.

    Each network's learning rate is the best of several on the validation part of a split that is not among
    the reported ones. A network at chance accuracy has no verdict.
    """

    seeds: int = setting(3, ge=1, help="number of reported splits and initial weights")
    steps: int = setting(600, ge=1, help="optimiser steps per network, 64 digits per step")
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(4, ge=2, help="layers")

    learning_rates: tuple[float, ...] = setting(
        (1e-3, 2e-3, 4e-3), gt=0, help="candidates for the learning rate; a single one is not tried"
    )

    name = "crate.layers"
    sources = (SOURCE, Source("dosovitskiy2021image"), Source("alpaydin1998optical"))

    view = bands(
        x="layer",
        spread=RANGE,
        panels=tuple(
            (
                Panel(
                    title,
                    quantity,
                    {"split": ""},
                    ("model", SOLID),
                    legend="best" if quantity == NONZEROS else "",
                    axes={"ylabel": unit},
                ),
                Panel("", quantity, {"split": "train"}, ("model", DOTTED)),
            )
            for quantity, (title, unit) in TITLES.items()
        ),
        caption=lambda result: (
            "Solid: trained, test part, mean and range of the seeds. Dotted: the same on the training "
            "part. Grey, dashed: random weights. Rates: tokens of every head scaled to norm one. Curves that "
            "coincide hide one another: with random weights both forms of CRATE have the same U in layer "
            "0, and a ViT has no zeros at all." + networks.chance_note(result, ACCURACY)
        ),
        size=(11.0, 2.7),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields the learning rate, the accuracies and the curves of every network."""
        sizes = {"steps": self.steps, "dim": self.dim, "depth": self.depth}
        first = 1000 * self.seed
        candidates = self.learning_rates
        trials = [
            {"name": name, "seed": first, "rate": rate, **sizes}
            for name in NETWORKS
            for rate in candidates
            if len(candidates) > 1
        ]
        accuracies = np.array(sweep(validate, trials) or [[1.0]] * len(NETWORKS)).reshape(len(NETWORKS), -1)
        rates = {name: candidates[int(np.argmax(row))] for name, row in zip(NETWORKS, accuracies)}
        # Seeds advance by two, because the untrained network of a seed has the next one.
        runs = [
            {"name": name, "seed": first + 2 * k, "rate": rates[name], **sizes}
            for name in NETWORKS
            for k in range(1, self.seeds + 1)
        ]
        results = sweep(train_network, runs)
        for position, name in enumerate(NETWORKS):
            network_results = results[position * self.seeds : (position + 1) * self.seeds]
            yield self.row(LEARNING_RATE, rates[name], model=name, source=None)
            numbers = [seed_numbers for seed_numbers, _ in network_results]
            p = networks.guessing_p(
                [seed_numbers[ACCURACY] for seed_numbers in numbers], networks.digit_parts(seed=first).test
            )
            yield from self._numbers(name, numbers, p)
            # [seeds, 3, layers]: trained, untrained, and trained on the training part
            stacked = {
                quantity: np.stack([curve[quantity] for _, curve in network_results])
                for quantity in network_results[0][1]
            }
            yield from self._curves(name, stacked, learnt=not networks.at_chance(p))

    def _numbers(self, name: str, numbers: list[dict[str, float]], p: float) -> Iterator[Measurement]:
        """Yields the accuracies and the number of parameters, as means over seeds; ``p`` is the accuracy's
        probability under guessing.
        """
        for quantity in numbers[0]:
            values = [seed_numbers[quantity] for seed_numbers in numbers]
            note = (
                f"mean of the seeds, {min(values):.4g} to {max(values):.4g}; {self.steps} steps of 64 digits"
            )
            unit = "" if quantity == PARAMETERS else "share"
            columns = {"p": p, "side": ">="} if quantity == ACCURACY else {}
            columns |= {"unit": unit, "model": name, "n": len(values), "note": note, "source": None}
            yield self.row(quantity, float(np.mean(values)), **columns)

    def _curves(self, name: str, stacked: dict[str, np.ndarray], *, learnt: bool) -> Iterator[Measurement]:
        """Yields the curves by layer, and their ratios, with verdicts if the network has learnt anything."""
        covered = name != "ViT" if learnt else None
        for quantity, values in stacked.items():
            for layer, (value, null, seen) in enumerate(values.mean(0).T.tolist()):
                place = {"model": name, "layer": layer, "source": None}
                row = self.row(quantity, value, nulls=(Null(UNTRAINED, (null,)),), **place)
                yield from (row, *range_rows(row, values[:, 0, layer].tolist()))
                yield self.row(quantity, seen, split="train", **place)
        for quantity in (INPUT, AFTER, NONZEROS):
            ratio, null, seen = stacked[quantity][:, :, -1].mean(0) / stacked[quantity][:, :, 0].mean(0)
            at = {"comparison": LAST_OVER_FIRST}
            seen_columns = {"split": "train", "model": name, "n": self.seeds, "source": None}
            yield self.row(quantity, float(seen), at=at, **seen_columns)
            yield self._fall(quantity, float(ratio), 1.0, covered, name, at=at, null=float(null))
            yield self._fall(quantity, float(ratio - null), 0.0, covered, name, at={"comparison": LEARNT})
        ratio, null, _ = (stacked[AFTER] / stacked[BEFORE]).mean((0, 2))
        yield self._fall(ATTENTION_CHANGE, float(ratio), 1.0, covered, name, null=float(null))

    def _fall(
        self,
        quantity: str,
        value: float,
        threshold: float,
        covered: bool | None,
        name: str,
        *,
        at: Mapping[str, str] = MappingProxyType({}),
        null: float | None = None,
    ) -> Measurement:
        """Returns a row whose value should be at most the threshold in a CRATE; ``covered`` is None at chance
        accuracy: no verdict.
        """
        return self.row(
            quantity,
            value,
            predicted=threshold,
            op="<=",
            threshold=threshold,
            verdict=None if covered is None else judge(value, "<=", threshold, covered=covered),
            note="no verdict at chance accuracy" if covered is None else "",
            nulls=present(None if null is None else Null(UNTRAINED, (null,))),
            side=None if null is None else "<=",
            at=at,
            model=name,
            n=self.seeds,
        )

    @classmethod
    def quick(cls) -> "Layers":
        return cls(seeds=1, learning_rates=(8e-3,))
