"""A library of machines: small programs, busy beavers, and machines that come back to a cell again and again.

The head must come back to cells that it has rewritten: a machine that only sweeps over its word never tests
whether attention finds the *latest* of several visits. Source: :cite:t:`perez2021attention` for the
construction; the busy beavers are those of :cite:t:`brady1983determination`.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from ...core.errors import nearest
from ...core.validation import integers
from .machine import MOVES, Transition, TuringMachine, check_type, from_table


def increment() -> TuringMachine:
    """Adds one to a binary number, whose last digit is on the right."""
    return _table(
        "right",
        ("done",),
        "right 0 right 0 R, right 1 right 1 R, right # carry # L, carry 1 carry 0 L, carry 0 done 1 L, "
        "carry # done 1 L",
    )


def palindromes() -> TuringMachine:
    """Accepts palindromes over a and b: it erases equal symbols at both ends."""
    rows = [
        "start a seek-a # R",
        "start b seek-b # R",
        "start # yes # R",
        "back # start # R",
        "back a back a L",
        "back b back b L",
    ]
    for letter, other in ("ab", "ba"):
        rows += [f"seek-{letter} {s} seek-{letter} {s} R" for s in "ab"] + [
            f"seek-{letter} # test-{letter} # L"
        ]
        rows += [
            f"test-{letter} {letter} back # L",
            f"test-{letter} {other} no {other} L",
            f"test-{letter} # yes # R",
        ]
    return _table("start", ("yes",), ", ".join(rows), reject=("no",))


def equal_blocks() -> TuringMachine:
    """Accepts the words a...ab...b with as many a as b, the language a^n b^n: it erases an a on the left and
    a b on the right.
    """
    rows = [
        "start a right # R",
        "start b no b R",
        "start # yes # R",
        "right a right a R",
        "right b right b R",
        "right # last # L",
    ]
    rows += [
        "last b left # L",
        "last a no a L",
        "last # no # L",
        "left a left a L",
        "left b left b L",
        "left # start # R",
    ]
    return _table("start", ("yes",), ", ".join(rows), reject=("no",))


def parity() -> TuringMachine:
    """Accepts the words over a and b with an even number of a."""
    rows = [
        "even a odd a R",
        "odd a even a R",
        "even b even b R",
        "odd b odd b R",
        "even # yes # R",
        "odd # no # R",
    ]
    return _table("even", ("yes",), ", ".join(rows), reject=("no",))


def busy_beaver_3() -> TuringMachine:
    """The busy beaver with three states: 14 steps and six ones, on the empty tape of zeros."""
    rows = "A 0 B 1 R, A 1 H 1 R, B 0 C 0 R, B 1 B 1 R, C 0 C 1 L, C 1 A 1 L"
    return _table("A", ("H",), rows, blank="0")


def busy_beaver_4() -> TuringMachine:
    """The busy beaver with four states: 107 steps and 13 ones, on the empty tape of zeros."""
    rows = "A 0 B 1 R, A 1 B 1 L, B 0 A 1 L, B 1 C 0 L, C 0 H 1 R, C 1 D 1 L, D 0 D 1 R, D 1 A 0 R"
    return _table("A", ("H",), rows, blank="0")


def repeated_counter() -> TuringMachine:
    """Counts: adds one to a binary number of fixed width again and again, until it overflows."""
    rows = (
        "right 0 right 0 R, right 1 right 1 R, right # carry # L, carry 1 carry 0 L, carry 0 right 1 R, "
        "carry # done # L"
    )
    return _table("right", ("done",), rows)


def zigzag(width: int) -> TuringMachine:
    """Moves ``width`` cells right, ``width`` cells left, and so on for ever; it flips the bit in each cell, a
    blank becomes a one.

    Raises:
        TypeError, ValueError: ``width`` is not an integer of at least 1.
    """
    integers(width=width)
    table: dict[tuple[str, str], Transition] = {}
    for k in range(2 * width):
        direction = 1 if k < width else -1
        for symbol, flipped in zip("#01", "110"):
            table[f"z{k}", symbol] = (f"z{(k + 1) % (2 * width)}", flipped, direction)
    return TuringMachine(tuple(f"z{k}" for k in range(2 * width)), ("#", "0", "1"), table, "z0", ())


def random_walk(period: int, generator: torch.Generator) -> TuringMachine:
    """A machine whose head repeats a random closed walk of ``period`` steps for ever: one state per step,
    with random symbols to write.

    The symbol that a state writes depends on the symbol that it reads, so a wrong symbol spreads.

    Raises:
        TypeError, ValueError: ``period`` is not a positive even number, or ``generator`` not a
            torch.Generator.
    """
    integers(period=period)
    check_type("generator", generator, torch.Generator)
    if period % 2:
        raise ValueError(
            f"period must be an even number of steps, got {period}; a walk that returns has as many left as "
            "right"
        )
    order = torch.randperm(period, generator=generator).tolist()
    shifts = torch.randint(3, (period,), generator=generator).tolist()
    alphabet = ("#", "0", "1")
    table: dict[tuple[str, str], Transition] = {}
    for k, (rank, shift) in enumerate(zip(order, shifts)):
        for number, symbol in enumerate(alphabet):  # a permutation of the symbols
            table[f"w{k}", symbol] = (
                f"w{(k + 1) % period}",
                alphabet[(number + shift) % 3],
                1 if rank % 2 else -1,
            )
    return TuringMachine(tuple(f"w{k}" for k in range(period)), alphabet, table, "w0", ())


def random_machine(states: int, generator: torch.Generator) -> TuringMachine:
    """A machine with a random table: ``states`` states that never halt, three symbols, moves by -1, 0 and 1.

    Raises:
        TypeError, ValueError: ``states`` is not an integer of at least 1, or ``generator`` not a
            torch.Generator.
    """
    integers(states=states)
    check_type("generator", generator, torch.Generator)
    alphabet = ("#", "0", "1")
    draws = torch.randint(2**30, (states, 3, 3), generator=generator).tolist()
    table: dict[tuple[str, str], Transition] = {}
    for q, row in enumerate(draws):
        for s, (target, written, move) in zip(alphabet, row):
            table[f"r{q}", s] = (f"r{target % states}", alphabet[written % 3], move % 3 - 1)
    return TuringMachine(tuple(f"r{q}" for q in range(states)), alphabet, table, "r0", ())


LIBRARY: dict[str, tuple[Callable[[], TuringMachine], str]] = {
    "increment": (increment, "1011"),
    "palindromes": (palindromes, "abba"),
    "equal_blocks": (equal_blocks, "aabb"),
    "parity": (parity, "abab"),
    "busy_beaver_3": (busy_beaver_3, ""),
    "busy_beaver_4": (busy_beaver_4, ""),
    "repeated_counter": (repeated_counter, "00000000"),
    "zigzag_5": (lambda: zigzag(5), ""),
    "random_walk": (lambda: random_walk(60, torch.Generator().manual_seed(0)), ""),
}
"""Machines by name, each with an example of a word."""


def find(name: str) -> TuringMachine:
    """Returns a machine of the library, or reads the text file of this path.

    Raises:
        TypeError: the name is not a text.
        ValueError: the name is neither a machine of the library nor a readable file, or the file does not
            describe a machine.
    """
    check_type("name", name, str)
    if name in LIBRARY:
        return LIBRARY[name][0]()
    if "/" in name or "." in name or Path(name).exists():
        return TuringMachine.load(name)
    raise ValueError(
        f"machine must be the path of a file or one of {', '.join(LIBRARY)}, got "
        f"{name!r}{nearest(name, LIBRARY)}"
    )


def _table(
    start: str, accept: tuple[str, ...], rows: str, *, reject: tuple[str, ...] = (), blank: str = "#"
) -> TuringMachine:
    """Builds a machine from rows "state symbol state symbol move"."""
    split = (row.split() for row in rows.split(", "))
    return from_table(
        start,
        {(q, s): (target, written, MOVES[move]) for q, s, target, written, move in split},
        accept,
        reject,
        blank,
    )
