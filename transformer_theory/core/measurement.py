"""The row of every table, :class:`Measurement`, its null distribution :class:`Null`, and :class:`Table`, a
sequence of rows.

A quantity is a name; everything else has its own column. Notes are for people: no code reads them.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from . import display
from .sources import Source

if TYPE_CHECKING:
    import pandas

Kind = Literal["claim", "assumption", "rung", "figure", "on data", "in network", "network"]
"""The subject of a row.

- claim: one seed of a claim's check;
- assumption: whether an assumption of a theorem holds (verdict "holds" or "fails");
- rung: one rung of a theory's ladder;
- figure: a number of an :class:`~.experiment.Experiment`, which reproduces a paper's figure;
- on data: a quantity of a theory's minimal model on a data set;
- in network: a quantity of a theory in a trained network;
- network: a quantity of a network that belongs to no theory (accuracy, loss, attention statistics).
"""
Scope = Literal["these data", "any data", "training", "own instances"]
"""What a number is evidence of.

- these data: a property of the data; on noise it is at chance by construction of its null (permuted labels,
  held-out quantities);
- any data: a theorem about descent, or an identity; the same number on noise of the same shape stands beside
  it;
- training: what training changed, compared with untrained networks;
- own instances: instances that the theory draws itself.
"""
Unit = Literal["", "share", "nats", "bits", "s", "steps"]
Basis = Literal["theory", "limit", "printed", "figure", "recomputed", "own setting"]
"""Where ``predicted`` comes from.

- theory: the theory's value of exactly this quantity (a formula, an optimum, a bound);
- limit: the limit that the theory states, which a finite run need not reach;
- printed: a number printed in the paper or by its released code;
- figure: read from a published figure, with an error of about the width of a plotted line;
- recomputed: no number was published; computed from the published settings by an independent method (another
  solver, plain autograd);
