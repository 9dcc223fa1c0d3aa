r"""The theory on anyone's discrete sequences: what it predicts from counts, what its model does when it is trained, and whether they agree.

    found = analyse(ids, query_ids, next_ids)     # [n, context], [n], [n]: numpy or torch
    print(found)                                  # assumptions, predicted and measured order of the tokens, verdict
    found.rows(), found.draw()

The theory treats one query at a time, so the sequences of each of the most frequent queries are read and learnt by themselves
(:mod:`.subject`): :math:`P(l | n)` is counted, the assumptions are measured, four dynamics predict where attention goes
(:mod:`.predictions`), and exact gradient descent (:mod:`.trained`) shows where it went, beside descent on shuffled next tokens.
Assumptions that fail make a verdict, "outside assumptions", and queries that cannot be read a line that says why.

Source: :cite:t:`tian2023scan`.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ...core.measurement import Arrays, Row, not_applicable
from ...data.ids import sequence_ids
from .closed_form import check_rates
from .predictions import UNMOVED, predictions
from .reading import Reading, reading
from .reading_rows import NAME, arrays_of, rows_of
from .subject import MOST_CLASSES, Unread, subject
from .trained import affordable, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ETA_Y, ETA_Z = 1.0, 0.1
FASTEST = 1e6  # learning rate: beyond it logits leave the range of floating point within a few steps
LONGEST = 10**7  # steps


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """What was found, query by query.

    Attributes:
        sequences, context, vocab_size: numbers of sequences, contextual tokens a sequence, and tokens of the vocabulary.
        readings: of the queries that could be read, the most frequent first.
        unread: the others, with the reason.
    """

    sequences: int
    context: int
    vocab_size: int
    readings: tuple[Reading, ...]
    unread: tuple[Unread, ...]

    def rows(self) -> list[Row]:
        """The rows of all readings, ``model`` naming the query; a row "not applicable" for each query that could not be read."""
        found = [row for given in self.readings for row in rows_of(given)]
        return found + [Row(**{**not_applicable(NAME, given.reason), "model": f"query {given.query_id}"}) for given in self.unread]

    def arrays(self) -> Arrays:
        """What the picture is drawn from: the most frequent query that could be read; empty if none could."""
        return arrays_of(self.readings[0]) if self.readings else Arrays()

    def draw(self) -> "Figure":
        """The picture of the most frequent query that could be read."""
        from ...core.result import Result
        from .figures.analysis import draw

        return draw(Result(NAME, table=self.rows(), arrays=dict(self.arrays())))

    def __repr__(self) -> str:
        size = f"sequences={self.sequences}, context={self.context}, vocab_size={self.vocab_size}"
        return f"Analysis({size}, readings={list(self.readings)}, unread={len(self.unread)})"

    def __str__(self) -> str:
        lines = [f"{self.sequences} sequences of {self.context} contextual tokens, {self.vocab_size} tokens in the vocabulary"]
        lines += map(str, self.readings)
        lines += [f"query {given.query_id}: {given.asked} of {self.sequences} sequences; {given.reason}" for given in self.unread]
        return "\n".join(lines)


def analyse(
    ids: Int[np.ndarray, "n context"] | Int[Tensor, "n context"],
    query_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    next_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    *,
    vocab_size: int | None = None,
    queries: int = 1,
    classes: int = MOST_CLASSES,
    steps: int | None = None,
    eta_y: float = ETA_Y,
    eta_z: float = ETA_Z,
    seed: int = 0,
) -> Analysis:
    r"""Predicts from counts where attention goes, trains the theory's model on the sequences, and compares.

    Args:
        ids: contextual tokens, in any order, the query not among them, ``[n, context]``.
        query_ids: the token that asks, ``[n]``.
        next_ids: the token that follows, ``[n]``.
        vocab_size: M; ids lie in ``[0, M)``. One more than the largest id if None.
        queries: how many to read, the most frequent first; fewer if there are fewer.
        classes: the most frequent next tokens of a query that are read, at most.
        steps: of gradient descent, with batches of up to 128; as many as a billion multiplications pay for, 50 to 1000, if None.
        eta_y, eta_z: learning rates of decoder and attention, in (0, 1e6]. The theory wants the first much larger.
        seed: of batches, shuffles, what is held out, and chance.
    Returns:
        What was found. Assumptions that fail and queries that cannot be read are part of it.
    Raises:
        ValueError: ids that are no whole numbers or outside the vocabulary, lengths that differ, no sequence, or a number out of range.
        NotConverged: the weights became infinite (lower the rates).

    Source: :cite:t:`tian2023scan`.
    """
    ids, query_ids, next_ids, M = sequence_ids(ids, query_ids, next_ids, vocab_size)
    _check(queries, classes, steps, seed, eta_y=eta_y, eta_z=eta_z)
    asked, counts = query_ids.unique(return_counts=True)
    readings, unread = [], []
    for query in asked[counts.argsort(descending=True, stable=True)[:queries]].tolist():
        generator = torch.Generator().manual_seed(seed)  # so that a query's reading does not depend on the others
        read = subject(ids, query_ids, next_ids, query_id=query, vocab_size=M, most=classes, generator=generator)
        if isinstance(read, Unread):
            unread.append(read)
            continue
        trained = train(read, steps=steps or affordable(read), eta_y=eta_y, eta_z=eta_z, generator=generator)
        if float(trained.change[0].abs().max()) < UNMOVED:
            unread.append(Unread(query, read.asked, f"attention moved by less than {UNMOVED:g} in {trained.steps} steps"))
            continue
        predicted = predictions(read.classes, trained.path.steps.double(), eta_y=eta_y, eta_z=eta_z)
        readings.append(reading(read, predicted, trained, eta_y=eta_y, eta_z=eta_z, generator=generator))
    return Analysis(len(ids), ids.shape[1], M, tuple(readings), tuple(unread))


def _check(queries: int, classes: int, steps: int | None, seed: int, **rates: float) -> None:
    for name, value, least, most in (
        ("queries", queries, 1, math.inf),
        ("classes", classes, 2, math.inf),
        ("steps", steps, 1, LONGEST),
        ("seed", seed, 0, 2**63 - 1),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            upto = "" if most == math.inf else f" and at most {most:,}"
            raise ValueError(f"{name} must be a whole number of at least {least}{upto}, got {value!r}")
    for name, rate in rates.items():
        if not isinstance(rate, Real):
            raise ValueError(f"{name} must be a number, got {type(rate).__name__}")
    check_rates(**rates)
    for name, rate in rates.items():
        if rate > FASTEST:
            raise ValueError(
                f"{name} must be at most {FASTEST:.0e}, got {rate:g}: logits would leave the range of floating point; lower it"
            )
