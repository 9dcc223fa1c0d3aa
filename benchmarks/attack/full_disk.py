"""Too little space: a small file system (as root), a limit on the size of files, and one on the memory."""

import contextlib
import ctypes
import functools
import json
import os
import re
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .common import Box, Case, Outcome, complaints
from .fixtures import CLAIM, QUICK, furnish
from .kills import SEEDS

COUNT = 1  # each size once
SIZES = {"60k": 60 << 10, "300k": 300 << 10, "1m": 1 << 20, "3m": 3 << 20}
# bytes beside those of the imported library; with less than 100 MB, OpenBLAS itself waits without end
MEMORY = {"150m": 150 << 20, "600m": 600 << 20}
COMMANDS = {
    "verify": ["verify", CLAIM, "rate_reduction/equal-moments", "--seeds", "20", "--out", "o"],
    "report": [
        "report",
        "compared",
        "trained",
        "--html",
        "o/page.html",
        "--latex",
        "o/tables",
        "--figures",
        "o/f",
    ],
    "train --csv": [*QUICK["train"], "--csv"],
    "train --seeds": SEEDS,
    **{name: QUICK[name] for name in ("run", "reach", "compare", "measure", "intervene", "train")},
}
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(place: Path, size: int) -> None:
    """Mounts a file system of this size in memory.

    Raises:
        OSError: it is not allowed.
    """
    if LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), "cannot mount")


def _scarce_memory(size: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, resource.RLIM_INFINITY))


def scarce(box: Box, name: str, size: str) -> list[str]:
    """Runs a command that may take little memory: its numbers or one line."""
    furnish(box)
    box.note(f"at most {size} of memory")
    limit = functools.partial(_scarce_memory, MEMORY[size])
    outcome = box.run(*COMMANDS[name], before=limit, limit=120, real=False)
    box.note(f"outcome: memory, code {outcome.code}")
    return complaints(outcome)


def attack(box: Box, name: str, size: str, kind: str) -> list[str]:
    """Runs a command whose folder has too little space, and judges message and files."""
    furnish(box)
    disk = box.work / "disk"
    disk.mkdir()
    argv = [f"disk/{word}" if re.fullmatch(r"o(/.*)?", word) else word for word in COMMANDS[name]]
    limit = None
    if kind == "disk":
        mount(disk, SIZES[size])
    else:
        limits = SIZES[size], resource.RLIM_INFINITY
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
    box.note(f"{'a file system' if kind == 'disk' else 'files'} of at most {size}")
    try:
        outcome = box.run(*argv, before=limit, limit=120)
        box.note(f"outcome: code {outcome.code}")
        return judge(outcome, disk, kept=name.startswith(("train", "reach", "verify", "measure")))
    finally:
        if kind == "disk":
            LIBC.umount2(os.fsencode(disk), 2)


def judge(outcome: Outcome, disk: Path, kept: bool) -> list[str]:
    """Lists what is wrong; ``kept``: the command may leave finished parts, which have to be whole."""
    wrong = complaints(outcome)
    lines = outcome.err.splitlines()
    if outcome.code == 2 and lines:
        if hidden := re.search(r"\S*/\.[^/\s.]\S*", lines[-1]):
            wrong.append(f"names a hidden draft: {hidden[0]}")
        if "disk" not in lines[-1]:
            wrong.append(f"does not say where there is no space: {lines[-1][:200]}")
    elif outcome.code == 1:
        wrong.append(f"a full disk is reported with code 1: {lines[-1:]}")
    files = [path for path in disk.rglob("*") if path.is_file()]
    if outcome.code == 2 and files and not kept:
        wrong.append(f"exit code 2, but left {[str(path.relative_to(disk)) for path in files[:3]]}")
    return wrong + [
        f"half a file: {path.relative_to(disk)}, {half}" for path in files if (half := broken(path))
    ]


def broken(path: Path) -> str:
    """Says what is incomplete in a file, as far as its format shows it."""
    with contextlib.suppress(UnicodeDecodeError):
        if path.name.startswith("."):
            return "a hidden draft"
        if path.suffix in (".npz", ".pt"):
            return "" if zipfile.is_zipfile(path) else "no archive"
        text = path.read_text(encoding="utf-8") if path.stat().st_size < (64 << 20) else ""
        if path.suffix in (".html", ".svg", ".csv") and not text.rstrip().endswith(("</html>", "</svg>")):
            return "" if path.suffix == ".csv" and text.endswith("\n") else "no end"
        try:
            if path.suffix == ".json":
                json.loads(text)
            elif path.suffix == ".jsonl":
                # the last line of finished parts may be cut off, as documented
                grows = "unfinished" in path.name or path.name == "cells.jsonl"
                whole = text[: text.rfind("\n") + 1] if grows else text
                [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            return str(error)
    return ""


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields every command with every size."""
    kinds = ("disk", "limit") if os.getuid() == 0 else ("limit",)
    for kind in kinds:
        for name in COMMANDS:
            for size in SIZES:
                for number in range(count):
                    attack_ = functools.partial(attack, name=name, size=size, kind=kind)
                    yield Case(f"{kind} of {size} {number}: {name}", attack_)
    for name in COMMANDS:
        for size in MEMORY:
            yield Case(f"memory of {size}: {name}", functools.partial(scarce, name=name, size=size))
