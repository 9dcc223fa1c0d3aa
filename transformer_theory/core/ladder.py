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
"""The rungs that ladders have in common, in order."""


@dataclass(frozen=True)
class RungValue:
    """The measurement of one rung with one seed.

    Attributes:
        value: of the ladder's quantity.
        predicted: the theory's prediction; None if it predicts only a side of the null.
        null: distribution of the quantity at chance.
    """

    value: float
    predicted: float | None
    null: Null | None


@dataclass(frozen=True)
class Rung:
    """One rung.

    Attributes:
        name: of the setting, unique in its ladder.
        relaxes: the one assumption that it gives up in addition to those of the rungs before it; empty for the first.
        measure: draws an instance and measures.
        column: the common rung (:data:`COLUMNS`) that it is; empty if it is none of them.

    Raises:
        ValueError: an unknown column.
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
        quantity, unit: of all rungs.
        side: side of the null on which the theory predicts the value.
        null_kind: how the null is drawn.
        rungs: from the theory's own setting outwards; may be empty.

    Raises:
        ValueError: two rungs have one name.
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
