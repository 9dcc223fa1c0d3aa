r"""A task: a question, a chain of intermediate steps that ends in the answer, and a rule that accepts a chain
or rejects it.

A *chain* writes down intermediate results, symbol by symbol. Every symbol follows from the question and the
symbols before it (:meth:`ChainTask.following`). Questions, chains and answers are tuples of symbols. A
network reads ids:

    question = chain : answer .        with the chain
    question : answer .                without
    question = _ _ _ : answer .        filler: as many empty symbols as the chain has

Training and test questions are disjoint as whole questions (:func:`split`); parts of them may recur.
Independent draws are not disjoint: if questions are drawn uniformly from Q, a test question occurs among n
training questions with probability :math:`1 - (1 - 1/Q)^n`, :func:`expected_overlap`.

Source: :cite:t:`feng2023towards`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Generator, Tensor

from ...core.validation import integers

THEN, ANSWER, END, FILLER = "=", ":", ".", "_"
COMMON = (END, THEN, ANSWER, FILLER)  # symbols of every task; the end has id 0 and also fills rows
# draws in a row without a new question, per question of the task and at most, before it counts as exhausted
TRIES, MOST_TRIES = 20, 10_000

Symbols = tuple[str, ...]


class Sample(NamedTuple):
    """A question, its chain and its answer, as tuples of symbols."""

    question: Symbols
    chain: Symbols
    answer: Symbols


@runtime_checkable
class ChainTask(Protocol):
    """A task whose answers are reached in steps. Subclasses are frozen dataclasses, whose fields are the
    sizes.
    """

    @property
    def symbols(self) -> Symbols:
        """Symbols of questions, chains and answers, without the common ones."""
        ...

    @property
    def questions(self) -> int:
        """Number of different questions, or an upper bound (the class says which)."""
        ...

    def check(self, question: Symbols) -> None:
        """Raises ValueError if this is no question of the task."""
        ...

    def sample(self, generator: Generator) -> Sample:
        """Draws a question, with its chain and answer."""
        ...

    def chain(self, question: Symbols) -> Symbols:
        """Returns the chain of a question; raises ValueError if this is no question of the task."""
        ...

    def following(self, question: Symbols, chain: Symbols) -> Iterator[str]:
        """Yields for each place the symbol that follows from the question and from the symbols of the given
        chain before this place.

        It shares no step with :meth:`chain`, and reads symbols of the given chain only after it has yielded
        those at their places.
        """
        ...

    def answer(self, question: Symbols, chain: Symbols) -> Symbols:
        """Reads the answer off the chain."""
        ...

    def solve(self, question: Symbols) -> Symbols:
        """Returns the answer by an algorithm that does not use the chain."""
        ...

    def chain_length(self, question: Symbols) -> int:
        """Returns a bound on the length of the chain, a polynomial of the sizes; the class says whether it is
        attained.
        """
        ...


def vocabulary(task: ChainTask) -> Symbols:
    """Returns all symbols of a task; a symbol's id is its place."""
    return (*COMMON, *task.symbols)


def completed(task: ChainTask, question: Symbols) -> Sample:
    """Returns a question with its chain and answer."""
    chain = task.chain(question)
    return Sample(question, chain, task.answer(question, chain))


def check_places(task: ChainTask, question: Sequence[str], allowed: Sequence[Sequence[str]]) -> None:
    """Checks that a question has one of the allowed symbols at each place.

    Raises:
        ValueError: the question has another length, or another symbol.
    """
    if len(question) != len(allowed):
        raise ValueError(
            f"a question of {task} must have {len(allowed)} symbols, got {len(question)}; see "
            "task.sample(generator)"
        )
    for place, (symbol, known) in enumerate(zip(question, allowed)):
        if symbol not in known:
            raise ValueError(
                f"symbol {place} of a question of {task} must be one of {' '.join(known)}, got {symbol!r}; "
                "replace it"
            )


