"""Stored results found in folders, with the checksums of their files; what lacks a file is said, not skipped."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..core.files import of_file
from ..core.result import FILES, Result


@dataclass(frozen=True, eq=False)
class Stored:
    """A result in its folder.

    Attributes:
        folder: where it lies, as it was named.
        result: what it holds.
        checksums: SHA-256 of its files by their names.
    """

    folder: Path
    result: Result
    checksums: dict[str, str]


def gathered(directories: Iterable[Path]) -> list[Stored]:
    """The results of these folders, each once. A folder that is no result stands for those that lie in it, by their names.

    Raises:
        ValueError: a folder is no result and holds none, a result lacks a file, cannot be read, or was edited after it was stored.
        FileNotFoundError: there is no such folder.
    """
    found: dict[Path, Path] = {}
    for directory in directories:
        for folder in _results(directory):
            found.setdefault(folder.resolve(), folder)
    return [Stored(folder, Result.load(folder), {name: of_file(folder / name) for name in FILES}) for folder in found.values()]


def _results(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no folder {directory}; name one that compare, verify, run or train has written")
    if _begun(directory):
        return [directory]
    inside = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".") and _begun(path))
    if not inside:
        raise ValueError(f"{directory} is no stored result and holds none; name a folder that compare, verify, run or train has written")
    return inside


def _begun(folder: Path) -> bool:
    """Whether a folder has any file of a result: if it lacks another, loading says so."""
    return any((folder / name).is_file() for name in FILES)
