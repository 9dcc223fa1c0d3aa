"""What the figures of CRATE share: ranges over seeds as rows."""

from collections.abc import Iterator, Sequence

from ....core.measurement import Measurement

RANGE = ("smallest", "largest")  # the ends of a range are the rows "smallest of ..." and "largest of ..."


def range_of(row: Measurement, values: Sequence[float]) -> Iterator[Measurement]:
    """Yields the rows of the smallest and of the largest value beside that of the mean."""
    place = {"at": row.at, "model": row.model, "layer": row.layer, "n": row.n, "source": row.source}
    for name, end in zip(RANGE, (min(values), max(values))):
        yield Measurement(
            row.theory, "figure", f"{name} of {row.quantity}", float(end), unit=row.unit, **place
        )
