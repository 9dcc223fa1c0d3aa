"""The construction runs the machine: traces, retrieval, normal form, size. Source: :cite:t:`perez2021attention`."""

from collections.abc import Callable
from fractions import Fraction

from torch import Generator

from ....core.claims import Claim, Evidence
from ..construction import PerezTransformer, compile_machine, without_normal_form
from ..exact import Step
from ..machine import Trace, TuringMachine, recurrence
from ..machines import equal_blocks, palindromes, parity, random_machine
from .instances import SECOND_HAND, SETTING, Run, bits, early_walk, integer, random_run, rewriting_runs

STEPS = 45  # the runs in exact arithmetic cost the square of it
NORMAL_FORM = "machine in normal form: it starts on the blank before the word, sweeps right over the word, and always moves"
EXACT = "exact (rational) arithmetic, hard-max attention that averages ties"
GAP = Fraction(4, 3)
WALKS = 5  # a single walk may happen to reach every cell at the time of its number


def wrong_times(found: Trace, reference: Trace) -> int:
    """Returns the number of times at which state, symbol, head or attended position differ."""
    pairs = zip(*(zip(t.states, t.symbols, t.heads, t.attended) for t in (found, reference)))
    return sum(one != other for one, other in pairs)


def check_trace(generator: Generator) -> Evidence:
    """The transformer in exact arithmetic against four machines."""
    runs = (*rewriting_runs(generator, STEPS), random_run(generator, STEPS))
    wrong = {run.name: float(wrong_times(run.transformer.run(run.word, run.steps), run.reference)) for run in runs}
    return Evidence(sum(wrong.values()), 0, "<=", detail=wrong)


def printed_lemma(generator: Generator) -> Evidence:
    """The symbol that is found is v^(l+1), as the survey prints it, instead of v^(l)."""
    wrong = {}
    for run in rewriting_runs(generator, 2 * STEPS):
        states, symbols = recurrence(run.machine, run.word, run.steps, delay=1)
        pairs = zip(states, symbols, run.reference.states, run.reference.symbols)
        wrong[run.name] = float(sum((q, s) != (r, v) for q, s, r, v in pairs))
    return Evidence(sum(wrong.values()), 0, "<=", detail=wrong)


def least_gap(runs: tuple[Run, ...], change: Callable[[PerezTransformer], PerezTransformer]) -> Evidence:
    """The smallest gap between the best score of the third layer and the next, times (i + 1)^5."""
    least, several = None, 0
    for run in runs:
        for time, step in enumerate(change(run.transformer).steps(run.word, run.steps)):
            if len(step.scores) > 1:
                best, second = sorted(step.scores)[:-3:-1]
                gap = (best - second) * time**5
                least = gap if least is None else min(least, gap)
                several += len(step.attended) > 1
    assert least is not None
    return Evidence(float(least), float(GAP), ">=", detail={"times with several best positions": float(several)})


def without_tie_break(transformer: PerezTransformer) -> PerezTransformer:
    """Removes 1/(3p^2) from the query, so that all visits of a cell have score 0."""
    return transformer.changed("decoder.3.query", {("1/p^2", "c"): 0})


def check_gap(generator: Generator) -> Evidence:
    """The gap of the construction."""
    return least_gap(rewriting_runs(generator, STEPS), lambda transformer: transformer)


def control_gap(generator: Generator) -> Evidence:
    """The gap without the term that breaks ties."""
    return least_gap(rewriting_runs(generator, 2 * STEPS), without_tie_break)


def new_cells(run: Run, transformer: PerezTransformer) -> tuple[int, int]:
    """Returns the number of times at which the head is in a cell for the first time, and how many of these have a wrong symbol or l."""
    steps: list[Step] = list(transformer.steps(run.word, run.steps))
    seen, new, wrong = {run.reference.heads[0]}, 0, 0
    for time in range(1, run.steps + 1):
        cell = run.reference.heads[time]
        if cell not in seen:
            new += 1
            wrong += steps[time].attended != (time - 1,) or steps[time].symbol != run.reference.symbols[time]
        seen.add(cell)
    return new, wrong


def check_new_cells(generator: Generator) -> Evidence:
    """First visits of four machines."""
    runs = (*rewriting_runs(generator, STEPS), random_run(generator, STEPS))
    counts = [new_cells(run, run.transformer) for run in runs]
    return Evidence(sum(wrong for _, wrong in counts), 0, "<=", detail={"new cells": float(sum(new for new, _ in counts))})


