r"""Rate reduction on any labelled data: rates of the features as they are, and what ReduNet, built from them, does to these rates.

The feature of a sequence is all its tokens in one vector if that has at most 128 entries; otherwise its class token (if the query is the
first token), otherwise the mean of its tokens; more than 128 dimensions are projected on the 128 leading directions. Norms are 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.claims import Evidence
from ...core.measurement import Arrays, Row, assumption, by_construction, finding, not_applicable
from ...core.sources import Source
from ...data.tokens import TokenData
from ...maths.linalg import numerical_rank
from ...metrics.coding import class_coding_rate, coding_rate, unit_norm
from .optimum import largest_rank, optimum
from .redunet import ReduNet, construct, nearest_subspace

NAME = "rate_reduction"
MCR2, REDUNET = Source("yu2020learning"), Source("chan2022redunet")
EPS = 0.1**0.5  # ReduNet's ε² = 0.1
SHARPNESS, SUBSPACE = 500.0, 6
WIDEST, MOST = 128, 2000
ANSWER = "rate reduction as a share of the optimum"
LAYERS_RAISE = "share of ReduNet's layers that raise the rate reduction"


@dataclass(frozen=True)
class Features:
    """Features of sequences with classes 0..k-1, each present; ``words`` says how they were made."""

    vectors: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    words: str


def features_of(data: TokenData, generator: Generator) -> Features:
    """One vector of norm 1 a sequence (see the module's head), at most 2000 sequences, classes renumbered without gaps.

    Raises:
        ValueError: the data have no labels.
    """
    if data.labels is None:
        raise ValueError("rate reduction needs labels, got none; pass TokenData(..., labels=...)")
    if len(data) > MOST:
        data = data[torch.randperm(len(data), generator=generator)[:MOST]]
    tokens = data.tokens.double()
    n, seq, dim = tokens.shape
    if seq == 1:
        vectors, words = tokens[:, 0], "the only token"
    elif seq * dim <= WIDEST:
        vectors, words = tokens.reshape(n, seq * dim), f"all {seq} tokens in one vector"
    elif data.query is not None and torch.equal(data.query, data.tokens[:, 0]):
        vectors, words = tokens[:, 0], "the first token, which is the query"
    else:
        vectors, words = tokens.mean(1), f"the mean of {seq} tokens"
    if vectors.shape[1] > WIDEST:
        vectors = vectors @ torch.linalg.svd(vectors, full_matrices=False).Vh[:WIDEST].mT
        words += f", {vectors.shape[1]} leading directions"
    classes = data.labels.unique(return_inverse=True)[1]  # pyright: ignore[reportOptionalMemberAccess]
    return Features(unit_norm(vectors), classes, words)


def _held_out(labels: Tensor, generator: Generator) -> Tensor:
    """Mask of a quarter of each class (none of a class with fewer than four samples)."""
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for j in labels.unique():
        own = (labels == j).nonzero()[:, 0]
        mask[own[torch.randperm(len(own), generator=generator)[: len(own) // 4]]] = True
    return mask


def depth(n: int, classes: int, dim: int) -> int:
    """Layers that fit in a few seconds on one core: 100 for the digits, fewer (at least 10) where a layer costs more."""
    cost = (classes + 1) * dim**2 * (8 * dim + n) + n * classes * dim**2
    return int(min(100, max(10, 4e10 // cost)))


def small_step(n: int, dim: int) -> float:
    r"""ReduNet's η = 0.5, or less where the operators are large: no operator's eigenvalue exceeds :math:`\alpha = d/(n\epsilon^2)`, and
    η α <= 1/4 keeps every move well below the sphere's radius."""
    return min(0.5, 0.25 * n * EPS**2 / dim)


def predict_and_measure(data: TokenData, generator: Generator) -> Iterator[Row | Arrays]:
    """Rates of the features, then ReduNet built from three quarters of them and tried on the rest."""
    if not torch.isfinite(data.tokens).all() or data.labels is None:
        yield not_applicable(NAME, "needs finite tokens and labels")
        return
    features = features_of(data, generator)
    if int(features.labels.max()) == 0:
        yield not_applicable(NAME, "needs at least two classes: with one, R and R^c are the same number")
        return
    if not bool(features.vectors.any()):
        yield not_applicable(NAME, "all features are zero, so they have no direction")
        return
    ranks = class_ranks(features)
    yield from _assumptions(features, ranks)
    yield from _rates(features, generator)
    yield from _redunet(features, generator)


def class_ranks(features: Features) -> list[int]:
    """Numerical rank of each class, singular values above 1e-6 of the largest."""
    return [int(numerical_rank(features.vectors[features.labels == j], tolerance=1e-6)) for j in range(int(features.labels.max()) + 1)]


def best_value(labels: Tensor, dim: int) -> float | None:
    """ΔR at the optimum for these classes (labels ``[n]``), nats; None if there are more classes than dimensions."""
    sizes = torch.bincount(labels).tolist()
    return optimum(sizes, dim, eps=EPS).value if len(sizes) <= dim else None


def _assumptions(features: Features, ranks: list[int]) -> Iterator[Row]:
    """Do the classes have room for orthogonal subspaces, and is the distortion small enough for the theorem?"""
    n, d = features.vectors.shape
    sizes = torch.bincount(features.labels).tolist()
    words = f"The classes span {sum(ranks)} dimensions in total; the space has {d}"
    statement = "the classes have room: their ranks add up to at most d"
    yield assumption(NAME, statement, sum(ranks) <= d, value=float(sum(ranks)), source=MCR2, note=words)
    margin = min(largest_rank(size, n, d, eps=EPS) / max(rank, 1) for size, rank in zip(sizes, ranks))
    statement = "the distortion is small: eps^4 < (n_j/n) d^2/r_j^2 for each class"
    words = "The smallest ratio of the two sides' square roots; it must exceed 1"
    yield assumption(NAME, statement, margin > 1, value=margin, source=MCR2, note=words)


def _rates(features: Features, generator: Generator) -> Iterator[Row]:
    """R, R^c and ΔR of the features as they are, beside shuffled labels and the optimum."""
    vectors, labels = features.vectors, features.labels
    n, d = vectors.shape
    rate, within = float(coding_rate(vectors, eps=EPS)), float(class_coding_rate(vectors, labels, eps=EPS))
    shuffled = [labels[torch.randperm(n, generator=generator)] for _ in range(8)]
    null = sum(float(class_coding_rate(vectors, y, eps=EPS)) for y in shuffled) / len(shuffled)
    best = best_value(labels, d)

    def row(quantity: str, value: float, **more) -> Row:
        return Row(theory=NAME, quantity=quantity, value=value, source=str(MCR2), **more)

    yield row("coding rate R of the features", rate, note=f"Nats a sample; {n} features of norm 1: {features.words}; eps^2 = 0.1")
    yield row("class coding rate R^c of the features", within, null=null, note="Null: shuffled labels")
    yield by_construction(
        finding(
            NAME,
            "rate reduction of the features",
            Evidence(rate - within, -1e-9, ">="),
            source=MCR2,
            predicted=0.0,
            null=rate - null,
            note="zero if all classes have the same second moment; far above its null if the classes differ",
        )
    )
    if not best:
        reason = f"no room: {len(labels.unique())} classes in {d} dimensions have no optimum of orthogonal subspaces"
        yield Row(theory=NAME, quantity=ANSWER, value=None, verdict=f"not applicable: {reason}", note=reason)
        return
    yield finding(
        NAME,
        ANSWER,
        Evidence((rate - within) / best, 1 - 1e-6, ">=", covered=False),
        source=MCR2,
        predicted=1.0,
        null=(rate - null) / best,
        note=f"Predicted for features that maximise it, which these were not trained to do; the optimum in {d} dimensions is "
        f"{best:.2f} nats",
    )


def _redunet(features: Features, generator: Generator) -> Iterator[Row | Arrays]:
    """ReduNet built from the training part, its rates per layer, and its effect on samples it has not seen."""
    features = _with_direction(features)
    if int(features.labels.max()) == 0:
        reason = "ReduNet needs at least two classes with features other than zero"
        yield Row(theory=NAME, quantity=LAYERS_RAISE, value=None, verdict=f"not applicable: {reason}", note=reason)
        return
    test = _held_out(features.labels, generator)
    x, y = features.vectors[~test], features.labels[~test]
    layers = depth(len(x), int(y.max()) + 1, x.shape[1])
    step = small_step(*x.shape)
    net = construct(x, y, layers=layers, eps=EPS, step=step, sharpness=SHARPNESS)
    null = construct(x, y[torch.randperm(len(y), generator=generator)], layers=layers, eps=EPS, step=step).reductions
    best = best_value(y, x.shape[1])
    first, last = float(net.reductions[0]), float(net.reductions[-1])
    yield finding(
        NAME,
        LAYERS_RAISE,
        Evidence(_share_rising(net.reductions), 1.0, ">="),
        source=REDUNET,
        null=_share_rising(null),
        note=f"ReduNet, built from the data without training, takes the rate reduction from {first:.2f} to {last:.2f} nats"
        f" in {layers} layers (step {step:.2g}); null: built from shuffled labels, which an ascent raises too",
    )
    yield Row(
        theory=NAME,
        source=str(REDUNET),
        quantity="rate reduction after ReduNet",
        value=last,
        null=float(null[-1]),
        note=f"Nats, {len(x)} training samples, {layers} layers; null: ReduNet built from shuffled labels, which it separates too",
    )
    if best:
        share, null_share = last / best, float(null[-1]) / best
        yield Row(theory=NAME, source=str(REDUNET), quantity="share of the optimum after ReduNet", value=share, null=null_share)
    yield Arrays(
        {
            f"{NAME}/rates": net.rates.numpy(),
            f"{NAME}/null_reductions": null.numpy(),
            f"{NAME}/optimum": torch.tensor(best or float("nan")).numpy(),
            f"{NAME}/spectra_before": class_spectra(x, y),
            f"{NAME}/spectra_after": class_spectra(net.features, y),
        }
    )
    if bool(test.any()):
        yield from _unseen(features, test, net)


def _with_direction(features: Features) -> Features:
    """Without the features that are zero, which no step on the sphere can move; classes are renumbered without gaps."""
    kept = features.vectors.any(1)
    return Features(features.vectors[kept], features.labels[kept].unique(return_inverse=True)[1], features.words)


def _share_rising(reductions: Tensor) -> float:
    """Share of the layers after which the rate reduction is not lower, up to rounding."""
    return float((reductions.diff() > -1e-9 * max(float(reductions[-1]), 1.0)).double().mean())


def _unseen(features: Features, test: Tensor, net: ReduNet) -> Iterator[Row | Arrays]:
    """Accuracy on held-out samples before and after ReduNet, and their cosines."""
    x, y = features.vectors[~test], features.labels[~test]
    unseen, truth = features.vectors[test], features.labels[test]
    moved = net.transform(unseen)
    before = nearest_subspace(x, y, unseen, rank=SUBSPACE) == truth
    after = nearest_subspace(net.features, y, moved, rank=SUBSPACE) == truth
    compressed = net.predict(moved) == truth
    chance = float(torch.bincount(truth).max() / len(truth))
    n = len(truth)
    note = f"Nearest subspace of {SUBSPACE} dimensions, {n} samples not seen before; null: the largest class"
    quantity = "held-out accuracy before ReduNet"
    yield Row(theory=NAME, quantity=quantity, value=_mean(before), null=chance, source=str(MCR2), note=note)
    error = float((after.double() - before.double()).std()) / n**0.5 if n > 1 else 1.0
    yield finding(
        NAME,
        "held-out accuracy after ReduNet",
        Evidence(_mean(after), _mean(before) - 2 * error, ">=", covered=False),
        source=REDUNET,
        predicted=_mean(before),
        null=chance,
        note="Hoped not to fall, up to two standard errors; the theory speaks about training samples only, so this is no test of it",
    )
    quantity = "held-out accuracy by the least compressed norm"
    note = "The class j with the smallest ||x C_j||, after ReduNet"
    yield Row(theory=NAME, quantity=quantity, value=_mean(compressed), null=chance, source=str(REDUNET), note=note)
    order = torch.argsort(truth, stable=True)
    order = order[torch.linspace(0, n - 1, min(n, 150)).long()]
    yield Arrays(
        {
            f"{NAME}/cosines_before": (unseen[order] @ unseen[order].mT).float().numpy(),
            f"{NAME}/cosines_after": (moved[order] @ moved[order].mT).float().numpy(),
            f"{NAME}/labels": truth[order].numpy(),
        }
    )


def _mean(hits: Tensor) -> float:
    return float(hits.double().mean())


def class_spectra(vectors: Tensor, labels: Tensor):
    """Singular values of each class divided by the root of its size, [classes, directions], NaN where a class has fewer."""
    values = [torch.linalg.svdvals(vectors[labels == j]) / float((labels == j).sum()) ** 0.5 for j in range(int(labels.max()) + 1)]
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=float("nan")).numpy()
