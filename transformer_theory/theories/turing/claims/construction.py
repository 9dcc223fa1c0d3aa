"""The construction runs the machine: traces, retrieval, normal form. Source: :cite:t:`perez2021attention`."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from torch import Generator

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ..construction import PerezTransformer, compile_machine, without_normal_form
from ..machine import TuringMachine
from .instances import SETTING, Run, random_run, rewriting_runs, runs_without_normal_form

STEPS = 45  # the runs in exact arithmetic cost the square of it
LONG_WALK = 100  # steps, for a gap close to its limit
NORMAL_FORM = (
    "machine in normal form: it starts on the blank before the word, sweeps right over the word, and always "
    "moves"
)
EXACT = "exact (rational) arithmetic, hard-max attention that averages ties"
FOUR_MACHINES = f"{STEPS} steps of a counter, a zigzag, a closed random walk and a random table"
PARTS = ("states", "symbols", "heads", "attended")
GAP = Fraction(4, 3)
WALKS = 5  # a single walk may happen to reach every cell at the time of its number
Change = Callable[[PerezTransformer], PerezTransformer]


def four_machines(generator: Generator) -> tuple[Run, ...]:
    """Draws a counter, a zigzag, a walk and a random table."""
    return (*rewriting_runs(generator, STEPS), random_run(generator, STEPS))


def printed_lemma(generator: Generator) -> Measured:
    """The times at which v^(l+1), as the report prints it, is not the symbol of a visited cell."""
    wrong = {}
    for run in rewriting_runs(generator, 2 * STEPS):
        found = zip(range(2 * STEPS + 1), run.reference.attended, run.reference.symbols)
        wrong[run.name] = float(
            sum(run.written[last + 1] != symbol for time, last, symbol in found if last < time - 1)
        )
    return Measured(sum(wrong.values()), wrong)


@claim(
    "turing/trace",
    measures="number of times at which state, symbol, head or attended position differ from the machine's",
    at_most=0,
    source=Source("perez2021attention", "Lemmas B.1, B.2, B.4 and B.6 of the version of 2019", "second-hand"),
    assumptions=(NORMAL_FORM, EXACT, FOUR_MACHINES),
    control=but(
        r"a visited cell holds $v^{(\ell + 1)}$, Lemma C.5 of Wong et al. (2023) "
        f"({2 * STEPS} steps of the first three)",
        printed_lemma,
    ),
    corrects=(
        r"It prints $v^{(i+1)}$ for the symbol that is stored at time i; it is $v^{(i)}$, since "
        r"$\delta(q^{(i)}, s^{(i)}) = (q^{(i+1)}, v^{(i)}, m^{(i)})$. The sum of the moves must start at "
        r"$m^{(0)}$, not $m^{(1)}$; otherwise all cells after the first step are off by one."
    ),
    corrected=Source("wong2023understanding", "Lemma C.5", "confirmed"),
)
def trace(generator: Generator) -> Measured:
    r"""The transformer runs the machine: at every time state $q^{(i)}$, symbol $s^{(i)}$, head $c^{(i)}$ and
    attended position $\ell(i)$ are the machine's.
    """
    wrong = {
        run.name: float(len(run.trace().wrong_times(run.reference, PARTS)))
        for run in four_machines(generator)
    }
    return Measured(sum(wrong.values()), wrong)


def without_tie_break(transformer: PerezTransformer) -> PerezTransformer:
    """Removes 1/(3p^2) from the query, so that all visits of a cell have score 0."""
    return transformer.changed("decoder.3.query", {("1/p^2", "c"): 0})


@claim(
    "turing/latest-visit",
    measures="smallest gap between the two best scores, times (i + 1)^5",
    at_least=float(GAP),
    margin=BOUND,
    source=SETTING,
    assumptions=(
        NORMAL_FORM,
        EXACT,
        f"{STEPS} steps of a counter and a zigzag, {LONG_WALK} of a closed random walk",
    ),
    control=but(
        "drops the term $1/(3p^2)$ from the query: all visits of a cell tie", change=without_tie_break
    ),
)
def latest_visit(generator: Generator, *, change: Change = lambda transformer: transformer) -> Measured:
    r"""The third layer has one best position, and its score is larger than every other by at least $\frac43
    (i+1)^{-5}$.
    """
    least, several = float("inf"), 0
    counter, turning, walk = rewriting_runs(generator, STEPS)
    for run in (counter, turning, replace(walk, steps=LONG_WALK)):
        for time, step in enumerate(change(run.transformer).steps(run.word, run.steps)):
            if len(step.scores) > 1:
                second, best = sorted(step.scores)[-2:]
                least = min(least, (best - second) * time**5)
                several += len(step.attended) > 1
    return Measured(float(least), {"times with several best positions": float(several)})


def always_visited(transformer: PerezTransformer) -> PerezTransformer:
    """Takes every cell for a visited one: the output map reads the tape whatever l is."""
    off = {(row, f"visited {sign}"): 0 for row in ("p", "x7", "1") for sign in "+-"}
    return transformer.changed("map.1", {**off, ("1", "visited +"): 1})


@claim(
    "turing/first-visit",
    measures="number of first visits with another attended position or a wrong symbol",
    at_most=0,
    source=SETTING,
    assumptions=(NORMAL_FORM, EXACT, FOUR_MACHINES),
    control=but("the output map reads the tape whatever $\\ell$ is", change=always_visited),
    corrects=(
        r"It calls $\ell(i)$ the last time at which the head was in the cell $c^{(i)}$, which does not "
        r"exist at a first visit. The value $\ell(i) = i - 1$ is free to mark it: the head always moves, "
        r"so a second visit has $\ell(i) \le i - 2$."
    ),
    corrected=Source("wong2023understanding", "Lemma C.5", "confirmed"),
)
def first_visit(generator: Generator, *, change: Change = lambda transformer: transformer) -> Measured:
    r"""In a cell that the head has not visited, the third layer finds $\ell(i+1) = i$, and the symbol is that
    of the word, or blank.
    """
    new = wrong = 0
    for run in four_machines(generator):
        heads, steps = run.reference.heads, list(change(run.transformer).steps(run.word, run.steps))
        times = [time for time in range(1, run.steps + 1) if heads[time] not in heads[:time]]
        new += len(times)
        wrong += sum(
            (steps[time].attended, steps[time].symbol) != ((time - 1,), run.reference.symbols[time])
            for time in times
        )
    return Measured(wrong, {"new cells": float(new)})


@claim(
    "turing/normal-form",
    measures="share of the times with another state or symbol than the machine's, or not reached, mean "
    "over machines",
    at_most=0.0,
    source=SETTING,
    assumptions=(
        f"{WALKS} closed random walks over words of 20 bits, 60 steps, and a random table with moves by "
        "0, 30 steps",
        "float64, hard-max attention",
    ),
    control=but(
        "the construction without normal form: the symbols of the word are indexed by time, not by cell",
        build=without_normal_form,
    ),
    corrects=(
        r"It omits the normal form. Without it the symbol $\alpha^{(i+1)}$ that the encoder returns at "
        r"time i is not the one under the head."
    ),
    corrected=Source("wong2023understanding", "App. C.1.2", "confirmed"),
)
def normal_form(
    generator: Generator, *, build: Callable[[TuringMachine], PerezTransformer] = compile_machine
) -> Measured:
    """A machine that does not read its word first runs in normal form, $2n + 3$ or a few more steps later,
    with the same states $q^{(i)}$ and symbols $s^{(i)}$ except where it moves by 0, which takes two steps.
    """
    wrong = []
    for run in runs_without_normal_form(generator, WALKS):
        # The normal form runs the machine after it has read the word. From then on both have the same states
        # and symbols, if the states that replace moves by 0 are left out: a move by 0 takes two steps.
        found = build(run.machine).run(run.word, 2 * run.steps + 50, arithmetic="float64")
        own = [(q, s) for q, s in zip(found.states, found.symbols) if q in run.machine.states]
        right = sum(one == other for one, other in zip(own, zip(run.reference.states, run.reference.symbols)))
        wrong.append(1 - right / (run.steps + 1))  # a time that the transformer does not reach is an error
    return Measured(
        sum(wrong) / len(wrong), {"machines with an error": float(sum(share > 0 for share in wrong))}
    )


CLAIMS = (trace, latest_visit, first_visit, normal_form)
