r"""The ladder: prefix matching of a network's best head, from weights written by hand to a network trained on
text.

Networks are measured on blocks of different ids that occur twice (:mod:`.scores`). The quantity is the prefix
matching of the head that has most of it; the theory predicts 1. The null replaces the first block by other
ids, and takes the best head of each draw; the note has the prefix matching of uniform attention. Beside it
stands the share of the ids of the second block that the network predicts.

The rungs are the survey's conditions for larger models, one after the other: attention only, norms, MLPs,
more layers, a text. The last one differs from the others in heads, positions, lengths, activation, optimiser
and data. Source: :cite:t:`olsson2022incontext`, :cite:t:`elhage2021mathematical`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.errors import NotConverged
from ...core.ladder import Ladder
from ...core.measurement import Measurement, Null
from ...core.sources import Source
from ...core.statistics import HEADLINE_DRAWS
from ...data.text import CONTEXT, Text
from ...models.decoder import Decoder, PreNorm
from ...models.embedding import build
from ...training.fitting import fit
from ...training.tasks import NextWord
from .heads import InductionHead, with_bos
from .learning import LENGTH, VOCABULARY, copy_accuracy, train_induction
from .scores import (
    PREFIX,
    SCORES,
    UNRELATED,
    block_length,
    draw_blocks,
    score_weights,
    sequence_scores,
    uniform_score,
)

BEST = "prefix matching of the best head"
PREDICTED = "share of the second block that is predicted"
DRAWS, BLOCKS = HEADLINE_DRAWS, 32  # draws of the null, enough for 10 rungs; blocks per draw and value
MODEL_DRAWS, MODEL_BLOCKS = 19, 8  # the same in models of the user, whose forward passes are expensive
STEPS, TEXT_STEPS, SCALE = 200, 600, 10.0
LADDER = Ladder(
    theory="induction",
    quantity=BEST,
    unit="share",
    side=">=",
    null=f"{UNRELATED}, best head of each draw",
    source=Source("olsson2022incontext", status="own"),
)


def rows_of(
    value: Float[Tensor, "n heads"],
    null: Float[Tensor, "draws n heads"],
    accuracy: float,
    *,
    tokens: int,
    note: str = "",
) -> Iterator[Measurement]:
    """Yields the rows of a rung from the prefix matching of all sequences and heads."""
    means = value.mean(0)
    draws = null.mean(1).amax(-1).tolist()
    best = (
        f"best head: {int(means.argmax())} of {len(means)}, counted layer by layer; uniform attention: "
        f"{uniform_score(tokens):.3f}"
    )
    note = f"{best}. {note}".strip()
    columns = {"predicted": 1.0, "n": len(value), "note": note}
    yield LADDER.row(float(means.max()), nulls=(Null(LADDER.null, tuple(draws)),), **columns)
    yield LADDER.other_row(PREDICTED, accuracy, unit="share", side=">=", predicted=1.0, n=len(value))


def measured(
    model: nn.Module,
    *,
    length: int,
    vocabulary: int,
    generator: Generator,
    draws: int = DRAWS,
    blocks: int = BLOCKS,
    note: str = "",
) -> Iterator[Measurement]:
    """Measures a network of ids on blocks of ``length`` ids."""
    ids, _ = draw_blocks(blocks, length=length, vocabulary=vocabulary, generator=generator)
    _, others = draw_blocks(draws * blocks, length=length, vocabulary=vocabulary, generator=generator)
    prefix = SCORES.index(PREFIX)
    value, null = sequence_scores(model, ids)[prefix], sequence_scores(model, others)[prefix]
    yield from rows_of(
        value, null.unflatten(0, (draws, blocks)), copy_accuracy(model, ids), tokens=2 * length, note=note
    )


@LADDER.rung("weights by hand", column="own setting", covered=True)
def written(generator: Generator) -> Iterator[Measurement]:
    """Measures the explicit head at scale 10, on sequences that start with BOS; the scores leave BOS out.

    Without any copy all draws of the null would be equal, so its blocks are drawn independently and may have
    ids in common.
    """
    length = LENGTH // 2
    head = InductionHead(VOCABULARY, LENGTH + 1, SCALE)
    ids, _ = draw_blocks(BLOCKS, length=length, vocabulary=VOCABULARY, generator=generator)
    first, second = (
        draw_blocks(DRAWS * BLOCKS, length=length, vocabulary=VOCABULARY, generator=generator)[0]
        for _ in range(2)
    )
    others = torch.cat([first[:, :length], second[:, length:]], 1)
    network, scores = head.network(), []
    for part in (ids, *others.split(256)):
        logits, maps = network.run(with_bos(part, head.bos))
        if part is ids:
            accuracy = float((logits[:, length + 1 : -1].argmax(-1) == part[:, length + 1 :]).double().mean())
        scores.append(torch.cat([score_weights(A[..., 1:, 1:])[SCORES.index(PREFIX)] for A in maps], -1))
    yield from rows_of(
        scores[0], torch.cat(scores[1:]).unflatten(0, (DRAWS, BLOCKS)), accuracy, tokens=LENGTH
    )


@LADDER.rung("attention only, trained", relaxes="weights written by hand", column="everything trained")
@LADDER.rung("LayerNorm", relaxes="LayerNorm instead of no norms", column="full block", norm=True)
@LADDER.rung(
    "MLP", relaxes="an MLP in each block instead of attention only", column="full block", norm=True, mlp=True
)
@LADDER.rung("4 layers", relaxes="four layers instead of two", column="depth", layers=4, norm=True, mlp=True)
def trained(
    generator: Generator, *, layers: int = 2, norm: bool = False, mlp: bool = False
) -> Iterator[Measurement]:
    """Trains a network on repeated patterns and measures it."""
    network = train_induction(layers, steps=STEPS, generator=generator, norm=norm, mlp=mlp)
    yield from measured(
        network, length=LENGTH // 2, vocabulary=VOCABULARY, generator=generator, note=f"{STEPS} steps."
    )


@LADDER.rung("decoder on WikiText", relaxes="patterns that repeat", column="trained network", needs="text")
def text_decoder(generator: Generator, text: Text) -> Iterator[Measurement]:
    """Trains a decoder of four layers on a text, and measures it on blocks of its most frequent words, which
    no text contains.
    """
    vocabulary, length = len(text.vocabulary), CONTEXT // 2
    if vocabulary < 2 * length:
        yield LADDER.row(
            None,
            reason=f"{text.name}: two blocks need {2 * length} words, it has {vocabulary}; choose a longer "
            "text",
        )
        return
    network = build(
        lambda: Decoder(
            vocabulary=vocabulary, dim=64, hidden=256, heads=4, depth=4, dropout=0.0, block=PreNorm
        ),
        generator,
    )
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    try:
        run = fit(
            network, NextWord(text), optimiser=optimiser, steps=TEXT_STEPS, clip=1.0, generator=generator
        )
    except (NotConverged, ValueError) as error:
        yield LADDER.row(None, reason=" ".join(str(error).split()))
        return
    note = f"{TEXT_STEPS} steps, loss {float(run.losses[-20:].mean()):.2f} nats."
    common = min(vocabulary, 1000)  # the vocabulary is ordered by frequency
    yield from measured(network, length=length, vocabulary=common, generator=generator, note=note)


def user_model(model: nn.Module, limits: Mapping[str, int], generator: Generator) -> Iterator[Measurement]:
    """Measures a model of the user."""
    length, vocabulary = block_length(limits), limits["vocabulary"]
    rows = measured(
        model,
        length=length,
        vocabulary=vocabulary,
        generator=generator,
        draws=MODEL_DRAWS,
        blocks=MODEL_BLOCKS,
    )
    yield from (replace(row, model=type(model).__name__) for row in rows)
