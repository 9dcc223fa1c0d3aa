"""A file of finished pieces of work, one line of JSON each, from which an interrupted run goes on.

A line is on the disk before the next piece is awaited. If the process is killed while it writes, the last
line is cut off; it is dropped when the file is read again. Each line has a checksum: a piece that was changed
is refused, since the result in which it ends has a checksum of the whole.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from .files import checked_line, checked_record, naming, replacing
from .measurement import Measurement
from .reading import check_file
from .table import from_records

Key = TypeVar("Key")
UNFINISHED = ".unfinished.jsonl"  # end of the name of a file with the finished parts of a measurement


class Journal:
    """The finished pieces of one run.

    Args:
        path: the file. It is created with the first line.
        head: contents of the first line, which say to what the pieces belong.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]):
        self.path, self.head = path, dict(head)

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Returns the head of the file and its lines; without a file the head of this run and no lines.

        Raises:
            ValueError: the file has another content, or a line is not as it was stored.
            OSError: it cannot be read.
        """
        if not os.path.lexists(self.path):
            return self.head, []
        check_file(self.path)
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with replacing(self.path) as draft:
                draft.write_bytes(whole)
        if not whole:
            return self.head, []
        head, *lines = map(checked_record, whole.decode().splitlines())
        return head, lines

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line and waits until it is on the disk.

        Raises:
            OSError: the file cannot be written.
        """
        new = not self.path.exists() or not self.path.stat().st_size
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write((checked_line(self.head) if new else "") + checked_line(line))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Removes the file, if there is one: its pieces are in a result."""
        self.path.unlink(missing_ok=True)


def by_key(pieces: Iterable[tuple[Key, Any]]) -> dict[Key, Any]:
    """Returns stored pieces by their keys.

    Raises:
        ValueError: two pieces of one key differ.
    """
    found: dict[Key, Any] = {}
    for key, piece in pieces:
        if found.setdefault(key, piece) != piece:
            raise ValueError(f"it holds {key} twice, with different values")
    return found


class Pieces:
    """Rows of finished pieces of one measurement, by the names of the pieces.

    Args:
        path: the file; None keeps nothing.
        head: what the measurement depends on.

    ``piece in pieces`` says whether a piece is known.

    Attributes:
        done: JSON values of the pieces that an earlier run has left.

    Raises:
        ValueError: the file holds another measurement, or something else.
    """

    def __init__(self, path: Path | None = None, head: Mapping[str, Any] = MappingProxyType({})):
        self.journal = None if path is None else Journal(path, head)
        self.done: dict[tuple[str, ...], list[Any]] = {}
        if self.journal is None:
            return
        try:
            found, lines = self.journal.read()
            self.done = by_key((tuple(line["piece"]), line["rows"]) for line in lines)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must hold an unfinished measurement ({error}); remove it, or choose another --out"
            ) from error
        if differing := sorted(key for key in {*found, *head} if found.get(key) != head.get(key)):
            raise ValueError(
                f"{path} holds an unfinished measurement with other {' and '.join(differing)}; remove it to "
                "begin anew, or choose another --out"
            )

    def __contains__(self, piece: tuple[str, ...]) -> bool:
        return piece in self.done

    def __call__(self, piece: tuple[str, ...], work: Callable[[], list[Measurement]]) -> list[Measurement]:
        """Returns the rows of a piece, which are measured if they are not known."""
        if piece in self.done:
            return list(from_records(self.done[piece]))
        rows = work()
        if self.journal is not None:
            self.journal.append({"piece": piece, "rows": [row.to_json() for row in rows]})
        return rows

    def values(self, name: str, work: Callable[[], Any]) -> Any:
        """Returns JSON values by their name, which are made if they are not known."""
        if (name,) not in self.done:
            self.done[name,] = work()
            if self.journal is not None:
                self.journal.append({"piece": [name], "rows": self.done[name,]})
        return self.done[name,]
