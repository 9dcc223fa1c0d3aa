"""The cells (theory, rung, seed) of a reach, and the file in which they are stored as soon as they are
measured.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .. import __version__
from ..core.cluster import sources
from ..core.files import locked, replacing
from ..core.journal import Journal, by_key
from ..core.ladder import Rung
from ..core.measurement import Measurement
from ..core.table import from_records
from ..core.theory import Theory

CELLS = "cells.jsonl"  # name of the file
FORMAT = 1

Cell = tuple[Theory, Rung, int]
Key = tuple[str, str, int]


def key_of(cell: Cell) -> Key:
    """Returns the names of the theory and of the rung, and the seed."""
    theory, rung, seed = cell
    return theory.name, rung.name, seed


class Store:
    """The finished cells of a folder, one line of JSON each. A line that was cut off when the process ended
    is dropped.

    Args:
        folder: the folder.
        names: name and size of the data of this run, by kind; size of networks of others, by their rung.
        checksums: checksums of these, by kind.

    Attributes:
        older: cells that other sources of this library have measured, which may have been another rung of
            this name.

    Raises:
        ValueError: the folder holds something else.
    """

    def __init__(self, folder: Path, names: Mapping[str, str], checksums: Mapping[str, str]):
        self.path, self.names, self.checksums = folder / CELLS, names, checksums
        self.older: set[Key] = set()
        if folder.exists() and not self.path.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files, not a reach; choose another --out")
        self.journal = Journal(self.path, {"format": FORMAT, "version": __version__})

    def read(self) -> dict[Key, list[Measurement]]:
        """Returns the stored cells.

        Raises:
            ValueError: the folder holds cells of another version or of other data.
        """
        try:
            head, lines = self.journal.read()
            stored = head["format"], head["version"]
            cells = by_key((tuple(line["cell"]), list(from_records(line["rows"]))) for line in lines)
            data = dict(item for line in lines for item in line["data"].items())
            checksums = dict(item for line in lines for item in line.get("checksums", {}).items())
            self.older = {tuple(line["cell"]) for line in lines if line.get("sources") != sources()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} does not hold the cells of a reach ({error}); choose another --out, or pass "
                "--overwrite"
            ) from error
        if stored != (FORMAT, __version__):
            got, expected = (
                f"version {version}, format {format}" for format, version in (stored, (FORMAT, __version__))
            )
            raise ValueError(
                f"{self.path} holds cells of {got}, expected {expected}; choose another --out, or pass "
                "--overwrite"
            )
        for kind, name in self.names.items():
            if data.get(kind, name) != name:
                raise ValueError(
                    f"{self.path} holds cells of {kind} {data[kind]!r}, got {name!r}; choose another --out"
                )
            if checksums.get(kind, self.checksums[kind]) != self.checksums[kind]:
                raise ValueError(
                    f"{self.path} holds cells of other {kind} with the name and size {name!r}; choose "
                    "another --out"
                )
        return cells

    @contextlib.contextmanager
    def begun(self, *, empty: bool) -> Iterator[dict[Key, list[Measurement]]]:
        """Locks the folder, so that no cell is measured twice, and yields the stored cells.

        Args:
            empty: whether the stored cells are removed.
        Raises:
            FileExistsError: another reach measures in the folder.
            ValueError: the folder holds cells of another version or of other data.
        """
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"{folder} is in use by another reach; wait for it, or choose another --out"):
            cells = {} if empty else self.read()
            if empty or not self.path.exists():  # an empty file marks the folder as that of a reach
                with replacing(self.path) as draft:
                    draft.touch()
            yield cells

    def append(self, cell: Cell, rows: Sequence[Measurement]) -> None:
        """Adds a cell."""
        # the data of a rung, and the network of others in which it was measured
        kinds = [kind for kind in (cell[1].needs, cell[1].name) if kind in self.names]
        data, checksums = ({kind: texts[kind] for kind in kinds} for texts in (self.names, self.checksums))
        line = {"cell": key_of(cell), "data": data, "checksums": checksums, "sources": sources()}
        self.journal.append({**line, "rows": [row.to_json() for row in rows]})
