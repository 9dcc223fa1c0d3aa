"""The folder of a training: its files, the lock for one training at a time, and the growing table.

Rows are only added to the table, and each is serialised once. A checkpoint stores the number of its rows, not the rows. The table is
written before the checkpoint and may hold more: the rows of an interval in which the training was killed, which are dropped, and those of
the test images, which end a training.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..core.files import replacing
from ..core.measurement import Measurement
from ..core.result import json_line, read_table

BEST, LAST, TABLE = "best.safetensors", "last.pt", "table.jsonl"
FILES = (BEST, LAST, "result.json", TABLE, "arrays.npz", "verifications.json", "report.html", "table.tex", "references.bib")
DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{8}")  # of such a file, left by a process that was killed while it wrote


def network_file(path: str | Path) -> Path:
    """The file of a trained network, from its path or from the path of its run's folder.

    Raises:
        FileNotFoundError: there is no file, or the folder holds no trained network.
    """
    path = Path(path)
    hint = f"name the folder that train wrote, or the {BEST} in it"
    if not path.exists():
        raise FileNotFoundError(f"a trained network must be a file or a folder, {path} does not exist; {hint}")
    if path.is_dir() and not (path / BEST).is_file():
        raise FileNotFoundError(f"{path} must hold {BEST}, a trained network, got none; {hint}")
    return path / BEST if path.is_dir() else path


def check_unused(folder: Path) -> None:
    """Checks that a training can begin in the folder: it is empty or does not exist.

    Raises:
        FileExistsError: it holds a training or something else.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds a training; --resume continues it, --overwrite replaces it")
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} {'holds something else' if folder.is_dir() else 'is not a folder'}; choose another --out")


def clear(folder: Path) -> None:
    """Removes a training and its folder, if the folder exists.

    Raises:
        FileExistsError: the folder holds no training, or other files, or a training is running there; nothing is removed then.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is not a folder; choose another --out")
    entries = list(folder.iterdir())
    if entries and not (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds no training, so it is not overwritten; choose another --out")
    if foreign := sorted(entry.name for entry in entries if entry.name not in FILES and not is_draft(entry)):
        raise FileExistsError(f"{folder} holds {foreign[0]} beside a training, so it is not overwritten; move it, or choose another --out")
    with claimed(folder):
        remove(folder)


def make(folder: Path) -> None:
    """Makes the folder if it does not exist.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}); choose another --out") from error


def remove(folder: Path) -> None:
    """Removes a training's files, and the folder if it is empty then."""
    for entry in list(folder.iterdir()):
        if entry.name in FILES or is_draft(entry):
            entry.unlink()
    with contextlib.suppress(OSError):  # the folder holds other files
        folder.rmdir()


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Locks the folder for this process until the block or the process ends, and removes drafts that a killed process left.

    Without support by the file system or the operating system there is no lock.

    Raises:
        FileExistsError: another process has locked it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileExistsError(f"{folder} is in use by another training; wait for it, or choose another --out") from error
        except OSError:  # a file system without locks
            pass
        for entry in folder.iterdir():
            if is_draft(entry):
                entry.unlink()
        yield
    finally:
        os.close(handle)


def is_draft(entry: Path) -> bool:
    """Whether a file is the draft of one of :data:`FILES`."""
    match = DRAFT.fullmatch(entry.name)
    return match is not None and match[1] in FILES


class GrowingTable:
    """The rows of a training and their file.

    Attributes:
        path: of the file.
        rows: in order; add to them.
        ended: whether the stored table holds rows of test images, the last of a training.
    """

    def __init__(self, path: Path):
        self.path, self.ended = path, False
        self.rows: list[Measurement] = []
        self._text, self._written = bytearray(), 0  # the first rows as text, and their number

    @classmethod
    def read(cls, path: Path, n: int) -> "GrowingTable":
        """The first n rows of a file.

        Raises:
            ValueError: there are fewer, or other contents.
        """
        table = cls(path)
        try:
            rows = read_table(path)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} must hold the rows of the training, got others ({error}); begin again without --resume") from error
        if len(rows) < n:
            raise ValueError(f"{path} must hold the {n} rows of the checkpoint beside it, got {len(rows)}; begin again without --resume")
        table.ended = len(rows.select(theory="network", split="test")) > 0
        table.rows = list(rows[:n])
        return table

    def write(self) -> None:
        """Stores the rows atomically and waits until they are on the disk, since a checkpoint will rely on them.

        Raises:
            OSError: they cannot be written.
        """
        self._text += "".join(json_line(row) for row in self.rows[self._written :]).encode()
        self._written = len(self.rows)
        with replacing(self.path) as draft, draft.open("wb") as file:
            file.write(self._text)
            file.flush()
            os.fsync(file.fileno())
