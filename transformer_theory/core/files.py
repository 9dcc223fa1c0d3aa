"""Atomic writing. A reader sees the old file or the new one, never a part of it; a group of files is written
completely or not at all.

The checksums of a stored result show whether a number was changed after it was measured. They guard against
mistakes (an edited table, an incomplete copy), not against forgery.
"""

import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .reading import check_file


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a hidden draft, which replaces ``path`` when the block ends. If the block raises an
    error, the draft is removed.

    Raises:
        OSError: the folder does not exist or cannot be written to.
    """
    _clear_leftovers(path)
    draft = _hidden_sibling(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        # the draft is gone after the rename, and may never have existed if the block failed
        with contextlib.suppress(OSError):
            draft.unlink()


def check_targets(paths: Iterable[Path]) -> None:
    """Checks that files can be written to all of these paths.

    Raises:
        FileExistsError: a path is that of a folder or a device.
        ValueError: a path occurs twice, or a path would have to be both a file and the folder of another
            file.
        PermissionError: a folder is not writable.
    """
    places: dict[Path, Path] = {}
    for path in paths:
        if path.exists() and not path.is_file():
            raise FileExistsError(
                f"{path} is a {'folder' if path.is_dir() else 'device'} where a file should be; choose "
                "another name"
            )
        if _place(path) in places:
            raise ValueError(
                f"outputs must be different files, got {path} twice; choose another name for one of them"
            )
        places[_place(path)] = path
    for place, path in places.items():
        # Missing folders will be created, so the nearest existing one must be writable.
        existing = next(folder for folder in place.parents if folder.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(f"cannot write to {path} (permission denied); choose another place")
        for folder in place.parents:
            if folder in places:
                raise ValueError(
                    f"{places[folder]} cannot be a file and the folder of {path}; choose another name for "
                    "one of them"
                )


def write_together(files: Mapping[Path, bytes]) -> None:
    """Writes all files or none, and creates missing folders.

    First every file is written as a hidden draft in its folder, then the drafts are renamed one after
    another. The files that they replace are copied to hidden names first, and are put back if a rename fails.
    Only a process that is killed between two renames leaves some new files and some old ones.

    Raises:
        FileExistsError, ValueError: a path is unsuitable, see :func:`check_targets`.
        PermissionError: a file cannot be written; the message names it.
    """
    check_targets(files)
    new_folders: list[Path] = []
    drafts: dict[Path, Path] = {}
    # copies of the old files of all renames that have begun; None if there was no old file
    backups: dict[Path, Path | None] = {}
    path = None
    try:
        for path, data in files.items():
            place = _place(path)
            for folder in reversed([folder for folder in place.parents if not folder.exists()]):
                folder.mkdir()
                new_folders.append(folder)
            _clear_leftovers(place)
            drafts[place] = _hidden_sibling(place)
            drafts[place].write_bytes(data)
        for path in files:
            place = _place(path)
            backups[place] = backup = _hidden_backup(place) if os.path.lexists(place) else None
            if backup is not None:
                # copied, not moved: a reader finds a file at every moment
                shutil.copy2(place, backup, follow_symlinks=False)
            drafts[place].replace(place)
    except BaseException as error:
        _restore(drafts, backups)
        for folder in reversed(new_folders):
            with contextlib.suppress(OSError):  # not empty: another process has written to it
                folder.rmdir()
        if isinstance(error, OSError):
            raise PermissionError(
                f"cannot write to {path} ({error.strerror or error}); choose another place"
            ) from error
        raise
    for backup in filter(None, backups.values()):
        backup.unlink()


def _restore(drafts: Mapping[Path, Path], backups: Mapping[Path, Path | None]) -> None:
    """Undoes the renames and removes the drafts. An old file that cannot be restored stays under its hidden
    name.
    """
    for place, draft in drafts.items():
        backup = backups.get(place)
        with contextlib.suppress(OSError):
            if draft.exists() or place not in backups:  # not renamed: the old file is still in place
                for hidden in filter(None, (draft, backup)):
                    hidden.unlink(missing_ok=True)
            elif backup is not None:
                backup.replace(place)
            else:  # renamed, and there was no old file
                place.unlink()


def _place(path: Path) -> Path:
    """Returns the path with its folder resolved, so that two spellings of one path are equal. A final link is
    not followed.
    """
    return path.parent.resolve() / path.name


def _hidden_sibling(path: Path) -> Path:
    """Returns a new hidden name in the same folder, hence on the same file system, within which a rename is
    atomic.

    The name holds the machine and the number of the process, so that a later process can tell whether its
    owner still runs.
    """
    return path.with_name(f"{_prefix(path)}{os.getpid()}.{secrets.token_hex(4)}")


def _hidden_backup(path: Path) -> Path:
    """Returns a new hidden name for a copy of an old file. A later process does not remove it, since it may
    be the only copy.
    """
    return path.with_name(f".{path.name}.old.{secrets.token_hex(4)}")


def _prefix(path: Path) -> str:
    """Returns the beginning of the hidden names that this machine makes for a path."""
    return f".{path.name}.{platform.node() or 'local'}-"


def _clear_leftovers(path: Path) -> None:
    """Removes the hidden drafts of a path whose process was killed; if it was killed between two renames,
    puts the old folder back.
    """
    try:
        names = [name for name in os.listdir(path.parent) if name.startswith(_prefix(path))]
    except OSError:  # the folder does not exist, or must not be read
        return
    for leftover in (path.parent / name for name in names):
        owner, _, key = leftover.name.removeprefix(_prefix(path)).partition(".")
        if not owner.isdigit() or not key or _runs(int(owner)):
            continue
        with contextlib.suppress(OSError):
            if (leftover / REPLACED).exists() and not os.path.lexists(path):
                (leftover / REPLACED).rename(path)
        with contextlib.suppress(OSError):
            shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()


def _runs(process: int) -> bool:
    """Returns whether a process of this machine runs. In doubt it does, so that nothing that is in use is
    removed.
    """
    if os.name != "posix":  # elsewhere os.kill would end the process
        return True
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# files of trainings, which take hours and are never removed with a result
WEIGHTS = ("*.safetensors", "*.pt")
REPLACED = "replaced"  # name of the old folder inside its hidden folder, while a new one takes its place


class atomic_directory:  # noqa: N801 - used as a function: ``with atomic_directory(out) as folder``
    """A directory that appears complete or not at all: the block writes into a hidden folder, which is
    renamed when the block ends.

    Missing parents are created at entry. If the block raises an exception, they and the hidden folder are
    removed. The hidden folder of a process that was killed is removed when the same directory is written
    again.

    Raises (at entry, before any work):
        FileExistsError: the target exists, and ``overwrite`` is False, it is not a stored result, or it holds
            trained weights.
        PermissionError: the parent is not writable.
    """

    def __init__(self, directory: str | Path, *, overwrite: bool = False):
        # abspath gives "." a name, as resolve() would, but does not follow links.
        self.target, self.overwrite = Path(os.path.abspath(directory)), overwrite
        self.label = directory  # the path as the caller wrote it, which messages show
        self.new_parents: list[Path] = []

    def __enter__(self) -> Path:
        try:
            _clear_leftovers(self.target)
            exists = os.path.lexists(self.target)
            if exists and not self.overwrite:
                raise FileExistsError(
                    f"{self.label} exists already; choose another --out, or pass --overwrite to replace it "
                    "(overwrite=True)"
                )
            if exists and not self._is_result_or_empty():
                raise FileExistsError(
                    f"{self.label} is not a stored result, so it is not overwritten; choose another --out"
                )
            if exists and (weights := sorted(path for kind in WEIGHTS for path in self.target.rglob(kind))):
                name = weights[0].relative_to(self.target)
                raise FileExistsError(
                    f"{self.label} holds trained weights ({name}), so it is not overwritten; choose another "
                    "--out"
                )
            self._make_parents()
            self.folder = _hidden_sibling(self.target)
            self.folder.mkdir()
        except OSError as error:
            self._remove_parents()
            # raised above, not by the operating system
            if isinstance(error, FileExistsError) and error.errno is None:
                raise
            raise PermissionError(
                f"cannot write to {self.label} ({error.strerror}); choose another --out"
            ) from error
        return self.folder

    def _is_result_or_empty(self) -> bool:
        return self.target.is_dir() and (
            (self.target / "result.json").is_file() or not any(self.target.iterdir())
        )

    def _make_parents(self) -> None:
        for parent in reversed(self.target.parents):
            if not parent.exists():
                parent.mkdir()
                self.new_parents.append(parent)

    def _remove_parents(self) -> None:
        for parent in reversed(self.new_parents):
            try:
                parent.rmdir()
            except OSError:  # not empty: another process has written to it
                return

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._remove_parents()
            return
        try:
            if self.overwrite and os.path.lexists(self.target):
                # A folder cannot be renamed over another one, so the old one moves away first.
                old_folder = _hidden_sibling(self.target)
                old_folder.mkdir()
                self.target.rename(old_folder / REPLACED)
                self.folder.rename(self.target)
                shutil.rmtree(old_folder, ignore_errors=True)
            else:
                self.folder.rename(self.target)
        except OSError as error:
            raise FileExistsError(
                f"{self.label} changed during the work ({error.strerror}); the result lies in {self.folder}"
            ) from error


FIELD = "sha256"  # field of result.json that holds the checksums


def sealed(head: dict[str, Any], folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Returns the head of a stored result (the contents of ``result.json``) with checksums: one per file, and
    one of the head itself.

    Args:
        head: fields of ``result.json``, JSON values.
        folder: folder that holds the files.
        names: names of the files that get a checksum.
    """
    return head | {FIELD: {name: of_file(folder / name) for name in names} | {"head": _of_head(head)}}


def check(head: dict[str, Any], folder: Path) -> None:
    """Checks the head and each file of a stored result against the checksums.

    Raises:
        ValueError: the head or a file has changed since :func:`sealed`.
    """
    checksums = dict(head[FIELD])
    if checksums.pop("head") != _of_head(head):
        raise ValueError("result.json is not as it was stored: it was edited, or damaged")
    for name, digest in checksums.items():
        if name in ("", ".", "..") or Path(name).name != name:  # a path would read files outside the folder
            raise ValueError(
                f"checksums must be of files in the folder, got one for {name!r}; result.json was edited"
            )
        if digest != of_file(folder / name):
            raise ValueError(
                f"{name} is not as it was stored: it was edited, damaged, or copied from another result"
            )


def of_file(path: Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal digits.

    Raises:
        FileNotFoundError, ValueError: there is no file.
    """
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_head(head: dict[str, Any]) -> str:
    """Computes the SHA-256 of the head without its checksums."""
    rest = {name: value for name, value in head.items() if name != FIELD}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
