r"""Retrieval with one attention head: trained on 16 keys, run on thousands.

A sequence has n tokens (x, c) with a key x and a class c, one of ten, one-hot. The label is the class of one
token:

* *maximum*: keys are uniform on [0, 1], and the largest is the right one;
* *needle*: the key of one token is 1, and all others are 0.

The network embeds each token by two layers, pools them by softmax attention with one learnt query, and reads
the class by two layers. It has neither positions nor a mask, so it runs at any length.
Source: :cite:t:`velickovic2025softmax` for the task; sizes and training are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional

from ...core.validation import integers
from ...models.embedding import build
from ...training.fitting import fit
from ...training.tasks import StreamTask
from .dispersion import log_dispersion_bound
from .longer import log_factor, resampled_top_weight, top_weight

Kind = Literal["maximum", "needle"]
CLASSES, KEYS, WIDTH, RATE, BATCH = 10, 16, 32, 3e-3, 64
STEPS: dict[str, int] = {"maximum": 1500, "needle": 300}
LENGTHS = (16, 64, 256, 1024, 4096)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Tokens ``[n, keys, 1 + CLASSES]`` float32, the position of the right key ``[n]``, and its class
    ``[n]``.
    """

    tokens: Float[Tensor, "n keys dim"]
    right: Int[Tensor, " n"]
    labels: Int[Tensor, " n"]


def draw(n: int, keys: int, *, kind: Kind, generator: Generator) -> Sequences:
    """Draws ``n`` sequences of ``keys`` tokens.

    Raises:
        ValueError: the task is unknown, or a number is below 1.
    """
    integers(n=n, keys=keys)
    if kind not in STEPS:
        raise ValueError(f"kind must be 'maximum' or 'needle', got {kind!r}")
    classes = torch.randint(CLASSES, (n, keys), generator=generator)
    if kind == "maximum":
        x = torch.rand(n, keys, generator=generator)
        right = x.argmax(1)
    else:
        right = torch.randint(keys, (n,), generator=generator)
        x = functional.one_hot(right, keys).float()
    tokens = torch.cat([x[..., None], functional.one_hot(classes, CLASSES).float()], -1)
    return Sequences(tokens, right, classes.gather(1, right[:, None])[:, 0])


class PooledHead(nn.Module):
    """One head with a learnt query, ``[n, keys, 1 + CLASSES] -> [n, CLASSES]``; see the module's docstring.

    Attributes:
        factor: factor of the scores at inference.
    """

    def __init__(self, *, width: int = WIDTH):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1 + CLASSES, width), nn.GELU(), nn.Linear(width, width))
        self.query = nn.Parameter(torch.randn(width) / width**0.5)
        self.key, self.value = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.read = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))
        self.factor = 1.0

    def scores(self, tokens: Tensor) -> Float[Tensor, "n keys"]:
        """Returns the scores of the keys, without the factor."""
        return self.key(self.embed(tokens)) @ self.query

    def forward(self, tokens: Tensor) -> Float[Tensor, "n classes"]:
        hidden = self.embed(tokens)
        weights = (self.factor * (self.key(hidden) @ self.query)).softmax(-1)
        return self.read((weights[..., None] * self.value(hidden)).sum(-2))


def train_head(
    kind: Kind, *, generator: Generator, steps: int | None = None, stored: int = 0, decay: bool = False
) -> PooledHead:
    """Trains a head on 16 keys by Adam at rate .003 on batches of 64.

    Args:
        kind: the task.
        generator: draws weights and sequences.
        steps: number of steps. None: :data:`STEPS`.
        stored: number of training sequences, drawn once; 0: new sequences in each step.
        decay: whether AdamW with decay .01 takes the place of Adam.
    """
    model = build(PooledHead, generator)
    assert isinstance(model, PooledHead)
    kept = draw(stored, KEYS, kind=kind, generator=generator) if stored else None

    def stream(draws: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            if kept is None:
                batch = draw(BATCH, KEYS, kind=kind, generator=draws)
                yield batch.tokens, batch.labels
            else:
                chosen = torch.randint(stored, (BATCH,), generator=draws)
                yield kept.tokens[chosen], kept.labels[chosen]

    optimiser = (torch.optim.AdamW if decay else torch.optim.Adam)(model.parameters(), lr=RATE)
    task = StreamTask(lambda network, batch: functional.cross_entropy(network(batch[0]), batch[1]), stream)
    fit(model, task, optimiser=optimiser, steps=STEPS[kind] if steps is None else steps, generator=generator)
    return model.eval()


@lru_cache(maxsize=32)
def trained_head(kind: Kind, seed: int) -> PooledHead:
    """Returns the head of a task and seed; claims and the figure share it."""
    return train_head(kind, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class AtLength:
    """A head at n keys: means over sequences.

    Attributes:
        keys: n.
        top: largest weight.
        right: weight on the right key.
        predicted: largest weight predicted by :func:`.resampled_top_weight` from sequences of 16 keys.
        accuracy: share of the sequences whose class is right.
        ranked: share of the sequences in which the right key has the largest score.
        bound: mean of delta - log n, nats.
    """

    keys: int
    top: float
    right: float
    predicted: float
    accuracy: float
    ranked: float
    bound: float


@torch.no_grad()
def short_scores(
    model: PooledHead, kind: Kind, *, generator: Generator, keys: int = KEYS, sequences: int = 1000
) -> Float[Tensor, "n keys"]:
    """Returns the scores of new sequences of ``keys`` keys, as in the training by default, ``[sequences,
    keys]`` float64.
    """
    return model.scores(draw(sequences, keys, kind=kind, generator=generator).tokens).double()


@torch.no_grad()
def at_length(
    model: PooledHead,
    kind: Kind,
    keys: int,
    pool: Tensor,
    *,
    generator: Generator,
    scaled: bool = False,
    sequences: int = 200,
) -> AtLength:
    """Runs a head on sequences of ``keys`` keys.

    Args:
        model, kind: head and task.
        keys: n.
        pool: scores of short sequences (:func:`short_scores`), for the prediction.
        generator: draws sequences.
        scaled: whether the scores are multiplied by log n / log 16.
        sequences: number of sequences.
    """
    integers(keys=keys, sequences=sequences)
    factor = log_factor(keys, KEYS) if scaled else 1.0
    found: list[Tensor] = []
    model.factor = factor
    try:
        # Few sequences at a time: 4,096 keys of width 32 in several layers would take hundreds of megabytes.
        while (done := sum(len(part) for part in found)) < sequences:
            part = draw(min(sequences - done, max(1, 2**17 // keys)), keys, kind=kind, generator=generator)
            scores = factor * model.scores(part.tokens).double()
            right = scores.softmax(-1).gather(1, part.right[:, None])[:, 0]
            correct = model(part.tokens).argmax(-1) == part.labels
            ranked = scores.argmax(-1) == part.right
            found.append(
                torch.stack(
                    [
                        top_weight(scores),
                        right,
                        correct.double(),
                        ranked.double(),
                        log_dispersion_bound(scores),
                    ],
                    -1,
                )
            )
    finally:
        model.factor = 1.0
    top, right, accuracy, ranked, bound = torch.cat(found).mean(0).tolist()
    predicted = resampled_top_weight(pool, keys, generator=generator, samples=sequences, factor=factor)
    return AtLength(keys, top, right, predicted, accuracy, ranked, bound)
