r"""Rate reduction on labelled data: the rates of the features, and the effect of a ReduNet built from these
features.

Each sequence gives one feature vector: all its tokens, if these have at most 128 entries together; otherwise
the first token, if it is the query (a class token); otherwise the mean of the tokens. Features of more than
128 dimensions are projected onto their 128 leading directions. All features have norm 1. ReduNet is built
from three quarters of each class and tested on the other quarter.

The null of the rates has permuted labels. ReduNet is a construction for any labels: its rates rise for
permuted labels as well, so their scope is "any data". Because a construction takes a few tenths of a second,
their null is one construction from permuted labels, without a p-value. The accuracies are those of samples
that ReduNet has not seen, and their null permutes the labels of these samples.

Source: :cite:t:`yu2020learning` (rates), :cite:t:`chan2022redunet` (ReduNet).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.measurement import Measurement, Op, judge
from ...core.plotting import axes, colour, heatmap, line, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import fixed_generator, jackknife_interval, permutations, with_interval
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData
from ...maths.linalg import numerical_rank
from ...metrics.class_features import (
    CLASS_CODING_RATE,
    CODING_RATE,
    RATE_REDUCTION,
    permuted_labels,
    permuted_reductions,
)
from ...metrics.coding import class_coding_rate, coding_rate, unit_norm
from .evaluation import nearest_subspace
from .in_networks import SHARE
from .optimum import exact_reduction, largest_rank, optimum
from .problem import MCR2, NAME, OPTIMUM_THEOREM, REDUNET
from .redunet import ReduNet, construct

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKS_FIT = "the classes' ranks add up to at most the dimension"
SMALL_DISTORTION = "the distortion is small for each class's rank"
LAYERS_RAISE = "share of ReduNet's layers that raise the rate reduction"
REDUCTION_AFTER = "rate reduction after ReduNet"
SHARE_AFTER = "share of the optimum after ReduNet"
ACCURACY_BEFORE = "accuracy of the nearest subspace before ReduNet"
ACCURACY_AFTER = "accuracy of the nearest subspace after ReduNet"
ACCURACY_COMPRESSED = "accuracy of the least compressed norm after ReduNet"

EPS = 0.1**0.5  # ReduNet's ε² = 0.1
SHARPNESS, SUBSPACE_RANK = 500.0, 6
MAX_DIM, MAX_SAMPLES = 128, 2000
MAX_PLOTTED = 150  # largest number of samples in the plot of cosines
MAX_LABELLED_CLASSES = 12  # largest number of classes with labels on the axis of this plot
MAX_PLOTTED_DIRECTIONS, MAX_PLOTTED_CLASSES = 30, 20  # in the plot of spectra
RANK_RTOL = 1e-6
RISE_RTOL = 1e-9  # smallest decrease of the rate reduction that counts, relative to its final value


@dataclass(frozen=True)
class Sequences:
    """One vector per sequence, not normalised, with its class; ``description`` tells how the vectors are
    computed.
    """

    vectors: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    description: str


@dataclass(frozen=True)
class Features:
    """Features of norm 1 (or 0) with classes 0..k-1; no class is empty."""

    vectors: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    description: str


def read(data: TokenData) -> Sequences | Unsupported:
    """Converts each sequence to one vector (see the module docstring)."""
    if data.labels is None or len(data.labels.unique()) < 2:
        return Unsupported("needs labels of at least two classes: with one class, R and R^c are equal")
    tokens = data.tokens.double()
    n, seq, dim = tokens.shape
    if seq == 1:
        vectors, description = tokens[:, 0], "the only token"
    elif seq * dim <= MAX_DIM:
        vectors, description = tokens.reshape(n, seq * dim), f"all {seq} tokens in one vector"
    elif data.query is not None and torch.equal(data.query, data.tokens[:, 0]):
        vectors, description = tokens[:, 0], "the first token, which is the query"
    else:
        vectors, description = tokens.mean(1), f"the mean of {seq} tokens"
    if not bool(vectors.any()):
        return Unsupported("all features are zero, so they have no direction")
    return Sequences(vectors, data.labels, description)


def features_of(sequences: Sequences) -> Features:
    """Draws at most 2000 vectors, the same in every call, and scales them to norm 1 in at most 128
    dimensions.

    Classes are renumbered without gaps.
    """
    vectors, labels, description = sequences.vectors, sequences.labels, sequences.description
    if len(vectors) > MAX_SAMPLES:
        subset = torch.randperm(len(vectors), generator=fixed_generator())[:MAX_SAMPLES]
        vectors, labels = vectors[subset], labels[subset]
    if vectors.shape[1] > MAX_DIM:
        vectors = vectors @ torch.linalg.svd(vectors, full_matrices=False).Vh[:MAX_DIM].mT
        description += f", {vectors.shape[1]} leading directions"
    return Features(unit_norm(vectors), labels.unique(return_inverse=True)[1], description)


def depth(n: int, classes: int, dim: int) -> int:
    """Returns the number of layers, 10 to 100, that take a few seconds on one core; 100 for the digits."""
    # Operations per layer: k + 1 moments and Cholesky factors of size d, and a product of each sample with
    # each operator.
    cost = (classes + 1) * dim**2 * (8 * dim + n) + n * classes * dim**2
    return int(min(100, max(10, 4e10 // cost)))


def short_step(n: int, dim: int) -> float:
    r"""Returns ReduNet's η = 0.5, or a smaller step if the operators are large.

    No eigenvalue of an operator exceeds :math:`\alpha = d/(n\epsilon^2)`, so η α <= 1/4 keeps every move well
    below the sphere's radius. The step is also below :func:`.guaranteed_step`.
    """
    return min(0.5, 0.25 * n * EPS**2 / dim)


def measure(problem: Sequences, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the rates of the features, then the measurements of a ReduNet built from three quarters of them.

    Args:
        problem: one vector per sequence, with its class.
        generator: not used, because nothing is trained: all seeds have the same values.
        draws: number of permutations of the labels.
    """
    features = features_of(problem)
    yield from _assumptions(features)
    yield from _rates(features, draws)
    yield from _redunet(features, draws)


