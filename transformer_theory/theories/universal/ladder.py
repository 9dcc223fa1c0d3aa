r"""The ladder: how much of a random sequence-to-sequence function survives other arithmetic, softmax
attention, and learning.

Each seed draws a target A, independent uniform numbers in [0, 1), one for every token of every grid of (k, d,
n) = (4, 1, 3): 192 numbers without structure. With the outputs g, clipped to [0, 1], and the best function c
of token and position alone (the median over the contexts),

.. math:: Q = 1 - \frac{\sum |g - A|}{\sum |c - A|} .

The theorem predicts 1. A function of token and position alone has at most 0.

**The null.** Targets are permuted among the contexts of the same token and position. A network without
contextual information has the same Q for all such permutations, so what it knows of token and position cannot
make it look better than its null. Outputs that are wrong nearly everywhere may still exceed this null, since
a few are right. A second null tells such rungs apart: functions of token and position alone, the medians of
random halves of the contexts. Their Q is a little below 0.

The last rung trains a transformer, with about as many parameters as the construction, on all 64 grids and
asks for the same numbers, so it measures what gradient descent finds, not generalisation. Source:
:cite:t:`yun2020transformers`.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.errors import NotConverged
from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS
from ...models import build
from ...models.vit import Block
from ...training.fitting import State, fit
from .approximator import Approximation, UniversalApproximator
from .layers import run

K, N = 4, 3  # grid: d = 1, 64 grids, 192 codes
NULL_KIND = "targets permuted among the contexts of the same token and position"
BLIND_KIND = "functions of token and position alone"
LADDER = Ladder(
    theory="universal",
    quantity="share of the contextual part of the target that is reproduced",
    side=">=",
    bounds=(None, 1.0),
    null=NULL_KIND,
    source=Source("yun2020transformers", "Theorem 3", "second-hand"),
)
PARAMETERS = "number of parameters"
# width and depth of the trained transformers: 2,609 and 497 parameters; the construction: 2,537
SIZES = {"equal": (8, 3), "small": (4, 2)}
HEADS, STEPS, RATE, WARMUP = 2, 2000, 0.01, 0.05


def instance(generator: Generator) -> tuple[Approximation, Float[Tensor, "grids n"]]:
    """Draws the target, and returns the construction that has it as values, and the target."""
    values = torch.rand(K**N, N, 1, generator=generator, dtype=torch.float64)
    # f is not evaluated: the values are given
    settings = UniversalApproximator(lambda x: x, N, 1, Fraction(1, K))
    return settings.fit_values(values.numpy()), values.squeeze(-1)


def groups() -> Iterator[tuple[Int[Tensor, " rows"], int]]:
    """Yields, for every token and position, the grids that have the token there, and the position."""
    tokens = torch.cartesian_prod(*[torch.arange(K)] * N)  # [grids, n], in the order of all_grids
    for position in range(N):
        for token in range(K):
            yield (tokens[:, position] == token).nonzero().squeeze(1), position


def reproduced(
    outputs: Float[Tensor, "*#draws grids n"], targets: Float[Tensor, "*#draws grids n"]
) -> Float[Tensor, "*draws"]:
    """Computes Q for one target and one output, or for several of either, ``[*draws, grids, n]`` ->
    ``[*draws]``.

    Rows are the grids in the order of :func:`.all_grids`, so the contexts of a token and position are known.
    """
    best = torch.empty_like(targets)
    for rows, position in groups():
        best[..., rows, position] = targets[..., rows, position].quantile(0.5, dim=-1, keepdim=True)
    error = (outputs.nan_to_num(nan=0.0).clamp(0, 1) - targets).abs().sum((-2, -1))
    return 1 - error / (best - targets).abs().sum((-2, -1))


def permuted(
    targets: Float[Tensor, "grids n"], draws: int, generator: Generator
) -> Float[Tensor, "draws grids n"]:
    """Permutes targets among the grids with the same token at the same position, ``[draws, grids, n]``."""
    shuffled = targets.expand(draws, -1, -1).clone()
    for rows, position in groups():
        order = torch.rand(draws, len(rows), generator=generator).argsort(1)
        shuffled[:, rows, position] = targets[rows[order], position]
    return shuffled


def context_free(
    targets: Float[Tensor, "grids n"], draws: int, generator: Generator
) -> Float[Tensor, "draws grids n"]:
    """Draws functions of token and position alone, ``[draws, grids, n]``: the median of the targets in a
    random half of the contexts.
    """
    outputs = targets.expand(draws, -1, -1).clone()
    for rows, position in groups():
        half = torch.rand(draws, len(rows), generator=generator).argsort(1)[:, : len(rows) // 2]
        outputs[:, rows, position] = targets[rows[half], position].quantile(0.5, dim=-1, keepdim=True)
    return outputs


def measured(
    outputs: Float[Tensor, "grids n"], targets: Float[Tensor, "grids n"], generator: Generator, **more: Any
) -> Measurement:
    """Returns the row of the ladder for the outputs of a network on all grids, with both nulls."""
    value = float(reproduced(outputs, targets))
    draws = reproduced(outputs, permuted(targets, LADDER_DRAWS, generator))
    blind = reproduced(context_free(targets, LADDER_DRAWS, generator), targets)
    nulls = Null(NULL_KIND, tuple(draws.tolist())), Null(BLIND_KIND, tuple(blind.tolist()))
    return LADDER.row(value, predicted=1.0, nulls=nulls, n=targets.numel(), **more)


@LADDER.rung("integers", column="exact construction", covered=True)
@LADDER.rung(
    "float64",
    relaxes="exact integers, and a table in place of the layers",
    column="floating point",
    dtype=np.float64,
)
@LADDER.rung("float32", relaxes="float32 instead of float64", column="floating point", dtype=np.float32)
@LADDER.rung(
    "softmax, 10,000",
    relaxes="hard-max attention; in float64, since float32 fails",
    column="softmax",
    dtype=np.float64,
    inverse_temperature=1e4,
)
@LADDER.rung(
    "softmax, 1,000",
    relaxes="inverse temperature 1,000 instead of 10,000",
    column="softmax",
    dtype=np.float64,
    inverse_temperature=1e3,
)
@LADDER.rung(
    "softmax, 100",
    relaxes="inverse temperature 100 instead of 1,000",
    column="softmax",
    dtype=np.float64,
    inverse_temperature=1e2,
)
def constructed(
    generator: Generator, *, dtype: type | None = None, inverse_temperature: float | None = None
) -> Iterator[Measurement]:
    """Measures the construction: in exact integers, with a table of values by code, or layer by layer in
    floats.
    """
    approximation, targets = instance(generator)
    mapping = approximation.settings.mapping
    if dtype is None:
        outputs = approximation.on_grids(mapping.grids())
    else:
        scale = None if inverse_temperature is None else inverse_temperature / K**2
        with np.errstate(all="ignore"):  # float32 overflows in places; such outputs count as wrong
            outputs = (
                run(approximation.layers(), mapping.embed(mapping.grids(), dtype=dtype), scale=scale) / K
            )
    yield measured(torch.from_numpy(outputs.astype(np.float64)).squeeze(-1), targets, generator)
    yield LADDER.other_row(PARAMETERS, approximation.parameters())


class Network(nn.Module):
    """A transformer on sequences of n numbers: embedding with learnt positions, pre-norm blocks, one output
    per token.
    """

    def __init__(self, dim: int, depth: int):
        super().__init__()
        self.embed = nn.Linear(1, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(1, N, dim))
        self.blocks = nn.ModuleList(Block(dim, heads=HEADS) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, sequences: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        tokens = self.embed(sequences[..., None]) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)).squeeze(-1)


class AllGrids:
    """The task: all grids in every batch, with the squared error.

    Attributes:
        inputs: entries of the grids, scaled to [-1.5, 1.5], ``[grids, n]``.
        targets: ``[grids, n]``.
    """

    def __init__(self, targets: Float[Tensor, "grids n"]):
        self.inputs = torch.cartesian_prod(*[torch.arange(K)] * N).float() - (K - 1) / 2
        self.targets = targets.float()

    def batches(self, generator: Generator, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields all grids at every step."""
        while True:
            yield self.inputs, self.targets

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
        """Returns the mean squared error."""
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)


