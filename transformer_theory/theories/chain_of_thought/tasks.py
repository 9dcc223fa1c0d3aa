r"""A task: a question, a chain of intermediate steps that ends in the answer, and a rule that accepts a chain or rejects it.

A *chain* writes down intermediate results, symbol by symbol, so that every symbol is a function of a bounded number of earlier symbols,
however long the question is (:meth:`ChainTask.reads`). Questions, chains and answers are tuples of symbols. A network reads ids:

    question = chain : answer .        with the chain
    question : answer .                without
    question = _ _ _ : answer .        filler: as many empty symbols as the chain has

Training and test questions are disjoint (:func:`split`). Independent draws are not: if questions are drawn uniformly from Q, a test
question occurs among n training questions with probability :math:`1 - (1 - 1/Q)^n`, :func:`expected_overlap`.

Source: :cite:t:`feng2023towards`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Generator

from ...core.validation import integers

THEN, ANSWER, END, FILLER = "=", ":", ".", "_"
COMMON = (END, THEN, ANSWER, FILLER)  # symbols of every task; the end has id 0 and also fills rows
TRIES, MOST_TRIES = 20, 10_000  # draws in a row without a new question, per question of the task and at most, before it counts as exhausted

Symbols = tuple[str, ...]


class Sample(NamedTuple):
    """A question, its chain and its answer, as tuples of symbols."""

    question: Symbols
    chain: Symbols
    answer: Symbols


@runtime_checkable
class ChainTask(Protocol):
    """A task whose answers are reached in steps. Subclasses are frozen dataclasses, whose fields are the sizes."""

    @property
    def symbols(self) -> Symbols:
        """Symbols of questions, chains and answers, without the common ones."""
        ...

    @property
    def questions(self) -> int:
        """Number of different questions, or an upper bound (the class says which)."""
        ...

    def sample(self, generator: Generator) -> Sample:
        """Draws a question, with its chain and answer."""
        ...

    def chain(self, question: Symbols) -> Symbols:
        """Returns the chain of a question."""
        ...

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Reads the answer off the chain."""
        ...

    def solve(self, question: Symbols) -> Symbols:
        """Returns the answer by an independent algorithm that shares no step with the chain."""
        ...

    def reads(self, question: Symbols, chain: Symbols) -> list[tuple[int, ...]]:
        """Returns, for each symbol of the chain, the places in ``question = chain`` of the symbols of which it is a function."""
        ...

    def chain_length(self, question: Symbols) -> int:
        """Returns a bound on the length of the chain, a polynomial of the sizes; the class says whether it is attained."""
        ...


def vocabulary(task: ChainTask) -> Symbols:
    """Returns all symbols of a task; a symbol's id is its place."""
    return (*COMMON, *task.symbols)


def verify(task: ChainTask, question: Sequence[str], chain: Sequence[str]) -> None:
    """Checks every step of a chain.

    Raises:
        ValueError: a symbol is wrong, missing or superfluous; the message names the first.
    """
    right, chain = task.chain(tuple(question)), tuple(chain)
    for place, (expected, found) in enumerate(zip(right, chain)):
        if expected != found:
            raise ValueError(
                f"symbol {place} of the chain must be {expected!r}, got {found!r}; write the steps as task.chain(question) does"
            )
    if len(right) != len(chain):
        raise ValueError(f"the chain must have {len(right)} symbols, got {len(chain)}; write the steps as task.chain(question) does")


def accepts(task: ChainTask, question: Sequence[str], chain: Sequence[str]) -> bool:
    """Returns whether :func:`verify` accepts a chain."""
    try:
        verify(task, question, chain)
    except ValueError:
        return False
    return True


def encode(task: ChainTask, symbols: Iterable[str]) -> list[int]:
    """Returns the ids of symbols.

    Raises:
        ValueError: a symbol is not in the vocabulary of the task.
    """
    places = {symbol: place for place, symbol in enumerate(vocabulary(task))}
    symbols = list(symbols)
    if unknown := [symbol for symbol in symbols if symbol not in places]:
        raise ValueError(f"symbols must be in the vocabulary of the task, got {unknown[0]!r}; it has {' '.join(places)}")
    return [places[symbol] for symbol in symbols]


def decode(task: ChainTask, ids: Iterable[int]) -> Symbols:
    """Returns the symbols of ids.

    Raises:
        ValueError: an id lies outside the vocabulary of the task.
    """
    known, ids = vocabulary(task), [int(each) for each in ids]
    if outside := [each for each in ids if not 0 <= each < len(known)]:
        raise ValueError(f"ids must lie in [0, {len(known)}), got {outside[0]}; pass ids of this task's vocabulary")
    return tuple(known[each] for each in ids)


@dataclass(frozen=True)
class Split:
    """Training and test questions without a common one."""

    task: ChainTask
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]


def split(task: ChainTask, *, train: int, test: int, generator: Generator) -> Split:
    """Draws different questions, so that no test question is a training question.

    Raises:
        ValueError: the task has too few questions, or new ones are too rare to be drawn.
    """
    integers(train=train, test=test)
    if train + test > task.questions:
        raise ValueError(
            f"train + test must be at most {task.questions}, the different questions of {task}, got {train + test}; make the task larger"
        )
    drawn: dict[Symbols, Sample] = {}
    misses, limit = 0, min(TRIES * task.questions, MOST_TRIES)
    while len(drawn) < train + test:
        sample = task.sample(generator)
        misses = misses + 1 if sample.question in drawn else 0
        drawn[sample.question] = sample
        if misses > limit:
            message = f"train + test must leave questions of {task} to draw, got {train + test} and no new one in {limit} draws"
            raise ValueError(f"{message} after {len(drawn)}; make the task larger")
    samples = tuple(drawn.values())
    # Frequent questions tend to be drawn first, so the order is shuffled before it is cut.
    order = torch.randperm(len(samples), generator=generator).tolist()
    return Split(task, tuple(samples[i] for i in order[test:]), tuple(samples[i] for i in order[:test]))


def expected_overlap(questions: int, train: int) -> float:
    """Returns the probability that a uniformly drawn question is among ``train`` independently drawn ones, 1 - (1 - 1/Q)^n."""
    return 1 - (1 - 1 / questions) ** train


def majority(samples: Sequence[Sample]) -> Symbols:
    """Returns the most frequent answer."""
    counts: dict[Symbols, int] = {}
    for sample in samples:
        counts[sample.answer] = counts.get(sample.answer, 0) + 1
    return max(counts, key=lambda answer: counts[answer])


def draw(generator: Generator, high: int, n: int = 1) -> list[int]:
    """Draws n integers below ``high``."""
    return torch.randint(high, (n,), generator=generator).tolist()
