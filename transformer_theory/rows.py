"""The one row schema: everything a room hands to a report is a :class:`Row` or an :class:`Arrays`, nothing else.

A row states a quantity, what was measured, and, where a theory has an opinion, what it predicts and what follows.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, Required, TypedDict

import numpy as np

from .citations import Source
from .claims import ControlName, Evidence

Basis = Literal["theory", "limit", "printed", "figure", "recomputed"]
"""Where a row's ``predicted`` comes from.

- theory: what the theory says of exactly this quantity (a formula, an optimum, a bound);
- limit: what it says the quantity tends to, so a finite run need not have reached it;
- printed: a number printed in the paper or by its released code;
- figure: read off a published figure, to the thickness of its line;
- recomputed: from the published settings by an independent route (another solver, plain autograd), as no number was published.
"""

BASIS_WORDS: dict[Basis, str] = {
    "theory": "theory",
    "limit": "limit",
    "printed": "printed",
    "figure": "read off a figure",
    "recomputed": "recomputed",
}

ASSUMPTION = "assumption: "  # what the quantity of a row that tells of one begins with


class Row(TypedDict, total=False):
    """One measurement. ``theory``, ``quantity`` and ``value`` are always there (``value`` is None if nothing could be measured).

    ``predicted`` is the number that the value stands beside and ``basis`` where that number comes from (:data:`Basis`), ``bound`` and
    ``op`` the line that decides the verdict, ``null`` what the quantity reads where the theory says nothing (random weights, shuffled
    labels), ``control`` what a claim's control did (it must fail), ``note`` one short sentence for the reader.
    """

    theory: Required[str]
    quantity: Required[str]
    value: Required[float | None]
    predicted: float
    basis: Basis
    bound: float
    op: Literal["<=", ">="]
    null: float
    verdict: str
    control: ControlName
    in_assumptions: bool
    source: str
    model: str
    layer: int
    head: int
    step: int
    seed: int
    note: str


COLUMNS = tuple(Row.__annotations__)


class Arrays(dict[str, np.ndarray]):
    """Named arrays that go with the rows (attention maps, trajectories, features): what pictures are drawn from."""


def finding(
    theory: str, quantity: str, evidence: Evidence, *, source: Source, predicted: float | None = None, basis: Basis = "theory", **where
) -> Row:
    """A row in which a theory's prediction meets a measurement; ``where`` holds further columns (null, model, layer, note, ...).

    Args:
        predicted: what the theory says; the evidence's bound if not given.
        basis: where that number comes from, if not from the theory itself.
    """
    return Row(
        theory=theory,
        quantity=quantity,
        value=evidence.value,
        predicted=evidence.bound if predicted is None else float(predicted),
        basis=basis,
        bound=evidence.bound,
        op=evidence.op,
        verdict=evidence.verdict,
        in_assumptions=evidence.in_assumptions,
        source=str(source),
        **where,
    )


def by_construction(row: Row) -> Row:
    """The row of :func:`finding` without its verdict: what holds whatever the data are cannot be refuted by them. The note says so."""
    kept = row.copy()
    kept.pop("verdict", None)
    kept["note"] = "; ".join(filter(None, [row.get("note"), "holds by construction, so it is no evidence"]))
    return kept


def assumption(theory: str, statement: str, holds: bool, *, value: float, source: Source, **where) -> Row:
    """A row that says whether the data meet an assumption; ``value`` is the number behind it. Its verdict is "holds" or "fails"."""
    return Row(
        theory=theory,
        quantity=f"{ASSUMPTION}{statement}",
        value=float(value),
        verdict="holds" if holds else "fails",
        in_assumptions=bool(holds),
        source=str(source),
        **where,
    )


def not_applicable(theory: str, reason: str) -> Row:
    """The row of a theory that cannot speak about these data: ``reason`` says what it needs."""
    return Row(theory=theory, quantity="all", value=None, verdict=f"not applicable: {reason}", note=reason)


def collect(stream: Iterable[Row | Arrays]) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Separates a stream of rows and arrays.

    Raises:
        ValueError: two arrays of the stream have the same name, or a row lacks a required column or has an unknown one.
    """
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {}
    for item in stream:
        if isinstance(item, Arrays):
            if twice := arrays.keys() & item.keys():
                raise ValueError(f"array names must be unique within a result, got {sorted(twice)} twice; prefix them")
            arrays.update({name: np.asarray(value) for name, value in item.items()})
        else:
            rows.append(check_row(item))
    return rows, arrays


def check_row(row: Row) -> Row:
    """Returns the row if it fits the schema; raises ValueError otherwise."""
    if unknown := row.keys() - set(COLUMNS):
        raise ValueError(f"row columns must be among {', '.join(COLUMNS)}, got {sorted(unknown)}")
    if missing := {"theory", "quantity", "value"} - row.keys():
        raise ValueError(f"a row needs theory, quantity and value, got none for {sorted(missing)}")
    return row


def select(rows: Iterable[Row], **equal) -> Iterator[Row]:
    """The rows whose columns have the given values: ``select(rows, theory="crate", layer=1)``; a value may be a tuple of choices."""
    for row in rows:
        if all(row.get(k) in v if isinstance(v, tuple) else row.get(k) == v for k, v in equal.items()):
            yield row
