"""Claims about the tasks: chains are right, wrong ones are found, questions are counted and split.

Source: :cite:t:`feng2023towards`.
"""

from torch import Generator

from ....core.claims import Measured, but, claim
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


@claim(
    "chain_of_thought/chains",
    measures="share of chains of which every symbol follows",
    at_least=1.0,
    source=OWN,
    assumptions=(FIVE, "each in two sizes, 15 questions each"),
    control=but(
        "one random symbol is replaced with another one of the vocabulary; none of these chains is accepted",
        changed=True,
    ),
)
def chains(generator: Generator, *, changed: bool = False) -> Measured:
    r"""Every symbol of a drawn chain follows from the question and the symbols before it, $c_t = f(q, c_1,
    \dots, c_{t-1})$, by a rule that shares no step with the algorithm that writes the chain.
    """
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
    return Measured(accepted / drawn, {"chains": drawn})


@claim(
    "chain_of_thought/answers",
    measures="share of questions with another answer",
    at_most=0.0,
    source=OWN,
    assumptions=(FIVE, "each in two sizes, 15 questions each"),
    control=but("the answer of another question", shift=1),
)
def answers(generator: Generator, *, shift: int = 0) -> Measured:
    r"""The chain ends in the right answer, $a(q) = \mathrm{solve}(q)$: Python's parser, a search of all $p^m$
    values, patience sorting, a recursion from the ends of the words and a search of leftmost derivations find
    the same.
    """
    wrong = drawn = 0
    for task in SMALL + LARGE:
        samples = draw_samples(task, DRAWS, generator)
        for own, other in zip(samples, samples[shift:] + samples[:shift]):
            wrong += task.solve(own.question) != task.answer(other.question, task.chain(other.question))
            drawn += 1
    return Measured(wrong / drawn, {"questions": drawn})


@claim(
    "chain_of_thought/count",
    measures="largest relative difference of the formula and the number of different questions that are "
    "drawn",
    at_most=0.0,
    source=OWN,
    assumptions=("tasks with at most 144 questions, drawn often enough to find all",),
    control=but("expressions without the Catalan number, as if brackets made no difference", trees=False),
)
def count(generator: Generator, *, trees: bool = True) -> Measured:
    r"""The tasks have $C_k\, 3^k p^{k+1}$ expressions with the Catalan number $C_k$, $p^m \prod_{i<m} (p^m -
    p^i)$ systems of equations, $v^n$ sequences and $l^{2n}$ pairs of words.
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
    return Measured(max(errors.values()), errors)


@claim(
    "chain_of_thought/disjoint",
    measures="share of test questions among the training questions",
    at_most=0.0,
    source=OWN,
    assumptions=(
        "1,024 sequences, 731 of them for training: the ratio of 60,000 samples and 84,375 expressions",
    ),
    control=but("training and test questions drawn independently: about 51 % overlap", separate=False),
)
def disjoint(generator: Generator, *, separate: bool = True) -> Measured:
    """No test question is a training question; independent draws are expected to repeat a share of $1 - (1 -
    1/Q)^n$.
    """
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
    return Measured(share, {"expected of independent draws": expected_overlap(task.questions, train)})


CLAIMS = (chains, answers, count, disjoint)