def decay(state: State) -> float:
    """Returns the factor of the learning rate: a linear rise over 5 % of the steps, then a linear fall
    to 0.
    """
    return min(state.done / WARMUP, (1 - state.done) / (1 - WARMUP)) + 1e-3


@LADDER.rung(
    "gradient descent",
    relaxes="weights that are written down; as many are trained, in float32",
    column="learnt",
)
@LADDER.rung(
    "a fifth of the weights",
    relaxes="as many parameters as the construction has",
    column="learnt",
    size="small",
)
def learnt(generator: Generator, *, size: str = "equal", steps: int = STEPS) -> Iterator[Measurement]:
    """Trains the transformer with Adam on the target and measures it on the same grids."""
    _, targets = instance(generator)
    model, task = build(partial(Network, *SIZES[size]), generator), AllGrids(targets)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    try:
        fit(model, task, optimiser=optimiser, steps=steps, schedule=decay, clip=1.0, generator=generator)
    except NotConverged as error:
        yield LADDER.row(None, reason=str(error))
        return
    with torch.no_grad():
        outputs = model(task.inputs).double()
    yield measured(outputs, targets, generator, note=f"{steps} steps of Adam, all 64 grids in each batch")
    yield LADDER.other_row(PARAMETERS, sum(part.numel() for part in model.parameters()))
