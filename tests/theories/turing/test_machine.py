"""Turing machines against plain Python, their normal form, and machines as text."""

import itertools

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.turing import TuringMachine, machines
from transformer_theory.theories.turing.claims.instances import Run
from transformer_theory.theories.turing.machine import Trace

TEXT = """
; flips every bit
start: go
accept: end
go 0 -> go 1 R
go 1 -> go 0 R
go # -> end # L
"""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(letters: str, longest: int):
    return ("".join(word) for n in range(longest + 1) for word in itertools.product(letters, repeat=n))


@each_case("number", [0, 1, 2, 3, 7, 12, 63, 100])
def test_increment_adds_one(number: int):
    assert machines.increment().tape(f"{number:b}", 60) == f"{number + 1:b}"


def test_the_languages_are_those_of_their_names():
    for word in words("ab", 5):
        half = len(word) // 2
        assert machines.palindromes().accepts(word, 80) == (word == word[::-1]), word
        assert machines.equal_blocks().accepts(word, 80) == (word == "a" * half + "b" * half), word
        assert machines.parity().accepts(word, 80) == (word.count("a") % 2 == 0), word


@pytest.mark.parametrize(
    ("machine", "steps", "ones"), [(machines.busy_beaver_3(), 14, 6), (machines.busy_beaver_4(), 107, 13)]
)
def test_busy_beavers_have_their_numbers(machine: TuringMachine, steps: int, ones: int):
    assert machine.halting_time("", 200) == steps
    assert machine.halting_time("", steps - 1) is None
    assert machine.tape("", 200).count("1") == ones


def test_the_counter_counts_until_it_overflows():
    machine = machines.repeated_counter()
    tapes = []
    for state, head, tape in machine.configurations("000", 200):
        number = "".join(tape[cell] for cell in (1, 2, 3))
        # A number is complete when the head has just turned right from a carry.
        if state == "right" and head == 4 and (not tapes or tapes[-1] != number):
            tapes.append(number)
    assert tapes == [f"{k:03b}" for k in range(8)]
    assert machine.accepts("000", 200)


def test_a_zigzag_turns_at_its_width_and_a_walk_returns():
    heads = machines.zigzag(4).run("", 16).heads
    assert heads == (1, 2, 3, 4, 5, 4, 3, 2, 1, 2, 3, 4, 5, 4, 3, 2, 1)
    walk = machines.random_walk(30, generator()).run("", 90).heads
    assert walk[0] == walk[30] == walk[60] == walk[90]
    assert {abs(b - a) for a, b in itertools.pairwise(walk)} == {1}


def test_visits_are_the_last_ones():
    trace = machines.random_walk(20, generator(1)).run("", 60)
    for time in range(1, 61):
        earlier = [j for j in range(time) if trace.heads[j] == trace.heads[time]]
        assert trace.attended[time] == (earlier[-1] if earlier else time - 1)
    assert trace.attended[0] == -1


@each_case("seed", range(4))
def test_the_normal_form_does_the_same_after_reading_the_word(seed: int):
    machine, word = machines.random_machine(4, generator(seed)), "0110"
    normal = machine.normalise()
    assert normal.in_normal_form
    assert normal.normalise() is normal
    assert not machine.in_normal_form
    own, found = machine.run(word, 25), normal.run(word, 100)
    assert found.heads[: len(word) + 2] == tuple(range(len(word) + 2))
    assert found.heads[2 * len(word) + 3] == 1
    # Without the states that a move by 0 adds, both have the same history.
    kept = [k for k in range(2 * len(word) + 3, 101) if found.states[k] in machine.states]
    assert [(found.states[k], found.symbols[k]) for k in kept][:26] == list(zip(own.states, own.symbols))


def test_a_machine_that_starts_on_cell_0_keeps_its_head():
    from dataclasses import replace

    machine = replace(machines.random_walk(12, generator(2)), first_cell=0)
    normal = machine.normalise()
    own, found = machine.run("0101", 40), normal.run("0101", 80)
    began = found.states.index(machine.start)
    assert found.heads[began] == 0
    assert found.heads[began : began + 41] == own.heads
    assert found.symbols[began : began + 41] == own.symbols


