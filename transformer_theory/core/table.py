"""Tables of measurements: selection, summary over seeds, data frame, and what a stream or a file of rows
becomes.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from .measurement import COLUMNS, IDENTITY, Measurement
from .presentation import presenting
from .sources import Source
from .statistics import over_seeds

if TYPE_CHECKING:
    import pandas


Item = TypeVar("Item")
Key = TypeVar("Key")


class Arrays(dict[str, np.ndarray]):
    """Named arrays (attention maps, trajectories, features) from which figures are drawn; they accompany the
    rows.
    """


class Table(Sequence[Measurement]):
    """An immutable sequence of measurements.

    Raises:
        TypeError: an element is not a measurement.

    >>> table = Table(Measurement("crate", "on data", "rate", 2.0 / layer, layer=layer) for layer in (1, 2))
    >>> table.select(layer=2).one().value
    1.0
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[Measurement] = ()):
        self._rows = tuple(rows)
        for row in self._rows:
            if not isinstance(row, Measurement):
                raise TypeError(f"a table holds Measurement, got {type(row).__name__}")

    @overload
    def __getitem__(self, index: int) -> Measurement: ...
    @overload
    def __getitem__(self, index: slice) -> "Table": ...
    def __getitem__(self, index):
        return Table(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return f"Table({len(self)} measurements)"

    def _repr_html_(self) -> str:
        return presenting().to_html(self)

    def select(self, *, at: Mapping[str, Any] | None = None, **equal: Any) -> "Table":
        """Returns the rows whose columns have the given values: ``table.select(theory="crate", step=(0,
        10))``.

        A tuple lists alternatives, also among the coordinates: ``table.select(at={"n": 5, "T": (5, 10)})``.
        An empty text selects rows without the coordinate.

        Raises:
            ValueError: a column is unknown.
        """
        if unknown := equal.keys() - set(COLUMNS):
            raise ValueError(f"columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        columns, coordinates = _alternatives(equal), _alternatives(at or {})
        return Table(
            row
            for row in self._rows
            if all(getattr(row, name) in values for name, values in columns.items())
            and all(row.at.get(name, "") in values for name, values in coordinates.items())
        )

    def where(self, keep: Callable[[Measurement], bool]) -> "Table":
        """Returns the rows for which ``keep`` is true."""
        return Table(row for row in self._rows if keep(row))

    def one(self) -> Measurement:
        """Returns the only row.

        Raises:
            ValueError: the table does not have exactly one row.
        """
        if len(self._rows) != 1:
            raise ValueError(f"expected one row, got {len(self._rows)}; add conditions to select()")
        return self._rows[0]

    def replace(self, **columns: Any) -> "Table":
        """Returns the table with these columns set in every row."""
        return Table(dataclasses.replace(row, **columns) for row in self._rows)

    def column(self, name: str) -> list[Any]:
        """Returns the values of one column, in the order of the rows."""
        return [getattr(row, name) for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """Converts the table to a ``pandas.DataFrame``, one line per row.

        Each coordinate becomes a column. If one of them is called n, as in many papers, the number of samples
        is the column ``samples``. A null becomes five columns (kind, number of draws, low, median, high): the
        first ``null_kind``, ..., the second ``null2_kind``, ...; an interval and the bounds become two each.
        """
        import pandas

        def spread(row: Measurement) -> dict[str, Any]:
            line: dict[str, Any] = {}
            for name in COLUMNS:
                value = getattr(row, name)
                if name == "nulls":
                    for number in range(nulls):
                        null = value[number] if number < len(value) else None
                        for column in ("kind", "draws", "low", "median", "high"):
                            entry = (
                                len(null.draws) if null and column == "draws" else getattr(null, column, None)
                            )
                            line[f"null{number + 1 if number else ''}_{column}"] = entry
                elif name in ("interval", "bounds"):
                    line[f"{name}_low"], line[f"{name}_high"] = value or (None, None)
                elif name == "at":
                    line |= {coordinate: value.get(coordinate) for coordinate in coordinates}
                elif name == "n" and "n" in coordinates:
                    line["samples"] = value
                else:
                    line[name] = str(value) if isinstance(value, Source) else value
            return line

        nulls = max([1, *(len(row.nulls) for row in self._rows)])
        coordinates = tuple(dict.fromkeys(name for row in self._rows for name in row.at))
        columns = spread(self._rows[0] if self._rows else Measurement("", "network", "", 0.0))
        frame = pandas.DataFrame([spread(row) for row in self._rows], columns=list(columns))
        numbers = [
            name for name in columns if re.fullmatch(r"null\d*_(?!kind).*|(interval|bounds)_(low|high)", name)
        ]
        return frame.astype(dict.fromkeys(numbers, float))

    def summary(self) -> "Table":
        """Averages the table over seeds: mean, 95 % interval over seeds (Student's t), and the null of the
        mean (:meth:`Null.mean_of`).

        Rows that agree in every column of :data:`IDENTITY` form a group.
        """
        groups = grouped(self._rows, lambda row: tuple(getattr(row, name) for name in IDENTITY))
        return Table(over_seeds(rows) for rows in groups.values())


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Groups items by a key. Keys, and the items of each key, stay in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _alternatives(equal: Mapping[str, Any]) -> dict[str, tuple]:
    """Returns the accepted values of each name; a tuple lists several."""
    return {name: value if isinstance(value, tuple) else (value,) for name, value in equal.items()}


def from_records(records: Iterable[Mapping[str, Any]]) -> Table:
    """Restores a table from rows as JSON values, of this or of the former version.

    The former version stored a second null of a measurement as a second row, whose ``setting`` was
    "null: KIND", or "untrained networks" beside rows of single heads. Such a row becomes a further null of
    the row with the same identity, on a ladder that of the same rung; without such a row it loses its
    setting.

    Raises:
        ValueError: a record does not hold a measurement.
    """
    rows: list[Measurement] = []
    places: dict[tuple, int] = {}
    for record in records:
        setting = record.get("setting", "")
        further = setting.startswith("null: ") or setting == "untrained networks"
        row = Measurement.from_json(
            {name: value for name, value in record.items() if not further or name != "setting"}
        )
        # the two rows could differ in scope and split, and on a ladder also in data and model
        differing = ("scope", "split", *(("data", "model") if row.kind == "rung" else ()))
        columns = [name for name in (*IDENTITY, "seed") if name not in differing]
        place = tuple(getattr(row, name) for name in columns)
        if further and place in places:
            main = rows[places[place]]
            nulls = (
                row.nulls if row.value == main.value else [null.with_value(row.value) for null in row.nulls]
            )
            rows[places[place]] = dataclasses.replace(main, nulls=(*main.nulls, *nulls))
        else:
            places.setdefault(place, len(rows))
            rows.append(row)
    return Table(rows)


def collect(stream: Iterable[Measurement | Arrays]) -> tuple[Table, dict[str, np.ndarray]]:
    """Splits a stream into its measurements and its arrays.

    Raises:
        ValueError: two arrays of the stream have the same name.
        TypeError: an item is neither a measurement nor :class:`Arrays`.
    """
    rows: list[Measurement] = []
    arrays: dict[str, np.ndarray] = {}
    for item in stream:
        if isinstance(item, Arrays):
            if duplicates := arrays.keys() & item.keys():
                raise ValueError(
                    f"array names must be unique within a result, got {sorted(duplicates)} twice; prefix them"
                )
            arrays.update({name: np.asarray(value) for name, value in item.items()})
        else:
            rows.append(item)
    return Table(rows), arrays
