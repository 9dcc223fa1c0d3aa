"""Ladders: how far a theory extends when its assumptions are relaxed one after another.

A ladder measures one quantity on rungs. The first rung is the theory's own setting. Rungs are cumulative:
each one keeps what the earlier ones relaxed and relaxes one assumption more. :func:`transformer_theory.reach`
measures the rungs on several seeds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from .measurement import Measurement, Side, Unit
from .sources import Source

COLUMNS = (
    "own setting",
    "real tokens",
    "everything trained",
    "AdamW and mini-batches",
    "full block",
    "depth",
    "trained network",
)
"""Columns of the reach map for theories of trained networks, in the order in which assumptions are relaxed.
"""

CONSTRUCTION_COLUMNS = (
    "exact construction",
    "floating point",
    "softmax",
    "relaxed encoding",
    "learnt",
)
"""Columns of the reach map for theories that write down the weights of a network: exact arithmetic and
hard-max attention; arithmetic of finite precision; softmax at a finite temperature; other encodings of
positions, identifiers or inputs; weights learnt by gradient descent.
"""

PRETRAINED_COLUMN = "pretrained network"
"""Last column of both maps: networks that were trained elsewhere, in which a theory's headline is measured.
"""

MAPS: tuple[tuple[str, ...], ...] = tuple(
    (*columns, PRETRAINED_COLUMN) for columns in (COLUMNS, CONSTRUCTION_COLUMNS)
)
ORDER = (*COLUMNS, *CONSTRUCTION_COLUMNS, PRETRAINED_COLUMN)  # of all rungs

PRETRAINED = "pretrained "
"""Beginning of the names of rungs that are measured in networks of others."""

Needs = Literal["", "images", "text"]
"""The data that a rung needs from the caller of :func:`~transformer_theory.reach`: none, images (CIFAR-10),
or a text (WikiText-2).
"""
Measure = TypeVar("Measure", bound=Callable[..., Iterable[Measurement]])


@dataclass(frozen=True)
class Rung:
    """One rung: a setting in which a ladder measures its quantity.

    Attributes:
        name: name of the setting in a few words, unique in its ladder.
        relaxes: the assumption that this rung drops in addition to those that earlier rungs drop; empty for
            the first rung.
        measure: ``(generator) -> rows``, or ``(generator, data) -> rows`` for rungs that need data. Draws an
            instance and measures it. Rows are of kind "rung"; one of them has the ladder's quantity, with its
            null distribution, and possibly a prediction. Further nulls of this row are other explanations of
            the value. Rows without a value have a reason. :func:`~transformer_theory.reach` fills in rung and
            seed. Null draws that seeds may not draw independently, because they share the data, come from
            :func:`~.statistics.permutations`.
        column: the entry of :data:`COLUMNS` or :data:`CONSTRUCTION_COLUMNS` to which the rung belongs, or
            :data:`PRETRAINED_COLUMN`. Several rungs may belong to one column.
        covered: whether the theorem covers the rung: all of its assumptions hold there.
        needs: data that the caller must provide.
        quantity: what the rung measures, if it is not the ladder's quantity: in a network of others it is the
            headline in networks.

    Raises:
        ValueError: the column is unknown.
    """

    name: str
    relaxes: str
    measure: Callable[..., Iterable[Measurement]]
    column: str
    covered: bool = False
    needs: Needs = ""
    quantity: str = ""

    def __post_init__(self):
        if self.column not in ORDER:
            raise ValueError(f"column must be one of {', '.join(map(repr, ORDER))}, got {self.column!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the map to which the rung belongs, in order."""
        return next(columns for columns in MAPS if self.column in columns)


