r"""The ladder: contraction of the differences between tokens, from random weights to a vision transformer
trained on the digits.

The quantity is the contraction divided by its level with permuted keys, so that it does not grow with the
size of the scores. The theory predicts a ratio above 1 for random weights: the rows of their scores share the
covariance of the tokens (:mod:`.initialisation`). The null permutes the keys of each row and has
the ratio 1. Trained weights have no prediction; their reference is the own setting. Networks have the mean
over layers, heads and 32 images.
Source: :cite:t:`dong2021attention` (the residual), own derivations.
"""

from collections.abc import Iterator

import torch
from torch import Generator

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.metric import Activations
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, fixed_generator, over_heads
from ...core.table import Table
from ...data.digits import digits
from .in_networks import CONTRACTION, PERMUTED, RANDOM, HeadContraction
from .initialisation import equiangular, gaussian_scores_matrix, squared_contraction
from .learning import Head, digit_tokens, measured, train_head, train_vit
from .residuals import weights

LADDER = Ladder(
    theory="collapse",
    quantity="contraction over its level with permuted keys",
    side=">=",
    null=PERMUTED,
    source=Source("dong2021attention", status="own"),
)
TOKENS, DIM, RHO, DEVIATION, OWN, SEQUENCES = 64, 32, 0.3, 0.6, 8, 32  # OWN: sequences of the own setting
STORED, STEPS, RATE, ADAM_STEPS, ADAM_RATE, BATCH, NETWORK_STEPS = 256, 300, 0.5, 600, 0.02, 64, 150


def rows_of(table: Table, *, predicted: float | None = None, note: str = "") -> Iterator[Measurement]:
    """Yields the mean over heads of the contraction, as a ratio to its null and as it is.

    Args:
        table: rows of :class:`.HeadContraction`.
        predicted: the contraction that the theory predicts, if any.
        note: note of the first row.
    """
    found = over_heads(table.select(quantity=CONTRACTION))
    if found.value is None or found.null is None or not any(found.null.draws):
        reason = found.reason or "attention is uniform, so permuted keys keep nothing"
        yield LADDER.row(None, reason=reason, n=found.n)
        return
    level = (sum(draw**2 for draw in found.null.draws) / len(found.null.draws)) ** 0.5
    null = Null(PERMUTED, tuple(draw / level for draw in found.null.draws))
    expected = None if predicted is None else predicted / level
    yield LADDER.row(found.value / level, predicted=expected, nulls=(null,), note=note, n=found.n)
    yield LADDER.other_row(CONTRACTION, found.value, predicted=predicted, side=">=", n=found.n)


def head_rows(
    x: torch.Tensor, A: torch.Tensor, *, predicted: float | None = None, random: bool = False, note: str = ""
) -> Iterator[Measurement]:
    """Yields the contraction of one head with weights A ``[n, T, T]`` on tokens x ``[n, T, d]``.

    Args:
        x, A: tokens and weights.
        predicted: prediction for the tokens' law; None: none, or that of the tokens themselves.
        random: whether the weights are random, so that tokens and variance of the scores predict the
            contraction.
        note: note of the row.
    """
    metric = HeadContraction(most_draws=LADDER_DRAWS)
    metric.update(Activations("head", 0, "attention", x, x, weights=A[:, None]))
    table = Table(metric.compute(draws=LADDER_DRAWS))
    yield from rows_of(
        table, predicted=table.select(quantity=RANDOM).one().value if random else predicted, note=note
    )


@LADDER.rung("random weights", column="own setting", covered=True)
def random_weights(generator: Generator) -> Iterator[Measurement]:
    """Measures random weights on equiangular tokens, new weights for each sequence."""
    x = torch.stack([equiangular(TOKENS, DIM, RHO, generator) for _ in range(OWN)])
    A = torch.stack([weights(each, gaussian_scores_matrix(DIM, DEVIATION, generator)) for each in x])
    formula = squared_contraction(DEVIATION**2 * (1 - RHO), RHO, TOKENS, DIM) ** 0.5
    yield from head_rows(x, A, predicted=formula, note=f"{TOKENS} tokens of {DIM} dimensions, cosine {RHO}")


@LADDER.rung("tokens of the digits", relaxes="equiangular tokens", column="real tokens")
def digits_rows(generator: Generator) -> Iterator[Measurement]:
    """Measures random weights on the digits, new weights for each image."""
    x, _ = digit_tokens(STORED)
    x = x[torch.randperm(len(x), generator=generator)[:SEQUENCES]]
    A = torch.stack([weights(each, gaussian_scores_matrix(x.shape[-1], DEVIATION, generator)) for each in x])
    yield from head_rows(x, A, random=True)


@LADDER.rung(
    "one trained head", relaxes="random weights: gradient descent on all images", column="everything trained"
)
@LADDER.rung(
    "AdamW on batches",
    relaxes="gradient descent on all images",
    column="AdamW and mini-batches",
    batch=BATCH,
)
def one_head(generator: Generator, *, batch: int = 0) -> Iterator[Measurement]:
    """Trains a head without skip connection, from the random weights of the rung before."""
    x, labels = digit_tokens(STORED)
    start = Head.start(x.shape[-1], 10, DEVIATION, generator)
    steps, rate = (ADAM_STEPS, ADAM_RATE) if batch else (STEPS, RATE)
    trained = train_head(start, x, labels, generator, steps=steps, rate=rate, batch=batch)
    yield from head_rows(x, weights(x, trained.W), note=f"{steps} steps")


@LADDER.rung(
    "one block of a ViT",
    relaxes="one head without skip connection and MLP",
    column="full block",
    depth=1,
)
@LADDER.rung("two blocks", relaxes="two blocks instead of one", column="depth", depth=2)
@LADDER.rung(
    "a wider ViT on digits",
    relaxes="two heads of width 16",
    column="trained network",
    depth=2,
    width=64,
    heads=4,
)
def network(generator: Generator, *, depth: int, width: int = 32, heads: int = 2) -> Iterator[Measurement]:
    """Trains a vision transformer on the digits and measures it on the validation images."""
    train, validation = digits().split(0.7, fixed_generator())
    model, accuracy = train_vit(
        train, validation, generator, depth=depth, steps=NETWORK_STEPS, width=width, heads=heads
    )
    yield from rows_of(measured(model, validation, draws=LADDER_DRAWS), note=f"{NETWORK_STEPS} steps")
    yield LADDER.other_row("accuracy", accuracy, unit="share", side=">=")