def class_ranks(features: Features) -> list[int]:
    """Returns the numerical rank of each class."""
    classes = range(int(features.labels.max()) + 1)
    return [int(numerical_rank(features.vectors[features.labels == j], tolerance=RANK_RTOL)) for j in classes]


def best_value(labels: Int[Tensor, " n"], dim: int) -> float | None:
    """Returns ΔR at the optimum for these classes, nats, or None if there are more classes
    than dimensions.
    """
    sizes = [size for size in torch.bincount(labels).tolist() if size]
    return optimum(sizes, dim, eps=EPS).value if len(sizes) <= dim else None


def _on_data(quantity: str, value: float | None, source: Source, **columns) -> Measurement:
    return Measurement(NAME, "on data", quantity, value, source=source, **columns)


def _assumption(
    quantity: str, value: float, op: Op, threshold: float, *, holds: bool, note: str
) -> Measurement:
    verdict = "holds" if holds else "fails"
    return Measurement(
        NAME,
        "assumption",
        quantity,
        value,
        op=op,
        threshold=threshold,
        verdict=verdict,
        source=MCR2,
        note=note,
    )


def _assumptions(features: Features) -> Iterator[Measurement]:
    """Measures whether the classes fit into orthogonal subspaces, and whether the distortion is small enough
    for the theorem.
    """
    n, d = features.vectors.shape
    sizes, ranks = torch.bincount(features.labels).tolist(), class_ranks(features)
    note = "sum of the dimensions that the classes span; it must be at most the dimension of the space"
    yield _assumption(RANKS_FIT, float(sum(ranks)), "<=", float(d), holds=sum(ranks) <= d, note=note)
    margin = min(largest_rank(size, n, d, eps=EPS) / max(rank, 1) for size, rank in zip(sizes, ranks))
    note = "smallest ratio of the largest rank for this distortion to the rank of a class; it must exceed 1"
    yield _assumption(SMALL_DISTORTION, margin, ">=", 1.0, holds=margin > 1, note=note)


