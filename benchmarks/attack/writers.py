"""Two commands with one --out, and folders that vanish or are replaced while a command runs.

A result that a message promises at a place must still be there after the next commands, one of two writers
must store an undamaged result, and no piece of work may be stored twice.
"""

import contextlib
import functools
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from .common import Box, Case, Outcome, Running, complaints
from .fixtures import QUICK, furnish
from .kills import SEEDS
from .results import compare

COUNT = 3  # pairs, and disturbances, of each command
PAIRS = {
    "verify": [*QUICK["verify"], "--seeds", "20"],
    "run": QUICK["run"],
    "reach": QUICK["reach"],
    "compare": QUICK["compare"],
    "measure": [*QUICK["measure"], "--networks", "20"],
    "intervene": QUICK["intervene"],
    "train": QUICK["train"],
    "train --resume": [*QUICK["train"], "--resume"],
    "train --seeds": SEEDS,
    "compare --overwrite": [*QUICK["compare"], "--overwrite"],
    "report --overwrite": [*QUICK["report"], "--overwrite"],
}


def promised(outcome: Outcome, work: Path) -> list[Path]:
    """Returns the places where a message says that something lies."""
    line = outcome.err.splitlines()[-1] if outcome.err else ""
    if not re.search(r"lies in|holds|kept in|stored in|stands in", line):
        return []
    words = (word.strip("'\"`(),;:") for word in line.split())
    places = (work / word for word in words if "/" in word or word.startswith((".o", "o.")))
    return [place for place in places if work in place.parents]


def repeated(work: Path) -> list[str]:
    """Lists lines that stand twice, up to their values, in files that grow."""
    found = []
    texts = dict[Path, str]()
    with contextlib.suppress(FileNotFoundError):  # drafts come and go
        for path in [*work.rglob("cells*"), *work.rglob("*.unfinished*")]:
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
    for path, lines in texts.items():
        keys: Counter[str] = Counter()
        for text in lines.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            key = line[:2] if isinstance(line, list) else line.get("cell") or line.get("piece")
            keys.update([str(key)] if key else [])
        if twice := [key for key, count in keys.items() if count > 1]:
            found.append(f"{len(twice)} of {len(keys)} pieces are stored twice in {path.name}")
    return found


def follow(box: Box, commands: list[Running]) -> list[str]:
    """Watches the growing files until all commands have ended; returns what was written twice."""
    found: set[str] = set()
    while any(command.poll() is None for command in commands):
        found |= {each.split(" in ")[-1] for each in repeated(box.work)}
        time.sleep(0.1)
        if time.monotonic() - commands[0].started > 120:
            break
    return [f"pieces are stored twice in {name}" for name in sorted(found)]


def pair(box: Box, name: str) -> list[str]:
    """Runs a command twice at once, and judges what they and the next commands leave."""
    furnish(box)
    argv = PAIRS[name]
    commands = [box.start(argv)]
    time.sleep(box.random.choice((0, 0.05, 0.3)))
    commands.append(box.start(argv))
    wrong = follow(box, commands)
    outcomes = [command.wait(limit=180) for command in commands]
    wrong += [each for outcome in outcomes for each in complaints(outcome)]
    codes = [outcome.code for outcome in outcomes]
    box.note(f"outcome: codes {min(codes)} and {max(codes)}")
    places = [place for outcome in outcomes for place in promised(outcome, box.work)]
    wrong += [f"promised {place.name}, which is not there" for place in places if not place.exists()]
    if 0 not in codes:
        wrong.append(f"neither succeeds: {[outcome.err[-200:] for outcome in outcomes]}")
    for _ in range(2):  # one that is refused or goes on, and one that replaces
        wrong += complaints(box.run(*argv, limit=180))
    wrong += [
        f"the next command removed {place.name}, as promised before" for place in places if not place.exists()
    ]
    return wrong + result_of(box, name)


def result_of(box: Box, name: str) -> list[str]:
    """Compares the result with that of one command alone."""
    if name.startswith("report"):
        return []

    def make(once: Box) -> None:
        furnish(once)
        once.undisturbed(*PAIRS[name])

    folder = box.once(f"alone {name}", make)
    places = ("o/seed-0", "o/seed-1") if name == "train --seeds" else ("o",)
    results = ((place, compare(box.work / place, folder.work / place)) for place in places)
    return [f"{place} differs from that of one command: {what}" for place, what in results if what]


def _replaced(path: Path, by: str) -> None:
    if path.exists():
        path.rename(path.with_name("moved-away"))
        if by == "a file":
            path.write_text("mine")
        elif by == "a folder":
            path.mkdir()
            (path / "mine").write_text("mine")


DISTURBANCES: dict[str, Callable[[Box], object]] = {
    "the folder is removed": lambda box: shutil.rmtree(box.work / "new", ignore_errors=True),
    "the folder is moved": lambda box: _replaced(box.work / "new", ""),
    "a file takes the place of the folder": lambda box: _replaced(box.work / "new", "a file"),
    "another folder takes its place": lambda box: _replaced(box.work / "new", "a folder"),
    "the data are removed": lambda box: [
        shutil.rmtree(box.work / "images"),
        (box.work / "tokens.npz").unlink(),
    ],
}


def disturbed(box: Box, name: str, what: str) -> list[str]:
    """Disturbs a command while it runs; ``new`` is its folder, or the one above."""
    furnish(box)
    inside = box.random.random() < 0.5
    (box.work / "new").mkdir()
    out = "new/o" if inside else "new"
    argv = [out if word == "o" else word for word in PAIRS[name]]
    if not inside:
        (box.work / "new").rmdir()
    running = box.start(argv)
    wait = box.random.uniform(0.1, 1.5) + 3.0 * box.real
    until = time.monotonic() + (60 if name.startswith("train") and not inside else wait)
    while running.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
        if (box.work / out / "last.pt").exists() or (box.work / out / "cells.jsonl").exists():
            break
    DISTURBANCES[what](box)
    box.note(what)
    outcome = running.wait(limit=180)
    box.note(f"outcome: code {outcome.code}")
    missing = [place for place in promised(outcome, box.work) if not place.exists()]
    return complaints(outcome) + [
        f"{place.name} is said to be there, and is not: {outcome.err[-200:]}" for place in missing
    ]


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields pairs of writers, and disturbances."""
    for name in PAIRS:
        for number in range(count):
            yield Case(f"two {name} {number}", functools.partial(pair, name=name))
    for name in ("verify", "run", "reach", "compare", "measure", "train", "train --seeds"):
        for what in DISTURBANCES:
            for number in range(max(1, count // 3)):
                yield Case(f"{name} {number}: {what}", functools.partial(disturbed, name=name, what=what))