def verify(task: ChainTask, question: Sequence[str], chain: Sequence[str]) -> None:
    """Checks that every symbol of a chain follows from the question and the symbols before it.

    Raises:
        ValueError: this is no question of the task; or a symbol is wrong, missing or superfluous, and the
            message names the first.
    """
    question, chain = tuple(question), tuple(chain)
    task.check(question)
    for place, (found, expected) in enumerate(zip_longest(chain, task.following(question, chain))):
        if expected != found:
            wanted, got = ("the end" if each is None else repr(each) for each in (expected, found))
            raise ValueError(
                f"symbol {place} of the chain must be {wanted}, got {got}; write the steps as "
                "task.chain(question) does"
            )


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
        raise ValueError(
            f"symbols must be in the vocabulary of the task, got {unknown[0]!r}; it has {' '.join(places)}"
        )
    return [places[symbol] for symbol in symbols]


def decode(task: ChainTask, ids: Iterable[int]) -> Symbols:
    """Returns the symbols of ids.

    Raises:
        ValueError: an id lies outside the vocabulary of the task.
    """
    known, ids = vocabulary(task), [int(each) for each in ids]
    if outside := [each for each in ids if not 0 <= each < len(known)]:
        raise ValueError(
            f"ids must lie in [0, {len(known)}), got {outside[0]}; pass ids of this task's vocabulary"
        )
    return tuple(known[each] for each in ids)


@dataclass(frozen=True)
class Split:
    """Training and test questions without a common one."""

    task: ChainTask
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]

    @property
    def guessed(self) -> Bool[Tensor, " test"]:
        """Whether the most frequent answer of the training questions is right for each test question,
        ``[test]``.
        """
        answer = majority(self.train)
        return torch.tensor([sample.answer == answer for sample in self.test])


def split(task: ChainTask, *, train: int, test: int, generator: Generator) -> Split:
    """Draws different questions, so that no test question is a training question.

    Raises:
        ValueError: the task has too few questions, or new ones are too rare to be drawn.
        TypeError: a number is no integer.
    """
    integers(train=train, test=test)
    if train + test > task.questions:
        raise ValueError(
            f"train + test must be at most {task.questions}, the different questions of {task}, got "
            f"{train + test}; make the task larger"
        )
    drawn: dict[Symbols, Sample] = {}
    misses, limit = 0, min(TRIES * task.questions, MOST_TRIES)
    while len(drawn) < train + test:
        sample = task.sample(generator)
        misses = misses + 1 if sample.question in drawn else 0
        drawn[sample.question] = sample
        if misses > limit:
            message = (
                f"train + test must leave questions of {task} to draw, got {train + test} and no new one in "
                f"{limit} draws"
            )
            raise ValueError(f"{message} after {len(drawn)}; make the task larger")
    samples = tuple(drawn.values())
    # Frequent questions tend to be drawn first, so the order is shuffled before it is cut.
    order = torch.randperm(len(samples), generator=generator).tolist()
    return Split(task, tuple(samples[i] for i in order[test:]), tuple(samples[i] for i in order[:test]))


def expected_overlap(questions: int, train: int) -> float:
    """Returns the probability that a uniformly drawn question is among ``train`` independently drawn ones, 1
    - (1 - 1/Q)^n.

    Raises:
        ValueError: there is no question, or ``train`` is negative.
    """
    integers(questions=questions)
    integers(minimum=0, train=train)
    return 1 - (1 - 1 / questions) ** train


def majority(samples: Sequence[Sample]) -> Symbols:
    """Returns the most frequent answer; of several, the one that occurs first.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError(
            "samples must have at least one question, got none; draw some with task.sample(generator)"
        )
    return Counter(sample.answer for sample in samples).most_common(1)[0][0]


def draw(generator: Generator, high: int, n: int = 1) -> list[int]:
    """Draws n integers below ``high``."""
    return torch.randint(high, (n,), generator=generator).tolist()
