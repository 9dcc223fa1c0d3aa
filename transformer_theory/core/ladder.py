"""Ladders: how far a theory extends when its assumptions are relaxed one after another.

A ladder measures one quantity on rungs. The first rung is the theory's own setting; each further rung relaxes one more assumption.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .measurement import Null, Side, Unit

COLUMNS = (
    "own setting",
    "real tokens",
    "everything trained",
    "AdamW and mini-batches",
    "full block",
    "depth",
    "trained network",
)
"""Names of the rungs that several ladders share, in the order in which assumptions are relaxed."""


@dataclass(frozen=True)
class RungValue:
    """The measurement of one rung with one seed.

    Attributes:
        value: value of the ladder's quantity.
        predicted: the theory's prediction; None if it predicts only the side of the null on which the value lies.
        null: distribution of the quantity at chance.
    """

    value: float
    predicted: float | None
    null: Null | None


@dataclass(frozen=True)
class Rung:
    """One rung: a setting in which a ladder measures its quantity.

    Attributes:
        name: name of the setting, unique in its ladder.
        relaxes: the assumption that this rung drops in addition to those that earlier rungs drop; empty for the first rung.
        measure: function that draws an instance and measures it.
        column: the entry of :data:`COLUMNS` to which the rung corresponds; empty if it corresponds to none.

    Raises:
        ValueError: the column is not in :data:`COLUMNS`.
    """

    name: str
    relaxes: str
    measure: Callable[[torch.Generator], RungValue]
    column: str = ""

    def __post_init__(self):
        if self.column and self.column not in COLUMNS:
            raise ValueError(f"column must be one of {', '.join(map(repr, COLUMNS))}, got {self.column!r}")


@dataclass(frozen=True)
class Ladder:
    """One quantity, measured from the theory's own setting outwards.

    Attributes:
        quantity, unit: name and unit of the quantity.
        side: side of the null on which the theory predicts the value.
        null_kind: method by which the null is drawn.
        rungs: settings, from the theory's own setting outwards; may be empty.

    Raises:
        ValueError: two rungs have the same name.
    """

    quantity: str
    unit: Unit
    side: Side
    null_kind: str
    rungs: tuple[Rung, ...] = ()

    def __post_init__(self):
        names = [rung.name for rung in self.rungs]
        if len(set(names)) < len(names):
            raise ValueError(f"the rungs of a ladder must have different names, got {names}")
