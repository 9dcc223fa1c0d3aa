"""Claims about the steps of a chain: some depend on few symbols, chains are short, and written weights
produce one.

Source: :cite:t:`feng2023towards`.
"""

from collections import Counter

from torch import Generator

from ....core.claims import Measured, but, claim
from ..arithmetic import Arithmetic
from ..dynamic import LIS, EditDistance
from ..learning import correct
from ..tasks import ChainTask, Sample, draw
from ..written import WrittenDecoder, whole
from .drawing import FIVE, LARGE, OWN, SMALL, draw_samples

# with the number of places on which a symbol of the chain depends
LOCAL: tuple[tuple[ChainTask, int], ...] = (
    (Arithmetic(3, 7), 2),
    (EditDistance(4, 3), 5),
    (Arithmetic(6, 7), 2),
    (EditDistance(8, 3), 5),
)


def sensitivity(task: ChainTask, sample: Sample, *, chain: bool) -> int:
    """Returns the largest number of places of which one changed symbol changes a symbol of the chain, or of
    the answer without a chain.

    Numbers become other numbers, of more than ten every second or third, and letters other letters.
    """
    known = (*sample.question, *(sample.chain if chain else ()))
    counts: Counter[int] = Counter()
    for place, symbol in enumerate(known):
        others = [
            other
            for other in task.symbols
            if other != symbol and other.isalnum() and other.isdigit() == symbol.isdigit()
        ]
        changed: set[int] = set()
        for other in others[:: 1 + len(others) // 10] if symbol.isalnum() else ():
            text = (*known[:place], other, *known[place + 1 :])
            question, given = text[: len(sample.question)], text[len(sample.question) :]
            found, right = (
                (task.following(question, given), sample.chain)
                if chain
                else (task.solve(question), sample.answer)
            )
            changed |= {number for number, (a, b) in enumerate(zip(found, right)) if a != b}
        counts.update(changed)
    return max(counts.values(), default=0)


@claim(
    "chain_of_thought/bounded",
    measures="most places of which a single change changes the symbol, as a share of the bound",
    at_most=1.0,
    source=OWN,
    assumptions=(
        "operators, brackets and bars stay as they are",
        "arithmetic with 3 and 6 operations, edit distance of 4 and 8 letters, 2 questions each",
    ),
    control=but(
        "the answer in place of a symbol of the chain, as a function of the question alone", chain=False
    ),
)
def bounded(generator: Generator, *, chain: bool = True) -> Measured:
    """If one number or letter before it changes, a symbol of the chain changes for at most $2$ places in
    arithmetic and $5$ in edit distance, at twice the size too; the answer without a chain changes for more,
    and for more as the question grows.
    """
    shares = {}
    for task, bound in LOCAL:
        shares[str(task)] = (
            max(sensitivity(task, sample, chain=chain) for sample in draw_samples(task, 2, generator)) / bound
        )
    return Measured(max(shares.values()), shares)


@claim(
    "chain_of_thought/length",
    measures="largest relative difference of a chain's length and its polynomial; for expressions, by "
    "which it is longer",
    at_most=0.0,
    source=OWN,
    assumptions=(FIVE, "each in two sizes, 10 questions each"),
    control=but("for the larger size the polynomials at the smaller size", bounds=SMALL + SMALL),
)
def length(generator: Generator, *, bounds: tuple[ChainTask, ...] = SMALL + LARGE) -> Measured:
    """Chains have polynomial length: at most $k^2 + (k-1)^2$ for k operations, and exactly $m^2(m+2)-1$, $n$,
    $(n+1)(n+2)-1$, $n(n+1)/2$ in the other tasks.
    """
    errors = {}
    for task, bound in zip(SMALL + LARGE, bounds):
        for sample in draw_samples(task, 10, generator):
            error = len(sample.chain) / bound.chain_length(sample.question) - 1
            errors[str(task)] = max(
                errors.get(str(task), 0.0), error if isinstance(task, Arithmetic) else abs(error)
            )
    return Measured(max(errors.values()), errors)


@claim(
    "chain_of_thought/written",
    measures="share of questions with a wrong symbol, with right beginnings and free-running, the larger",
    at_most=0.0,
    source=OWN,
    assumptions=(
        "hard-max attention, exact arithmetic (integers in float64)",
        "scores, gates and masks that depend on places alone are given as functions of the place",
        "n from 10 to 40 numbers below n",
    ),
    control=but("empty symbols in place of the chain", filler=True),
)
def written(generator: Generator, *, filler: bool = False) -> Measured:
    r"""A decoder of two layers with written weights generates the chain $d_1 \dots d_n$ and the length of the
    longest increasing subsequence $\max_i d_i$. Its depth does not grow with n; its width does, since each
    place and each number has a coordinate of its own.
    """
    n = 10 + draw(generator, 31)[0]
    task = LIS(n, n)
    samples = draw_samples(task, 20, generator)
    model = WrittenDecoder(task)
    wrong = 1 - float(whole(model, task, samples, filler=filler).double().mean())
    free = 1 - float(correct(model, task, samples[:3], "filler" if filler else "chain").double().mean())
    return Measured(max(wrong, free), {"n": n, "free-running": free})


CLAIMS = (bounded, length, written)
