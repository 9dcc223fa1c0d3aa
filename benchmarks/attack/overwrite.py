"""A wrong argument beside --overwrite: the store that would be replaced must stay byte for byte."""

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path

from .command_lines import furnish, options_of
from .common import Box, Case, changes, complaints, snapshot
from .fixtures import QUICK, STORES

COUNT = 4  # wrong values of each option
WRONG = (
    "typo",
    "-7",
    "no/such/place",
    "tcp://127.0.0.1:1",
    "",
    "nan",
    "dangling",
    "text.txt",
    "pipe",
    "loop",
    "a\nb",
)
COMMANDS = {command: store for store, command in STORES.items()} | {"report": "page.html"}


def wrong_lines(command: str, count: int) -> Iterator[list[str]]:
    """Yields the quick command line with a wrong option or name, or with a word wrong or missing."""
    argv = [*QUICK[command], "--overwrite"]
    for name, values in options_of(command).items():
        if name not in ("--out", "--overwrite", "--html", "--latex", "--markdown", "--bibtex", "--figures"):
            for value in WRONG[:count] if values is not None else ():
                yield [*argv, f"{name}={value}"]
    for value in WRONG[: 2 * count]:
        yield [argv[0], value, *argv[2:]]
        yield [*argv, value]
    for at in range(1, len(argv) - 3):
        yield [*argv[:at], *argv[at + 1 :]]
        yield [*argv[:at], "typo", *argv[at + 1 :]]
    yield [*argv, "--typo"]


def attack(box: Box, command: str, argv: list[str]) -> list[str]:
    """Runs one wrong command line over an existing store."""
    furnish(box)
    if command == "report":
        (box.work / "page.html").write_text("<p>mine</p>")
        (box.work / "tables").mkdir()
        (box.work / "tables" / "example.tex").write_text("mine")
    else:
        box.take(COMMANDS[command], "o")
    before = snapshot(box.work)
    outcome = box.run(*argv, limit=60)
    after = snapshot(box.work)
    box.note(f"outcome: code {outcome.code}")
    wrong = complaints(outcome, before, after)
    if outcome.code == 130 and command != "reach":  # interrupted at the limit; reach has begun anew by then
        wrong += changes(before, after)
    return wrong


def cases(stores: Path, seed: int, count: int) -> Iterator[Case]:
    """Yields every wrong command line of every command that has --overwrite."""
    for command in COMMANDS:
        for number, argv in enumerate(wrong_lines(command, count)):
            name = f"{command} {number}: {shlex.join(argv[-2:])!a:.60}"
            yield Case(name, functools.partial(attack, command=command, argv=argv))
