r"""The ladder: the largest weight among sixteen times as many keys, from written scores to networks trained
on the digits.

The theory predicts the number by resampling the scores of short sequences (:mod:`.longer`). The null takes
Gaussian scores with their mean and variance, which is what a theory of the variance alone would predict. A
head's scores are pooled over sequences; in networks they are those of the class token, and value, prediction
and null are means over layers and heads.

Sets of tokens are run at both lengths. A network trained on the digits has a fixed length: there the class
token of an image sees the keys of 15 further images at once, computed from queries and keys. Predictions are
made from other sequences or images than the measured ones. The rung on patches is a side step: trained heads
return to the retrieval of the largest of n numbers, where a head has something to learn. Source:
:cite:t:`velickovic2025softmax`; the quantity is our own.
"""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.metric import ALL, ActivationKind, Activations, Metric
from ...core.sources import Source
from ...core.statistics import LADDER_DRAWS
from ...data import Images
from ...data.digits import digits as load_digits
from ...models.embedding import build
from ...models.vit import Block
from ...probes.evaluation import evaluation
from ...probes.probing import probe
from ...training.fitting import fit
from ...training.tasks import StreamTask
from ...training.trained_rungs import trained_network, trained_networks
from .in_networks import allowed_keys, fitted_scores
from .longer import gaussian_top_weight, resampled_top_weight, top_weight
from .retrieval import BATCH, CLASSES, KEYS, draw, short_scores, train_head

LADDER = Ladder(
    theory="length",
    quantity="largest weight at 16 times the keys",
    unit="share",
    side="==",
    null="Gaussian scores of the same variance",
    source=Source("velickovic2025softmax", status="own"),
)
SHORT, FIRST = "largest weight", f"{LADDER.quantity}, first block"
TIMES, SIZE, STEPS, BLOCK_STEPS, STORED, WIDTH = 16, 80.0, 600, 400, 1024, 32
SEQUENCES, DRAWN = 1000, 60  # measured sequences; sequences of a draw of the null
Scores = Sequence[Float[Tensor, "_ _"]]