@dataclass(eq=False, kw_only=True)
class Ladder:
    """One quantity, measured from the theory's own setting outwards.

    The rungs stand above the functions that measure them, from the theory's own setting outwards; their
    columns are in the order of :data:`COLUMNS`, or of :data:`CONSTRUCTION_COLUMNS`:

    .. code-block:: python

        LADDER = Ladder(theory="averaging", quantity="diameter", side="<=", null="rotated tokens")

        @LADDER.rung("Gaussian tokens", column="own setting", covered=True)
        @LADDER.rung("skip connection", relaxes="no skip connection", column="full block", skip=True)
        def share(generator: Generator, *, skip: bool = False) -> Iterator[Measurement]:
            ...
            yield LADDER.row(value, nulls=(Null(LADDER.null, draws),))

    Attributes:
        theory: name of the theory.
        quantity, unit: name and unit of the quantity.
        side: side of the null on which the theory predicts the value.
        null: method by which the first null is drawn.
        source: source of the rows that name no other.
        bounds: of the quantity, see :class:`.Measurement`.
        rungs: the settings.

    Raises:
        ValueError: two rungs have the same name, their columns are out of order or of different maps, or the
            first rung relaxes an assumption.
    """

    theory: str
    quantity: str
    unit: Unit = ""
    side: Side
    null: str
    source: Source | None = None
    bounds: tuple[float | None, float | None] | None = None
    rungs: tuple[Rung, ...] = ()

    def __post_init__(self):
        self._check(self.rungs)

    def rung(
        self,
        name: str,
        *,
        column: str,
        relaxes: str = "",
        covered: bool = False,
        needs: Needs = "",
        **arguments: Any,
    ) -> Callable[[Measure], Measure]:
        """Adds a rung; the result is a decorator of the function that measures it.

        Args:
            name, column, relaxes, covered, needs: see :class:`Rung`.
            arguments: keyword arguments of the function, which several rungs may share.
        Raises:
            ValueError: see :class:`Ladder`.
        """
        # The rung takes its place here, not when the function arrives: of two decorators above one function
        # the upper one is evaluated first and applied last.
        place = len(self.rungs)
        rungs = (*self.rungs, Rung(name, relaxes, _not_defined, column, covered, needs))
        self._check(rungs)
        self.rungs = rungs

        def measured_by(function: Measure) -> Measure:
            rung = replace(self.rungs[place], measure=partial(function, **arguments))
            self.rungs = (*self.rungs[:place], rung, *self.rungs[place + 1 :])
            return function

        return measured_by

    def row(self, value: float | None, **columns: Any) -> Measurement:
        """Returns a row of the ladder's quantity, with its unit, side and bounds; ``columns`` are further
        columns of the row.
        """
        return self.other_row(
            self.quantity, value, **{"unit": self.unit, "side": self.side, "bounds": self.bounds, **columns}
        )

    def other_row(self, quantity: str, value: float | None, **columns: Any) -> Measurement:
        """Returns a row of another quantity that a rung measures beside that of the ladder."""
        return Measurement(self.theory, "rung", quantity, value, **{"source": self.source, **columns})

    @staticmethod
    def _check(rungs: tuple[Rung, ...]) -> None:
        names = [rung.name for rung in rungs]
        if len(set(names)) < len(names):
            raise ValueError(f"the rungs of a ladder must have different names, got {names}")
        names = [rung.column for rung in rungs]
        if sorted(names, key=ORDER.index) != names:
            raise ValueError(
                "the columns of the rungs must be in the order of COLUMNS or of CONSTRUCTION_COLUMNS, got "
                f"{names}"
            )
        if len({rung.columns for rung in rungs}) > 1:
            raise ValueError(
                "the columns of the rungs must all be of COLUMNS, or all of CONSTRUCTION_COLUMNS, got "
                f"{names}"
            )
        if rungs and rungs[0].relaxes:
            raise ValueError(
                f"the first rung is the theory's own setting and relaxes nothing, got {rungs[0].relaxes!r}"
            )


def _not_defined(*_: Any, **__: Any) -> Iterable[Measurement]:
    """Stands for the function of a rung until it is defined."""
    raise TypeError("the rung has no function; write LADDER.rung(...) above the function that measures it")
