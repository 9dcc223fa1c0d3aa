"""Layer-wise curves of trained networks: CRATE in two forms and a ViT of the same width, depth and heads, on
handwritten digits.

Sources: :cite:t:`yu2023white`, :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....core.experiment import setting, sweep
from ....core.figure import RANGE, Panel, Reading, bands, figure, reading, with_range
from ....core.measurement import Null, judge
from ....core.sources import Source
from ....models.crate import PaperAttention
from .. import networks
from ..in_networks import AFTER, BEFORE, NONZEROS
from ..layer_curves import CURVES, INPUT, REDUCTION, curves, layerwise
from ..problem import CURVES as SOURCE
from .common import seed_mean

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
SOLID = {name: {"color": name} for name in NETWORKS}
DOTTED = {name: {"color": name, "label": "_", "linestyle": ":", "band": False} for name in NETWORKS}


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
    arrays = {}
    for quantity in CURVES:
        rows = table.select(quantity=quantity)
        nulls = [row.null.mean if row.null else None for row in rows]
        on_train = seen.select(quantity=quantity).column("value")
        if len(rows):
            arrays[quantity] = np.array([rows.column("value"), nulls, on_train], dtype=float)
    return numbers, arrays


@figure(
    "crate.layers",
    source=(SOURCE, Source("dosovitskiy2021image"), Source("alpaydin1998optical")),
    view=bands(
        x="layer",
        spread=RANGE,
        panels=[
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
        ],
        caption=lambda result: (
            "Solid: trained, test part, mean and range of the seeds. Dotted: the same on the training "
            "part. Grey, dashed: random weights. Rates: tokens of every head scaled to norm one. Curves that "
            "coincide hide one another: with random weights both forms of CRATE have the same U in layer "
            "0, and a ViT has no zeros at all." + networks.chance_note(result, ACCURACY)
        ),
        size=(11.0, 2.7),
    ),
    quick={"seeds": 1, "learning_rates": (8e-3,)},
)
def layers(
    *,
    seeds: int = setting(3, ge=1, help="number of reported splits and initial weights"),
    steps: int = setting(600, ge=1, help="optimiser steps per network, 64 digits per step"),
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(4, ge=2, help="layers"),
    learning_rates: tuple[float, ...] = setting(
        (1e-3, 2e-3, 4e-3), gt=0, help="candidates for the learning rate; a single one is not tried"
    ),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """Rates before and after attention, non-zeros and rate reduction by layer, in CRATE and a ViT that learnt
    digits in the same steps.

    Each network's learning rate is the best of several on the validation part of a split that is not among
    the reported ones. A network at chance accuracy has no verdict.
    """
    sizes, first = {"steps": steps, "dim": dim, "depth": depth}, 1000 * seed
    rates = chosen_rates(learning_rates, first, sizes)
    # Seeds advance by two, because the untrained network of a seed has the next one.
    runs = [
        {"name": name, "seed": first + 2 * k, "rate": rates[name], **sizes}
        for name in NETWORKS
        for k in range(1, seeds + 1)
    ]
    results = iter(sweep(train_network, runs))
    test = networks.digit_parts(seed=first).test
    for name in NETWORKS:
        numbers, arrays = zip(*[next(results) for _ in range(seeds)])
        yield reading(LEARNING_RATE, rates[name], model=name, source=None)
        p = networks.guessing_p([of_seed[ACCURACY] for of_seed in numbers], test)
        for quantity in numbers[0]:
            values = [of_seed[quantity] for of_seed in numbers]
            columns = {"p": p, "side": ">="} if quantity == ACCURACY else {}
            columns |= {"unit": "" if quantity == PARAMETERS else "share", "model": name, "source": None}
            yield seed_mean(quantity, values, digits=4, more=f"; {steps} steps of 64 digits", **columns)
        # [seeds, 3, layers]: trained, untrained, and trained on the training part
        stacked = {quantity: np.stack([of_seed[quantity] for of_seed in arrays]) for quantity in arrays[0]}
        yield from curve_readings(name, stacked, learnt=not networks.at_chance(p))


def chosen_rates(candidates: Sequence[float], seed: int, sizes: dict[str, int]) -> dict[str, float]:
    """Returns the learning rate of each network that is best on the validation part; a single candidate is
    not tried.
    """
    if len(candidates) == 1:
        return dict.fromkeys(NETWORKS, candidates[0])
    trials = [{"name": name, "seed": seed, "rate": rate, **sizes} for name in NETWORKS for rate in candidates]
    accuracies = np.array(sweep(validate, trials)).reshape(len(NETWORKS), -1)
    return {name: candidates[int(best)] for name, best in zip(NETWORKS, accuracies.argmax(1))}


def curve_readings(
    name: str, stacked: dict[str, np.ndarray], *, learnt: bool
) -> Iterator[Reading | list[Reading]]:
    """Yields the curves of a network by layer, and their ratios, with verdicts if it has learnt anything."""
    for quantity, values in stacked.items():
        for layer, (value, null, seen) in enumerate(values.mean(0).T.tolist()):
            place = {"model": name, "layer": layer, "source": None}
            row = reading(quantity, value, nulls=(Null(UNTRAINED, (null,)),), **place)
            yield with_range(row, values[:, 0, layer])
            yield reading(quantity, seen, split="train", **place)
    place = {"model": name, "n": len(stacked[AFTER])}

    def fall(quantity: str, value: float, threshold: float, **columns: Any) -> Reading:
        """Returns a row whose value should be at most the threshold in a CRATE; no verdict at chance
        accuracy.
        """
        verdict = judge(value, "<=", threshold, covered=name != "ViT") if learnt else None
        columns |= {"op": "<=", "verdict": verdict, "note": "" if learnt else "no verdict at chance accuracy"}
        return reading(quantity, value, predicted=threshold, threshold=threshold, **columns, **place)

    for quantity in (INPUT, AFTER, NONZEROS):
        ratio, null, seen = stacked[quantity][:, :, -1].mean(0) / stacked[quantity][:, :, 0].mean(0)
        at = {"comparison": LAST_OVER_FIRST}
        yield reading(quantity, float(seen), at=at, split="train", source=None, **place)
        nulls = {"nulls": (Null(UNTRAINED, (float(null),)),), "side": "<="}
        yield fall(quantity, float(ratio), 1.0, at=at, **nulls)
        yield fall(quantity, float(ratio - null), 0.0, at={"comparison": LEARNT})
    ratio, null, _ = (stacked[AFTER] / stacked[BEFORE]).mean((0, 2))
    nulls = {"nulls": (Null(UNTRAINED, (float(null),)),), "side": "<="}
    yield fall(ATTENTION_CHANGE, float(ratio), 1.0, **nulls)
