"""Random-feature attention on the user's tokens: how well ridge regression on frozen heads predicts the
labels of held-out sequences.

Query and keys are those of the data. Tokens are centred, projected on at most 32 principal components of the
training tokens, and scaled to unit mean square. Half of the sequences train, a quarter picks the penalty, and
a quarter is held out. An MLP on the concatenated tokens has as many trained numbers. The null permutes the
labels of the held-out sequences. On features of a network the same numbers say how much of the labels a
random layer reads from them.
Source: :cite:t:`fu2023what`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.measurement import Measurement, Null
from ...core.plotting import COLOURS, axes, caption, colour, line, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import fixed_generator, permutations, with_interval
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data import TokenData
from .features import RandomFeatureAttention, RandomFeatureMLP, Ridge, RidgePath
from .kernels import Inputs
from .targets import NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("fu2023what", status="own")
HEADLINE = "held-out accuracy of ridge on random-feature attention"
SPREAD_ACCURACY, MLP_ACCURACY = (
    "the same with heads that favour the correlation",
    "the same with a random-feature MLP",
)
MODELS = {"attention": HEADLINE, "attention, s = 4": SPREAD_ACCURACY, "MLP": MLP_ACCURACY}
MAX_SEQUENCES, MAX_DIM, MIN_SEQUENCES = 1200, 32, 16
TRAINED, SPREAD = 512, 4.0  # trained numbers per output, up to one head more
SHARES = (1 / 16, 1 / 4, 1.0)  # of the trained numbers, in the figure


@dataclass(frozen=True)
class Split:
    """Inputs ``[n, 1 + N, d]``, the query first, and classes without gaps; the parts are slices of them."""

    inputs: Inputs
    labels: Int[Tensor, " n"]
    train: int
    validation: int

    @property
    def parts(self) -> tuple[slice, slice, slice]:
        """The training, validation and held-out inputs."""
        second = self.train + self.validation
        return slice(self.train), slice(self.train, second), slice(second, None)


def split(data: TokenData) -> Split | Unsupported:
    """Shuffles at most 1,200 sequences, the same for all seeds, and scales their tokens by those of the
    training part.
    """
    if data.labels is None or len(data.labels.unique()) < 2:
        return Unsupported("needs labels of at least two classes")
    if len(data) < 2 * len(data.labels.unique()):
        return Unsupported("needs two sequences per class on average")
    if len(data) < MIN_SEQUENCES:
        return Unsupported(f"needs at least {MIN_SEQUENCES} sequences for three parts")
    assert data.query is not None
    order = torch.randperm(len(data), generator=fixed_generator())[:MAX_SEQUENCES]
    inputs = torch.cat([data.query[:, None], data.tokens], 1)[order].double()
    labels = data.labels[order].unique(return_inverse=True)[1]
    train = len(order) // 2
    centred = inputs - inputs[:train].flatten(0, 1).mean(0)
    largest = float(centred.abs().max())
    if largest <= 1e-12 * float(inputs.abs().max()):
        return Unsupported("needs tokens that differ")
    centred = centred / largest  # squares of tiny or huge tokens would underflow or overflow
    if centred.shape[2] > MAX_DIM:
        centred = (
            centred @ torch.linalg.svd(centred[:train].flatten(0, 1), full_matrices=False).Vh[:MAX_DIM].mT
        )
    scale = centred[:train].square().sum(-1).mean().sqrt()
    if not float(scale) > 0 or len(labels[:train].unique()) < 2:
        return Unsupported("needs training sequences with different tokens and labels")
    return Split(centred / scale, labels, train, len(order) // 4)


def accuracy(model: RandomFeatureAttention | RandomFeatureMLP, problem: Split) -> tuple[float, Ridge]:
    """The share of held-out sequences whose largest prediction is their class, and the regression."""
    parts = problem.parts
    features = model.features(problem.inputs)
    targets = torch.nn.functional.one_hot(problem.labels).double()
    fitted = RidgePath(*(features[part] for part in parts)).fit(targets[parts[0]], targets[parts[1]])
    return float((fitted.test.argmax(1) == problem.labels[parts[2]]).double().mean()), fitted


def measure(problem: Split, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the accuracies of three models with equally many trained numbers, and arrays of those of smaller
    models.

    Args:
        problem: result of :func:`split`.
        generator: draws the heads.
        draws: number of permutations of the held-out labels.
    """
    _, tokens, d = problem.inputs.shape
    heads = max(1, round(TRAINED / (d + 1)))
    sizes = sorted({max(1, round(share * heads)) for share in SHARES})
    truth = problem.labels[problem.parts[2]]
    orders = permutations(len(truth), draws)
    curves: dict[str, list[float]] = {name: [] for name in MODELS}
    chance: list[float] = []
    for size in sizes:
        models = {
            "attention": RandomFeatureAttention.draw(size, d, generator=generator),
            "attention, s = 4": RandomFeatureAttention.draw(size, d, spread=SPREAD, generator=generator),
            "MLP": RandomFeatureMLP.draw(size * (d + 1), tokens, d, generator=generator),
        }
        for name, model in models.items():
            try:
                value, fitted = accuracy(model, problem)
            except ValueError as error:
                if size == sizes[-1]:
                    yield Measurement(
                        NAME, "on data", MODELS[name], None, unit="share", reason=str(error), source=SOURCE
                    )
                curves[name].append(float("nan"))
                continue
            curves[name].append(value)
            if size < sizes[-1]:
                continue
            guesses = fitted.test.argmax(1)
            chance = (guesses == truth[orders]).double().mean(1).tolist()
            note = (
                f"{size * (d + 1)} trained numbers per class, {problem.train} training sequences, penalty "
                f"{fitted.penalty:.0e}"
            )
            row = Measurement(
                NAME,
                "on data",
                MODELS[name],
                value,
                unit="share",
                n=len(truth),
                split="validation",
                note=note,
                source=SOURCE,
            )
            columns = {
                "side": ">=",
                "scope": "these data",
                "nulls": (Null("permuted labels", tuple(chance)) if draws else None,),
            }
            yield with_interval(replace(row, **columns))
    names = {f"{NAME}/{name}": np.array(values) for name, values in curves.items()}
    yield Arrays(
        {
            **names,
            f"{NAME}/trained": np.array([size * (d + 1) for size in sizes]),
            f"{NAME}/chance": np.array(chance),
        }
    )