def test_new_states_get_new_names():
    machine = TuringMachine(
        ("init", "read"),
        ("#",),
        {("init", "#"): ("read", "#", 1), ("read", "#"): ("init", "#", 0)},
        "init",
        (),
    )
    assert len(set(machine.normalise().states)) == len(machine.normalise().states) == 6


def test_halting_states_absorb():
    trace = machines.increment().run("1", 20)
    end = trace.states.index("done")
    assert set(trace.states[end:]) == {"done"}
    assert [b - a for a, b in itertools.pairwise(trace.heads[end:])] == [1] * (20 - end)


def test_the_symbol_of_a_cell_is_the_one_written_at_its_latest_visit():
    """v^(l), and not v^(l+1)."""
    run = Run("walk", machines.random_walk(16, generator()).normalise(), "", 80)
    visited = [time for time in range(1, 81) if run.reference.attended[time] < time - 1]
    symbols = [run.reference.symbols[time] for time in visited]
    assert [run.written[run.reference.attended[time]] for time in visited] == symbols
    assert [run.written[run.reference.attended[time] + 1] for time in visited] != symbols


def test_traces_are_compared():
    one, other = machines.increment().run("10", 8), machines.increment().run("11", 8)
    assert one.first_difference(one) is None
    assert one.agreement(one) == 1
    assert one.first_difference(other) == 1  # the second symbol
    assert one.agreement(other) == 0
    longer = machines.increment().run("1010", 8), machines.increment().run("1011", 8)
    assert longer[0].first_difference(longer[1]) == 3
    assert longer[0].agreement(longer[1]) == 2 / 8
    assert longer[0].wrong_times(longer[0]) == []
    start, begin = Trace(("a",), ("#",), (0,), (-1,)), Trace(("b",), ("#",), (0,), (-1,))
    assert (start.agreement(start), start.agreement(begin)) == (1, 0)


def test_a_text_is_a_machine(tmp_path):
    machine = TuringMachine.parse(TEXT)
    assert (machine.states, machine.alphabet, machine.start, machine.accept) == (
        ("go", "end"),
        ("#", "0", "1"),
        "go",
        ("end",),
    )
    assert machine.tape("1011", 6) == "0100"
    path = tmp_path / "flip.tm"
    path.write_text(TEXT, encoding="utf-8")
    assert TuringMachine.load(path) == machine == machines.find(str(path))
    beaver = TuringMachine.parse("blank: 0\nstart: A\nreject: H\nA 0 -> A 1 S ; stays\nA 1 -> H 1 R")
    assert (beaver.blank, beaver.reject, beaver.delta["A", "0"]) == ("0", ("H",), ("A", "1", 0))


GO = {("go", "#"): ("end", "#", 1)}


def machine(**changed) -> TuringMachine:
    return TuringMachine(
        **{"states": ("go", "end"), "alphabet": ("#",), "delta": GO, "start": "go", "accept": ("end",)}
        | changed
    )


