"""Sparse matrices of rational numbers, and the coordinates of a token of :class:`.PerezTransformer`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from .machine import TuringMachine

Number = int | Fraction
LAYERS = (1, 2, 3)


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix of rational numbers that acts on rows, ``x @ W``.

    Attributes:
        rows, columns: names of the rows and columns, such as ``"q1[read]"``.
        entries: nonzero entries ``(row, column) -> number``.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    entries: Mapping[tuple[str, str], Number] = field(hash=False)

    @cached_property
    def by_row(self) -> dict[int, list[tuple[int, Number]]]:
        """The nonzero entries of each row: number of the row -> (number of the column, entry)."""
        row, column = (
            {name: number for number, name in enumerate(names)} for names in (self.rows, self.columns)
        )
        found: dict[int, list[tuple[int, Number]]] = {}
        for (r, c), value in self.entries.items():
            found.setdefault(row[r], []).append((column[c], value))
        return found

    def dense(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "rows columns"]:
        """Returns the matrix as a tensor ``[rows, columns]``."""
        matrix = torch.zeros(len(self.rows), len(self.columns), dtype=torch.float64)
        for row, entries in self.by_row.items():
            for column, value in entries:
                matrix[row, column] = float(value)
        return matrix.to(dtype)

    def __str__(self) -> str:
        lines = [f"{r} -> {c}: {value}" for (r, c), value in self.entries.items()]
        return "\n".join([f"[{len(self.rows)}, {len(self.columns)}], {len(lines)} nonzero", *lines])


def coordinates(machine: TuringMachine) -> tuple[str, ...]:
    """Returns the names of the d coordinates of a token."""
    q, s = machine.states, machine.alphabet
    first = [*(f"q1[{a}]" for a in q), *(f"s1[{a}]" for a in s), "x1"]
    second = [*(f"q2[{a}]" for a in q), *(f"s2[{a}]" for a in s), "x2", "x3", "x4", "x5"]
    third = [*(f"s3[{a}]" for a in s), "x6", *(f"s4[{a}]" for a in s), "x7"]
    return (*first, *second, *third, "1", "p", "1/p", "1/p^2")
