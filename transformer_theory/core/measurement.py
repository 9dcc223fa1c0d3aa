"""The row of every table, :class:`Measurement`, its null distribution :class:`Null`, and :class:`Table`, a
sequence of rows.

A quantity is a name; everything else has its own column. Notes are for people: no code reads them.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from .sources import Source
from .typed import Record, check_types, typed

if TYPE_CHECKING:
    pass

Kind = Literal["claim", "assumption", "rung", "figure", "on data", "in network", "network", "intervention"]
"""The subject of a row.

- claim: one seed of a claim's check;
- assumption: whether an assumption of a theorem holds (verdict "holds" or "fails");
- rung: one rung of a theory's ladder;
- figure: a number of an :class:`~.experiment.Experiment`, which reproduces a paper's figure;
- on data: a quantity of a theory's minimal model on a data set;
- in network: a quantity of a theory in a trained network;
- network: a quantity of a network that belongs to no theory (accuracy, loss, attention statistics);
- intervention: what a network does when its attention is changed as a theory says.
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
CORRELATION = (-1.0, 1.0)
"""Bounds of a cosine or a correlation."""
Side = Literal["<=", ">=", "==", "!="]
VerdictName = Literal["consistent", "violated", "inconclusive", "not covered", "holds", "fails"]

DEFAULT_SCOPE: Mapping[str, Scope] = {
    **dict.fromkeys(("claim", "rung", "figure"), "own instances"),
    **dict.fromkeys(("in network", "network"), "training"),
    **dict.fromkeys(("on data", "assumption", "intervention"), "these data"),
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


def permutation_p(
    value: float, draws: Sequence[float], side: str, *, predicted: float | None = None
) -> float:
    """Computes the p-value ``(1 + number of draws at least as extreme) / (1 + number of draws)``.

    >>> permutation_p(3.0, [0.0, 1.0, 2.0], ">=")
    0.25

    Args:
        value: measured value.
        draws: null distribution.
        side: ">=" counts draws >= value, "<=" draws <= value, "==" draws at least as close to ``predicted``
            as the value is, "!=" draws at least as far from it.
        predicted: the theory's prediction; needed for "==" and "!=".
    Raises:
        ValueError: there are no draws, the side is unknown, or ``predicted`` is missing for "==" or "!=".
    """
    if not len(draws):
        raise ValueError("a p-value needs at least one draw of the null, got none")
    (extreme,), others = extremeness([value], draws, side, predicted)
    # Draws that differ from the value by rounding only count as equal to it, which can only raise the
    # p-value.
    margin = 1e-12 * max(abs(value), abs(predicted or 0.0))
    least = extreme - margin
    return (1 + sum([other >= least for other in others])) / (1 + len(draws))


def extremeness(
    values: Sequence[float], draws: Sequence[float], side: str, predicted: float | None
) -> tuple[list[float], list[float]]:
    """Maps values and draws to numbers that are larger the more extreme they are on the side.

    Raises:
        ValueError: the side is unknown, or ``predicted`` is missing for "==" or "!=".
    """
    if side in ("==", "!="):
        if predicted is None:
            raise ValueError(f'side "{side}" needs a predicted value, got none')
        sign = -1 if side == "==" else 1
        return [sign * abs(value - predicted) for value in values], [
            sign * abs(draw - predicted) for draw in draws
        ]
    if side not in ("<=", ">="):
        raise ValueError(f"side must be '<=', '>=', '==' or '!=', got {side!r}")
    sign = 1 if side == ">=" else -1
    return [sign * value for value in values], [sign * draw for draw in draws]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Null(Record):
    """The null distribution of a quantity: its values at chance level.

    Attributes:
        kind: method of drawing, e.g. ``"permuted labels"`` or ``"untrained networks"``.
        draws: values at chance level; missing and non-finite ones are dropped.
        value: the quantity on the inputs of the draws, if they are not the inputs of the row, such as a part
            of them; None: the value of the row is compared with the draws.
        stopped: whether there are fewer draws than planned because no test could succeed any more. They give
            a p-value, however few they are.
        center: what the draws lie about, if it is known better than from them, as the mean effect of random
            changes from whose exchanges they are; None: their median.
    """

    kind: str
    draws: tuple[float, ...]
    value: float | None = None
    stopped: bool = False
    center: float | None = None

    def __post_init__(self):
        draws = tuple(self.draws)
        if set(map(type, draws)) != {float}:  # most nulls have thousands of draws, and are made many times
            draws = tuple(float(draw) for draw in draws if draw is not None)
        object.__setattr__(self, "draws", tuple(filter(math.isfinite, draws)))

    def __repr__(self) -> str:
        return f"Null({self.kind!r}, {len(self.draws)} draws, median {self.median:.4g})"

    def to_json(self) -> dict[str, Any]:
        """Returns the null as JSON values."""
        own: dict[str, Any] = {} if self.value is None else {"value": self.value}
        own |= {"stopped": True} if self.stopped else {}
        own |= {} if self.center is None else {"center": self.center}
        return {"kind": self.kind, "draws": list(self.draws), **own}

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
        """The median draw, or the center if there is one; NaN without draws."""
        if self.center is not None:
            return self.center
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
        if count == 1:
            draws = tuple([0.0 + draw for draw in known[0].draws])  # as a sum, which turns -0.0 into 0.0
        else:
            draws = tuple(sum(draws) / count for draws in zip(*(null.draws for null in known)))

        def mean(numbers: Iterable[float | None]) -> float | None:
            found = [number for number in numbers if number is not None]
            return float(np.mean(found)) if len(found) == count else None

        value, center = mean(null.value for null in known), mean(null.center for null in known)
        # that no test of a seed could succeed says nothing about the mean
        return cls(known[0].kind, draws, value, count == 1 and known[0].stopped, center)

    @classmethod
    def means_of(cls, rows: "Sequence[Measurement]") -> "tuple[Null, ...]":
        """Returns the nulls of the mean of the rows' values, one per kind (:meth:`mean_of`), in the order of
        the first row. One of several nulls that has no mean stays, without draws: it was not tested.
        """
        kinds = [null.kind for null in rows[0].nulls] if rows else []
        means = []
        for kind in kinds:
            of_kind = [next((null for null in row.nulls if null.kind == kind), None) for row in rows]
            if any(null is not None and null.value is not None for null in of_kind):
                of_kind = [null and null.with_value(row.value) for null, row in zip(of_kind, rows)]
            means.append(cls.mean_of(of_kind))
        if len(kinds) > 1:
            means = [null or cls(kind, ()) for null, kind in zip(means, kinds)]
        return tuple(null for null in means if null is not None)

    def with_value(self, value: float | None) -> "Null":
        """Returns the null with the value that is compared with its draws, by default that of its row."""
        return dataclasses.replace(self, value=value if self.value is None else self.value)

    def p(self, value: float, side: Side, *, predicted: float | None = None) -> float:
        """Computes the permutation p-value of a value on one side of the null, see
        :func:`permutation_p`.

        Raises:
            ValueError: there are no draws, or ``side`` is "==" or "!=" and ``predicted`` is None.
        """
        return permutation_p(value, self.draws, side, predicted=predicted)


def within(
    interval: tuple[float, float],
    bounds: tuple[float | None, float | None] | None,
    value: float | None = None,
) -> tuple[float, float]:
    """Returns the part of an interval inside the bounds, with the value, which rounding may put outside.

    >>> within((0.942, 1.006), (-1.0, 1.0))
    (0.942, 1.0)
    """
    (low, high), (least, most) = interval, bounds or (None, None)
    if least is not None:
        low = max(low, least if value is None else min(least, value))
    if most is not None:
        high = min(high, most if value is None else max(most, value))
    return low, high


def present(*nulls: Null | None) -> tuple[Null, ...]:
    """Returns the nulls that are not None."""
    return tuple(null for null in nulls if null is not None)


Coordinate = float | int | str
"""The value of one coordinate of a sweep."""


class Coordinates(Mapping[str, Coordinate]):
    """Frozen and ordered coordinates of a measurement; empty texts are dropped. Floats are compared rounded
    to 12 significant digits.

    >>> Coordinates({"d": 20, "rate": 0.1 + 0.2}) == {"d": 20, "rate": 0.3}
    True

    Raises:
        ValueError: a name is empty or that of another column, or a value is neither a finite number nor a
            text.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None):
        given = {name: value for name, value in (values or {}).items() if value != ""}
        self._values = {name: _coordinate(name, value) for name, value in given.items()}

    def __getitem__(self, name: str) -> Coordinate:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and _rounded(self) == _rounded(other)

    def __hash__(self) -> int:
        return hash(frozenset(_rounded(self).items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self):
        return Coordinates, (self._values,)


def _coordinate(name: str, value: Any) -> Coordinate:
    """Converts a coordinate to a number or text of Python."""
    if not name or (name in COLUMNS and name != "n"):
        taken = "a name" if not name else f"another name than that of the column {name}"
        raise ValueError(f"a coordinate needs {taken}, got {name!r}")
    if isinstance(value, np.generic):
        value = value.item()
    known = isinstance(value, str) or (isinstance(value, float | int) and math.isfinite(value))
    if not known or isinstance(value, bool):
        raise ValueError(f"the coordinate {name} must be a finite number or a text, got {value!r}")
    return value


def _rounded(at: Mapping[str, Any]) -> dict[str, Any]:
    """Returns coordinates whose floats are rounded to 12 significant digits."""
    return {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in at.items()}


def coordinates_text(at: Mapping[str, Coordinate]) -> str:
    """Formats coordinates: ``{"n": 5, "rate": 0.1} -> "n = 5, rate = 0.1"``; texts are printed without their
    names.
    """
    return ", ".join(
        value
        if isinstance(value, str)
        else f"{name} = {value:.6g}"
        if isinstance(value, float)
        else f"{name} = {value}"
        for name, value in at.items()
    )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Measurement(Record):
    """One measured number, with the theory's prediction and the place where it was measured.

    Attributes:
        theory: name of the theory, or "network" for quantities of no theory.
        kind: subject of the row (:data:`Kind`).
        quantity: name of the quantity; the id of a claim.
        value: the measured number; None if it is missing, with the cause in ``reason``.
        unit: unit of value, prediction, threshold, null and interval; a "share" is a number in [0, 1] that
            reports show in per cent.
        interval, interval_kind: 95 % interval of the value, and its kind ("over seeds", "over samples"). What
            lies beyond the bounds is cut off.
        predicted, basis: the theory's number for the same quantity, and its origin (:data:`Basis`).
        op, threshold, verdict: the inequality that decides the verdict, and the verdict.
        nulls: the null distributions; the first one is tested. Entries None are dropped.
        side, p: the side of the first null on which the theory predicts the value, and the p-value on that
            side.
        agreement: (value - median null) / (predicted - median null): 0 is chance, 1 is the prediction.
        on_noise: the same quantity on noise of the same shape
            (:func:`~transformer_theory.data.synthetic.noise_like`).
        reason: cause of a missing value; empty if there is a value.
        n: number of samples behind the value.
        split: part of the data: "train", "validation", "test".
        note: one short sentence for people; no code reads it.
        source: passage of the literature that states the quantity or its prediction.
        at: coordinates of the measurement in a sweep, by name: ``{"n": 5, "T": 10}``, ``{"dynamics": "K and
            Q"}``.
        bounds: smallest and largest possible value of the quantity, None where there is no bound; by default
            (0, 1) for a share.
        data, model: names of the data set and of the network; ``model`` is empty if no network was measured.
        rung: name of the rung of a ladder.
        layer, head, step, seed: block and head of the network, training step, random seed.
        scope: what the number is evidence of (:data:`Scope`); the default depends on the kind
            (:data:`DEFAULT_SCOPE`).

    Raises:
        ValueError: a column holds an unknown word, a coordinate has the name of another column, or both value
            and reason are missing.
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
    nulls: tuple[Null, ...] = ()
    side: Side | None = None
    p: float | None = None
    agreement: float | None = None
    on_noise: float | None = None
    reason: str = ""
    n: int | None = None
    split: str = ""
    note: str = ""
    source: Source | None = None
    at: Mapping[str, Coordinate] = Coordinates()
    bounds: tuple[float | None, float | None] | None = None
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
        set_field(self, "nulls", present(*self.nulls))
        if not isinstance(self.at, Coordinates):
            set_field(self, "at", Coordinates(self.at))
        if self.bounds is None and self.unit == "share":
            set_field(self, "bounds", (0.0, 1.0))
        if self.interval is not None:
            set_field(self, "interval", within(self.interval, self.bounds, self.value))
        if self.value is None and not self.reason:
            raise ValueError(
                f"a measurement without a value must state its reason, got none for {self.theory}: "
                f"{self.quantity}"
            )
        if self.scope is None:
            set_field(self, "scope", DEFAULT_SCOPE.get(self.kind, "these data"))

    def __repr__(self) -> str:
        values = (
            (column.name, getattr(self, column.name), column.default) for column in dataclasses.fields(self)
        )
        shown = (f"{name}={value!r}" for name, value, default in values if value != default)
        return f"Measurement({', '.join(shown)})"

    @property
    def null(self) -> Null | None:
        """The null distribution that is tested; None without one."""
        return self.nulls[0] if self.nulls else None

    @property
    def setting(self) -> str:
        """The coordinates as text: ``"n = 5, T = 10"``."""
        return coordinates_text(self.at)

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values, without the columns that have their default values.

        The first null is stored as ``null``, further ones as the list ``further_nulls``.
        """
        row: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "value" and (value is None or value == field.default):
                continue
            if field.name == "nulls":
                first, *further = [null.to_json() for null in value]
                row |= {"null": first} | ({"further_nulls": further} if further else {})
                continue
            if field.name == "bounds" and self.unit == "share" and value == (0.0, 1.0):
                continue
            if isinstance(value, Source):
                value = value.to_json()
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Coordinates):
                value = dict(value)
            row[field.name] = value
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Measurement":
        """Restores a row from :meth:`to_json`, or from the former version, whose coordinates are one text.

        Raises:
            ValueError: a column is unknown or missing, or holds an unknown word or a value of another type.
        """
        if not isinstance(row, Mapping):
            raise ValueError(f"a row must be an object, got {type(row).__name__}")
        if unknown := row.keys() - {*COLUMNS, "null", "further_nulls", "setting"}:
            raise ValueError(f"row columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
        if missing := {"theory", "kind", "quantity", "value"} - row.keys():
            raise ValueError(
                f"a row needs theory, kind, quantity and value, got no {', '.join(sorted(missing))}"
            )
        try:
            return cls._restored(dict(row))
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"a row must hold the columns that a measurement has, got {error}") from error

    @classmethod
    def _restored(cls, columns: dict[str, Any]) -> "Measurement":
        """Restores a row from its stored columns, which are changed."""
        stored = [columns.pop("null", None), *columns.pop("further_nulls", ())]
        columns["nulls"] = tuple(
            typed(
                Null(
                    null["kind"],
                    tuple(null["draws"]),
                    null.get("value"),
                    null.get("stopped", False),
                    null.get("center"),
                )
            )
            for null in stored
            if null
        )
        if setting := columns.pop("setting", ""):
            columns["at"] = {"setting": setting}
        if columns.get("source") is not None:
            columns["source"] = Source.from_json(columns["source"])
        for name in ("interval", "bounds"):
            if columns.get(name) is not None:
                low, high = columns[name]
                columns[name] = (low if low is None else float(low), high if high is None else float(high))
        check_types(cls, columns)  # before the numbers are converted
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


IDENTITY = (
    "theory",
    "kind",
    "scope",
    "quantity",
    "unit",
    "split",
    "at",
    "data",
    "model",
    "rung",
    "layer",
    "head",
    "step",
)
"""The columns that identify a measurement; rows that agree in them differ in their seed."""
