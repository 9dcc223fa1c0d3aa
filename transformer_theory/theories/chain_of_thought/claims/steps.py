"""Claims about the steps of a chain: each reads few symbols, chains are short, and written weights produce one.

Source: :cite:t:`feng2023towards`.
"""

from torch import Generator

from ....core.claims import Claim, Evidence
from ..arithmetic import Arithmetic, Equations
from ..dynamic import LIS, EditDistance, Membership
from ..learning import correct
from ..tasks import THEN, ChainTask, Symbols, draw
from ..written import WrittenDecoder, whole
from .drawing import FIVE, LARGE, OWN, SMALL, THEOREM, draw_samples

DRAWS = 40
MOST = (3, 4, 1, 5, 2)  # symbols that a symbol of the chain reads, by task


def _conflicts(generator: Generator, *, dropped: bool) -> Evidence:
    """Measures how many symbols of chains differ from an earlier one that read the same symbols."""
    conflicts = symbols = 0
    for task in SMALL:
        rule: dict[Symbols, str] = {}
        for sample in draw_samples(task, DRAWS, generator):
            known = (*sample.question, THEN, *sample.chain)
            for symbol, places in zip(sample.chain, task.reads(sample.question, sample.chain), strict=True):
                read = tuple(known[place] for place in (places[1:] if dropped else places))
                conflicts += rule.setdefault(read, symbol) != symbol
                symbols += 1
    return Evidence(conflicts, 0.0, "<=", detail={"symbols": symbols})


def _most_reads(task: ChainTask, generator: Generator) -> int:
    """Returns the largest number of places that a symbol reads; places that are not earlier count as infinitely many."""
    most = 0
    for sample in draw_samples(task, DRAWS, generator):
        for number, places in enumerate(task.reads(sample.question, sample.chain)):
            most = max(most, len(places))
            if any(place > len(sample.question) + number for place in places):
                return 10**6
    return most


def _sensitive(task: ChainTask, generator: Generator) -> int:
    """Returns the largest number of places of a question whose symbol alone can change the answer, over some questions."""
    most = 0
    for sample in draw_samples(task, 10, generator):
        q, count = sample.question, 0
        for place, symbol in enumerate(q):
            others = (
                [other for other in task.symbols if other != symbol and other.isdigit() == symbol.isdigit()] if symbol.isdigit() else []
            )
            count += any(task.solve((*q[:place], other, *q[place + 1 :])) != sample.answer for other in others[:10])
        most = max(most, count)
    return most


def _bounded(generator: Generator, *, chain: bool) -> Evidence:
    """Measures the most symbols read, as a share of the bound of the task, at both sizes."""
    shares = {}
    for tasks in (SMALL, LARGE):
        for task, most in zip(tasks, MOST):
            if chain:
                shares[str(task)[:40]] = _most_reads(task, generator) / most
            elif isinstance(task, Arithmetic | LIS):
                shares[str(task)[:40]] = _sensitive(task, generator) / most
    return Evidence(max(shares.values()), 1.0, "<=", detail=shares)


def _lengths(generator: Generator, *, sizes: tuple[ChainTask, ...], bounds: tuple[ChainTask, ...]) -> Evidence:
    """Measures the largest relative difference of the longest chain and its polynomial."""
    errors = {}
    for task, bound in zip(sizes, bounds):
        samples = draw_samples(task, 150 if isinstance(task, Arithmetic) else 5, generator)
        longest = max(len(sample.chain) for sample in samples)
        errors[str(task)[:40]] = abs(longest / bound.chain_length(samples[0].question) - 1)
    return Evidence(max(errors.values()), 0.0, "<=", detail=errors)


def _written(generator: Generator, *, filler: bool) -> Evidence:
    """Measures the share of questions that the written decoder gets wrong."""
    n = 10 + draw(generator, 31)[0]
    task = LIS(n, n)
    samples = draw_samples(task, 20, generator)
    model = WrittenDecoder(task)
    wrong = 1 - float(whole(model, task, samples, filler=filler).double().mean())
    free = 1 - float(correct(model, task, samples[:3], "filler" if filler else "chain").double().mean())
    return Evidence(max(wrong, free) if not filler else min(wrong, free), 0.0, "<=", detail={"n": n, "free-running": free})


SMALLER: tuple[ChainTask, ...] = (Arithmetic(2, 7), Equations(1, 5), LIS(9, 10), EditDistance(3, 3), Membership(4))
STEPS = (
    Claim(
        id="chain_of_thought/reads",
        statement=r"Each symbol of a chain is a function of the symbols that it reads: $c_t = f(x_{r_1}, \dots, x_{r_b})$, with one f for "
        "all questions and places.",
        measures="symbols of chains that differ from an earlier one with the same symbols read",
        source=OWN,
        assumptions=(FIVE, "40 questions each", "the places r depend on the symbols too; attention has to find them"),
        check=lambda generator: _conflicts(generator, dropped=False),
        control=lambda generator: _conflicts(generator, dropped=True),
        control_description="each symbol reads one place less",
    ),
    Claim(
        id="chain_of_thought/bounded",
        statement=r"It reads $b \le 3, 4, 1, 5, 2$ earlier symbols in the five tasks, at twice the size too. This is what lets a constant "
        "depth suffice for one step; the answer itself depends on a growing number of symbols of the question.",
        measures="most symbols read, as a share of the bound",
        source=THEOREM,
        assumptions=(FIVE, "each in two sizes, 40 questions each"),
        check=lambda generator: _bounded(generator, chain=True),
        control=lambda generator: _bounded(generator, chain=False),
        control_description="symbols of the question on which the answer depends (arithmetic and subsequences), in place of those read",
    ),
    Claim(
        id="chain_of_thought/length",
        statement=r"Chains have polynomial length: at most $k(2k-1)$ for k operations, and exactly $m^2(m+2)-1$, $n$, $(n+1)(n+2)-1$, "
        r"$n(n+1)/2$ in the other tasks.",
        measures="largest relative difference of the longest chain and its polynomial",
        source=OWN,
        assumptions=("smaller size of the five tasks", "the bound for expressions is attained among 150 of them"),
        check=lambda generator: _lengths(generator, sizes=SMALL, bounds=SMALL),
        control=lambda generator: _lengths(generator, sizes=SMALL, bounds=SMALLER),
        control_description="the polynomials at a smaller size",
    ),
    Claim(
        id="chain_of_thought/written",
        statement=r"A decoder of two layers with written weights generates the chain $d_1 \dots d_n$ and the length of the longest "
        r"increasing subsequence $\max_i d_i$, for every n: its depth does not grow.",
        measures="share of questions with a wrong symbol, with right beginnings and free-running, the larger",
        source=OWN,
        assumptions=("hard-max attention, exact arithmetic (integers in float64)", "n from 10 to 40 numbers below n"),
        check=lambda generator: _written(generator, filler=False),
        control=lambda generator: _written(generator, filler=True),
        control_description="empty symbols in place of the chain; the smaller of both shares",
    ),
)