def always_visited(transformer: PerezTransformer) -> PerezTransformer:
    """Takes every cell for a visited one: the output map reads the tape whatever l is."""
    return transformer.changed("map.1", {("p", "visited +"): 0, ("x7", "visited +"): 0, ("1", "visited +"): 1}).changed(
        "map.1", {("p", "visited -"): 0, ("x7", "visited -"): 0, ("1", "visited -"): 0}
    )


def control_new_cells(generator: Generator) -> Evidence:
    """First visits where the output map always reads the tape."""
    counts = [new_cells(run, always_visited(run.transformer)) for run in rewriting_runs(generator, STEPS)]
    return Evidence(sum(wrong for _, wrong in counts), 0, "<=", detail={"new cells": float(sum(new for new, _ in counts))})


def differences(transformer: PerezTransformer, run: Run) -> float:
    """The share of the times at which state or symbol differ from the machine's."""
    found, reference = transformer.run(run.word, run.steps, arithmetic="float64"), run.machine.run(run.word, run.steps)
    return sum(a != b for a, b in zip(zip(found.states, found.symbols), zip(reference.states, reference.symbols))) / len(found)


def check_normal_form(generator: Generator) -> Evidence:
    """Walks and a random table in normal form against the machines themselves."""
    table = Run("random table", random_machine(4, generator), bits(6, generator), 30)
    wrong = []
    for run in (table, *(early_walk(generator, 60) for _ in range(WALKS))):
        # The normal form runs the machine after it has read the word. From then on both have the same states and symbols, if the states
        # that replace moves by 0 are left out: a move by 0 takes two steps.
        found = compile_machine(run.machine).run(run.word, 2 * run.steps + 50, arithmetic="float64")
        reference = run.machine.run(run.word, run.steps)
        both = [(q, s) for q, s in zip(found.states, found.symbols) if q in run.machine.states]
        wrong.append(sum(one != other for one, other in zip(both, zip(reference.states, reference.symbols))) / (run.steps + 1))
    return Evidence(sum(wrong) / len(wrong), 0.0, "<=", detail={"machines with an error": float(sum(share > 0 for share in wrong))})


def control_normal_form(generator: Generator) -> Evidence:
    """The same walks without normal form."""
    runs = [early_walk(generator, 60) for _ in range(WALKS)]
    wrong = [differences(without_normal_form(run.machine), run) for run in runs]
    return Evidence(sum(wrong) / WALKS, 0.0, "<=", detail={"walks with an error": float(sum(share > 0 for share in wrong))})


def members(generator: Generator) -> list[tuple[TuringMachine, str, bool]]:
    """Draws words over a and b, of which about half are in the language, with the answer of a formula."""
    cases = []
    for _ in range(6):
        half = bits(integer(0, 3, generator), generator).translate({48: "a", 49: "b"})
        middle = "ab"[integer(0, 1, generator)] * integer(0, 1, generator)
        palindrome = half + middle + half[::-1]
        m, n = integer(0, 3, generator), integer(0, 3, generator)
        free = bits(integer(1, 6, generator), generator).translate({48: "a", 49: "b"})
        for word in (palindrome, free):
            cases.append((palindromes(), word, word == word[::-1]))
            cases.append((parity(), word, word.count("a") % 2 == 0))
        for word in ("a" * m + "b" * m, "a" * m + "b" * n, free):
            count = len(word) // 2
            cases.append((equal_blocks(), word, word == "a" * count + "b" * count))
    return cases


def wrong_answers(generator: Generator, build: Callable[[TuringMachine], PerezTransformer]) -> Evidence:
    """The share of words whose acceptance is wrong after 90 steps."""
    transformers: dict[TuringMachine, PerezTransformer] = {}
    cases = members(generator)
    wrong = 0
    for machine, word, answer in cases:
        transformer = transformers.setdefault(machine, build(machine))
        last = transformer.run(word, 90, arithmetic="float64").states[-1]
        wrong += (last in machine.accept) != answer
    return Evidence(wrong / len(cases), 0.0, "<=", detail={"words": float(len(cases)), "members": float(sum(a for *_, a in cases))})


def size(transformer: PerezTransformer, states: int, symbols: int) -> Evidence:
    """How far d is from the formula; every coordinate must be read or written by some matrix."""
    used = {name for matrix in transformer.weights.values() for pair in matrix.entries for name in pair}
    idle = sum(name not in used for name in transformer.coordinates)
    difference = abs(transformer.d - (2 * states + 4 * symbols + 11))
    return Evidence(difference + idle, 0, "<=", detail={"d": float(transformer.d), "coordinates without weights": float(idle)})


def check_size(generator: Generator) -> Evidence:
    """The size for a machine in normal form."""
    machine = random_run(generator, 1).machine
    return size(compile_machine(machine), len(machine.states), len(machine.alphabet))


