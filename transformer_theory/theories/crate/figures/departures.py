"""The departures of the released networks from the papers. Each is undone alone to measure its effect, on
handwritten digits.

Sources: :cite:t:`yu2023white` (the paper and its released code), :cite:t:`hu2024indepth` (the first two
departures), :cite:t:`wu2025token` (the last).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, Reading, figure, reading, with_range
from ....core.measurement import Unit
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....models.crate import (
    CausalReleasedAttention,
    ExactAttention,
    Fista,
    Ista,
    OvercompleteIsta,
    PaperAttention,
    PreNorm,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    Subspaces,
    TokenStatisticsAttention,
    orthogonal,
)
from ....models.crate.attention import Batch
from ....models.crate.compression import rate_gradient
from ....probes.evaluation import converted_inputs
from .. import networks
from ..approximations import spectral_radii
from ..in_networks import AFTER, BEFORE, GROWTH, NONZEROS, Growth
from ..layer_curves import INPUT, CompressionLayer, compression_layers, curves, on_layers, run_metrics
from ..problem import PAPER, incoherence
from ..steps import mssa
from .common import seed_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNING_RATE = 3e-3
EPS = 1.5  # distortion of the paper form of these networks; with so few tokens, beta < 1 requires a large eps
MAX_SEQUENCES = 64  # test sequences for quantities that depend on the tokens as well as the weights
CHANCE = 0.1  # accuracy of guessing one of ten digits

ACCURACY, CHANGE = "test accuracy", "R^c after attention over before"
CHANGE_LENGTHS_KEPT = "R^c after attention over before, lengths kept"
LAST_NONZEROS = "share of non-zeros, last layer"
INPUT_FALL, OUTPUT_FALL = "R^c last over first layer, input side", "R^c last over first layer, output side"
INCOHERENCE, LONGEST_STEP, ALIGNMENT = "incoherence of U", "largest eta ||D||^2", "cosine of V_k with U_k^T"
RADIUS_NORMED = "spectral radius of the Neumann series, with the norm"
RADIUS_STREAM = "spectral radius of the Neumann series, stream"
PAPER_COSINE = "cosine of the paper's step with the gradient"
RELEASED_COSINE = "cosine of the released step with the gradient"
LEAK = "change of the first token when the last one changes, over that of the last"
TITLES = {ACCURACY: "Accuracy, test part", CHANGE: "$R^c$ after attention over before"}
UNITS: dict[str, Unit] = {ACCURACY: "share", LAST_NONZEROS: "share"}

RELEASED, STATISTICS = "released", "token statistics, released"


class TiedAttention(Subspaces):
    r"""The residual form with the subspaces themselves as output, :math:`\sum_k \mathrm{SSA}_k U_k^\top`,
    scores over sqrt(p).
    """

    def forward(self, tokens: Batch) -> Batch:
        return self.attend(tokens, scale=self.head_dim**-0.5) @ self.qkv.weight


class UnscaledAttention(ReleasedAttention):
    """The released form with scores as in the paper, not divided by sqrt(p)."""

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(self.attend(tokens, scale=1.0))


class SkippedIsta(Ista):
    """One ISTA step that is added to the stream instead of replacing it."""

    skip = True


def _orthogonal(dim: int, **sizes: int) -> nn.Module:
    return orthogonal(ReleasedAttention(dim, **sizes))


def _without_norms(data, **settings) -> nn.Module:
    model = networks.crate(data, **settings)
    for half in (module for module in model.modules() if isinstance(module, PreNorm)):
        half.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return model


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    RELEASED: networks.crate,
    "output tied to U": partial(networks.crate, attention=TiedAttention),
    "the paper's step": partial(networks.crate, attention=PaperAttention),
    "scores not divided by sqrt(p)": partial(networks.crate, attention=UnscaledAttention),
    "no layer norms": _without_norms,
    "U orthonormal": partial(networks.crate, attention=_orthogonal),
    "four ISTA steps": partial(networks.crate, sparsify=partial(Ista, steps=4)),
    "ISTA added to the stream": partial(networks.crate, sparsify=SkippedIsta),
    "exact gradient": partial(networks.crate, attention=ExactAttention),
    "lambda = .5": partial(networks.crate, sparsify=partial(Ista, lam=0.5)),
    "positions and class token at .02": partial(networks.crate, spread=0.02),
    STATISTICS: partial(networks.crate, attention=ReleasedTokenStatisticsAttention),
    "token statistics, derived": partial(networks.crate, attention=TokenStatisticsAttention),
}


@dataclass(frozen=True)
class Departure:
    """One departure of the released networks from the papers.

    Attributes:
        networks: the :data:`NETWORKS` in which the departure is undone. The released network has departures 1
            to 11. Departure 12 concerns the released token statistics instead, so the tuple of departure 12
            begins with this network.
        details: further quantities of the released network that describe the departure.
        source: source that describes the departure.
    """

    networks: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    source: Source = PAPER


DEPARTURES: dict[str, Departure] = {
    "1 output matrix free, with bias": Departure(
        ("output tied to U",), (ALIGNMENT,), Source("hu2024indepth")
    ),
    "2 residual step without the shrinkage": Departure(("the paper's step",), (), Source("hu2024indepth")),
    "3 scores divided by sqrt(p)": Departure(("scores not divided by sqrt(p)",)),
    "4 layer norms": Departure(("no layer norms",), (RADIUS_NORMED, RADIUS_STREAM)),
    "5 U without constraint": Departure(("U orthonormal",), (INCOHERENCE,)),
    "6 one ISTA step overwrites the stream": Departure(
        ("four ISTA steps", "ISTA added to the stream"), (LONGEST_STEP,)
    ),
    "7 R^c measured before the step": Departure((), (INPUT_FALL, OUTPUT_FALL)),
    "8 softmax for the inverse": Departure(("exact gradient",), (PAPER_COSINE, RELEASED_COSINE)),
    "9 no causal form in the classifiers": Departure(),
    "10 lambda fixed at .1": Departure(("lambda = .5",)),
    "11 positions and class token of deviation 1": Departure(("positions and class token at .02",)),
    "12 token statistics with a free output": Departure(
        (STATISTICS, "token statistics, derived"), (), Source("wu2025token")
    ),
}


def train_network(network: str, seed: int, steps: int, dim: int, depth: int) -> dict[str, float]:
    """Trains one network on digits; returns accuracy, changes of R^c, the share of non-zeros, and quantities
    of the weights, by name.
    """
    data = networks.digit_parts(seed=seed)
    model = NETWORKS[network](data.train, seed=seed, dim=dim, depth=depth)
    networks.fit(model, data, steps=steps, learning_rate=LEARNING_RATE, seed=seed)
    table = curves(model, data.test.tokens)
    curve = {
        quantity: np.array(table.select(quantity=quantity).column("value"))
        for quantity in (INPUT, BEFORE, AFTER, NONZEROS)
    }
    tokens = data.test.tokens[:MAX_SEQUENCES]
    numbers = {
        ACCURACY: networks.accuracy(model, data.test),
        CHANGE: float((curve[AFTER] / curve[BEFORE]).mean()),
        CHANGE_LENGTHS_KEPT: change_lengths_kept(model, tokens),
        LAST_NONZEROS: float(curve[NONZEROS][-1]),
        INPUT_FALL: float(curve[INPUT][-1] / curve[INPUT][0]),
        OUTPUT_FALL: float(curve[AFTER][-1] / curve[AFTER][0]),
        INCOHERENCE: mean_incoherence(model),
        LONGEST_STEP: longest_step(model),
    }
    if network in (RELEASED, STATISTICS):
        numbers[ALIGNMENT] = output_alignment(model)
    if network == RELEASED:
        numbers |= radii(model, tokens) | gradient_cosines(model, tokens)
    return numbers


@style()
def draw(result: Result) -> "Figure":
    """Draws accuracy and change of R^c in attention, one row per network. Markers are means over seeds, bars
    their ranges.
    """
    drawn, panels = axes(1, 2, width=7.0, height=3.6)
    rows, tints = range(len(NETWORKS)), [COLOURS["raw"]] + [colour("crate")] * (len(NETWORKS) - 1)
    for ax, (quantity, title) in zip(panels, TITLES.items()):
        means = [result.table.select(quantity=quantity, model=network)[0].value for network in NETWORKS]
        low, high = (
            result.table.select(quantity=f"{end} of {quantity}").column("value")
            for end in ("smallest", "largest")
        )
        ax.axvline(means[0], color=COLOURS["null"], linewidth=1.0, linestyle=DASHED)
        ax.hlines(rows, low, high, color=tints, linewidth=1.2)
        ax.scatter(means, rows, color=tints, s=20, zorder=3)
        ax.set_yticks(rows, list(NETWORKS) if ax is panels[0] else [""] * len(rows))
        ax.invert_yaxis()
        ax.set_title(title)
    limits = panels[0].get_xlim()
    panels[0].axvline(CHANCE, color=COLOURS["null"], linewidth=1.0, linestyle=":")
    if limits[0] > 2 * CHANCE:  # far from every network, the chance level would compress the differences
        panels[0].set_xlim(limits)
    panels[1].axvline(1.0, color=COLOURS["raw"], linewidth=0.8)
    caption(
        drawn,
        "Each network but the first undoes one departure of the released form; the last but one is released, "
        "too. Markers: means of the seeds; bars: their range; dashed: the released network. The chance level "
        "of accuracy is .1 (dotted, if in range). Left of 1 attention compresses."
        + networks.chance_note(result, ACCURACY),
    )
    return drawn


@figure(
    "crate.departures",
    source=(PAPER, Source("hu2024indepth"), Source("wu2025token"), Source("alpaydin1998optical")),
    view=draw,
    quick={"seeds": 1, "steps": 1, "dim": 16, "depth": 2},
)
def departures(
    *,
    seeds: int = setting(3, ge=1, help="splits and initial weights of each network"),
    steps: int = setting(500, ge=1, help="optimiser steps, 64 digits each"),
    dim: int = setting(64, ge=8, multiple_of=4, help="width, in four heads"),
    depth: int = setting(3, ge=2, help="layers"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """The twelve departures of the released networks from the papers, with the effect of each.

    All networks have the same width, depth, heads, steps and learning rate; each undoes one departure of the
    released network. Points 7 (where R^c is measured) and 9 (causality) need no further training. Point 12 is
    about token statistics: their released attention, with its free output, biased coordinates and no step
    size, is compared with the derived one.
    """
    first, sizes = 1000 * seed, {"steps": steps, "dim": dim, "depth": depth}
    settings = [{"network": name, "seed": first + k, **sizes} for name in NETWORKS for k in range(seeds)]
    results = iter(sweep(train_network, settings))
    runs = {network: [next(results) for _ in range(seeds)] for network in NETWORKS}
    test = networks.digit_parts(seed=first).test

    def effect(departure: str, quantity: str, network: str) -> Reading:
        values = [run[quantity] for run in runs[network]]
        guessing = {"p": networks.guessing_p(values, test), "side": ">="} if quantity == ACCURACY else {}
        columns = {"unit": UNITS.get(quantity, ""), "source": DEPARTURES[departure].source, **guessing}
        columns |= {"at": {"departure": departure}, "model": network}
        return seed_mean(quantity, values, digits=4, more=f"; {steps} steps", **columns)

    for name, departure in DEPARTURES.items():
        for network in (RELEASED, *departure.networks) if departure.networks else ():
            for quantity in (ACCURACY, CHANGE, CHANGE_LENGTHS_KEPT, LAST_NONZEROS):
                yield effect(name, quantity, network)
        for quantity in departure.details:
            yield effect(name, quantity, RELEASED)
    yield effect("12 token statistics with a free output", ALIGNMENT, STATISTICS)
    for network, block in ((RELEASED, ReleasedAttention), ("causal", CausalReleasedAttention)):
        at = {"departure": "9 no causal form in the classifiers"}
        yield reading(LEAK, leak(block, dim), at=at, model=network)
    for network in NETWORKS:
        for quantity in TITLES:
            values = [run[quantity] for run in runs[network]]
            yield with_range(reading(quantity, None, model=network, n=seeds), values)[1:]


# ---- quantities of one network: means over its layers, except longest_step and leak


def mean_incoherence(model: nn.Module) -> float:
    """Returns the largest cosine between directions in two subspaces of the same layer, mean over layers."""
    bases = [layer.block.subspaces().detach().double() for layer in compression_layers(model)]
    return float(np.mean([incoherence(torch.linalg.qr(U)[0]) for U in bases]))


def longest_step(model: nn.Module) -> float:
    r"""Returns the largest :math:`\eta \|D\|_2^2` of the layers; ISTA is guaranteed to descend if it is at
    most 1.
    """
    return max(
        block.relative_step()
        for block in model.modules()
        if isinstance(block, Ista | Fista | OvercompleteIsta)
    )


def output_alignment(model: nn.Module) -> float:
    r"""Returns the cosine between V_k and U_k^T as vectors of d p numbers, mean over heads: 1 if the output
    is tied, 0 if unrelated.
    """
    cosines = []
    for _, _, block in compression_layers(model):
        assert isinstance(block, ReleasedAttention | ReleasedTokenStatisticsAttention)
        linear = block.to_out[0]
        assert isinstance(linear, nn.Linear)
        output = linear.weight.detach().T.unflatten(0, (block.heads, block.head_dim))  # V_k, [K, p, d]
        cosines.append(
            float(
                cosine_similarity(output.flatten(1), block.subspaces().detach().mT.flatten(1), dim=1).mean()
            )
        )
    return float(np.mean(cosines))


def change_lengths_kept(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> float:
    """Returns the ratio of R^c of the stream after attention to R^c before, in orthonormal bases, without
    normalising the tokens.
    """
    metric = Growth(eps=EPS, max_sequences=None, rotations=0)
    run_metrics(model, inputs, [metric])
    growth = [row.value or 0.0 for row in metric.compute() if row.quantity == GROWTH]
    return 1 + float(np.mean(growth))


def radii(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> dict[str, float]:
    r"""Returns the median over inputs of the spectral radius :math:`\beta\,\|Z U_k\|_2^2`, for Z after and
    before the norm.
    """
    values: dict[str, list[float]] = {RADIUS_NORMED: [], RADIUS_STREAM: []}
    for _, tokens, normed, bases in _streams(model, inputs):
        for name, Z in ((RADIUS_NORMED, normed), (RADIUS_STREAM, tokens)):
            values[name].append(float(spectral_radii(Z, bases, eps=EPS).median()))
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def gradient_cosines(model: nn.Module, inputs: Float[Tensor, "n seq dim"]) -> dict[str, float]:
    r"""Returns the cosines of :math:`-\nabla R^c` with MSSA(Z) - Z and with the trained block's output, on
    each layer's input tokens.
    """
    cosines: dict[str, list[float]] = {PAPER_COSINE: [], RELEASED_COSINE: []}
    for layer, _, normed, bases in _streams(model, inputs):
        downhill = -rate_gradient(normed, bases, eps=EPS).flatten(1)
        with torch.no_grad():
            change = layer.block(normed.float()).double()
        for name, step in ((PAPER_COSINE, mssa(normed, bases, eps=EPS) - normed), (RELEASED_COSINE, change)):
            cosines[name].append(float(cosine_similarity(step.flatten(1), downhill, dim=1).mean()))
    return {name: float(np.mean(values)) for name, values in cosines.items()}


def leak(block: Callable[..., nn.Module], dim: int) -> float:
    """Returns :data:`LEAK` on random tokens with random weights; 0 if no token depends on later tokens."""
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


def _streams(model: nn.Module, inputs: Tensor) -> list[tuple[CompressionLayer, Tensor, Tensor, Tensor]]:
    """Returns each layer with its input tokens, the tokens after its norm, and orthonormal bases of its
    subspaces, all in float64.
    """
    streams: list[tuple[CompressionLayer, Tensor, Tensor, Tensor]] = []

    def keep(number: int, layer: CompressionLayer, tokens: Tensor, output: Tensor) -> None:
        bases = torch.linalg.qr(layer.block.subspaces().double())[0]
        streams.append((layer, tokens.double(), layer.norm(tokens).double(), bases))

    with on_layers(model, keep), torch.no_grad():
        model(converted_inputs(model, inputs))
    return streams
