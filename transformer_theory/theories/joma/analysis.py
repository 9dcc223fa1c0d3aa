r"""What JoMA says about anyone's discrete sequences: does attention follow from the MLP's weights, as its invariants say?

    found = analyse(ids, query_ids, next_ids)     # [n, context], [n], [n]: numpy or torch
    print(found)                                  # assumptions, errors of the invariants beside their nulls, verdicts
    found.rows(), found.draw()

The theory's own block (linear units, cross-entropy over the next tokens) is trained on the contexts of the most frequent query
(:mod:`.subject`, :mod:`.trainings`), by gradient flow. With exponential attention the invariant holds on any data, so it is shown without
a verdict; once other queries train the same MLP it fails, and by how much is measured. With softmax attention the invariant needs a mean
attention that stays and an expectation that factorises: both are measured, then the predicted change of the logits meets the true one. The
null is the change predicted from the MLP of a block that learnt shuffled next tokens; where it passes the line as well, agreement is no
evidence. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.measurement import Arrays, Row, not_applicable
from ...data.ids import sequence_ids
from .analysis_rows import NAME, rows_of
from .subject import Subject, subject
from .trainings import Drift, Softmaxed, can_move, train_exponential, train_softmax

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """What was found on the sequences of the most frequent query.

    Attributes:
        sequences, context: numbers of sequences, and of contextual tokens a sequence.
        subject: what is read of the sequences, or the reason why nothing is.
        softmax: training with softmax attention; None if nothing is read or attention has no choice (contexts of a single token).
        alone: training with exponential attention on the query's own sequences; None if nothing is read.
        together: the same with other queries; None if nothing is read or there are none.
    """

    sequences: int
    context: int
    subject: Subject | str
    softmax: Softmaxed | None = None
    alone: Drift | None = None
    together: Drift | None = None

    def rows(self) -> list[Row]:
        """Assumptions, the softmax invariant beside its null, the drift of the exponential one; or one row that says why not."""
        if isinstance(self.subject, str):
            return [not_applicable(NAME, self.subject)]
        assert self.alone is not None
        return [*rows_of(self.subject, self.softmax, self.alone, self.together)]

    def arrays(self) -> Arrays:
        """What the picture is drawn from; empty if nothing was read."""
        if isinstance(self.subject, str):
            return Arrays()
        held = {"token_ids": self.subject.token_ids}
        if (softmax := self.softmax) is not None:
            held |= {"times": softmax.path.times, "true": softmax.true, "fixed": softmax.fixed, "moving": softmax.moving}
        for name, found in (("exponential", self.alone), ("exponential_several", self.together)):
            if found is not None:
                held[name] = torch.stack([found.squares, found.logits])
        return Arrays({f"{NAME}/{name}": values.numpy() for name, values in held.items()})

    def draw(self) -> "Figure":
        """Predicted against true change of the logits, and the error over training."""
        from ...core.result import Result
        from .figures.analysis import draw

        return draw(Result(NAME, table=self.rows(), arrays=dict(self.arrays())))

    def __repr__(self) -> str:
        size = f"sequences={self.sequences}, context={self.context}"
        if isinstance(self.subject, str):
            return f"Analysis({size}, unread={self.subject!r})"
        return f"Analysis({size}, read={len(self.subject.own.query)}, classes={self.subject.classes})"

    def __str__(self) -> str:
        lines = [f"{self.sequences} sequences of {self.context} contextual tokens"]
        for row in self.rows():
            value = "" if row["value"] is None else f" {row['value']:.3g}"
            null = f" (null {row['null']:.3g})" if "null" in row else ""
            lines.append(f"{row['quantity']}:{value}{null} {row.get('verdict', 'no verdict')}")
        return "\n".join(lines)


def analyse(
    ids: Int[np.ndarray, "n context"] | Int[Tensor, "n context"],
    query_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    next_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    *,
    seed: int = 0,
) -> Analysis:
    """Trains the theory's block on the sequences and holds its logits against what the MLP's weights predict.

    Args:
        ids: contextual tokens, in any order, the query not among them, ``[n, context]``.
        query_ids: the token that asks, ``[n]``; the most frequent one is read.
        next_ids: the token that follows, ``[n]``.
        seed: of starts, shuffles and, of more than 300 sequences, which are kept.
    Returns:
        What was found. Assumptions that fail, and the reason why sequences cannot be read, are part of it.
    Raises:
        ValueError: ids that are no whole numbers from 0 on, lengths that differ, no sequence, or a seed that is no whole number from 0 on.
    Source: :cite:t:`tian2024joma`.
    """
    ids, query_ids, next_ids, _ = sequence_ids(ids, query_ids, next_ids, None)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return analysis_of(ids, query_ids, next_ids, torch.Generator().manual_seed(int(seed)))


def analysis_of(ids: Int[Tensor, "n context"], query_ids: Int[Tensor, " n"], next_ids: Int[Tensor, " n"], generator: Generator) -> Analysis:
    """:func:`analyse` of checked ids with a generator. Source: :cite:t:`tian2024joma`."""
    (n, context), read = ids.shape, subject(ids, query_ids, next_ids, generator)
    if isinstance(read, str):
        return Analysis(n, context, read)
    try:
        softmax = train_softmax(read, generator) if can_move(read.own) else None
        alone = train_exponential(read.own, read.classes, generator)
        together = None if read.all is None else train_exponential(read.all, read.classes, generator)
    except NotConverged as error:
        return Analysis(n, context, str(error))
    return Analysis(n, context, read, softmax, alone, together)
