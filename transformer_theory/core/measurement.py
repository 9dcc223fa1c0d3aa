"""The row of every table, :class:`Measurement`, its null distribution :class:`Null`, and :class:`Table`, a sequence of rows.

A quantity is a name; everything else has its own column. Notes are for people: no code reads them.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from .sources import Source

if TYPE_CHECKING:
    import pandas

Kind = Literal["claim", "assumption", "rung", "figure", "on data", "in network", "network"]
"""The subject of a row.

- claim: one seed of a claim's check;
- assumption: whether an assumption of a theorem holds (verdict "holds" or "fails");
- rung: one rung of a theory's ladder;
- figure: a number of an :class:`~.experiment.Experiment`, the figure of a paper redone;
- on data: a quantity of a theory's minimal model on a data set;
- in network: a quantity of a theory in a trained network;
- network: a quantity of a network that belongs to no theory (accuracy, loss, attention statistics).
"""
Scope = Literal["these data", "any data", "training", "own instances"]
Unit = Literal["", "share", "nats", "bits", "s", "steps"]
Basis = Literal["theory", "limit", "printed", "figure", "recomputed", "own setting"]
"""Where ``predicted`` comes from.

- theory: the theory's value of exactly this quantity (a formula, an optimum, a bound);
- limit: the limit that the theory states, which a finite run need not reach;
- printed: a number printed in the paper or by its released code;
- figure: read off a published figure, to the thickness of its line;
- recomputed: no number was published; computed from the published settings by an independent method (another solver, plain autograd);
- own setting: measured in the theory's own setting, the first rung of a ladder.
"""
Op = Literal["<=", ">="]
Side = Literal["<=", ">=", "=="]
VerdictName = Literal["consistent", "violated", "inconclusive", "not covered", "holds", "fails"]

DEFAULT_SCOPE: Mapping[str, Scope] = {"claim": "own instances", "rung": "own instances", "figure": "own instances"}


def judge(value: float | None, op: Op, threshold: float, *, covered: bool = True, converged: bool = True) -> VerdictName:
    """The verdict of ``value op threshold``.

    >>> judge(0.02, "<=", 0.1)
    'consistent'

    Args:
        covered: the instance satisfies the assumptions of the theorem; otherwise the verdict is "not covered".
        converged: the iteration behind the value met its tolerance; otherwise, or if a number is not finite, "inconclusive".
    """
    if not covered:
        return "not covered"
    if value is None or not converged or not (math.isfinite(value) and math.isfinite(threshold)):
        return "inconclusive"
    return "consistent" if (value <= threshold if op == "<=" else value >= threshold) else "violated"


@dataclass(frozen=True)
class Null:
    """The null distribution of a quantity: its values at chance level.

    Attributes:
        kind: how the draws were made, e.g. ``"permuted labels"`` or ``"untrained networks"``.
        draws: the values themselves.
    """

    kind: str
    draws: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "draws", tuple(float(draw) for draw in self.draws if draw is not None and math.isfinite(draw)))

    @property
    def low(self) -> float:
        """The smallest draw; NaN without draws."""
        return min(self.draws, default=math.nan)

    @property
    def high(self) -> float:
        """The largest draw; NaN without draws."""
        return max(self.draws, default=math.nan)

    @property
    def median(self) -> float:
        """The median draw; NaN without draws."""
        return statistics.median(self.draws) if self.draws else math.nan

    @property
    def mean(self) -> float:
        """The mean draw; NaN without draws."""
        return float(np.mean(self.draws)) if self.draws else math.nan

    @classmethod
    def mean_of(cls, nulls: "Sequence[Null | None]") -> "Null | None":
        """The null of a mean: draw i is the mean of the draws i. None if one is missing, or if kinds or numbers of draws differ."""
        known = [null for null in nulls if null is not None]
        count = len(known)
        if not known or count < len(nulls) or len({(null.kind, len(null.draws)) for null in known}) > 1:
            return None
        return cls(known[0].kind, tuple(sum(draws) / count for draws in zip(*(null.draws for null in known))))

    def p(self, value: float, side: Side, *, predicted: float | None = None) -> float:
        """The permutation p-value of a value on one side, see :func:`~.statistics.permutation_p`.

        Raises:
            ValueError: there is no draw, or the side is "==" and nothing is predicted.
        """
        from .statistics import permutation_p

        return permutation_p(value, self.draws, side, predicted=predicted)


@dataclass(frozen=True)
class Measurement:
    """One measured number, with the theory's prediction and the place where it was measured.

    Attributes:
        theory: name of the theory, or "network" for quantities of no theory.
        kind: subject of the row (:data:`Kind`).
        quantity: name of the quantity; the id of a claim.
        value: the number; None if there is none, and then ``reason`` says why.
        unit: of value, prediction, threshold, null and interval; "share" is a number in [0, 1] that is shown in per cent.
        interval, interval_kind: 95 % interval of the value, and its kind ("over seeds", "over samples").
        predicted, basis: the theory's number for the same quantity, and its origin (:data:`Basis`).
        op, threshold, verdict: the inequality that decides the verdict, and the verdict.
        null, side, p: the null distribution, the side of it on which the theory predicts the value, and the p-value on that side.
        agreement: (value - median null) / (predicted - median null): 0 is chance, 1 is the prediction.
        reason: why there is no value.
        n: number of samples behind the value.
        split: of the data: "train", "validation", "test".
        note: one short sentence for people; no code reads it.
        source: where the literature states it.
        setting: variant of an experiment or a dynamics ("descent on K and Q", "modified flow").
        data, model: names of the data set and of the network; of no network if empty.
        rung: name of the rung of a ladder.
        layer, head, step, seed: place in a network, training step, seed.
        scope: what the number is evidence about; by default "own instances" for claims, rungs and figures, otherwise "these data".

    Raises:
        ValueError: an unknown word in a column, or a row with neither value nor reason.
    """

    theory: str
    kind: Kind
    quantity: str
    value: float | None
    unit: Unit = ""
    interval: tuple[float, float] | None = None
    interval_kind: str = ""
    predicted: float | None = None
    basis: Basis = "theory"
    op: Op | None = None
    threshold: float | None = None
    verdict: VerdictName | None = None
    null: Null | None = None
    side: Side | None = None
    p: float | None = None
    agreement: float | None = None
    reason: str = ""
    n: int | None = None
    split: str = ""
    note: str = ""
    source: Source | None = None
    setting: str = ""
    data: str = ""
    model: str = ""
    rung: str = ""
    layer: int | None = None
    head: int | None = None
    step: int | None = None
    seed: int | None = None
    scope: Scope | None = None

    def __post_init__(self):
        fix = object.__setattr__
        for name, words in _WORDS.items():
            if (word := getattr(self, name)) is not None and word not in words:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {word!r}")
        for name in ("value", "predicted", "threshold", "p", "agreement"):
            if (number := getattr(self, name)) is not None:
                number = float(number)
                fix(self, name, number if math.isfinite(number) else None)
                if name == "value" and not math.isfinite(number) and not self.reason:
                    fix(self, "reason", f"the value is {number}")
        for name in ("n", "layer", "head", "step", "seed"):
            if (number := getattr(self, name)) is not None:
                fix(self, name, int(number))
        if self.value is None and not self.reason:
            raise ValueError(f"a measurement without a value must state its reason, got none for {self.theory}: {self.quantity}")
        if self.scope is None:
            fix(self, "scope", DEFAULT_SCOPE.get(self.kind, "these data"))

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values, without the columns at their defaults."""
        row: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "value" and (value is None or value == field.default):
                continue
            if isinstance(value, Null):
                value = {"kind": value.kind, "draws": list(value.draws)}
            elif isinstance(value, Source):
                value = value.to_json()
            elif isinstance(value, tuple):
                value = list(value)
            row[field.name] = value
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Measurement":
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: an unknown column, a missing one, or an unknown word in one.
        """
        if unknown := row.keys() - set(COLUMNS):
            raise ValueError(f"row columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        if missing := {"theory", "kind", "quantity", "value"} - row.keys():
            raise ValueError(f"a row needs theory, kind, quantity and value, got none for {sorted(missing)}")
        columns = dict(row)
        if columns.get("null") is not None:
            columns["null"] = Null(columns["null"]["kind"], tuple(columns["null"]["draws"]))
        if columns.get("source") is not None:
            columns["source"] = Source.from_json(columns["source"])
        if columns.get("interval") is not None:
            low, high = columns["interval"]
            columns["interval"] = (float(low), float(high))
        return cls(**columns)


COLUMNS = tuple(field.name for field in dataclasses.fields(Measurement))
_WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": get_args(Kind),
    "scope": get_args(Scope),
    "unit": get_args(Unit),
    "basis": get_args(Basis),
    "op": get_args(Op),
    "side": get_args(Side),
    "verdict": get_args(VerdictName),
}


class Arrays(dict[str, np.ndarray]):
    """Named arrays beside the rows (attention maps, trajectories, features), from which figures are drawn."""


class Table(Sequence[Measurement]):
    """An immutable sequence of measurements.

    Raises:
        TypeError: an element is not a measurement.

    >>> table = Table([Measurement("crate", "on data", "rate", 2.0, layer=1), Measurement("crate", "on data", "rate", 1.0, layer=2)])
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

    def select(self, **equal: Any) -> "Table":
        """The rows whose columns have the given values; a tuple lists choices: ``table.select(theory="crate", step=(0, 10))``.

        Raises:
            ValueError: an unknown column.
        """
        if unknown := equal.keys() - set(COLUMNS):
            raise ValueError(f"columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        choices = {name: value if isinstance(value, tuple) else (value,) for name, value in equal.items()}
        return Table(row for row in self._rows if all(getattr(row, name) in values for name, values in choices.items()))

    def where(self, keep: Callable[[Measurement], bool]) -> "Table":
        """The rows for which ``keep`` is true."""
        return Table(row for row in self._rows if keep(row))

    def one(self) -> Measurement:
        """The only row.

        Raises:
            ValueError: there are none or several.
        """
        if len(self._rows) != 1:
            raise ValueError(f"expected one row, got {len(self._rows)}; select more columns")
        return self._rows[0]

    def replace(self, **columns: Any) -> "Table":
        """The table with these columns set in every row."""
        return Table(dataclasses.replace(row, **columns) for row in self._rows)

    def column(self, name: str) -> list[Any]:
        """The values of one column, in order."""
        return [getattr(row, name) for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The table as a ``pandas.DataFrame``; a null becomes its kind, its number of draws, its low, its median and its high."""
        import pandas

        frame = pandas.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in self._rows], columns=list(COLUMNS))
        nulls = [row.null for row in self._rows]
        place = list(frame.columns).index("null")
        frame = frame.drop(columns="null")
        for shift, name in enumerate(("kind", "draws", "low", "median", "high")):
            values = [None if null is None else len(null.draws) if name == "draws" else getattr(null, name) for null in nulls]
            frame.insert(place + shift, f"null_{name}", pandas.Series(values, index=frame.index, dtype=None if name == "kind" else float))
        low, high = zip(*((row.interval or (None, None)) for row in self._rows)) if self._rows else ((), ())
        place = list(frame.columns).index("interval")
        frame = frame.drop(columns="interval")
        frame.insert(place, "interval_low", pandas.Series(low, index=frame.index, dtype=float))
        frame.insert(place + 1, "interval_high", pandas.Series(high, index=frame.index, dtype=float))
        frame["source"] = [None if row.source is None else str(row.source) for row in self._rows]
        return frame

    def summary(self) -> "Table":
        """The table averaged over seeds: mean, 95 % interval over seeds (Student's t), and null whose draw i is the mean of the draws i.

        Rows that agree in every column of :data:`IDENTITY` form a group. A group of one row is returned unchanged.
        """
        from .statistics import over_seeds

        groups: dict[tuple, list[Measurement]] = {}
        for row in self._rows:
            groups.setdefault(tuple(getattr(row, name) for name in IDENTITY), []).append(row)
        return Table(rows[0] if len(rows) == 1 else over_seeds(rows) for rows in groups.values())


IDENTITY = ("theory", "kind", "scope", "quantity", "unit", "split", "setting", "data", "model", "rung", "layer", "head", "step")
"""The columns that identify a measurement; rows that agree in them differ in their seed."""


def collect(stream: Iterable[Measurement | Arrays]) -> tuple[Table, dict[str, np.ndarray]]:
    """Splits a stream into its measurements and its arrays.

    Raises:
        ValueError: two arrays of the stream have the same name.
        TypeError: the stream holds something else.
    """
    rows: list[Measurement] = []
    arrays: dict[str, np.ndarray] = {}
    for item in stream:
        if isinstance(item, Arrays):
            if twice := arrays.keys() & item.keys():
                raise ValueError(f"array names must be unique within a result, got {sorted(twice)} twice; prefix them")
            arrays.update({name: np.asarray(value) for name, value in item.items()})
        else:
            rows.append(item)
    return Table(rows), arrays
