"""Atomic writing. A reader sees the old file or the new one, never a part of it; a group of files is written
completely or not at all.

The checksums of a stored result show whether a number was changed after it was measured. They guard against
mistakes (an edited table, an incomplete copy), not against forgery.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import platform
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .reading import check_file, parse_json


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
        with naming(path):
            yield draft
            draft.replace(path)
    finally:
        # the draft is gone after the rename, and may never have existed if the block failed
        with contextlib.suppress(OSError):
            draft.unlink()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives an error of the operating system the name of the file that the block writes: a full disk raises
    one without a name, and a draft has a hidden one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


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


def _drafts(path: Path) -> list[Path]:
    """Returns the hidden drafts of a path that this machine has made."""
    try:
        names = [name for name in os.listdir(path.parent) if name.startswith(_prefix(path))]
    except OSError:  # the folder does not exist, or must not be read
        return []
    return [path.parent / name for name in sorted(names) if _owner(path, name)]


def _owner(path: Path, name: str) -> int:
    """Returns the process that made a hidden draft of a path; 0 if the name is not that of a draft."""
    owner, _, key = name.removeprefix(_prefix(path)).partition(".")
    return int(owner) if owner.isdigit() and key else 0


def _clear_leftovers(path: Path) -> None:
    """Removes the hidden drafts of a path whose process was killed; if it was killed between two renames,
    puts the old folder back.
    """
    for leftover in _drafts(path):
        if _runs(_owner(path, leftover.name)):
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


@contextlib.contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Locks a folder for the block.

    The lock ends with the block or the process. If the file system or the operating system has no locks, the
    folder is not locked.

    Raises:
        FileExistsError: another block has locked the folder, in this process or in another one; the error has
            this message.
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
            raise FileExistsError(message) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


# files of trainings, which take hours and are never removed with a result
WEIGHTS = ("*.safetensors", "*.pt")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or the user's share of it
REPLACED = "replaced"  # name of the old folder inside its hidden folder, while a new one takes its place


class atomic_directory:  # noqa: N801 - used as a function: ``with atomic_directory(out) as folder``
    """A directory that appears complete or not at all: the block writes into a hidden folder, which is
    renamed when the block ends.

    Missing parents are created at entry. If the block raises an exception, they and the hidden folder are
    removed. The hidden folder of a process that was killed is removed when the same directory is written
    again.

    If the target has appeared during the work, what was written gets the next free name, such as ``out-2``.

    Raises (at entry, before any work):
        FileExistsError: the target exists, and ``overwrite`` is False, it is not a stored result, or it holds
            trained weights; or another process is about to write it.
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
            self._check_target()
            if others := _drafts(self.target):
                owner = _owner(self.target, others[0].name)
                raise FileExistsError(
                    f"{self.label} is being written by another command (process {owner}); wait for it, or "
                    "choose another --out"
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

    def _check_target(self) -> None:
        """Raises FileExistsError unless the target may be written."""
        if not os.path.lexists(self.target):
            return
        if not self.overwrite:
            raise FileExistsError(
                f"{self.label} exists already; choose another --out, or pass --overwrite to replace it "
                "(overwrite=True)"
            )
        is_result = self.target.is_dir() and (
            (self.target / "result.json").is_file() or not any(self.target.iterdir())
        )
        if not is_result:
            raise FileExistsError(
                f"{self.label} is not a stored result, so it is not overwritten; choose another --out"
            )
        if weights := sorted(path for kind in WEIGHTS for path in self.target.rglob(kind)):
            name = weights[0].relative_to(self.target)
            raise FileExistsError(
                f"{self.label} holds trained weights ({name}), so it is not overwritten; choose another --out"
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

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._remove_parents()
            if isinstance(error, OSError):
                self._name_target(error)
            return
        try:
            self._check_target()  # again: it may have changed during the work
            if os.path.lexists(self.target):
                # A folder cannot be renamed over another one, so the old one moves away first.
                old_folder = _hidden_sibling(self.target)
                old_folder.mkdir()
                try:
                    self.target.rename(old_folder / REPLACED)
                    self.folder.rename(self.target)
                finally:
                    if not os.path.lexists(self.target):  # interrupted between the two
                        (old_folder / REPLACED).rename(self.target)
                    shutil.rmtree(old_folder, ignore_errors=True)
            else:
                self.folder.rename(self.target)
        except OSError as problem:
            names = (self.target.with_name(f"{self.target.name}-{number}") for number in itertools.count(2))
            free = next(name for name in names if not os.path.lexists(name))
            try:
                self.folder.rename(free)
            except OSError:
                text = f"{self.label} was removed during the work, and the result with it; run it again"
                raise FileNotFoundError(text) from problem
            raise FileExistsError(
                f"{self.label} changed during the work; the result lies in {free} instead"
            ) from problem

    def _name_target(self, error: OSError) -> None:
        """Gives an error the path of the target in place of that of the hidden folder."""
        if error.errno in FULL and error.filename is None:
            error.filename = str(self.label)
        if isinstance(error.filename, str):
            error.filename = error.filename.replace(str(self.folder), str(self.label))
        error.args = tuple(
            part.replace(str(self.folder), str(self.label)) if isinstance(part, str) else part
            for part in error.args
        )


FIELD = "sha256"  # field of result.json that holds the checksums
CHECKSUM = "crc32"  # last field of a line in a file that grows


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


def checked_line(record: Mapping[str, Any]) -> str:
    """Returns a line of JSON that ends in the checksum of what stands before it, for files that grow: they
    are sealed only when they are complete.
    """
    text = json.dumps(record)[:-1]
    return f'{text}, "{CHECKSUM}": "{zlib.crc32(text.encode()):08x}"}}\n'


def checked_record(line: str, *, required: bool = True) -> Any:
    """Returns the record of a line of :func:`checked_line`.

    Args:
        line: the line.
        required: whether every line has a checksum. False: a line without one is any JSON.
    Raises:
        ValueError: the line is not as it was stored.
    """
    text, mark, rest = line.rstrip("\r\n").rpartition(f', "{CHECKSUM}": "')
    if not mark:
        if required:
            raise ValueError("a line has no checksum; it was edited or damaged, or another version wrote it")
        return parse_json(line)
    if rest != f'{zlib.crc32(text.encode()):08x}"}}':
        raise ValueError("a line is not as it was stored: it was edited, or damaged")
    return parse_json(f"{text}}}")


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
