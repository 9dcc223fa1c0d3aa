"""Claims about the tasks: chains are right, wrong ones are found, questions are counted and split.

Source: :cite:t:`feng2023towards`.
"""

from torch import Generator

from ....core.claims import Claim, Evidence
from ..arithmetic import Arithmetic, Equations
from ..dynamic import LIS, EditDistance
from ..tasks import ChainTask, Symbols, accepts, decode, draw, encode, expected_overlap, split, vocabulary
from .drawing import FIVE, LARGE, OWN, SMALL, draw_samples

DRAWS = 15  # questions per task and size
# with the number of draws that find all questions, up to a chance of 1e-6
TINY: tuple[tuple[ChainTask, int], ...] = (
    (Arithmetic(2, 2), 4000),
    (Equations(2, 2), 800),
    (LIS(3, 3), 800),
    (EditDistance(2, 2), 3000),
)


def _verified(generator: Generator, *, changed: bool) -> Evidence:
    """Measures the share of chains that are accepted, as they are or with one changed symbol."""
    accepted = drawn = 0
    for task in SMALL + LARGE:
        known = vocabulary(task)
        for sample in draw_samples(task, DRAWS, generator):
            chain = decode(task, encode(task, sample.chain))  # through ids, so a wrong code is found as well
            if changed:
                place = draw(generator, len(chain))[0]
                others = [symbol for symbol in known if symbol != chain[place]]
                chain = (*chain[:place], others[draw(generator, len(others))[0]], *chain[place + 1 :])
            accepted += accepts(task, sample.question, chain)
            drawn += 1
    return Evidence(accepted / drawn, 1.0, ">=", detail={"chains": drawn})


def _answers(generator: Generator, *, shift: int) -> Evidence:
    """Measures the share of questions whose answer at the end of the chain differs from that of the
    independent algorithm.
    """
    wrong = drawn = 0
    for task in SMALL + LARGE:
        samples = draw_samples(task, DRAWS, generator)
        for own, other in zip(samples, samples[shift:] + samples[:shift]):
            wrong += task.solve(own.question) != task.answer(other.question, task.chain(other.question))
            drawn += 1
    return Evidence(wrong / drawn, 0.0, "<=", detail={"questions": drawn})


def _counts(generator: Generator, *, trees: bool) -> Evidence:
    """Measures the largest relative difference of the number of questions and the number that many draws
    find.
    """
    errors = {}
    for task, draws in TINY:
        found = {task.sample(generator).question for _ in range(draws)}
        count = (
            task.questions
            if trees or not isinstance(task, Arithmetic)
            else 3**task.operations * task.modulus ** (task.operations + 1)
        )
        errors[str(task)] = abs(count / len(found) - 1)
    return Evidence(max(errors.values()), 0.0, "<=", detail=errors)


def _disjoint(generator: Generator, *, separate: bool) -> Evidence:
    """Measures the share of test questions that are training questions."""
    task = LIS(5, 4)
    train, test = round(task.questions * 60 / 84), 200
    if separate:
        parts = split(task, train=train, test=test, generator=generator)
        known: set[Symbols] = {sample.question for sample in parts.train}
        questions = [sample.question for sample in parts.test]
    else:
        known = {sample.question for sample in draw_samples(task, train, generator)}
        questions = [sample.question for sample in draw_samples(task, test, generator)]
    share = sum(question in known for question in questions) / test
    return Evidence(
        share, 0.0, "<=", detail={"expected of independent draws": expected_overlap(task.questions, train)}
    )


CHAINS = (
    Claim(
        id="chain_of_thought/chains",
        statement="Every symbol of a drawn chain follows from the question and the symbols before it, $c_t "
        r"= f(q, c_1, \dots, c_{t-1})$, by a rule that shares no step with the algorithm that writes the "
        "chain.",
        measures="share of chains of which every symbol follows",
        source=OWN,
        assumptions=(FIVE, "each in two sizes, 15 questions each"),
        check=lambda generator: _verified(generator, changed=False),
        control=lambda generator: _verified(generator, changed=True),
        control_description="one random symbol is replaced with another one of the vocabulary; none of "
        "these chains is accepted",
    ),
    Claim(
        id="chain_of_thought/answers",
        statement=r"The chain ends in the right answer, $a(q) = \mathrm{solve}(q)$: Python's parser, a "
        "search of all $p^m$ values, patience sorting, a recursion from the ends of the words and a search "
        "of leftmost derivations find the same.",
        measures="share of questions with another answer",
        source=OWN,
        assumptions=(FIVE, "each in two sizes, 15 questions each"),
        check=lambda generator: _answers(generator, shift=0),
        control=lambda generator: _answers(generator, shift=1),
        control_description="the answer of another question",
    ),
    Claim(
        id="chain_of_thought/count",
        statement=r"The tasks have $C_k\, 3^k p^{k+1}$ expressions with the Catalan number $C_k$, $p^m "
        r"\prod_{i<m} (p^m - p^i)$ systems of equations, $v^n$ sequences and $l^{2n}$ pairs of words.",
        measures="largest relative difference of the formula and the number of different questions that are "
        "drawn",
        source=OWN,
        assumptions=("tasks with at most 144 questions, drawn often enough to find all",),
        check=lambda generator: _counts(generator, trees=True),
        control=lambda generator: _counts(generator, trees=False),
        control_description="expressions without the Catalan number, as if brackets made no difference",
    ),
    Claim(
        id="chain_of_thought/disjoint",
        statement=r"No test question is a training question; independent draws are expected to repeat a "
        r"share of $1 - (1 - 1/Q)^n$.",
        measures="share of test questions among the training questions",
        source=OWN,
        assumptions=(
            "1,024 sequences, 731 of them for training: the ratio of 60,000 samples and 84,375 expressions",
        ),
        check=lambda generator: _disjoint(generator, separate=True),
        control=lambda generator: _disjoint(generator, separate=False),
        control_description="training and test questions drawn independently: about 51 % overlap",
    ),
)
