"""Checksums of a stored result: a number that was changed after it was measured is noticed when it is read.

They guard against slips (an edited table, a half-copied folder), not against forgery: whoever edits the checksum too is not found out.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