@style()
def plot(result: Result) -> "Figure":
    """Draws the accuracies against the number of trained numbers."""
    if f"{NAME}/trained" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Random-feature attention: {reasons[0] if reasons else 'nothing was measured'}")
    figure, (ax,) = axes(width=5.0, height=3.0)
    trained, chance = result.arrays[f"{NAME}/trained"], result.arrays[f"{NAME}/chance"]
    if len(chance):
        ax.axhspan(
            chance.min(),
            chance.max(),
            color=COLOURS["null"],
            alpha=0.25,
            linewidth=0,
            label="permuted labels",
        )
    for name, owner, how in (
        ("attention", NAME, "-"),
        ("attention, s = 4", NAME, "--"),
        ("MLP", "network", "-"),
    ):
        line(
            ax,
            trained,
            result.arrays[f"{NAME}/{name}"],
            color=colour(owner),
            linestyle=how,
            marker="o",
            markersize=3,
            label=name,
        )
    ax.set(xscale="log", xlabel="trained numbers per class", ylabel="held-out accuracy", ylim=(0, 1.03))
    ax.set_xticks(trained, [str(size) for size in trained])
    ax.minorticks_off()
    ax.legend()
    caption(
        figure,
        "Ridge regression on frozen random features. s = 4: heads favour the correlation of query and key.",
    )
    return figure


ON_DATA = OnData(read=split, measure=measure, headline=HEADLINE, plot=plot)