def rows_of(
    short: Scores, long: Scores, generator: Generator, *, first: int = 0, note: str = ""
) -> Iterator[Measurement]:
    """Yields the largest weight of long sequences with its prediction and null, and that of short ones; means
    over the heads.

    Args:
        short, long: scores of each head for short and long sequences, ``[n, keys]``.
        generator: draws prediction and null.
        first: number of heads of the first block, which have rows of their own; 0: there is one block.
        note: for the reader.
    """
    heads = len(short)
    samples = max(100, SEQUENCES // heads)
    values, now = ([float(top_weight(scores).mean()) for scores in part] for part in (long, short))
    predicted, draws = [], torch.zeros(LADDER_DRAWS, dtype=torch.float64)
    for before, after in zip(short, long):
        keys = after.shape[-1]
        predicted.append(resampled_top_weight(before.flatten(), keys, generator=generator, samples=samples))
        spread = before.std().expand(LADDER_DRAWS * max(4, DRAWN // heads), 1)
        chance = torch.cat(
            [gaussian_top_weight(part, keys, generator=generator) for part in spread.split(2**21 // keys)]
        )
        draws += chance.reshape(LADDER_DRAWS, -1).mean(1) / heads
    null = Null(LADDER.null, tuple(draws.tolist()))
    n = len(long[0])
    yield LADDER.row(mean(values), predicted=mean(predicted), nulls=(null,), note=note, n=n)
    yield LADDER.other_row(SHORT, mean(now), unit="share", n=n)
    if first:
        expected = mean(predicted[:first])
        yield LADDER.other_row(FIRST, mean(values[:first]), predicted=expected, unit="share", n=n)


@LADDER.rung("written head, uniform keys", column="own setting", covered=True)
def written(generator: Generator) -> Iterator[Measurement]:
    """Measures a written head, whose scores are 80 times uniform keys."""
    short, long = (
        SIZE * torch.rand(SEQUENCES, n, generator=generator, dtype=torch.float64)
        for n in (KEYS, TIMES * KEYS)
    )
    yield from rows_of([short], [long], generator)


@LADDER.rung("patches of the digits", relaxes="independent scores", column="real tokens")
def real_tokens(generator: Generator) -> Iterator[Measurement]:
    """Measures a random query on the patches of the digits; long sequences are the patches of 16 other
    images.
    """
    tokens = load_digits().tokens.double()
    tokens = tokens[torch.randperm(len(tokens), generator=generator)]
    scores = tokens @ torch.randn(tokens.shape[-1], generator=generator, dtype=torch.float64)
    scores = 4 * scores / scores.std()
    groups = len(scores) // (2 * TIMES)
    long, short = scores[: groups * TIMES].reshape(groups, -1), scores[groups * TIMES :]
    yield from rows_of([short], [long], generator, note="a standard deviation of 4")


@LADDER.rung("trained head", relaxes="written scores", column="everything trained")
@LADDER.rung(
    "AdamW, 1,024 sequences",
    relaxes="new sequences in each step",
    column="AdamW and mini-batches",
    stored=STORED,
    decay=True,
)
def trained(generator: Generator, *, stored: int = 0, decay: bool = False) -> Iterator[Measurement]:
    """Trains a head with a learnt query on the retrieval of the largest key among 16."""
    model = train_head("maximum", generator=generator, steps=STEPS, stored=stored, decay=decay)
    short, long = (
        short_scores(model, "maximum", keys=n, generator=generator, sequences=SEQUENCES)
        for n in (KEYS, TIMES * KEYS)
    )
    yield from rows_of([short], [long], generator)


class SetTransformer(nn.Module):
    """Blocks of a vision transformer without positions, ``[n, keys, 1 + CLASSES] -> [n, CLASSES]``, read at a
    class token.
    """

    def __init__(self, *, depth: int, heads: int = 2):
        super().__init__()
        self.embed, self.token = nn.Linear(1 + CLASSES, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, heads=heads) for _ in range(depth))
        self.norm, self.read = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Float[Tensor, "n classes"]:
        hidden = torch.cat([self.token.expand(len(tokens), 1, -1), self.embed(tokens)], 1)
        for block in self.blocks:
            hidden = block(hidden)
        return self.read(self.norm(hidden[:, 0]))


class ClassTokenScores(Metric):
    """Collects the scores of the first query of each head. Has no rows.

    Args:
        images: number of sequences whose keys the query sees: its own and those of the following ones in the
            batch.

    Attributes:
        sums: by layer and first head: scores, ``[n, heads, images * keys]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    keeps = ALL

    def __init__(self, images: int = 1):
        self.images = images
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Adds the scores of one module."""
        weights, query, key = activations.weights, activations.query, activations.key
        if weights is None or query is None or key is None:
            return
        products = query[:, :, :1].float() @ key.float().mT
        fit = fitted_scores(weights[:, :, :1].float(), products, allowed_keys(activations, weights)[:, :, :1])
        if fit is None:
            return
        seen = torch.cat([key.float().roll(-shift, 0) for shift in range(self.images)], 2)
        scores = fit[0] * (query[:, :, :1].float() @ seen.mT)
        self.add((activations.layer, activations.first_head), scores[:, :, 0].double().cpu())


def collected(
    model: nn.Module, inputs: Float[Tensor, "n seq dim"], *, images: int = 1
) -> tuple[list[Float[Tensor, "n _"]], int]:
    """Returns the scores of the class token in all heads of a network, and the number of heads of its first
    block; 0 without others.
    """
    metric = ClassTokenScores(images)
    with evaluation(model), torch.no_grad(), probe(model, [metric], draws=0) as p, p.accumulate(0):
        model(inputs)
    heads = [scores for _, stored in sorted(metric.sums.items()) for scores in stored.unbind(1)]
    first = sum(
        stored.shape[1] for (layer, *_), stored in metric.sums.items() if layer == min(metric.sums)[0]
    )
    return heads, first if first < len(heads) else 0


@LADDER.rung("one block", relaxes="attention alone, with one head", column="full block", depth=1)
@LADDER.rung("two blocks", relaxes="keys that do not depend on the others", column="depth", depth=2)
def block(generator: Generator, *, depth: int) -> Iterator[Measurement]:
    """Trains blocks without positions on the retrieval of the largest key among 16 stored ones, by AdamW."""
    model = build(lambda: SetTransformer(depth=depth), generator)
    kept = draw(STORED, KEYS, kind="maximum", generator=generator)

    def stream(draws: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            chosen = torch.randint(STORED, (BATCH,), generator=draws)
            yield kept.tokens[chosen], kept.labels[chosen]

    task = StreamTask(lambda network, batch: functional.cross_entropy(network(batch[0]), batch[1]), stream)
    fit(
        model,
        task,
        optimiser=torch.optim.AdamW(model.parameters(), lr=3e-3),
        steps=BLOCK_STEPS,
        clip=1.0,
        generator=generator,
    )
    (short, first), (long, _) = (
        collected(model, draw(rows, n, kind="maximum", generator=generator).tokens)
        for rows, n in ((500, KEYS), (80, TIMES * KEYS))
    )
    yield from rows_of(
        short, long, generator, first=first, note="the class token is one more key at both lengths"
    )


@trained_networks(LADDER)
def in_network(
    generator: Generator, images: tuple[Images, Images] | None = None, *, recipe: str
) -> Iterator[Measurement]:
    """Measures a trained network; the class token of an image sees the keys of 15 further images. The
    prediction has other images.
    """
    model, validation = trained_network(recipe, generator.initial_seed(), images)
    half = min(128, len(validation.tokens) // 2)
    inputs, others = validation.tokens[: 2 * half].float().split(half)
    (short, first), (long, _) = collected(model, others), collected(model, inputs, images=TIMES)
    if not short:
        yield LADDER.row(None, reason=f"scores of {recipe} are not products of queries and keys")
        return
    yield from rows_of(short, long, generator, first=first, note="keys of 16 images at the same positions")
