r"""Language models that learn a text, and what is read in their attention while they do.

A run trains a small causal decoder on one text and reads it, in evaluation mode, on fixed windows of another: entropy, sharpness, top-1
mass, effective support, sink and diagonal mass, how alike successive maps are, what the words attended to are (:mod:`.attended_words`),
and the loss. What has no null of its own is given what an untrained decoder reads on the same windows ("random weights").
A run on the same words in another order is a null too: such a text has frequencies to learn and nothing else.

Source: :cite:t:`tian2023scan`, :cite:t:`tian2024joma` (the experiments on WikiText-2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.measurement import Row
from ...data.text import SHIPPED, Text
from ...models.decoder import Decoder
from ...models.embedding import build
from ...probes import AttentionMaps, AttentionStatistics, Reducer, probe
from ...training.language import Recipe, adam, learn, loss, sgd
from .attended_words import AttendedWords
from .continuations import LEAST, count_continuations
from .reducers import ScanAndSnap

RECIPES: dict[str, Callable[[float], Recipe]] = {"sgd": sgd, "adam": adam}


def as_written(text: Text, generator: torch.Generator) -> Text:
    """The text itself."""
    return text


def shuffled(text: Text, generator: torch.Generator) -> Text:
    """The same words in random order."""
    return Text(text.ids[torch.randperm(len(text), generator=generator)], text.vocabulary, f"{text.name}, shuffled")


ORDERS: dict[str, Callable[[Text, torch.Generator], Text]] = {"as written": as_written, "shuffled": shuffled}
SHARE = 0.8  # of a text that is learnt if there is no other to read attention on
HELD_OUT = "held-out loss"


@dataclass(frozen=True)
class Run:
    """What is trained on what; plain values, so that a run can be sent to another process.

    Attributes:
        text, held_out: files; the shipped text, and the last fifth of the text, if empty.
        words: largest vocabulary.
        depth, dim, dropout: of the decoder; its MLP is as wide as its stream, and it has one head.
        optimiser: "sgd" or "adam", and its rate.
        steps, batch, length: of training; ``at`` are the steps at which attention is read.
        windows: on which it is read.
        seed: of initial weights and dropout.
        order: of the words, of both texts: "as written" or "shuffled".
    """

    text: str
    held_out: str
    words: int
    depth: int
    rate: float
    steps: int
    at: tuple[int, ...]
    seed: int
    optimiser: str = "sgd"
    dim: int = 200
    dropout: float = 0.2
    batch: int = 20
    length: int = 35
    windows: int = 100
    order: str = "as written"


@dataclass(frozen=True, eq=False)
class Followed:
    """What a run showed.

    Attributes:
        rows: of all readings, with ``step`` and ``null``.
        maps: attention to the first window, ``[readings, layers, queries, keys]``.
        losses: of the batches, ``[steps]``.
        vocabulary: number of words in it.
        words: the first window.
    """

    rows: list[Row]
    maps: Float[np.ndarray, "readings layers q k"]
    losses: Float[np.ndarray, " steps"]
    vocabulary: int
    words: tuple[str, ...]

    def series(self, quantity: str, *, head: int = 0) -> Float[np.ndarray, "readings layers"]:
        """One quantity of each layer at each reading; NaN where it was not read."""
        own = [row for row in self.rows if row["quantity"] == quantity and row.get("head", head) == head]
        steps = sorted({row.get("step", 0) for row in self.rows})
        table = np.full((len(steps), self.maps.shape[1]), np.nan)
        for row in own:
            if row["value"] is not None:
                table[steps.index(row.get("step", 0)), row.get("layer", 0)] = row["value"]
        return table


def texts(text: str, held_out: str, *, words: int) -> tuple[Text, Text]:
    """What is learnt and what attention is read on, in the vocabulary of the first.

    Raises:
        ValueError: a file cannot be read as text. Source: :cite:t:`merity2017pointer` (what was measured here is on WikiText-2).
    """
    learnt = Text.read(text or SHIPPED, size=words)
    return (learnt, learnt.like(held_out)) if held_out else learnt.split(SHARE)


def follow(run: Run) -> Followed:
    """Trains the decoder of a run and reads it at the steps asked for.

    Raises:
        ValueError: a text that cannot be read or is too short, or settings out of range.
        NotConverged: the loss became infinite or NaN. Source: :cite:t:`tian2023scan`.
    """
    generator = torch.Generator().manual_seed(run.seed)
    learnt, held_out = (ORDERS[run.order](one, generator) for one in texts(run.text, run.held_out, words=run.words))
    seen = held_out.windows(run.windows, length=run.length)

    def untrained() -> Decoder:
        sizes = {"dim": run.dim, "hidden": run.dim, "depth": run.depth, "dropout": run.dropout}
        model = build(lambda: Decoder(vocabulary=len(learnt.vocabulary), **sizes), generator)
        assert isinstance(model, Decoder)
        return model

    readers = reducers(learnt, seen)
    keeper, rows, maps = AttentionMaps(keep=1), [], []

    def watch(step: int, model: nn.Module) -> None:
        rows.extend(read(model, seen, [*readers, keeper], step=step))
        maps.append(np.stack([keeper.arrays()[name][0, 0] for name in sorted(keeper.arrays())]))

    trained = learn(
        untrained(),
        learnt,
        recipe=RECIPES[run.optimiser](run.rate),
        steps=run.steps,
        generator=generator,
        batch=run.batch,
        length=run.length,
        at=run.at,
        watch=watch,
    )
    with torch.no_grad():
        nulls = {_place(row): row["value"] for row in read(untrained().eval(), seen, reducers(learnt, seen), step=0)}
    for row in rows:
        if row.get("null") is None and (null := nulls.get(_place(row))) is not None:
            row["null"] = null
    words = tuple(learnt.vocabulary.words[number] for number in seen[0].tolist())
    return Followed(rows, np.stack(maps), trained.losses.numpy(), len(learnt.vocabulary), words)


def reducers(learnt: Text, seen: Int[Tensor, "n longer"]) -> list[Reducer]:
    """What is read in attention on windows ``seen``, [n, length + 1]; the words attended to, if a pair of words is frequent enough."""
    made: list[Reducer] = [AttentionStatistics(), ScanAndSnap()]
    try:
        counted = count_continuations(learnt.ids, vocab_size=len(learnt.vocabulary), context=seen.shape[1] - 1, least=LEAST)
    except ValueError:  # a short text, in which no pair can be counted
        return made
    return [*made, AttendedWords(seen, counted)]


def read(model: nn.Module, seen: Int[Tensor, "n longer"], readers: Sequence[Reducer], *, step: int) -> list[Row]:
    """One reading, and the loss on the same windows [n, length + 1], as rows of this room. Source: :cite:t:`tian2023scan`."""
    with probe(model, readers) as p:
        p.labels, p.step = torch.arange(len(seen)), step
        value = float(loss(model, seen))
    rows = [Row(**{**row, "theory": "scan_snap"}) for row in p.result().table]
    return [*rows, Row(theory="scan_snap", quantity=HELD_OUT, value=value, step=step)]


def _place(row: Row) -> tuple:
    return row["quantity"], row.get("layer"), row.get("head")
