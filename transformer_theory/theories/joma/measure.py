"""The theory on a data set: :func:`~.analysis.analyse` of its sequences, as rows and arrays.

The words at all positions but the query's are the context, the word at the query's position asks (the last one, if no position holds the
query), and the next token is the class. Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator

import torch

from ...core.measurement import Arrays, Row, not_applicable
from ...data.tokens import TokenData
from .analysis import analysis_of
from .analysis_rows import NAME


def predict_and_measure(data: TokenData, generator: torch.Generator) -> Iterator[Row | Arrays]:
    """Assumptions, then the invariants on the data; see :mod:`.analysis`.

    Args:
        data: with ``ids`` (the last one is the query) and ``next_id``.
        generator: draws starts, shuffles and, of large data, the sequences.
    Source: :cite:t:`tian2024joma`.
    """
    assert data.ids is not None
    assert data.next_id is not None
    if data.ids.shape[1] < 2:
        yield not_applicable(NAME, f"needs sequences of at least one contextual token and a query, got {data.ids.shape[1]} token")
        return
    found = analysis_of(*data.context_and_query(), data.next_id, generator)
    yield from found.rows()
    if arrays := found.arrays():
        yield arrays
