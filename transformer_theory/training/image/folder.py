"""The folder of a training: its files, a lock that admits one training at a time, and the growing table.

Rows are only appended to the table, and each is serialised once. A checkpoint stores the number of its rows,
not the rows. The table is written before the checkpoint and may hold more rows. If the training was killed
between the two writes, the additional rows are dropped when it resumes. After a complete training, the
additional rows are those of the test images.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import reason
from ...core.files import checked_line, locked, replacing
from ...core.measurement import Measurement
from ...core.result import read_table
from ...models.stored import BEST

LAST, TABLE, PAGE = "last.pt", "table.jsonl", "report.html"
CSV, TENSORBOARD = "metrics.csv", "tensorboard"  # logs: a file, and a folder of event files
FILES = (
    BEST,
    LAST,
    "result.json",
    TABLE,
    "arrays.npz",
    "verifications.json",
    PAGE,
    "table.tex",
    "references.bib",
    CSV,
)
# .NAME.MACHINE-PROCESS.8 hexadecimal digits, as core.files.replacing names drafts; a killed process leaves
# them.
DRAFT = re.compile(rf"\.({'|'.join(map(re.escape, FILES))})\.(.+-\d+\.)?[0-9a-f]{{8}}")


def check_unused(folder: Path) -> None:
    """Checks that the folder is empty or does not exist, so that a training can begin in it.

    Raises:
        FileExistsError: the folder holds a training or something else.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds a training; --resume continues it, --overwrite replaces it")
    if os.path.lexists(folder):
        raise FileExistsError(
            f"{folder} {'holds something else' if folder.is_dir() else 'is not a folder'}; choose another "
            "--out"
        )


def check_replaceable(folder: Path, *, weights: str | Path | None = None, continued: bool = False) -> None:
    """Checks that the folder may be cleared for a new training; nothing is removed.

    Args:
        folder: folder of the training.
        weights: file or folder of the weights that the new training starts from; it must lie outside.
        continued: whether the caller wants to continue the training in the folder.
    Raises:
        ValueError: the training is to be continued, or the weights would be removed.
        FileExistsError: the folder holds no training, other files as well, or a running training.
    """
    if continued:
        raise ValueError(
            "overwrite removes the training in the folder, and resume and extend continue it, got both; "
            "leave one out"
        )
    if weights is not None and Path(weights).resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"weights must lie outside the folder that is overwritten, got {weights} and {folder}; choose "
            "another --out"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is not a folder; choose another --out")
    entries = list(folder.iterdir())
    if entries and not (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds no training, so it is not overwritten; choose another --out")
    if foreign := sorted(entry.name for entry in entries if not _is_own(entry)):
        raise FileExistsError(
            f"{folder} holds {foreign[0]} beside a training, so it is not overwritten; move it, or choose "
            "another --out"
        )
    with claimed(folder):
        pass


def clear(folder: Path) -> None:
    """Removes a training and its folder, if the folder exists.

    Raises:
        FileExistsError: see :func:`check_replaceable`; nothing has been removed.
    """
    check_replaceable(folder)
    if folder.exists():
        with claimed(folder):
            remove(folder)


def make(folder: Path) -> None:
    """Makes the folder if it does not exist.

    Raises:
        OSError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}); choose another --out") from error


def remove(folder: Path) -> None:
    """Removes a training's files, then the folder if it is empty."""
    for entry in list(folder.iterdir()):
        if _is_log(entry):
            shutil.rmtree(entry)
        elif _is_own(entry):
            entry.unlink()
    with contextlib.suppress(OSError):  # the folder holds other files
        folder.rmdir()


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Locks the folder for this process and removes drafts that a killed process left.

    The lock ends with the block or the process. If the file system or the operating system has no locks, the
    folder is not locked.

    Raises:
        FileExistsError: another process has locked the folder.
    """
    with locked(folder, f"{folder} is in use by another training; wait for it, or choose another --out"):
        for entry in folder.iterdir():
            if is_draft(entry):
                entry.unlink()
        yield


def _is_log(entry: Path) -> bool:
    """Returns whether an entry is the folder of TensorBoard's log, and holds nothing else."""
    return (
        entry.name == TENSORBOARD
        and entry.is_dir()
        and all(file.name.startswith("events.out.tfevents") for file in entry.iterdir())
    )


def _is_own(entry: Path) -> bool:
    """Returns whether a training wrote an entry of its folder."""
    return entry.name in FILES or is_draft(entry) or _is_log(entry)


def holds_only_own(folder: Path) -> bool:
    """Returns whether all entries of a folder were written by a training."""
    return all(_is_own(entry) for entry in folder.iterdir())


def is_draft(entry: Path) -> bool:
    """Returns whether a file is the draft of one of :data:`FILES`."""
    return DRAFT.fullmatch(entry.name) is not None


class GrowingTable:
    """The rows of a training and their file.

    Attributes:
        path: path of the file.
        rows: rows in order; append new ones to this list.
        ended: whether the stored table holds rows of test images, which a training writes last.
    """

    def __init__(self, path: Path):
        self.path, self.ended = path, False
        self.rows: list[Measurement] = []
        self._text, self._written = bytearray(), 0  # serialised rows, and their number

    @classmethod
    def read(cls, path: Path, n: int) -> "GrowingTable":
        """Reads the first n rows of a file.

        Raises:
            ValueError: the file holds fewer rows, other contents, or a row that is not as it was stored.
        """
        table = cls(path)
        try:
            rows = read_table(path, checked=True)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} must hold the rows of the training, got others ({reason(error)}); begin again "
                "without --resume"
            ) from error
        if len(rows) < n:
            raise ValueError(
                f"{path} must hold the {n} rows of the checkpoint beside it, got {len(rows)}; begin again "
                "without --resume"
            )
        table.ended = len(rows.select(theory="network", split="test")) > 0
        table.rows = list(rows[:n])
        return table

    def write(self) -> None:
        """Stores the rows atomically and waits until they are on the disk, since the next checkpoint relies
        on them.

        Raises:
            OSError: the rows cannot be written.
        """
        self._text += "".join(checked_line(row.to_json()) for row in self.rows[self._written :]).encode()
        self._written = len(self.rows)
        with replacing(self.path) as draft, draft.open("wb") as file:
            file.write(self._text)
            file.flush()
            os.fsync(file.fileno())
