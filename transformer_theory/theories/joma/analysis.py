r"""What JoMA says about given sequences of discrete tokens: does attention follow from the MLP's weights, as its invariants say?

The theory's own block (linear units, cross-entropy over the next tokens) is trained on the contexts of the most frequent query, by gradient
flow. With exponential attention the invariant holds on any data, so it is shown without a verdict; once other queries train the same MLP it
fails, and by how much is measured. With softmax attention the invariant needs a mean attention that stays and an expectation that
factorises: both are measured, then the predicted change of the logits meets the true one. The null is the change predicted from the MLP of
a block that learnt shuffled next tokens. Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...citations import Source
from ...claims import Evidence
from ...data.tokens import TokenData
from ...errors import NotConverged
from ...rows import Arrays, Row, assumption, by_construction, finding, not_applicable
from .dynamics import Model, Path, rk4, train
from .forms import Exponential, Softmax
from .invariants import agreement, drift, fixed_mean, mean_attention, moving_mean
from .problem import Block, Contexts, gaussian_block
from .subject import Subject, subject

NAME = "joma"
SOURCE = Source("tian2024joma")
ANSWER = "relative error of the softmax invariant"
STEP, STEPS, KEPT, SCALE, SHUFFLES = 0.5, 100, 50, 0.1, 3
LINE, STILL = 0.5, 0.1  # of the relative error; of the two assumptions. Ours


@dataclass(frozen=True, eq=False)
class Softmaxed:
    """Training with softmax attention: run 0 on the data's next tokens, the others on shuffled ones; predicted and true changes of z."""

    path: Path
    true: Float[Tensor, "t runs M"]
    fixed: Float[Tensor, "t runs M"]
    moving: Float[Tensor, "t runs M"]
    moved: float  # total variation distance of the mean attention, end and start
    unfactored: float  # relative size of what the factorisation leaves out of dz/dt at the start


