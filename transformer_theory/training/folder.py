"""The folder of a training: which files are its own, and that one training at a time writes there."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

BEST, LAST, TABLE = "best.safetensors", "last.pt", "table.jsonl"
FILES = (BEST, LAST, "result.json", TABLE, "arrays.npz", "report.html", "table.tex", "references.bib")
DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{8}")  # of such a file, where a process was killed as it wrote


def network_file(path: str | Path) -> Path:
    """The file of a trained network: the one that is named, or the best of the run whose folder is named.

    Raises:
        FileNotFoundError: nothing is there, or a folder without a trained network.
    """
    path = Path(path)
    hint = f"name the folder that train wrote, or the {BEST} in it"
    if not path.exists():
        raise FileNotFoundError(f"a trained network must be a file or a folder, there is no {path}; {hint}")
    if path.is_dir() and not (path / BEST).is_file():
        raise FileNotFoundError(f"{path} must hold {BEST}, a trained network, there is none; {hint}")
    return path / BEST if path.is_dir() else path


def check_unused(folder: Path) -> None:
    """Raises FileExistsError unless a training can begin in the folder: it is empty, or not there."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds a training; --resume goes on with it, --overwrite begins again")
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} {'holds something else' if folder.is_dir() else 'is no folder'}; choose another --out")


def clear(folder: Path) -> None:
    """Removes a training, and the folder; nothing happens where there is nothing.

    Raises:
        FileExistsError: the folder holds no training, or something beside it, or a training is at work there; nothing is removed then.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is no folder; choose another --out")
    entries = list(folder.iterdir())
    if entries and not (folder / LAST).exists():
        raise FileExistsError(f"{folder} holds no training, so it is not overwritten; choose another --out")
    if foreign := sorted(entry.name for entry in entries if entry.name not in FILES and not _is_draft(entry)):
        raise FileExistsError(f"{folder} holds {foreign[0]} beside a training, so it is not overwritten; move it, or choose another --out")
    with claimed(folder):
        remove(folder)


def remove(folder: Path) -> None:
    """Removes a training's files, and the folder if nothing is left."""
    for entry in list(folder.iterdir()):
        if entry.name in FILES or _is_draft(entry):
            entry.unlink()
    with contextlib.suppress(OSError):  # something else is there
        folder.rmdir()


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds the folder for this process until the block ends or the process does, and removes what a killed one left half-written.

    Where the file system has no locks, or the system none of this kind, nothing is held.

    Raises:
        FileExistsError: another process holds it.
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
            if _is_draft(entry):
                entry.unlink()
        yield
    finally:
        os.close(handle)


def _is_draft(entry: Path) -> bool:
    found = DRAFT.fullmatch(entry.name)
    return found is not None and found[1] in FILES
