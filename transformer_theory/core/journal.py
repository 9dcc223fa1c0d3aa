"""A file of finished pieces of work, one line of JSON each, from which an interrupted run goes on.

A line is on the disk before the next piece is awaited. If the process is killed while it writes, the last
line is cut off; it is dropped when the file is read again.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import replacing


class Journal:
    """The finished pieces of one run.

    Args:
        path: the file. It is created with the first line.
        head: contents of the first line, which say to what the pieces belong.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]):
        self.path, self.head = path, dict(head)

    def read(self) -> tuple[dict[str, Any], list[Any]]:
        """Returns the head of the file and its lines; without a file the head of this run and no lines.

        Raises:
            ValueError: the file has another content.
        """
        if not self.path.exists() or not self.path.stat().st_size:
            return self.head, []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with replacing(self.path) as draft:
                draft.write_bytes(whole)
        if not whole:
            return self.head, []
        head, *lines = (json.loads(line) for line in whole.splitlines())
        if not isinstance(head, dict):
            raise ValueError("the first line is no head")
        # two commands that began at the same time have written two heads
        return head, [line for line in lines if line != head]

    def append(self, line: Any) -> None:
        """Adds a line and waits until it is on the disk.

        Raises:
            OSError: the file cannot be written.
        """
        new = not self.path.exists() or not self.path.stat().st_size
        with self.path.open("a", encoding="utf-8") as file:
            file.write((json.dumps(self.head) + "\n" if new else "") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
