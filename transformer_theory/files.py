"""Files written in one stroke: a reader sees the old file or the new one, never half of it; of several, all or none."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a hidden draft beside ``path``, which takes its place once the block has written it; nothing stays if the block fails.

    Raises:
        OSError: the folder does not exist or cannot be written to. Source: none, this is machinery.
    """
    draft = _beside(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # of the draft, where it never came to be; what went wrong is on its way already
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
