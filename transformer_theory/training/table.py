"""The table of a training in its file: rows that are only ever added, each made text once.

A checkpoint holds no rows, only how many are its own. The file is written before it and may hold more: those of an interval at whose end
the training was killed, which are forgotten, and those of the test images, which are the end of a training.
"""

import json
import os
from pathlib import Path

from ..core.files import replacing
from ..core.measurement import Row, check_row
from ..core.result import jsonable


class Table:
    """Rows and the file that they are stored in.

    Attributes:
        path: of the file.
        rows: in order; add to them.
        ended: whether the file that was read tells of test images.
    """

    def __init__(self, path: Path):
        self.path, self.ended = path, False
        self.rows: list[Row] = []
        self._text, self._told = bytearray(), 0  # of the first rows, and how many they are

    @classmethod
    def read(cls, path: Path, n: int) -> "Table":
        """The first n rows of a file.

        Raises:
            ValueError: there are fewer, or something else.
        """
        table = cls(path)
        try:
            rows = [check_row(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
            table.ended = any(row["theory"] == "network" and row["quantity"].startswith("test") for row in rows)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} must hold the rows of the training, got others ({error}); begin again without --resume") from error
        if len(rows) < n:
            raise ValueError(f"{path} must hold the {n} rows of the checkpoint beside it, got {len(rows)}; begin again without --resume")
        table.rows = rows[:n]
        return table

    def write(self) -> None:
        """Stores the rows in one stroke; they are on the disk when it ends, since a checkpoint is to rely on them.

        Raises:
            OSError: they cannot be written.
        """
        self._text += "".join(json.dumps(jsonable(row)) + "\n" for row in self.rows[self._told :]).encode()
        self._told = len(self.rows)
        with replacing(self.path) as draft, draft.open("wb") as file:
            file.write(self._text)
            file.flush()
            os.fsync(file.fileno())
