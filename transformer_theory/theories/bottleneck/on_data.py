r"""The bottleneck of the user's words: how much a word tells of the label of its sequence, and at which
trade-off anything is kept.

X is a word (the id of a token, or its k-means word if there are no ids), Y the label of the sequence. The
curve and the onset :math:`1/\eta_{KL}` belong to the counts of half of the sequences. The bottleneck at four
times the onset is then measured on the other half. The null permutes the labels of that half, sequence by
sequence, because words of one sequence are not independent. The onset has its own null, permuted labels in
the first half: counts of few samples have dependence even where the variables have none. Source:
:cite:t:`tishby1999information`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.measurement import Measurement, Null, present
from ...core.plotting import COLOURS, axes, caption, colour, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator, permutations
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data import TokenData
from .curve import information_bottleneck
from .first_beta import onset
from .in_networks import NULL_KIND
from .information import information, plug_in_bias, table, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "bottleneck", Source("tishby1999information", status="own")
HELD_OUT = "held-out information of the bottleneck of words"
WHOLE, ONSET, LOCAL = (
    "information of word and label",
    "onset 1/eta of the bottleneck",
    "local onset 1/sigma_2^2",
)
BIAS = "plug-in bias as a share of the information of word and label"
# words and labels that are kept at most; sequences that are needed; beta over the onset
WORDS, LEAST, FACTOR = 32, 8, 4.0
FACTORS = (1.02, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)
STARTS, STEPS = 16, 120  # of the onset, equal for data and null
SMALL = 0.1  # largest share of the bias


@dataclass(frozen=True)
class WordLabels:
    """Words and label of each sequence, as numbers from 0: words ``[n, seq]``, labels ``[n]``."""

    ids: Int[Tensor, "n seq"]
    labels: Int[Tensor, " n"]


def read(data: TokenData) -> WordLabels | Unsupported:
    """Takes the 32 most frequent ids (others become one word), or k-means words of the tokens, and the
    labels.
    """
    if data.labels is None:
        return Unsupported("needs labels")
    if len(data) < LEAST:
        return Unsupported(f"needs {LEAST} sequences with labels, got {len(data)}")
    labels = torch.unique(data.labels, return_inverse=True)[1]
    if int(labels.max()) == 0:
        return Unsupported("needs two classes")
    if len(data) < 2 * (int(labels.max()) + 1):
        return Unsupported("needs two sequences per class on average")
    if data.ids is None:
        ids = words(data.tokens.flatten(0, 1), WORDS).view(data.tokens.shape[:2])
    else:
        ids = torch.unique(data.ids, return_inverse=True)[1]
        rank = torch.bincount(ids.flatten()).argsort(descending=True, stable=True).argsort()
        ids = rank[ids].clamp(max=WORDS - 1)
    return WordLabels(ids, labels) if int(ids.max()) else Unsupported("needs two different words")


def counts(problem: WordLabels, part: Tensor, labels: Int[Tensor, "... n"]) -> Tensor:
    """Returns the law of word and label in some sequences, one per row of labels, ``[..., x, y]``."""
    ids = problem.ids[part]
    shape = int(problem.ids.max()) + 1, int(problem.labels.max()) + 1
    return table(ids.flatten(), labels.repeat_interleave(ids.shape[1], dim=-1), shape) / ids.numel()


def measure(problem: WordLabels, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the curve of one half, and the bottleneck of this half on the other one.

    Args:
        problem: result of :func:`read`.
        generator: not used: nothing is random.
        draws: permutations of the labels of the second half.
    """
    n = len(problem.labels)
    order = torch.randperm(n, generator=fixed_generator())
    first, second = order[: n // 2], order[n // 2 :]
    law, other = (
        counts(problem, first, problem.labels[first]),
        counts(problem, second, problem.labels[second]),
    )
    used = [int((law.sum(axis) > 0).sum()) for axis in (1, 0)]
    whole, size = float(information(law)), len(first) * problem.ids.shape[1]
    columns = {"source": SOURCE, "n": n}
    if min(used) < 2 or whole < 1e-9:
        yield Measurement(
            NAME,
            "on data",
            HELD_OUT,
            None,
            unit="nats",
            reason="word and label are independent in the first half",
            **columns,
        )
        return
    bias = plug_in_bias(used[0], used[1], size)
    share = bias / whole
    verdict = "holds" if share <= SMALL else "fails"
    yield Measurement(
        NAME, "assumption", BIAS, share, unit="share", op="<=", threshold=SMALL, verdict=verdict, **columns
    )
    found = onset(law, starts=STARTS, steps=STEPS)
    shuffled = counts(
        problem, first, problem.labels[first][permutations(len(first), min(draws, RANGE_DRAWS))]
    )
    nulls = [onset(each, starts=STARTS, steps=STEPS) for each in shuffled if float(information(each)) > 1e-9]
    whole_null = Null(NULL_KIND, tuple((information(shuffled) - bias).tolist())) if draws else None
    note = f"bias {bias:.4f} nats removed, for {size} independent words"
    yield Measurement(
        NAME,
        "on data",
        WHOLE,
        whole - bias,
        unit="nats",
        side=">=",
        nulls=present(whole_null),
        note=note,
        **columns,
    )
    for name, value, others in (
        (ONSET, found.beta, [each.beta for each in nulls]),
        (LOCAL, found.local_beta, [each.local_beta for each in nulls]),
    ):
        null = Null(NULL_KIND, tuple(others)) if others else None
        yield Measurement(NAME, "on data", name, value, side="<=", nulls=present(null), **columns)
    try:
        curve = information_bottleneck(law, [found.beta * factor for factor in FACTORS])
    except NotConverged as error:
        yield Measurement(
            NAME, "on data", HELD_OUT, None, unit="nats", reason=" ".join(str(error).split()), **columns
        )
        return
    chosen = curve.points[FACTORS.index(FACTOR)]
    # Words that the first half lacks have no code word; they get the mean encoder.
    encoder = torch.zeros(len(law), chosen.encoder.shape[1], dtype=torch.float64)
    occurring = law.sum(1) > 0
    encoder[occurring] = chosen.encoder
    encoder[~occurring] = law.sum(1)[occurring] @ chosen.encoder
    value = float(information(encoder.T @ other))
    orders = permutations(len(second), draws)
    draws_ = [
        float(information(encoder.T @ counts(problem, second, problem.labels[second][each])))
        for each in orders
    ]
    null = Null(NULL_KIND, tuple(draws_)) if draws_ else None
    note = (
        f"the bottleneck at {FACTOR:g} times the onset keeps {chosen.relevance:.3f} of {whole:.3f} nats of "
        "the half that it was made from"
    )
    yield Measurement(
        NAME, "on data", HELD_OUT, value, unit="nats", side=">=", nulls=present(null), note=note, **columns
    )
    arrays = {
        "compression": curve.column("compression"),
        "relevance": curve.column("relevance"),
        "whole": [whole],
    }
    arrays["held_out"] = [float(information(encoder * other.sum(1)[:, None])), value]
    yield Arrays({f"{NAME}/{name}": np.array(values) for name, values in arrays.items()})


@style()
def plot(result: Result) -> "Figure":
    """Draws the curve of word and label, and the held-out bottleneck."""
    if f"{NAME}/relevance" not in result.arrays or f"{NAME}/held_out" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Information bottleneck: {reasons[0] if reasons else 'nothing was measured'}")
    figure, (ax,) = axes(width=6.0, height=3.2)
    ax.plot(
        [0, *result.arrays[f"{NAME}/compression"]],
        [0, *result.arrays[f"{NAME}/relevance"]],
        color=colour(NAME),
        label="curve",
    )
    x, y = result.arrays[f"{NAME}/held_out"]
    ax.plot([x], [y], "o", color=COLOURS["raw"], label="bottleneck, held out", zorder=5)
    ax.set(xlabel="I(X;Z) in nats", ylabel="I(Z;Y) in nats", ylim=(0, None), xlim=(0, None))
    ax.legend(loc="lower right")
    caption(
        figure,
        "X: word, Y: label of its sequence. Curve: the first half of the sequences; dot: its bottleneck on "
        "the other half.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=HELD_OUT, plot=plot)
