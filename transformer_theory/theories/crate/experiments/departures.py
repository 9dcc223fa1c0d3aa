"""Where the released networks depart from the paper, and what each departure does: networks that differ in that alone, on digits.

Source: :cite:t:`yu2023white` (the paper and its released code), :cite:t:`hu2024indepth` (the first two departures),
:cite:t:`wu2024token` (the last).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....models.crate import (
    CausalReleasedAttention,
    ExactAttention,
    Ista,
    PaperAttention,
    PreNorm,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    TokenStatisticsAttention,
    orthogonal,
)
from ....models.crate.compression import Batch, Subspaces
from ....training.supervised import accuracy
from .. import trained
from ..figures.departures import draw
from ..layer_curves import AFTER, BEFORE, INPUT, NONZEROS, curves
from ..unrolled import PAPER, SIGN
from .reading import direction, growth, longest_step, output_alignment, radius, trained_incoherence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 3e-3
ACCURACY, CHANGE = "accuracy on the test part", "R^c after attention over before"
GROWTH = "R^c after attention over before, lengths kept"
ALIGNMENT = "cosine of V_k with U_k^T"
STATISTICS = "token statistics, released"


class TiedAttention(Subspaces):
    r"""The residual form with the subspaces themselves as output, :math:`\sum_k \mathrm{SSA}_k U_k^\top`, scores over sqrt(p).

    Source: :cite:t:`hu2024indepth`.
    """

    def forward(self, tokens: Batch) -> Batch:
        return self.attend(tokens, scale=self.head_dim**-0.5) @ self.qkv.weight


class UnscaledAttention(ReleasedAttention):
    """The released form with scores as in the paper, not divided by sqrt(p). Source: :cite:t:`yu2023white`."""

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(self.attend(tokens, scale=1.0))


class SkippedIsta(Ista):
    """One ISTA step that is added to the stream instead of taking its place. Source: :cite:t:`yu2023white`."""

    skip = True


def _orthogonal(dim: int, **sizes: int) -> nn.Module:
    return orthogonal(ReleasedAttention(dim, **sizes))


def _without_norms(data, **settings) -> nn.Module:
    model = trained.crate(data, **settings)
    for half in (module for module in model.modules() if isinstance(module, PreNorm)):
        half.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return model


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "released": trained.crate,
    "output tied to U": partial(trained.crate, attention=TiedAttention),
    "the paper's step": partial(trained.crate, attention=PaperAttention),
    "scores not divided by sqrt(p)": partial(trained.crate, attention=UnscaledAttention),
    "no layer norms": _without_norms,
    "U orthonormal": partial(trained.crate, attention=_orthogonal),
    "four ISTA steps": partial(trained.crate, sparsify=partial(Ista, steps=4)),
    "ISTA added to the stream": partial(trained.crate, sparsify=SkippedIsta),
    "exact gradient": partial(trained.crate, attention=ExactAttention),
    "lambda = .5": partial(trained.crate, sparsify=partial(Ista, lam=0.5)),
    "positions and class token at .02": partial(trained.crate, spread=0.02),
    STATISTICS: partial(trained.crate, attention=ReleasedTokenStatisticsAttention),
    "token statistics, derived": partial(trained.crate, attention=TokenStatisticsAttention),
}
SOURCES = {"1": SIGN, "2": SIGN, "12": Source("wu2024token")}
# what a departure is called, and the network in which it is undone (the released network has all of them but the last, which has a
# released network of its own, named before the one that undoes it)
DEPARTURES: dict[str, tuple[str, ...]] = {
    "1 output matrix free, with bias": ("output tied to U",),
    "2 residual step without the shrink": ("the paper's step",),
    "3 scores divided by sqrt(p)": ("scores not divided by sqrt(p)",),
    "4 layer norms": ("no layer norms",),
    "5 U without constraint": ("U orthonormal",),
    "6 one ISTA step overwrites the stream": ("four ISTA steps", "ISTA added to the stream"),
    "8 softmax for the inverse": ("exact gradient",),
    "10 lambda fixed at .1": ("lambda = .5",),
    "11 positions and class token of deviation 1": ("positions and class token at .02",),
    "12 token statistics with a free output": (STATISTICS, "token statistics, derived"),
}


def learn(network: str, seed: int, steps: int, dim: int, depth: int) -> dict[str, float]:
    """Trains one network on digits: accuracy, change of R^c, non-zeros, and what only weights tell. Source: :cite:t:`yu2023white`."""
    data = trained.digit_split(seed=seed)
    model = NETWORKS[network](data.train, seed=seed, dim=dim, depth=depth)
    trained.fit(model, data, steps=steps, learning_rate=RATE, seed=seed)
    rows = curves(model, data.test.tokens)
    curve = {q: np.array([row["value"] for row in rows if row["quantity"] == q]) for q in (INPUT, BEFORE, AFTER, NONZEROS)}
    found = {
        ACCURACY: accuracy(model, data.test),
        CHANGE: float((curve[AFTER] / curve[BEFORE]).mean()),
        GROWTH: growth(model, data.test.tokens[:64]),
        "share of non-zeros, last layer": float(curve[NONZEROS][-1]),
        "R^c last over first layer, input side": float(curve[INPUT][-1] / curve[INPUT][0]),
        "R^c last over first layer, output side": float(curve[AFTER][-1] / curve[AFTER][0]),
        "incoherence of U": trained_incoherence(model),
        "largest eta ||D||^2": longest_step(model),
    }
    if network in ("released", STATISTICS):
        found[ALIGNMENT] = output_alignment(model)
    if network == "released":
        tokens = data.test.tokens[:64]
        found |= {f"spectral radius of the Neumann series, {norm}": value for norm, value in radius(model, tokens).items()}
        found |= {f"{name} against the gradient": value for name, value in direction(model, tokens).items()}
    return found


@dataclass(frozen=True)
class Departures(RandomExperiment):
    """The twelve points in which the released networks depart from the papers, each with its effect measured.

    All networks have the same width, depth, heads, steps and learning rate; against the released one each undoes one departure. Points 7
    (where R^c is read) and 9 (causality) are read in the released network, without another training. Point 12 is about token statistics,
    whose released attention, with its free output, biased coordinates and no step size, stands beside the derived one.
    """

    seeds: int = setting(3, ge=1, help="splits and initial weights of each network")
    steps: int = setting(500, ge=1, help="optimiser steps, 64 digits each")
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads")
    depth: int = setting(3, ge=2, help="layers")

    name = "crate.departures"
    sources = (PAPER, SIGN, Source("wu2024token"), Source("alpaydin1998optical"))

    def measure(self) -> Iterator[Row | Arrays]:
        settings = [
            {"network": network, "seed": 1000 * self.seed + k, "steps": self.steps, "dim": self.dim, "depth": self.depth}
            for network in NETWORKS
            for k in range(self.seeds)
        ]
        results = sweep(learn, settings)
        by_network = {network: results[i * self.seeds : (i + 1) * self.seeds] for i, network in enumerate(NETWORKS)}
        released = by_network["released"]
        for departure, undone in DEPARTURES.items():
            for network in ("released", *undone):
                for quantity in (ACCURACY, CHANGE, GROWTH, "share of non-zeros, last layer"):
                    yield self._row(departure, quantity, network, by_network[network])
        only = {
            "1 output matrix free, with bias": (ALIGNMENT,),
            "4 layer norms": [q for q in released[0] if q.startswith("spectral radius")],
            "5 U without constraint": ("incoherence of U",),
            "6 one ISTA step overwrites the stream": ("largest eta ||D||^2",),
            "7 R^c read before the step": ("R^c last over first layer, input side", "R^c last over first layer, output side"),
            "8 softmax for the inverse": [q for q in released[0] if q.endswith("against the gradient")],
        }
        for departure, quantities in only.items():
            for quantity in quantities:
                yield self._row(departure, quantity, "released", released)
        yield self._row("12 token statistics with a free output", ALIGNMENT, STATISTICS, by_network[STATISTICS])
        for name, block in (("released", ReleasedAttention), ("causal", CausalReleasedAttention)):
            where = f"9 no causal form in the classifiers: {LEAK}"
            yield Row(theory="crate", quantity=where, value=_leak(block, self.dim), model=name, source=str(PAPER))
        values = [[[one[quantity] for quantity in (ACCURACY, CHANGE)] for one in by_network[network]] for network in NETWORKS]
        yield Arrays({"crate/departures/table": np.array(values)})

    def _row(self, departure: str, quantity: str, network: str, results: list[dict[str, float]]) -> Row:
        values = [one[quantity] for one in results]
        note = f"{len(values)} seeds, {min(values):.4g} to {max(values):.4g}; {self.steps} steps"
        source = SOURCES.get(departure.split()[0], PAPER)
        where = f"{departure}: {quantity}"
        return Row(theory="crate", quantity=where, value=float(np.mean(values)), model=network, note=note, source=str(source))

    def draw(self, result: Result) -> "Figure":
        """Accuracy and change of R^c in attention, a row a network."""
        return draw(result.arrays["crate/departures/table"], list(NETWORKS))

    @classmethod
    def quick(cls) -> "Departures":
        return cls(seeds=1, steps=2, dim=16, depth=2)


LEAK = "change of the first token when the last one changes, over that of the last"


def _leak(block: Callable[..., nn.Module], dim: int) -> float:
    """On random tokens with random weights; 0 where no token sees the future."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = block(dim, heads=4, head_dim=dim // 4).double()
    tokens = torch.randn(1, 16, dim, generator=generator, dtype=torch.float64)
    other = tokens.clone()
    other[:, -1] = torch.randn(1, dim, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        moved = torch.linalg.vector_norm(module(other) - module(tokens), dim=-1)[0]
    return float(moved[0] / moved[-1])
