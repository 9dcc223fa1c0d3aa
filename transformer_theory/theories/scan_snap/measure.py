"""The theory on a data set: :func:`~.analysis.analyse` of its sequences, as rows and arrays.

The words at all positions but the query's are the context, the word at the query's position asks (the last one, if no position holds the
query), and the next token is the class. One query is read, the most frequent one.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator

import torch

from ...core.measurement import Arrays, Row, not_applicable
from ...data.tokens import TokenData
from .analysis import analyse
from .reading_rows import NAME


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Assumptions, predictions from counts alone, and what exact gradient descent on the sequences does; see :mod:`.analysis`.

    Args:
        data: with ``ids`` and ``next_id``.
        generator: draws the seed of batches, shuffles, held-out sequences and chance.

    Source: :cite:t:`tian2023scan`.
    """
    assert data.ids is not None
    assert data.next_id is not None
    if data.ids.shape[1] < 3:
        yield not_applicable(NAME, f"needs sequences of at least two contextual tokens and a query, got {data.ids.shape[1]} tokens")
        return
    seed = int(torch.randint(2**31, (1,), generator=generator))
    found = analyse(*data.context_and_query(), data.next_id, vocab_size=max(data.vocab_size or 0, 2), seed=seed)
    yield from found.rows()
    if found.readings:
        yield found.arrays()
