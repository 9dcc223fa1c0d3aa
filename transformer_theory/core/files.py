"""Files that are written atomically: a reader sees the old file or the new one, never half of it; of several, all or none.

Checksums of a stored result show that a number was changed after it was measured. They guard against slips (an edited table, a half-copied
folder), not against forgery.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a hidden draft beside ``path``, which takes its place once the block has written it; nothing stays if the block fails.

    Raises:
        OSError: the folder does not exist or cannot be written to.
    """
    draft = _beside(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the draft may not exist; the original error is propagating
            draft.unlink()


def check_targets(paths: Iterable[Path]) -> None:
    """Raises an error unless files can be written to all of these paths together: none is a folder or a device, none is named twice, and
    none is the folder of another.

    Raises:
        FileExistsError: one is there and is not a file.
        ValueError: one is named twice, or is the folder of another.
        PermissionError: the folder of one may not be written to.
    """
    places: dict[Path, Path] = {}
    for path in paths:
        if path.exists() and not path.is_file():
            raise FileExistsError(f"{path} is a {'folder' if path.is_dir() else 'device'} where a file should be; choose another name")
        if _place(path) in places:
            raise ValueError(f"each output must be a file of its own, got {path} twice; choose another name for one of them")
        places[_place(path)] = path
    for place, path in places.items():
        holder = next(folder for folder in place.parents if folder.exists())
        if not os.access(holder, os.W_OK | os.X_OK):
            raise PermissionError(f"cannot write to {path} (permission denied); choose another place")
        for folder in place.parents:
            if folder in places:
                raise ValueError(f"{places[folder]} cannot be a file and the folder of {path}; choose another name for one of them")


def write_together(files: Mapping[Path, bytes]) -> None:
    """All files or none: each is drafted beside its place before the first takes it, and what they replace is kept beside it until the last
    has. Folders that are missing are made. Only a process that is killed between two renames leaves some new and some old.

    Raises:
        FileExistsError, ValueError: as :func:`check_targets` says.
        PermissionError: one of them cannot be written; says which.
    """
    check_targets(files)
    made: list[Path] = []  # folders
    drafts: dict[Path, Path] = {}
    kept: dict[Path, Path | None] = {}  # of each place whose turn has come, a copy of the file that was there
    path = None
    try:
        for path, data in files.items():
            place = _place(path)
            for folder in reversed([folder for folder in place.parents if not folder.exists()]):
                folder.mkdir()
                made.append(folder)
            drafts[place] = _beside(place)
            drafts[place].write_bytes(data)
        for path in files:
            place = _place(path)
            kept[place] = old = _beside(place) if os.path.lexists(place) else None
            if old is not None:
                shutil.copy2(place, old, follow_symlinks=False)  # not moved: a reader finds a file at every moment
            drafts[place].replace(place)
    except BaseException as error:
        _put_back(drafts, kept)
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # somebody has put something there
                folder.rmdir()
        if isinstance(error, OSError):
            raise PermissionError(f"cannot write to {path} ({error.strerror or error}); choose another place") from error
        raise
    for old in filter(None, kept.values()):
        old.unlink()


def _put_back(drafts: Mapping[Path, Path], kept: Mapping[Path, Path | None]) -> None:
    """Undoes the renames and removes the drafts. An old file that cannot be put back stays under its hidden name."""
    for place, draft in drafts.items():
        old = kept.get(place)
        with contextlib.suppress(OSError):
            if draft.exists() or place not in kept:  # it has not taken its place
                for left in filter(None, (draft, old)):
                    left.unlink(missing_ok=True)
            elif old is not None:
                old.replace(place)
            else:
                place.unlink()


def _place(path: Path) -> Path:
    """The file itself, whichever way its folder is named."""
    return path.parent.resolve() / path.name


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


class atomic_directory:  # noqa: N801 - used as a function: ``with atomic_directory(out) as folder``
    """A directory that appears whole or not at all: work in the folder it hands out; leaving with an exception removes it.

    Parents that are missing are made at entry, and removed again if the work fails.

    Raises (at entry, before any work):
        FileExistsError: the target exists and ``overwrite`` is False, or it is something else than a stored result.
        PermissionError: the parent cannot be written.
    """

    def __init__(self, directory: str | Path, *, overwrite: bool = False):
        self.target, self.overwrite = Path(os.path.abspath(directory)), overwrite  # "." needs a name; links stay links
        self.shown = directory
        self.made: list[Path] = []

    def __enter__(self) -> Path:
        try:
            exists = os.path.lexists(self.target)
            if exists and not self.overwrite:
                raise FileExistsError(f"{self.shown} exists already; choose another --out, or pass --overwrite to replace it")
            if exists and not self._is_result_or_empty():
                raise FileExistsError(f"{self.shown} is not a stored result, so it is not overwritten; choose another --out")
            self._make_parents()
            self.folder = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
            self.folder.chmod(0o755)
        except OSError as error:
            self._remove_parents()
            if isinstance(error, FileExistsError) and error.errno is None:
                raise
            raise PermissionError(f"cannot write to {self.shown} ({error.strerror}); choose another --out") from error
        return self.folder

    def _is_result_or_empty(self) -> bool:
        return self.target.is_dir() and ((self.target / "result.json").is_file() or not any(self.target.iterdir()))

    def _make_parents(self) -> None:
        for parent in reversed(self.target.parents):
            if not parent.exists():
                parent.mkdir()
                self.made.append(parent)

    def _remove_parents(self) -> None:
        for parent in reversed(self.made):
            try:
                parent.rmdir()
            except OSError:  # someone else has put something there
                return

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._remove_parents()
            return
        try:
            if self.overwrite and os.path.lexists(self.target):
                old = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.old.", dir=self.target.parent))
                self.target.rename(old / "replaced")
                self.folder.rename(self.target)
                shutil.rmtree(old, ignore_errors=True)
            else:
                self.folder.rename(self.target)
        except OSError as error:
            raise FileExistsError(f"{self.shown} changed during the work ({error.strerror}); the result lies in {self.folder}") from error


FIELD = "sha256"  # of the head


def sealed(head: dict[str, Any], folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """The head of a stored result with the checksums of the files beside it, and of itself.

    Args:
        head: JSON values.
        folder: where the files lie.
        names: of the files.
    """
    return head | {FIELD: {name: of_file(folder / name) for name in names} | {"head": _of_head(head)}}


def check(head: dict[str, Any], folder: Path) -> None:
    """Raises ValueError unless the head and each file are what was sealed."""
    found = dict(head[FIELD])
    if found.pop("head") != _of_head(head):
        raise ValueError("result.json is not as it was stored: it was edited, or damaged")
    for name, digest in found.items():
        if name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(f"checksums must be of files in the folder, got one of {name!r}; result.json was edited")
        if digest != of_file(folder / name):
            raise ValueError(f"{name} is not as it was stored: it was edited, damaged, or copied from another result")


def of_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_head(head: dict[str, Any]) -> str:
    rest = {name: value for name, value in head.items() if name != FIELD}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