def train_softmax(read: Subject, generator: torch.Generator) -> Softmaxed:
    """Trains a block and three with shuffled next tokens from one start. Source: :cite:t:`tian2024joma`."""
    own, model, n = read.own, Model(Softmax()), len(read.own.query)
    shuffled = [own.targets[torch.randperm(n, generator=generator)] for _ in range(SHUFFLES)]
    contexts = Contexts(own.counts, own.query, torch.stack([own.targets, *shuffled]))
    start = gaussian_block(own, units=read.classes, scale=SCALE, generator=generator)
    runs = Block(*(part.expand(1 + SHUFFLES, *part.shape) for part in (start.logits, start.lower, start.offset)))
    path = train(runs, contexts, model, step=STEP, steps=STEPS, method=rk4, keep=range(0, STEPS, STEPS // KEPT))
    z, mean = path.states.logits[..., 0, :], mean_attention(model, contexts, path)[:, 0]
    velocity = model.velocity(start, own)
    work = (start.lower * velocity.lower).sum(0)
    left = velocity.logits[0] - (work - work.sum() * mean[0])
    return Softmaxed(
        path,
        z - z[0],
        fixed_mean(model, contexts, path),
        moving_mean(model, contexts, path),
        float((mean[-1] - mean[0]).abs().sum()) / 2,
        float(left.norm() / velocity.logits[0].norm()),
    )


def train_exponential(contexts: Contexts, classes: int, generator: torch.Generator) -> Path:
    """Trains a block with exponential attention. Source: :cite:t:`tian2024joma`."""
    start = gaussian_block(contexts, units=classes, scale=SCALE, generator=generator)
    return train(start, contexts, Model(Exponential()), step=STEP, steps=STEPS, method=rk4, keep=range(0, STEPS, STEPS // KEPT))


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Assumptions, then the invariants on the data. See the module's docstring.

    Args:
        data: with ``ids`` (the last one is the query) and ``next_id``.
        generator: draws starts, shuffles and, of large data, the sequences.
    """
    read = subject(data, generator)
    if isinstance(read, str):
        yield not_applicable(NAME, read)
        return
    try:
        softmax = train_softmax(read, generator)
        alone = train_exponential(read.own, read.classes, generator)
        together = None if read.all is None else train_exponential(read.all, read.classes, generator)
    except NotConverged as error:
        yield not_applicable(NAME, str(error))
        return
    assumed = list(_assumptions(read, softmax))
    yield from assumed
    yield from _softmax_rows(softmax, met=all(row.get("verdict") == "holds" for row in assumed))
    yield by_construction(_drift_row("one query", alone, met=True))
    arrays = {"times": softmax.path.times, "true": softmax.true, "fixed": softmax.fixed, "moving": softmax.moving}
    arrays |= {"exponential": _sides(alone), "token_ids": read.token_ids}
    if together is not None:
        yield _drift_row("several queries", together, met=False)
        arrays["exponential_several"] = _sides(together)
    yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})


def _assumptions(read: Subject, softmax: Softmaxed) -> Iterator[Row]:
    note = f"share of the {read.total} sequences; {len(read.own.query)} of them are read, with {read.classes} next tokens"
    yield assumption(NAME, "all sequences ask with one query", read.share == 1, value=read.share, source=SOURCE, note=note)
    yield assumption(
        NAME,
        "the mean attention stays",
        softmax.moved <= STILL,
        value=softmax.moved,
        bound=STILL,
        op="<=",
        source=SOURCE,
        note="share of its mass that softmax attention moves during training; the line is ours",
    )
    yield assumption(
        NAME,
        "the gradient's second moment factorises",
        softmax.unfactored <= STILL,
        value=softmax.unfactored,
        bound=STILL,
        op="<=",
        source=SOURCE,
        note="relative size of what it leaves out of dz/dt at the start; the line is ours",
    )


def _softmax_rows(softmax: Softmaxed, *, met: bool) -> Iterator[Row]:
    true = softmax.true[-1, 0]
    own, other, moving = (agreement(p, true) for p in (softmax.fixed[-1, 0], softmax.fixed[-1, 1:], softmax.moving[-1, 0]))
    null = "null: predicted by the MLP of blocks that learnt shuffled next tokens"
    yield finding(
        NAME,
        ANSWER,
        Evidence(float(own.error), LINE, "<=", in_assumptions=met),
        source=SOURCE,
        predicted=0.0,
        null=float(other.error.mean()),
        note=f"how far the change of attention logits is from what the MLP's weights predict; {null}; the line is ours",
    )
    yield finding(
        NAME,
        "correlation of the softmax invariant",
        Evidence(float(own.correlation), 1 - LINE, ">=", in_assumptions=met),
        source=SOURCE,
        predicted=1.0,
        null=float(other.correlation.mean()),
        note=f"the paper's measure, blind to the size; {null}; the line is ours",
    )
    yield finding(
        NAME,
        "relative error with the mean attention of each moment",
        Evidence(float(moving.error), LINE, "<=", in_assumptions=met),
        source=SOURCE,
        predicted=0.0,
        note="what the factorisation alone leaves; the line is ours",
    )


def _drift_row(who: str, path: Path, *, met: bool) -> Row:
    """How far z - sum v^2 / 2 moved, as a share of how far z moved; RK4 leaves less than a thousandth where nothing is stiff."""
    z = path.states.logits[:, 0]
    value = float(drift(Exponential(), path)) / float((z - z[0]).abs().max())
    note = "largest change of z - Σv²/2 over that of z, exponential attention"
    return finding(
        NAME,
        f"drift of the exponential invariant, {who}",
        Evidence(value, 1e-3, "<=", in_assumptions=met),
        source=SOURCE,
        predicted=0.0,
        note=note,
    )


def _sides(path: Path) -> Float[Tensor, "2 M"]:
    """Predicted and true change of the logits of query 0."""
    squares, z = path.states.lower.square().sum(-2) / 2, path.states.logits[:, 0]
    return torch.stack([squares[-1] - squares[0], z[-1] - z[0]])
