"""Random command lines, made of what ``--help`` lists and of values that nobody should pass."""

import functools
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .common import NAME, ROOT, Box, Case
from .fixtures import CLAIM, DATA, QUICK, STORES

COUNT = 300
LIMIT = 30.0  # seconds
HOSTILE = ["", " ", "-", "--", "-1", "0", "nan", "inf", "-inf", "1e400", "4294967295", "4294967296", "1e-400"]
HOSTILE += ["99999999999999999999", "0x10", "1_000", "½", "٣", "1,1", ",", "a,b", "0,-1", "1.5", "True"]
HOSTILE += [
    "a\nb",
    "a\rb\x1b[31m",
    "ünï/çødé",
    "\udcff\udcfe",
    "a" * 300,
    "x/" * 2500,
    "none",
    "all",
    "quick",
]
HOSTILE += [
    "tcp://127.0.0.1:1",
    "tcp://nowhere.invalid:1",
    "tcp://:0",
    "cuda",
    "cuda:99",
    "mps",
    "meta",
    "%s{}",
]
HOSTILE += [
    "no/such/place",
    "net.py",
    "net.py:nothing",
    "/dev/null/x",
    "dangling",
    "loop",
    "pipe",
    "socket-less",
]
HOSTILE += ["@text.txt", "$HOME", "~", "~nobody/x", "file://text.txt", "https://example.invalid/x", "*"]
VALID = {
    "N": ["1", "2", "8"],
    "N|A,B": ["1", "0,1", "2"],
    "N|ADDRESS": ["1", "2"],
    "INT": ["1", "2", "8"],
    "FLOAT": ["0", "0.1", "1"],
    "M": ["0.05", "1"],
    "G": ["1"],
    "A,B": ["collapse", "collapse,scan_snap", "none"],
    "DIR": ["o", "new/o", "compared", "trained", "text.txt", "text.txt/o", "."],
    "FILE": ["page.html", "text.txt", "labels.txt", "ids.npy", "trained"],
    "NAME": ["minutes", "digits", "model_ema"],
    "NAME|PATH": [*DATA, "digits"],
    "STEPS": ["1", "2"],
    "COLUMN": ["full block", "trained network"],
    "DEVICE": ["cpu"],
    "D": ["cpu"],
    "FILE|RUN": ["trained", "trained/best.safetensors"],
    "RUN|MODEL": ["trained", "gpt2", "net.py:small"],
    "OTHER": ["net.py:small", "gpt2", "trained"],
}
POSITIONAL = [
    CLAIM,
    "collapse",
    "attention_svm.trajectories",
    "vit",
    "crate",
    "software",
    *STORES,
    "net.py:small",
]


@functools.cache
def options_of(command: str) -> dict[str, list[str] | None]:
    """Reads the options of a command and their valid values from its help; None for a flag."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", NAME, command, "--help"]
    text = subprocess.run(call, env=environment, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str] | None] = {}
    for name, value in re.findall(r"^  (--[a-z-]+)(?: (\{[^}]*\}|[A-Z][A-Z|,]*))?", text, re.MULTILINE):
        if not value:
            found[name] = None
        else:
            found[name] = value[1:-1].split(",") if value[0] == "{" else VALID.get(value, ["1"])
    return found


def furnish(box: Box) -> None:
    """Puts data, stores and traps into the working folder."""
    for name in (*DATA, *STORES, "gpt2", "claims.json"):
        if (box.fixtures / name).exists():
            box.take(name)
    (box.work / "dangling").symlink_to("nowhere")
    (box.work / "loop").symlink_to("loop")
    os.mkfifo(box.work / "pipe")


def command_line(chance: random.Random) -> list[str]:
    """Draws a command line: a quick one that is right, with a few changes."""
    command = chance.choice(list(QUICK))
    argv = list(QUICK[command])
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        kind = chance.random()
        if kind < 0.45:
            name, values = chance.choice(list(options_of(command).items()))
            value = [] if values is None else [chance.choice(values if chance.random() < 0.5 else HOSTILE)]
            argv += [f"{name}={value[0]}"] if value and chance.random() < 0.3 else [name, *value]
        elif kind < 0.75:
            argv[chance.randrange(1, len(argv))] = chance.choice(HOSTILE)
        elif kind < 0.85:
            argv.insert(chance.randrange(1, len(argv) + 1), chance.choice([*POSITIONAL, *HOSTILE]))
        elif kind < 0.95 and len(argv) > 2:
            del argv[chance.randrange(1, len(argv))]
        else:
            argv[0] = chance.choice([*QUICK, *HOSTILE])
    return argv


def attack(box: Box) -> list[str]:
    """Runs one command line. A command that works on at the limit is interrupted, and has to obey."""
    furnish(box)
    outcome, wrong = box.judged(*command_line(box.random), limit=LIMIT)
    box.note(f"outcome: code {outcome.code}")
    if outcome.code in (0, 1) and (left := box.leftovers()):
        wrong.append(f"left {left[:3]}")
    return wrong


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields random command lines, after a few that are known to be dangerous."""
    for number in itertools.islice(itertools.count(), count):
        yield Case(f"line {number}", attack)
    numbers = ("4294967296", "100000000", "0,4294967295")
    for command, number in itertools.product(("verify", "compare", "reach"), numbers):

        def many(box: Box, command: str = command, number: str = number) -> list[str]:
            furnish(box)
            return box.judged(*QUICK[command], "--seeds", number, limit=LIMIT)[1]

        yield Case(f"{command} of many seeds {number}", many)