def _rates(features: Features, draws: int) -> Iterator[Measurement]:
    """Yields R, R^c and ΔR of the features, with permuted labels as the null, and the share of
    the optimum.
    """
    vectors, labels = features.vectors, features.labels
    n, d = vectors.shape
    rate, within = float(coding_rate(vectors, eps=EPS)), float(class_coding_rate(vectors, labels, eps=EPS))
    drawn = permuted_reductions(vectors, permutations(n, draws), torch.bincount(labels).tolist(), eps=EPS)
    reduction, *reductions = (exact_reduction(each, rate) for each in (rate - within, *drawn))
    nats = {"unit": "nats", "n": n, "note": f"features of norm 1: {features.description}; ε² = 0.1"}
    yield _on_data(CODING_RATE, rate, MCR2, scope="any data", **nats)
    null_within = permuted_labels([rate - reduction for reduction in reductions])
    yield _on_data(CLASS_CODING_RATE, within, MCR2, nulls=(null_within,), side="<=", **nats)
    # ΔR >= 0 for any labels, so its sign is not evidence for the theory: there is no verdict.
    interval = jackknife_interval(lambda rows: _reduction(vectors[rows], labels[rows]), n)
    columns = {"nulls": (permuted_labels(reductions),), "side": ">=", **_over_samples(interval), **nats}
    yield _on_data(RATE_REDUCTION, reduction, MCR2, **columns)
    best = best_value(labels, d)
    if not best:
        reason = f"{int(labels.max()) + 1} classes do not fit into orthogonal subspaces of {d} dimensions"
        yield _on_data(SHARE, None, OPTIMUM_THEOREM, unit="share", side=">=", reason=reason)
        return
    share, threshold = reduction / best, 1 - 1e-6
    yield _on_data(
        SHARE,
        share,
        OPTIMUM_THEOREM,
        unit="share",
        predicted=1.0,
        op=">=",
        threshold=threshold,
        verdict=judge(share, ">=", threshold, covered=False),
        nulls=(permuted_labels([reduction / best for reduction in reductions]),),
        side=">=",
        n=n,
        note="predicted for features that maximise it, which these were not trained to do; the optimum is "
        f"{best:.2f} nats",
        **_over_samples(jackknife_interval(lambda rows: _share(vectors[rows], labels[rows]), n)),
    )


def _reduction(vectors: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> float:
    """Returns ΔR, nats."""
    return float(coding_rate(vectors, eps=EPS) - class_coding_rate(vectors, labels, eps=EPS))


def _share(vectors: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> float:
    """Returns ΔR as a share of the optimum for these classes; NaN if they have no optimum above 0."""
    return _reduction(vectors, labels) / (best_value(labels, vectors.shape[1]) or float("nan"))


def _over_samples(interval: tuple[float, float] | None) -> dict[str, Any]:
    """Returns the columns of an interval over samples; none if it is missing or not finite."""
    finite = interval is not None and all(math.isfinite(end) for end in interval)
    return {"interval": interval, "interval_kind": "over samples"} if finite else {}


def _redunet(features: Features, draws: int) -> Iterator[Measurement | Arrays]:
    """Builds ReduNet from the training samples; yields its rates by layer and its effect on the
    test samples.
    """
    features = _with_direction(features)
    if int(features.labels.max()) == 0:
        reason = "ReduNet needs at least two classes with features other than zero"
        yield _on_data(LAYERS_RAISE, None, REDUNET, unit="share", scope="any data", reason=reason)
        return
    test = _test_mask(features.labels)
    x, y = features.vectors[~test], features.labels[~test]
    layers, step = depth(len(x), int(y.max()) + 1, x.shape[1]), short_step(*x.shape)
    net = construct(x, y, layers=layers, eps=EPS, step=step, sharpness=SHARPNESS)
    # One construction, whatever the number of draws: it takes a few tenths of a second.
    nulls = [
        construct(x, y[order], layers=layers, eps=EPS, step=step).reductions
        for order in permutations(len(y), min(draws, 1))
    ]
    best = best_value(y, x.shape[1])
    last, null_last = float(net.reductions[-1]), [float(null[-1]) for null in nulls]
    rising, null_rising = _share_rising(net.reductions), [_share_rising(null) for null in nulls]
    note = f"{layers} layers built from the data without training, step {step:.2g}"
    columns = {"n": len(x), "split": "train", "scope": "any data", "note": note}
    verdict = judge(rising, ">=", 1.0)
    judged = {"op": ">=", "threshold": 1.0, "verdict": verdict, "nulls": (permuted_labels(null_rising),)}
    yield _on_data(LAYERS_RAISE, rising, REDUNET, unit="share", **judged, **columns)
    # An ascent separates permuted labels too: both numbers measure the fit to the training labels.
    yield _on_data(
        REDUCTION_AFTER, last, REDUNET, unit="nats", nulls=(permuted_labels(null_last),), side=">=", **columns
    )
    if best:
        null = permuted_labels([value / best for value in null_last])
        yield _on_data(SHARE_AFTER, last / best, REDUNET, unit="share", nulls=(null,), side=">=", **columns)
    arrays = {
        "rates": net.rates.numpy(),
        "optimum": torch.tensor(best or float("nan")).numpy(),
        "spectra_before": class_spectra(x, y),
        "spectra_after": class_spectra(net.features, y),
    }
    if nulls:
        arrays["null_reductions"] = nulls[0].numpy()
    yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})
    if bool(test.any()):
        yield from _unseen(features, test, net, draws)


