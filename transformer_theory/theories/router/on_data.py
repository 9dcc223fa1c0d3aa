r"""Selectors on the user's data: one token of each sequence is chosen, and the label is predicted from it.
Does the choice tell the label?

Up to sixteen principal components of the tokens, standardised, are joined to a one-hot code of the position,
and six selectors are trained with the annealed schedule on two thirds of the data. In three the router sees
everything; in the other three it sees positions only, so that their choice is the same for all sequences:
blind to the label. Of each kind the one with the highest accuracy on the training data is measured on the
other third.

The headline is :math:`I(C; Y)`, corrected for bias. Its null permutes the labels of the measured sequences;
on noise it is at chance. Beside it stand both accuracies. Their difference has two causes that it cannot
separate: a choice by contents may take a token that carries more, and may itself tell the label.
Source: :cite:t:`lei2016rationalizing`, :cite:t:`jethani2021learned`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.measurement import Measurement, Null, present
from ...core.plotting import COLOURS, axes, caption, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import fixed_generator, permutations
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.tokens import TokenData, stratified
from .information import choice_information, information_bias, information_null
from .ladder import NAME
from .selector import BATCH, train_selectors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEI, SOURCE = Source("lei2016rationalizing", status="own"), Source("jethani2021learned", status="own")
INFORMATION = "information of the selector's choice about the label"
ACCURACY, BLIND = "accuracy from the chosen token", "accuracy from the token of a label-blind choice"
BIAS = "bias that was subtracted from the information"
NULL_KIND = "permuted labels"
STEPS, MAX_SAMPLES, MAX_TOKENS, MAX_DIM, SHARE = 400, 3000, 64, 16, 2 / 3
CHUNK = 500  # sequences that are measured at once
KINDS = 3  # networks of each kind
PER_CLASS = 1  # measured sequences per class


@dataclass(frozen=True, eq=False)
class LabelledTokens:
    """Standardised tokens behind a one-hot code of their position, labels 0 to k - 1, and the indices of both
    parts.

    Attributes:
        tokens: ``[n, T, T + k]`` float32.
        labels: ``[n]``.
        train, test: indices of the sequences.
    """

    tokens: Float[Tensor, "n T d"]
    labels: Int[Tensor, " n"]
    train: Int[Tensor, " train"]
    test: Int[Tensor, " test"]


def read(data: TokenData) -> LabelledTokens | Unsupported:
    """Takes up to 3,000 sequences; needs two classes, at least two tokens, and a measured sequence per class
    on average.
    """
    if data.labels is None:
        return Unsupported("needs labels: the selector chooses the token from which the label is predicted")
    n, T, _ = data.tokens.shape
    if not 2 <= T <= MAX_TOKENS:
        return Unsupported(f"needs sequences of 2 to {MAX_TOKENS} tokens, got {T}")
    chosen = torch.randperm(n, generator=fixed_generator())[:MAX_SAMPLES]
    found, labels = data.labels[chosen].unique(return_inverse=True)
    if len(found) < 2:
        return Unsupported("needs at least two classes")
    if len(chosen) * (1 - SHARE) < PER_CLASS * len(found):
        return Unsupported(
            f"needs at least {3 * PER_CLASS * len(found)} sequences for {len(found)} classes, got {n}"
        )
    contents = _standardised(data.tokens[chosen])
    positions = torch.eye(T, dtype=torch.float64).expand(len(contents), T, T)
    train, test = stratified(len(contents), labels, SHARE, fixed_generator(), what="sequences")
    return LabelledTokens(torch.cat([positions, contents], -1).float(), labels, train, test)


def _standardised(tokens: Float[Tensor, "n T d"]) -> Float[Tensor, "n T k"]:
    """Returns the leading principal components, at most :data:`MAX_DIM`, each with variance 1, or 0 if it
    does not vary.
    """
    largest = tokens.abs().amax()
    scaled = (tokens / largest if largest > 0 else tokens).flatten(0, 1)
    centred = scaled - scaled.mean(0)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(centred))
    values, vectors = values.flip(0)[:MAX_DIM], vectors.flip(1)[:, :MAX_DIM]
    # A direction that varies by rounding only is dropped by dividing it by infinity.
    spread = torch.where(values > 1e-12 * values.amax().clamp_min(1e-18), values, torch.inf).sqrt()
    return (centred @ vectors / spread).unflatten(0, tokens.shape[:2])


def measure(problem: LabelledTokens, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Trains the selectors, and yields information and accuracies on the measured sequences.

    Args:
        problem: result of :func:`read`.
        generator: draws weights, batches and noise.
        draws: number of null draws.
    """
    _, T, dim = problem.tokens.shape
    visible = torch.ones(2 * KINDS, 1, 1, dim)
    visible[KINDS:, ..., T:] = 0  # the routers of the second kind see positions only
    labels = problem.labels

    def doubled(x: Tensor) -> Tensor:
        """Returns what each router sees, then what all heads see, ``[networks, batch, T, 2 dim]``."""
        return torch.cat([x * visible, x.expand(2 * KINDS, *x.shape[-3:])], -1)

    def draw(draws: Generator) -> tuple[Tensor, Tensor]:
        rows = problem.train[torch.randint(len(problem.train), (2 * KINDS, BATCH), generator=draws)]
        return doubled(problem.tokens[rows]), labels[rows]

    classes = int(labels.max()) + 1
    try:
        model = train_selectors(
            draw, 2 * dim, networks=2 * KINDS, steps=STEPS, generator=generator, sees=dim, classes=classes
        )
    except NotConverged as error:
        yield Measurement(
            NAME,
            "on data",
            INFORMATION,
            None,
            unit="nats",
            reason=" ".join(str(error).split()),
            source=SOURCE,
        )
        return
    with torch.no_grad():
        parts = [model(doubled(part[None])) for part in problem.tokens.split(CHUNK)]
    logits, scores = (torch.cat(each, 1) for each in zip(*parts))
    right = (logits.argmax(-1) == labels).double()
    trained = right[:, problem.train].mean(1)
    best, blind = int(trained[:KINDS].argmax()), KINDS + int(trained[KINDS:].argmax())
    choice, target = scores.argmax(-1)[best, problem.test], labels[problem.test]
    count, tokens = len(target), len(choice.unique())
    columns = {"n": count, "split": "test", "side": ">="}
    null = Null(NULL_KIND, information_null(choice, target, draws)) if draws else None
    bias = information_bias(tokens, len(target.unique()), count)
    few = " Few sequences: the correction is large." if count < 5 * tokens * classes else ""
    note = (
        f"{tokens} of {T} positions are chosen; {bias:.3f} nats of bias were subtracted, log {classes} is "
        f"{np.log(classes):.2f}.{few}"
    )
    value = choice_information(choice, target)
    yield Measurement(
        NAME,
        "on data",
        INFORMATION,
        value,
        unit="nats",
        nulls=present(null),
        note=note,
        source=SOURCE,
        **columns,
    )
    yield Measurement(NAME, "on data", BIAS, bias, unit="nats", n=count, source=SOURCE, scope="any data")
    for quantity, number in ((ACCURACY, best), (BLIND, blind)):
        predicted = logits[number, problem.test].argmax(-1)
        chance = [
            float((predicted == target[order]).double().mean())
            for order in permutations(count, min(draws, 19))
        ]
        share = float((predicted == target).double().mean())
        null = Null(NULL_KIND, tuple(chance)) if draws else None
        yield Measurement(
            NAME, "on data", quantity, share, unit="share", nulls=present(null), source=LEI, **columns
        )
    table = torch.bincount(target * T + choice, minlength=classes * T).reshape(classes, T).double()
    blind_token = scores.argmax(-1)[blind, problem.test[:1]]
    yield Arrays(
        {
            f"{NAME}/choices": (table / table.sum(1, keepdim=True).clamp(min=1)).numpy(),
            f"{NAME}/blind": blind_token.numpy(),
        }
    )


@style()
def plot(result: Result) -> "Figure":
    """Draws how often each position is chosen, by class, and the position of the label-blind choice."""
    if f"{NAME}/choices" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Routing: {reasons[0] if reasons else 'nothing was measured'}")
    table = result.arrays[f"{NAME}/choices"]
    figure, (ax,) = axes(width=6.0, height=3.0)
    image = ax.imshow(table, aspect="auto", vmin=0, vmax=max(float(table.max()), 1e-9), cmap="Reds")
    figure.colorbar(image, ax=ax, label="share of the class")
    for position in result.arrays.get(f"{NAME}/blind", ()):
        ax.axvline(position, color=COLOURS["null"], linestyle=":")
    ax.set(xlabel="chosen position", ylabel="class")
    ax.grid(visible=False)
    caption(
        figure,
        "Choices of the selector on sequences it has not seen, by class. Dotted: the position of the "
        "label-blind choice.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=INFORMATION, plot=plot)