def control_size(generator: Generator) -> Evidence:
    """The size for a machine whose added states are not counted."""
    run = early_walk(generator, 1)
    return size(compile_machine(run.machine), len(run.machine.states), len(run.machine.alphabet))


CLAIMS = (
    Claim(
        id="turing/trace",
        statement=r"The transformer runs the machine: at every time state $q^{(i)}$, symbol $s^{(i)}$, head $c^{(i)}$ and attended "
        r"position $\ell(i)$ are the machine's.",
        measures="number of times at which state, symbol, head or attended position differ from the machine's",
        source=SECOND_HAND,
        assumptions=(NORMAL_FORM, EXACT, f"{STEPS} steps of a counter, a zigzag, a closed random walk and a random table"),
        check=check_trace,
        control=printed_lemma,
        control_description=f"a visited cell holds $v^{{(\\ell + 1)}}$, the survey's Lemma C.5 ({2 * STEPS} steps)",
        corrects=r"The survey (Lemma C.5) prints $v^{(i+1)}$ for the symbol that is stored at time i; it is $v^{(i)}$, since "
        r"$\delta(q^{(i)}, s^{(i)}) = (q^{(i+1)}, v^{(i)}, m^{(i)})$. The sum of the moves must start at $m^{(0)}$, not $m^{(1)}$; "
        r"otherwise all cells after the first step are off by one.",
    ),
    Claim(
        id="turing/latest-visit",
        statement=r"The third layer has one best position, and its score is larger than every other by at least $\frac43 (i+1)^{-5}$.",
        measures="smallest gap between the two best scores, times (i + 1)^5",
        source=SETTING,
        assumptions=(NORMAL_FORM, EXACT, f"{STEPS} steps of a counter, a zigzag and a closed random walk"),
        check=check_gap,
        control=control_gap,
        control_description=f"drops the term $1/(3p^2)$ from the query: all visits of a cell tie ({2 * STEPS} steps)",
    ),
    Claim(
        id="turing/first-visit",
        statement=r"In a cell that the head has not visited, the third layer finds $\ell(i+1) = i$, and the symbol is that of "
        "the word, or blank.",
        measures="number of first visits with another attended position or a wrong symbol",
        source=SETTING,
        assumptions=(NORMAL_FORM, EXACT, f"{STEPS} steps of a counter, a zigzag, a closed random walk and a random table"),
        check=check_new_cells,
        control=control_new_cells,
        control_description="the output map reads the tape whatever $\\ell$ is",
        corrects=r"The survey calls $\ell(i)$ the last time at which the head was in the cell $c^{(i)}$, which does not exist at a first "
        r"visit. The value $\ell(i) = i - 1$ is free to mark it: the head always moves, so a second visit has $\ell(i) \le i - 2$.",
    ),
    Claim(
        id="turing/normal-form",
        statement=r"A machine that does not read its word first runs in normal form, $2n + 3$ or a few more steps later, with the same "
        r"states $q^{(i)}$ and symbols $s^{(i)}$ except where it moves by 0, which takes two steps.",
        measures="share of the times with another state or symbol than the machine's, mean over machines",
        source=SETTING,
        assumptions=(
            f"{WALKS} closed random walks over words of 20 bits, 60 steps, and a random table with moves by 0, 30 steps",
            "float64, hard-max attention",
        ),
        check=check_normal_form,
        control=control_normal_form,
        control_description="the construction without normal form: the symbols of the word are indexed by time, not by cell",
        corrects=r"The survey omits the normal form. Without it the symbol $\alpha^{(i+1)}$ that the encoder returns at time i is not the "
        "one under the head.",
    ),
    Claim(
        id="turing/language",
        statement=r"The transformer accepts the language of the machine: palindromes, $a^n b^n$, and words with an even number of a.",
        measures="share of words whose acceptance differs from the formula",
        source=SECOND_HAND,
        assumptions=("words over a and b of at most seven symbols, 90 steps", "float64, hard-max attention"),
        check=lambda generator: wrong_answers(generator, compile_machine),
        control=lambda generator: wrong_answers(generator, without_normal_form),
        control_description="the construction without normal form",
    ),
    Claim(
        id="turing/size",
        statement=r"Tokens of size $d = 2|Q| + 4|\Sigma| + 11$ suffice, whatever the word and the number of steps; every coordinate "
        "has a weight.",
        measures="difference of d from the formula plus the number of coordinates that no matrix reads or writes",
        source=SECOND_HAND,
        assumptions=("Q counts the states of the normal form",),
        check=check_size,
        control=control_size,
        control_description="counts the states of the machine before normalisation",
    ),
)
