"""Signals at random moments, to every command; then the same command once more.

A signal must be obeyed within ``OBEYED`` seconds with code 130, SIGKILL must leave no process behind, and the
next run must give the numbers of an undisturbed one and leave no hidden or temporary file.
"""

import functools
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .common import Box, Case, Running, complaints
from .fixtures import QUICK, TRAIN, furnish
from .results import compare

COUNT = 20
OBEYED, ORPHANS, LATE = 5.0, 10.0, 2.0  # seconds; so long does Python take to end on a busy machine
SEEDS = [*TRAIN, "--theories", "none", "--epochs", "3", "--seeds", "2", "--workers", "2", "--out", "o"]
WAYS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM, SIGINT": (signal.SIGTERM, signal.SIGINT),
}


@dataclass(frozen=True)
class Target:
    """A command, the store that it finds, what the next command has in addition, and its results."""

    argv: list[str]
    store: str = ""
    again: tuple[str, ...] = ()
    results: tuple[str, ...] = ("o",)
    seconds: float = 4.0  # about as long as it takes, with its start


TARGETS = {
    "list": Target(QUICK["list"], results=(), seconds=0.2),
    "cite": Target(QUICK["cite"], results=(), seconds=0.2),
    "evaluate": Target(QUICK["evaluate"], results=(), seconds=0.3),
    "report": Target([*QUICK["report"], "--overwrite"], results=()),
    "verify": Target([*QUICK["verify"], "--seeds", "20"], seconds=1.0),
    "verify --workers": Target([*QUICK["verify"], "--seeds", "8", "--workers", "2"], seconds=7.0),
    "run": Target(QUICK["run"], seconds=0.7),
    "reach": Target(QUICK["reach"]),
    "reach --workers": Target([*QUICK["reach"], "--workers", "2"], seconds=12.0),
    "compare": Target(QUICK["compare"], seconds=0.6),
    "compare --overwrite": Target([*QUICK["compare"], "--overwrite"], "compared", seconds=0.6),
    "compare --workers": Target([*QUICK["compare"], "--seeds", "2", "--workers", "2"], seconds=8.0),
    "measure": Target(QUICK["measure"], seconds=1.2),
    "intervene": Target(QUICK["intervene"], seconds=0.5),
    "train": Target(QUICK["train"], again=("--resume",)),
    "train --extend": Target([*QUICK["train"], "--extend", "--epochs", "6"], "trained"),
    "train --overwrite": Target([*QUICK["train"], "--overwrite"], "trained", again=("--resume",)),
    "train --weights": Target([*QUICK["train"], "--weights", "trained"], again=("--resume",)),
    "train --seeds": Target(SEEDS, again=("--resume",), results=("o/seed-0", "o/seed-1"), seconds=14.0),
}


def furnish_for(box: Box, target: Target) -> None:
    """Puts data, stores and the store of the command into the working folder."""
    furnish(box)
    if target.store:
        box.take(target.store, "o")


def killed(box: Box, name: str, way: str) -> list[str]:
    """Kills the command once, judges its end, and runs it again."""
    target = TARGETS[name]

    def make(once: Box) -> None:
        furnish_for(once, target)
        once.undisturbed(*target.argv)

    whole = box.once(f"whole {name}", make).work
    furnish_for(box, target)
    start = 3.0 if box.real else 0.0  # a real command imports the library first
    moment = box.random.uniform(0.02, start + target.seconds)
    running = box.start(target.argv)
    time.sleep(moment)
    if running.poll() is not None:
        box.note("outcome: over before the signal")
    box.note(f"{way} after {moment:.2f} s")
    wrong = signalled(running, way, early=moment < 0.4)
    alive = orphans(running)
    wrong += alive + once_more(box, target, whole)
    # files of processes that were killed here just now are no fault of the command
    left = [name for name in box.leftovers() if not alive]
    return wrong + ([f"then left {left[:3]}"] if left else [])


def signalled(running: Running, way: str, early: bool) -> list[str]:
    """Sends the signals and judges the end. In the first moments Python itself may die of one."""
    was_running = running.poll() is None
    for number in WAYS[way]:
        running.send(number)
        time.sleep(0.02 if len(WAYS[way]) > 1 else 0)
    sent = time.monotonic()
    while running.poll() is None and time.monotonic() - sent < OBEYED:
        time.sleep(0.005)
    took = time.monotonic() - sent
    late = running.poll() is None
    outcome = running.wait(limit=60)
    if way == "SIGKILL" or not was_running:
        return [] if way == "SIGKILL" else complaints(outcome)
    if outcome.code in (-signal.SIGINT, -signal.SIGTERM) and early:
        return []
    wrong = complaints(outcome, killed=early)
    if late:
        wrong.append(f"{way} not obeyed within {OBEYED} s (then code {outcome.code})")
    elif outcome.code != 130 and not (outcome.code == 0 and took < LATE):
        wrong.append(f"{way}: code {outcome.code} after {took:.1f} s, not 130")
    return wrong


def orphans(running: Running) -> list[str]:
    """Waits for the other processes of the command to end, and kills those that do not."""
    until = time.monotonic() + ORPHANS
    while (family := running.family()) and time.monotonic() < until:
        time.sleep(0.05)
    running.end()
    return [f"{len(family)} processes live on for {ORPHANS:.0f} s"] if family else []


def once_more(box: Box, target: Target, whole: Path) -> list[str]:
    """Runs the command again; it may find its result there already."""
    argv = [word for word in target.argv if word != "--overwrite" or not target.again]
    outcome = box.run(*argv, *target.again, limit=180)
    there = outcome.code == 2 and "exists already" in outcome.err and "--overwrite" not in argv
    wrong = [f"then {each}" for each in complaints(outcome)]
    if outcome.code and not there:
        wrong.append(f"then the same command ends with code {outcome.code}: {outcome.err[-250:].strip()}")
    else:
        results = ((place, compare(box.work / place, whole / place)) for place in target.results)
        wrong += [f"then {place} differs from an undisturbed run: {what}" for place, what in results if what]
    return wrong


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields ``count`` kills of each command, in all ways in turn."""
    for name in TARGETS:
        for number in range(count):
            way = list(WAYS)[number % len(WAYS)]
            yield Case(f"{name} {number}: {way}", functools.partial(killed, name=name, way=way))
