"""Single flipped bits and cuts in every type of stored file.

A damage is detected (one line names it), harmless (the final numbers are those of the undisturbed run), or
silent: the failure.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

from .common import Box, Case, Outcome, complaints
from .files import READERS, Reader, furnish
from .fixtures import TRAIN
from .results import compare

COUNT = 80  # flips of each file; a third as many cuts
# how each file is read so that its numbers come out, and where they then lie
TARGETS: dict[str, tuple[Reader, str]] = {
    name: (READERS[name], place)
    for name, place in {
        "npz": "new",
        "last": "o",
        "stopped table": "o",
        "cells": "o",
        "unfinished": "o",
        "unfinished measure": "o",
        "result": "page.md",
        "table": "page.md",
        "training table": "page.md",
        "arrays": "page.md",
        "verifications": "page.md",
        "network": "",
    }.items()
}
AGAIN = Reader("trained/last.pt", ("trained", "images"), [*TRAIN, "--extend", "--epochs", "6"])
RESUMED = Reader("trained/best.safetensors", ("trained", "images"), [*TRAIN, "--resume", "--epochs", "4"])
TARGETS["last of a finished run"] = (AGAIN, "trained")
TARGETS["best of a finished run"] = (RESUMED, "trained")
TARGETS["weights"] = (READERS["weights"], "new")


def command(box: Box, reader: Reader) -> list[str]:
    """Furnishes the sandbox and returns the command."""
    argv = furnish(box, reader)
    return [*argv, "--out", "trained"] if reader in (AGAIN, RESUMED) else argv


def damaged(box: Box, name: str, cut: bool) -> list[str]:
    """Flips a bit of the file, or cuts it off, runs the command, and judges its result."""
    reader, place = TARGETS[name]
    other = box.once(f"flips {name}", lambda once: once.undisturbed(*command(once, reader)))
    argv = command(box, reader)
    path = box.work / reader.file
    content = bytearray(path.read_bytes())
    at = box.random.randrange(len(content))
    if cut:
        del content[at:]
        box.note(f"{reader.file} cut off at byte {at}")
    else:
        bit = box.random.randrange(8)
        content[at] ^= 1 << bit
        box.note(f"bit {bit} of byte {at} of {reader.file} flipped")
    path.write_bytes(content)
    outcome = box.run(*argv, limit=120)
    if wrong := complaints(outcome):
        return wrong
    different = differs(box, other, outcome, place)
    word = "detected" if outcome.code == 2 or (different and told(outcome, other.last)) else "harmless"
    box.note(f"outcome: {'silent' if different and word == 'harmless' else word}")
    return [f"SILENT, {different}"] if different and word == "harmless" else []


def told(outcome: Outcome, usual: Outcome) -> list[str]:
    """Returns lines about a damage that the undisturbed run does not print; progress has no such words."""
    words = ("damaged", "checksum", "not as it was", "is missing", "cut off", "unreadable", "lost", "anew")
    new = set(outcome.err.splitlines()) - set(usual.err.splitlines())
    return [line for line in new if any(word in line for word in words)]


def differs(box: Box, other: Box, outcome: Outcome, place: str) -> str:
    """Says how the result differs from the undisturbed one; a refused command has none."""
    if outcome.code == 2:
        return ""
    if not place:
        return "" if outcome.out == other.last.out else "another text is printed"
    first, second = box.work / place, other.work / place
    if first.is_dir():
        return compare(first, second)
    texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in (first, second)]
    return "" if texts[0] == texts[1] else f"another {place}"


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields flips and cuts of every type of file."""
    for name in TARGETS:
        for number in range(count + count // 3):
            cut = number >= count
            attack = functools.partial(damaged, name=name, cut=cut)
            yield Case(f"{name}, {'cut' if cut else 'flip'} {number - count * cut}", attack)
