r"""The ladder: from the theory's flow on independent tokens to trained networks.

The quantity is the within-less-between cosine as a share of its largest value, after the last attention for
the flow and the models of this file, and the mean over blocks in other networks. The theory predicts one
cluster per sequence, 1, whatever the tokens are. The null permutes the sequences at each position.
Trained networks have a second null, inputs whose tokens are exchanged between sequences at each position, 99
draws: attention makes unrelated tokens alike as well.

All seeds share the split of the digits, so a mean over seeds has the mean of their nulls.

The trained models of this file are layers :math:`x \leftarrow \mathrm{normalise}(x + \mathrm{softmax}(x B
x^\top) x V)` on embedded tokens with positions, and a linear classifier of the mean token: first V = I, then
V free.
Source: :cite:t:`geshkovski2025mathematical`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.ladder import Ladder
from ...core.measurement import CORRELATION, Measurement, Null, present
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS, over_heads
from ...data.digits import digits as load_digits
from ...data.image_data import Images
from ...data.tokens import TokenData
from ...models.embedding import build
from ...probes.respond import respond
from ...training.trained_rungs import (
    STEPS,
    digit_parts,
    fit_classifier,
    headline_in,
    trained_network,
    trained_networks,
    vit_for,
)
from .clusters import mean_cosine
from .dynamics import flow, softmax_field, unit
from .equiangular import common_cosine
from .in_networks import EXCHANGED, IN_NETWORKS, MOSAIC_SEQUENCES, MOSAICS, SHARE, exchanged
from .within_between import PERMUTED, directions, pair_sums

COSINE, ACCURACY = "mean cosine within a sequence", "accuracy"
LADDER = Ladder(
    theory="particles",
    quantity=SHARE,
    bounds=CORRELATION,
    side=">=",
    null=PERMUTED,
    source=Source("geshkovski2025mathematical", status="own"),
)
SEQUENCES, TOKENS, DIM, BETA, TIME = 64, 16, 128, 1.0, 6.0
LAYERS, WIDTH, TRAINING_STEPS, MEASURED = 4, 32, 150, 256
EXCHANGES = 99  # draws of the second null, each a forward pass
MODEL_STEPS = 300  # of the models of this file


def rows_of(
    tokens: Float[Tensor, "n T d"], second: Null | None = None, **columns: object
) -> Iterator[Measurement]:
    """Yields the share of one set of tokens beside its nulls, and the mean cosine."""
    sums = pair_sums(*directions(tokens), draws=LADDER_DRAWS)
    scale = float(sums.variance[0] / sums.variance[1])
    null = Null(PERMUTED, tuple(draw / scale for draw in sums.chance))
    yield LADDER.row(
        sums.share,
        predicted=1.0,
        basis="limit",
        nulls=present(null, second),
        n=len(tokens),
        **columns,
    )
    cosine = float(sums.within[0] / sums.within[1])
    yield LADDER.other_row(COSINE, cosine, bounds=CORRELATION, n=len(tokens))


@LADDER.rung("SA, independent tokens", column="own setting", covered=True)
def independent(generator: Generator) -> Iterator[Measurement]:
    """Measures SA on independent uniform tokens, and the common cosine that the equation predicts."""
    X = unit(torch.randn(SEQUENCES, TOKENS, DIM, generator=generator, dtype=torch.float64))
    after = flow(X, partial(softmax_field, beta=BETA), times=(TIME,), tolerance=1e-5)[-1]
    expected = float(common_cosine((TIME,), n=TOKENS, beta=BETA)[0])
    share, cosine = rows_of(after, note=f"time {TIME:g}")
    yield share
    yield replace(cosine, predicted=expected)


def digit_tokens(generator: Generator) -> Float[Tensor, "n T d"]:
    """Returns patches of digits without those that are zero: sequences of 10 of their other patches, in
    order, ``[n, 10, d]``.
    """
    data = load_digits().tokens
    order = torch.randperm(len(data), generator=generator)
    kept = [x[x.abs().sum(-1) > 0][:10] for x in data[order]]
    return torch.stack([x for x in kept if len(x) == 10][:SEQUENCES]).double()


@LADDER.rung(
    "SA, patches of digits",
    relaxes="independent uniform tokens",
    column="real tokens",
    covered=True,
    scores=False,
)
@LADDER.rung("random scores", relaxes="scores with B = I", column="real tokens", covered=True, scores=True)
def real(generator: Generator, *, scores: bool) -> Iterator[Measurement]:
    """Measures SA on the patches of digits, with B = I or with random scores."""
    X = digit_tokens(generator)
    d = X.shape[-1]
    B = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5 if scores else None
    after = flow(X, partial(softmax_field, beta=BETA, bilinear=B), times=(TIME,), tolerance=1e-5)[-1]
    yield from rows_of(
        after, note=f"time {TIME:g}; mean cosine {float(mean_cosine(X).mean()):.2f} at the start"
    )


class ParticleModel(nn.Module):
    """Embedded tokens with positions that move on the sphere by attention, and a linear classifier of their
    mean.

    Args:
        seq: tokens of a sequence.
        token_dim: dimension of the tokens.
        classes: number of classes.
        free_value: whether V of each layer is trained; otherwise it is the identity.
    """

    def __init__(self, seq: int, token_dim: int, classes: int, *, free_value: bool):
        super().__init__()
        self.embed, self.head = nn.Linear(token_dim, WIDTH), nn.Linear(WIDTH, classes)
        self.positions = nn.Parameter(torch.randn(seq, WIDTH) / 2)
        self.bilinear = nn.Parameter(torch.randn(LAYERS, WIDTH, WIDTH) / WIDTH**0.5)
        self.value = nn.Parameter(torch.eye(WIDTH).repeat(LAYERS, 1, 1), requires_grad=free_value)

    def states(self, tokens: Float[Tensor, "b n d"]) -> list[Float[Tensor, "b n w"]]:
        """Returns the tokens after the embedding and after each layer."""
        X = nn.functional.normalize(self.embed(tokens) + self.positions, dim=-1)
        states = [X]
        for B, V in zip(self.bilinear, self.value):
            X = nn.functional.normalize(X + torch.softmax(X @ B @ X.mT, -1) @ X @ V, dim=-1)
            states.append(X)
        return states

    def forward(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b k"]:
        return self.head(self.states(tokens)[-1].mean(1))


@LADDER.rung(
    "B trained, V = I",
    relaxes="scores not trained for a task; no positions",
    column="everything trained",
    free_value=False,
)
@LADDER.rung("B and V trained", relaxes="V = I", column="everything trained", free_value=True)
def trained(generator: Generator, *, free_value: bool) -> Iterator[Measurement]:
    """Trains the model of this file on the digits and measures its last tokens."""
    train, validation = digit_parts()
    _, seq, dim = train.tokens.shape
    model = build(lambda: ParticleModel(seq, dim, train.classes, free_value=free_value), generator)
    accuracy = fit_classifier(model, train, validation, generator, steps=MODEL_STEPS)
    assert isinstance(model, ParticleModel)
    inputs = validation.tokens[:MEASURED].float()
    few = inputs[:MOSAIC_SEQUENCES]
    with torch.no_grad():
        value, *draws = (
            pair_sums(*directions(model.states(each)[-1].double())).share
            for each in (few, *exchanged(few, EXCHANGES))
        )
        yield from rows_of(model.states(inputs)[-1].double(), Null(EXCHANGED, tuple(draws), value))
    yield LADDER.other_row(ACCURACY, accuracy, unit="share")


def in_network(
    model: nn.Module, samples: TokenData | Images, *, name: str, steps: int
) -> Iterator[Measurement]:
    """Yields the headline in a network, with its value on inputs with exchanged tokens as the second null."""
    row = headline_in(model, samples, LADDER.theory, IN_NETWORKS, name=name, steps=steps)
    few = (
        samples.tokens[:MOSAIC_SEQUENCES].float()
        if isinstance(samples, TokenData)
        else samples.pixels[:MOSAIC_SEQUENCES] / 255
    )
    inputs = {"value": few, "null": exchanged(few, EXCHANGES)}
    found = over_heads(
        respond(model, inputs, MOSAICS.metrics(), name=name, null_kind=EXCHANGED).table.select(quantity=SHARE)
    )
    # After attention, tokens of different images that share a sequence are alike as well.
    nulls = (*row.nulls, *(null.with_value(found.value) for null in found.nulls))
    yield replace(row, predicted=1.0, basis="limit", nulls=nulls, source=LADDER.source)


@LADDER.rung("one block of a ViT", relaxes="tokens on a sphere, no MLP", column="full block", depth=1)
@LADDER.rung("four blocks", relaxes="four blocks instead of one", column="depth", depth=4)
def vision(generator: Generator, *, depth: int) -> Iterator[Measurement]:
    """Trains a vision transformer of this depth on the digits and measures it."""
    train, validation = digit_parts()
    model = vit_for(train, generator, depth=depth)
    accuracy = fit_classifier(model, train, validation, generator, steps=TRAINING_STEPS)
    yield from in_network(model, validation[:MEASURED], name="ViT", steps=TRAINING_STEPS)
    yield LADDER.other_row(ACCURACY, accuracy, unit="share")


@trained_networks(LADDER)
def shared(
    generator: Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Measures the network of a recipe that all theories share."""
    model, samples = trained_network(recipe, generator.initial_seed(), images)
    return in_network(model, samples, name=recipe, steps=STEPS)
