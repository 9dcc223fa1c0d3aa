"""Loads results from the folders in which commands stored them, and claims from a stored ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..core.files import of_file
from ..core.result import FILES, Result
from . import ledger


@dataclass(frozen=True, eq=False)
class Stored:
    """A stored result: its folder, or the file of its ledger, and the SHA-256 of each of its files by name."""

    folder: Path
    result: Result
    checksums: dict[str, str]


def stored_results(places: Iterable[Path]) -> list[Stored]:
    """Loads the results in these places, each once.

    A place is the folder of a result; a folder that holds such folders, whose results are sorted by name; or
    a ledger, as ``make ledger`` writes it (``docs/claims.json``), which holds a result for each command that
    verified claims.

    Raises:
        ValueError: a folder neither is nor contains a result, a file is no ledger, or a result lacks a file,
            cannot be read or was edited after it was stored.
        FileNotFoundError: a place does not exist.
    """
    folders: dict[Path, Path] = {}
    for place in places:
        if place.is_file():
            folders.setdefault(place.resolve(), place)
            continue
        if not place.is_dir():
            raise FileNotFoundError(
                f"there is no folder {place}; name one that compare, verify, run or train has written"
            )
        inside = [place] if _is_result(place) else sorted(filter(_is_result, place.iterdir()))
        if not inside:
            raise ValueError(
                f"{place} is no stored result and holds none; name a folder that compare, verify, run or "
                "train has written"
            )
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
    return [stored for folder in folders.values() for stored in _load(folder)]


def _load(place: Path) -> list[Stored]:
    if place.is_file():
        return [Stored(place, result, {place.name: of_file(place)}) for result in ledger.results(place)]
    return [Stored(place, Result.load(place), {name: of_file(place / name) for name in FILES})]


def _is_result(folder: Path) -> bool:
    """Returns whether a folder has at least one file of a result. If others are missing, loading the result
    raises an error.
    """
    return (
        folder.is_dir()
        and not folder.name.startswith(".")
        and any((folder / name).is_file() for name in FILES)
    )