def _with_direction(features: Features) -> Features:
    """Drops zero features, which have no place on the sphere; classes are renumbered without gaps."""
    nonzero = features.vectors.any(1)
    return Features(
        features.vectors[nonzero],
        features.labels[nonzero].unique(return_inverse=True)[1],
        features.description,
    )


def _test_mask(labels: Tensor) -> Tensor:
    """Returns a random mask of a quarter of each class, rounded down, the same in every call.

    A class with fewer than four samples has no test samples.
    """
    generator = fixed_generator()
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for j in labels.unique():
        members = (labels == j).nonzero()[:, 0]
        mask[members[torch.randperm(len(members), generator=generator)[: len(members) // 4]]] = True
    return mask


def _share_rising(reductions: Tensor) -> float:
    """Returns the share of the layers after which the rate reduction is not lower, up to rounding."""
    return float((reductions.diff() > -RISE_RTOL * max(float(reductions[-1]), 1.0)).double().mean())


def _unseen(features: Features, test: Tensor, net: ReduNet, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the accuracy on the test samples before and after ReduNet, and their cosines."""
    x, y = features.vectors[~test], features.labels[~test]
    unseen, truth = features.vectors[test], features.labels[test]
    transformed = net.transform(unseen)
    rank = max(1, min(SUBSPACE_RANK, x.shape[1] - 1))  # a subspace of all dimensions contains every sample
    before, after = (
        nearest_subspace(x, y, unseen, rank=rank),
        nearest_subspace(net.features, y, transformed, rank=rank),
    )
    n, permuted = len(truth), truth[permutations(len(truth), draws)]

    def row(quantity: str, predictions: Tensor, source: Source, **columns: Any) -> Measurement:
        """Returns an accuracy with its interval; the null compares the predictions with permuted labels."""
        null = permuted_labels((predictions == permuted).double().mean(1).tolist())
        columns = {"unit": "share", "nulls": (null,), "side": ">=", "n": n, "split": "validation", **columns}
        return with_interval(
            _on_data(quantity, float((predictions == truth).double().mean()), source, **columns)
        )

    first = row(ACCURACY_BEFORE, before, MCR2, note=f"nearest subspace of {rank} dimensions")
    yield first
    gains = (after == truth).double() - (before == truth).double()
    error = float(gains.std()) / n**0.5 if n > 1 else 1.0
    # The accuracy should not fall by more than two standard errors. The theory is about training samples
    # only, so this does not test it.
    assert first.value is not None
    threshold = first.value - 2 * error
    judged = {
        "op": ">=",
        "threshold": threshold,
        "verdict": "not covered",
        "note": "the theory speaks about training samples only",
    }
    yield row(ACCURACY_AFTER, after, REDUNET, **judged)
    yield row(
        ACCURACY_COMPRESSED, net.predict(transformed), REDUNET, note="the class j with the smallest ||x C_j||"
    )
    yield Arrays(cosines(unseen, transformed, truth))


def cosines(
    before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> dict[str, np.ndarray]:
    """Returns the arrays of :func:`plot`: cosines between at most 150 samples before and after ReduNet,
    sorted by class, and labels.
    """
    order = torch.argsort(labels, stable=True)
    order = order[torch.linspace(0, len(labels) - 1, min(len(labels), MAX_PLOTTED)).long()]
    return {
        f"{NAME}/cosines_before": (before[order] @ before[order].mT).float().numpy(),
        f"{NAME}/cosines_after": (after[order] @ after[order].mT).float().numpy(),
        f"{NAME}/labels": labels[order].numpy(),
    }


def class_spectra(
    vectors: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> Float[np.ndarray, "classes directions"]:
    """Returns the singular values of each class divided by the root of its size; NaN where a class
    has fewer.
    """
    values = [
        torch.linalg.svdvals(vectors[labels == j]) / float((labels == j).sum()) ** 0.5
        for j in range(int(labels.max()) + 1)
    ]
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=float("nan")).numpy()


@style()
def plot(result: Result) -> "Figure":
    """Plots the effect of ReduNet: ΔR by layer, cosines of unseen samples before and after, spectra of the
    classes.
    """
    if f"{NAME}/rates" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME) if row.reason]
        return text_figure("Rate reduction: " + (reasons[0] if reasons else "no data were measured"))
    stages = [stage for stage in ("before", "after") if f"{NAME}/cosines_{stage}" in result.arrays]
    figure, panels = axes(1, 2 + len(stages), height=2.4)
    _plot_reductions(panels[0], result)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=7, frameon=False
    )
    for ax, stage in zip(panels[1:], stages):
        values, labels = result.arrays[f"{NAME}/cosines_{stage}"], result.arrays[f"{NAME}/labels"]
        _plot_cosines(ax, values, labels, f"Cosines {stage}", bar=stage == stages[-1])
    _plot_spectra(panels[-1], result)
    return figure


def _plot_reductions(ax: "Axes", result: Result) -> None:
    """Plots ΔR by layer, with true and with permuted labels, and the optimum."""
    rates, null = result.arrays[f"{NAME}/rates"], result.arrays.get(f"{NAME}/null_reductions")
    line(ax, range(len(rates)), rates[:, 0] - rates[:, 1], name=NAME, label="labels as given")
    if null is not None:
        line(ax, range(len(null)), null, name="null", linewidth=1.1, label="permuted labels")
    best = float(result.arrays[f"{NAME}/optimum"])
    if np.isfinite(best):
        ax.axhline(best, color=colour(NAME), linewidth=0.9, linestyle=(0, (1, 2)))
        ax.annotate(
            "optimum", (0, best), xytext=(2, 2), textcoords="offset points", color=colour(NAME), fontsize=7
        )
        ax.set_ylim(0, 1.12 * max(best, float((rates[:, 0] - rates[:, 1]).max())))
    ax.set_title("Rate reduction")
    ax.set_ylabel("ΔR, nats")
    ax.set_xlabel("layer of ReduNet")


def _plot_cosines(ax: "Axes", values: np.ndarray, labels: np.ndarray, title: str, *, bar: bool) -> None:
    """Plots absolute cosines of samples sorted by class: orthogonal classes leave only the blocks on the
    diagonal.
    """
    heatmap(ax, np.abs(values), "|cosine| of two samples" if bar else "", vmin=0, vmax=1, bar=bar)
    ax.set_title(title)
    edges = np.flatnonzero(np.diff(labels)) + 0.5
    centres = np.convolve(np.concatenate([[-0.5], edges, [len(labels) - 0.5]]), [0.5, 0.5], "valid")
    labelled = len(centres) <= MAX_LABELLED_CLASSES
    ax.set_xticks([])
    ax.set_yticks(
        centres if labelled else [],
        [str(label) for label in dict.fromkeys(labels.tolist())] if labelled else [],
    )
    ax.set_xlabel("unseen samples")


def _plot_spectra(ax: "Axes", result: Result) -> None:
    """Plots the singular values of each class before and after. At the optimum all non-zero values of a class
    are equal.
    """
    before, after = result.arrays[f"{NAME}/spectra_before"], result.arrays[f"{NAME}/spectra_after"]
    directions = min(before.shape[1], MAX_PLOTTED_DIRECTIONS)
    for values, name, label in ((before, "null", "before"), (after, NAME, "after")):
        for k, row in enumerate(values[:MAX_PLOTTED_CLASSES, :directions]):
            line(
                ax,
                range(1, directions + 1),
                row,
                name=name,
                label=label if k == 0 else "",
                linewidth=0.8,
                alpha=0.8,
            )
    ax.set_title("Class spectra")
    ax.set_ylabel(r"singular value / $\sqrt{n_j}$")
    ax.set_xlabel("direction, by class")
    ax.locator_params(axis="x", integer=True)
    ax.legend(loc="upper right", fontsize=7, frameon=False)


ON_DATA = OnData(read=read, measure=measure, headline=SHARE, plot=plot)