- own setting: measured in the theory's own setting, the first rung of a ladder.
"""
Op = Literal["<=", ">="]
# "!=", farther from the prediction than chance, is the opposite of "=="
Side = Literal["<=", ">=", "==", "!="]
VerdictName = Literal["consistent", "violated", "inconclusive", "not covered", "holds", "fails"]

DEFAULT_SCOPE: Mapping[str, Scope] = {
    **dict.fromkeys(("claim", "rung", "figure"), "own instances"),
    **dict.fromkeys(("in network", "network"), "training"),
    **dict.fromkeys(("on data", "assumption"), "these data"),
}


def judge(
    value: float | None, op: Op, threshold: float, *, covered: bool = True, converged: bool = True
) -> VerdictName:
    """Returns the verdict on ``value op threshold``.

    >>> judge(0.02, "<=", 0.1)
    'consistent'

    Args:
        value: measured number; None if it is missing.
        op: direction of the inequality.
        threshold: bound on the value.
        covered: whether the instance satisfies the assumptions of the theorem; if not, the verdict is "not
            covered".
        converged: whether the iteration behind the value met its tolerance; if not, or if a number is missing
            or not finite, the verdict is "inconclusive".
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
        kind: method of drawing, e.g. ``"permuted labels"`` or ``"untrained networks"``.
        draws: values at chance level; missing and non-finite ones are dropped.
    """

    kind: str
    draws: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(
            self,
            "draws",
            tuple(float(draw) for draw in self.draws if draw is not None and math.isfinite(draw)),
        )

    def __repr__(self) -> str:
        return f"Null({self.kind!r}, {len(self.draws)} draws, median {self.median:.4g})"

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
        """Returns the null of a mean: its draw i is the mean of the nulls' draws i.

        None if a null is missing, or if the nulls differ in kind or in number of draws: draws i would not
        belong together.
        """
        known = [null for null in nulls if null is not None]
        count = len(known)
        if not known or count < len(nulls) or len({(null.kind, len(null.draws)) for null in known}) > 1:
            return None
        return cls(known[0].kind, tuple(sum(draws) / count for draws in zip(*(null.draws for null in known))))

    def p(self, value: float, side: Side, *, predicted: float | None = None) -> float:
        """Computes the permutation p-value of a value on one side of the null, see
        :func:`~.statistics.permutation_p`.

        Raises:
            ValueError: there are no draws, or ``side`` is "==" or "!=" and ``predicted`` is None.
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
        value: the measured number; None if it is missing, with the cause in ``reason``.
        unit: unit of value, prediction, threshold, null and interval; a "share" is a number in [0, 1] that
            reports show in per cent.
        interval, interval_kind: 95 % interval of the value, and its kind ("over seeds", "over samples").
        predicted, basis: the theory's number for the same quantity, and its origin (:data:`Basis`).
        op, threshold, verdict: the inequality that decides the verdict, and the verdict.
        null, side, p: the null distribution, the side of the null on which the theory predicts the value, and
            the p-value on that side.
        agreement: (value - median null) / (predicted - median null): 0 is chance, 1 is the prediction.
        on_noise: the same quantity on noise of the same shape
            (:func:`~transformer_theory.data.synthetic.noise_like`).
        reason: cause of a missing value; empty if there is a value.
        n: number of samples behind the value.
        split: part of the data: "train", "validation", "test".
        note: one short sentence for people; no code reads it.
        source: passage of the literature that states the quantity or its prediction.
        setting: variant of an experiment or a dynamics ("descent on K and Q", "modified flow").
        data, model: names of the data set and of the network; ``model`` is empty if no network was measured.
        rung: name of the rung of a ladder.
        layer, head, step, seed: block and head of the network, training step, random seed.
        scope: what the number is evidence of (:data:`Scope`); the default depends on the kind
            (:data:`DEFAULT_SCOPE`).

    Raises:
        ValueError: a column holds an unknown word, or both value and reason are missing.
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
    on_noise: float | None = None
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
        set_field = object.__setattr__  # the only way to set a field of a frozen dataclass
        for name, words in _WORDS.items():
            if (word := getattr(self, name)) is not None and word not in words:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {word!r}")
        for name in ("value", "predicted", "threshold", "p", "agreement", "on_noise"):
            if (number := getattr(self, name)) is not None:
                number = float(number)
                set_field(self, name, number if math.isfinite(number) else None)
                if name == "value" and not math.isfinite(number) and not self.reason:
                    set_field(self, "reason", f"the value is {number}")
        for name in ("n", "layer", "head", "step", "seed"):
            if (number := getattr(self, name)) is not None:
                set_field(self, name, int(number))
        if self.value is None and not self.reason:
            raise ValueError(
                f"a measurement without a value must state its reason, got none for {self.theory}: "
                f"{self.quantity}"
            )
        if self.scope is None:
            set_field(self, "scope", DEFAULT_SCOPE.get(self.kind, "these data"))

    def __repr__(self) -> str:
        return display.fields_text(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values, without the columns that have their default values."""
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
        """Restores a row from :meth:`to_json`. Raises ValueError if a column is unknown or missing, or holds
        an unknown word.
        """
        if unknown := row.keys() - set(COLUMNS):
            raise ValueError(f"row columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        if missing := {"theory", "kind", "quantity", "value"} - row.keys():
            raise ValueError(
                f"a row needs theory, kind, quantity and value, got no {', '.join(sorted(missing))}"
            )
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
    """Named arrays (attention maps, trajectories, features) from which figures are drawn; they accompany the
    rows.
    """


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

    def _repr_html_(self) -> str:
        return display.table_html(self)

    def select(self, **equal: Any) -> "Table":
        """Returns the rows whose columns have the given values: ``table.select(theory="crate", step=(0,
        10))``.

        A tuple lists alternatives.

        Raises:
            ValueError: a column is unknown.
        """
        if unknown := equal.keys() - set(COLUMNS):
            raise ValueError(f"columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        choices = {name: value if isinstance(value, tuple) else (value,) for name, value in equal.items()}
        return Table(
            row for row in self._rows if all(getattr(row, name) in values for name, values in choices.items())
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
        """Converts the table to a ``pandas.DataFrame``.

        A null becomes five columns (kind, number of draws, low, median, high) and an interval two (low,
        high).
        """
        from .frames import frame

        return frame(self._rows, COLUMNS)

    def summary(self) -> "Table":
        """Averages the table over seeds: mean, 95 % interval over seeds (Student's t), and the null of the
        mean (:meth:`Null.mean_of`).

        Rows that agree in every column of :data:`IDENTITY` form a group.
        """
        from .statistics import over_seeds

        groups: dict[tuple, list[Measurement]] = {}
        for row in self._rows:
            groups.setdefault(tuple(getattr(row, name) for name in IDENTITY), []).append(row)
        return Table(over_seeds(rows) for rows in groups.values())


IDENTITY = (
    "theory",
    "kind",
    "scope",
    "quantity",
    "unit",
    "split",
    "setting",
    "data",
    "model",
    "rung",
    "layer",
    "head",
    "step",
)
"""The columns that identify a measurement; rows that agree in them differ in their seed."""


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