CASES = {
    "missing transition": (
        lambda: machine(alphabet=("#", "0")),
        r"needs a transition for every symbol, got none for \(go, 0\); add",
    ),
    "many missing": (
        lambda: machine(alphabet=tuple("#01234")),
        r"\(go, 0\), \(go, 1\), \(go, 2\) and 2 more",
    ),
    "foreign symbol": (
        lambda: machine().run("x", 3),
        "a word must be empty, as there is no symbol but the blank, got 'x' in 'x'; leave",
    ),
    "blank in word": (lambda: machines.increment().run("1#1", 3), "symbols 0 1, got '#'"),
    "long symbol": (lambda: machine(alphabet=("#", "ab")), "single characters other than spaces, got 'ab'"),
    "no blank": (lambda: machine(alphabet=("0",)), "must contain the blank '#', got 0"),
    "unknown start": (lambda: machine(start="begin"), "must be states, got 'begin'; the states are go, end"),
    "accept and reject": (lambda: machine(reject=("end",)), "must not accept and reject, got 'end'"),
    "repeated state": (lambda: machine(states=("go", "end", "go")), "states must not repeat"),
    "unknown state": (lambda: machine(delta={("go", "#"): ("gone", "#", 1)}), "got 'gone' in "),
    "unknown symbol": (lambda: machine(delta={("go", "#"): ("go", "x", 1)}), "symbols #, got 'x'"),
    "unknown move": (lambda: machine(delta={("go", "#"): ("go", "#", 2)}), "must be -1, 0 or 1, got 2"),
    "halting state moves": (
        lambda: machine(delta={**GO, ("end", "#"): ("go", "#", 1)}),
        "halting state must have no transitions",
    ),
    "first cell": (lambda: machine(first_cell=2), "first_cell must be 1, or 0 in normal form, got 2"),
    "negative steps": (lambda: machine().run("", -1), "steps must be at least 0, got -1"),
    "text without arrow": (
        lambda: TuringMachine.parse("start: a\na 0 b 1 R"),
        r"line 2: must read 'state symbol -> .*got 'a 0 b 1 R'",
    ),
    "text with a move": (lambda: TuringMachine.parse("start: a\n\na 0 -> a 0 U"), "line 3: must read"),
    "text with a long symbol": (
        lambda: TuringMachine.parse("start: a\na 00 -> a 0 R"),
        "line 2: symbols must be single characters, got '00'",
    ),
    "text with two transitions": (
        lambda: TuringMachine.parse("start: a\na 0 -> a 0 R\na 0 -> a 1 R"),
        r"line 3: \(a, 0\) must have one",
    ),
    "text with two starts": (
        lambda: TuringMachine.parse("start: a\nstart: b"),
        "line 2: start must be given once",
    ),
    "text with an empty start": (lambda: TuringMachine.parse("start:"), "line 1: start: needs one name"),
    "text without start": (
        lambda: TuringMachine.parse("a # -> a # R"),
        "line 1: the text must hold a line 'start: STATE'",
    ),
    "empty text": (lambda: TuringMachine.parse(""), "line 1: the text must hold a transition"),
    "missing in text": (lambda: TuringMachine.parse("start: a\na 0 -> a 0 R"), r"got none for \(a, #\)"),
    "no file": (
        lambda: machines.find("nothing/here.tm"),
        "must be a readable text file, got 'nothing/here.tm'",
    ),
    "unknown name": (lambda: machines.find("incremet"), "got 'incremet'; did you mean 'increment'"),
    "zigzag 0": (lambda: machines.zigzag(0), "width must be at least 1, got 0"),
    "odd walk": (
        lambda: machines.random_walk(3, generator()),
        "period must be an even number of steps, got 3",
    ),
    "traces of two lengths": (
        lambda: machine().run("", 3).agreement(machine().run("", 9)),
        "traces must have the same length, got 4 and 10 times",
    ),
    "steps of another type": (lambda: machine().run("", "3"), "steps must be an integer, got str '3'"),
    "a list as word": (lambda: machine().run([], 3), "word must be a str, got list"),
    "no table": (lambda: machine(delta=None), "delta must be a Mapping, got NoneType"),
    "a list as table": (lambda: machine(delta=[1]), "delta must be a Mapping, got list"),
    "a text as key": (lambda: machine(delta={"go": ("end", "#", 1)}), "delta must map .* got 'go'"),
    "two entries in a transition": (
        lambda: machine(delta={("go", "#"): ("end", "#")}),
        r"delta must map .* got \('go', '#'\): \('end'",
    ),
    "integer symbols": (lambda: machine(alphabet=(0, 1)), "an entry of alphabet must be a str, got int 0"),
    "no text": (lambda: TuringMachine.parse(None), "text must be a str, got NoneType"),
    "bytes": (lambda: TuringMachine.parse(b""), "text must be a str, got bytes"),
    "no path": (lambda: TuringMachine.load(None), "must be a readable text file, got 'None'"),
    "a number as name": (lambda: machines.find(3), "name must be a str, got int 3"),
    "zigzag of a text": (lambda: machines.zigzag("3"), "width must be an integer, got str '3'"),
    "zigzag of a float": (lambda: machines.zigzag(2.5), "width must be an integer, got float 2.5"),
    "a seed as generator": (lambda: machines.random_walk(4, 0), "generator must be a Generator, got int 0"),
    "no states": (lambda: machines.random_machine(0, generator()), "states must be at least 1, got 0"),
}


@each_case("case", CASES)
def test_bad_input_is_named(unchecked, case: str):
    call, text = CASES[case]
    with pytest.raises((ValueError, TypeError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_file_is_named_in_the_message(tmp_path):
    path = tmp_path / "broken.tm"
    path.write_text("start: a\nnonsense", encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken.tm: line 2: must read"):
        TuringMachine.load(path)
