"""Ladders: how far a theory extends when its assumptions are relaxed one after the other.

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
"""The rungs that ladders have in common, in order; a rung names the one that it is, if any."""


@dataclass(frozen=True)
class RungValue:
    """What one rung measured in one seed.

    Attributes:
        value: the quantity of the ladder.
        predicted: what the theory predicts of it; None if it predicts a side only.
        null: the quantity where the theory says nothing.
    """

    value: float
    predicted: float | None
    null: Null | None


@dataclass(frozen=True)
class Rung:
    """One rung.

    Attributes:
        name: of the setting, unique in its ladder.
        relaxes: the assumption that it gives up, and those before it have not; empty for the first.
        measure: draws an instance and measures.
        column: the common rung (:data:`COLUMNS`); empty if it is none of them.

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
    """The quantity that a theory follows from its own setting outwards.

    Attributes:
        quantity, unit: of all rungs.
        side: of the null that the theory predicts.
        null_kind: how the null is drawn.
        rungs: from the theory's own setting outwards; none until they are written.

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
