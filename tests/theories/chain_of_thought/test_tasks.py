"""Tasks by independent routes: brute force, other libraries, closed forms; and their bad input."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.chain_of_thought import (
    LIS,
    Arithmetic,
    EditDistance,
    Equations,
    Membership,
    accepts,
    decode,
    encode,
    expected_overlap,
    majority,
    split,
    verify,
    vocabulary,
)
from transformer_theory.theories.chain_of_thought.arithmetic import handle, written
from transformer_theory.theories.chain_of_thought.claims.steps import sensitivity
from transformer_theory.theories.chain_of_thought.tasks import ChainTask, Sample

TASKS = [
    Arithmetic(3, 5),
    Arithmetic(5, 11),
    Equations(2, 5),
    Equations(3, 7),
    LIS(12, 20),
    EditDistance(6, 4),
    Membership(8),
]
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task)[:24])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@every_task
def test_the_protocol(task):
    g = generator()
    assert isinstance(task, ChainTask)
    for _ in range(10):
        sample = task.sample(g)
        assert isinstance(sample, Sample)
        verify(task, sample.question, sample.chain)
        assert task.answer(sample.question, sample.chain) == sample.answer
        text = (*sample.question, "=", *sample.chain, ":", *sample.answer, ".")
        assert decode(task, encode(task, text)) == text
        assert len(sample.chain) <= task.chain_length(sample.question)
    assert len(set(vocabulary(task))) == len(vocabulary(task))
    first = task.sample(generator(3))
    assert first == task.sample(generator(3)), "the seed does not decide"


def test_arithmetic_by_python():
    g = generator(1)
    for _ in range(200):
        question, chain, answer = Arithmetic(4, 7).sample(g)
        assert answer == (str(eval(" ".join(question)) % 7),)
        steps = " ".join(chain).split(" = ")
        assert len(steps) == 4
        assert {eval(step) % 7 for step in steps} == {int(answer[0])}, "a step changes the value"


def test_brackets_stand_only_where_they_are_needed():
    """Without any of its pairs of brackets, an expression has another tree."""
    g = generator(2)
    dump = __import__("ast").dump
    for _ in range(100):
        question = Arithmetic(4, 5).sample(g).question
        stack = []
        for place, symbol in enumerate(question):
            if symbol == "(":
                stack.append(place)
            elif symbol == ")":
                opened = stack.pop()
                without = [s for i, s in enumerate(question) if i not in (opened, place)]
                trees = [dump(compile(" ".join(text), "", "eval", 1024)) for text in (question, without)]
                assert trees[0] != trees[1]


def test_all_expressions_by_enumeration():
    def trees(k: int):
        if k == 0:
            yield from "01"
        for left in range(k):
            yield from itertools.product(trees(left), "+-*", trees(k - 1 - left))

    assert len({written(tree) for tree in trees(2)}) == Arithmetic(2, 2).questions == 2 * 9 * 8
    assert Arithmetic(3, 5).questions == 84_375


def test_the_handle_of_an_expression():
    assert handle(tuple("1-2*3")) == (2, 4)
    assert handle(tuple("(1+2)*3")) == (0, 4)
    assert handle(tuple("2-(1-3-4)")) == (3, 5)
    with pytest.raises(ValueError, match="must have an operation that may be computed, got '1 \\+'"):
        handle(("1", "+"))


def test_equations_by_cramers_rule():
    g = generator(3)
    for _ in range(50):
        question, _, answer = Equations(3, 7).sample(g)
        rows = np.array([[int(s) for s in question[5 * r : 5 * r + 4]] for r in range(3)])
        determinant = round(np.linalg.det(rows[:, :3]))
        for i, x in enumerate(answer):
            replaced = rows[:, :3].copy()
            replaced[:, i] = rows[:, 3]
            assert (int(x) * determinant - round(np.linalg.det(replaced))) % 7 == 0
    assert Equations(2, 3).questions == 9 * 8 * 6


def test_subsequences_by_brute_force():
    g = generator(4)
    for _ in range(20):
        question, chain, answer = LIS(9, 6).sample(g)
        a = [int(symbol) for symbol in question]
        longest = [
            max(
                len(c)
                for size in range(i + 1)
                for c in itertools.combinations(a[: i + 1], size + 1)
                if c[-1] == a[i] and list(c) == sorted(set(c))
            )
            for i in range(9)
        ]
        assert [int(symbol) for symbol in chain] == longest
        assert answer == (str(max(longest)),)


def test_edit_distance_by_enumerating_alignments():
    def cost(s: tuple[str, ...], t: tuple[str, ...]) -> int:
        """Chooses the letters that stay or are substituted, in order; all others are deleted or inserted."""
        return min(
            2 * (len(s) + len(t) - 2 * size) + 3 * sum(s[i] != t[j] for i, j in zip(kept, paired))
            for size in range(min(len(s), len(t)) + 1)
            for kept in itertools.combinations(range(len(s)), size)
            for paired in itertools.combinations(range(len(t)), size)
        )

    g = generator(5)
    for n in (2, 4, 4, 4):
        question, chain, answer = EditDistance(n, 3).sample(g)
        s, t = question[:n], question[n + 1 :]
        table = [[int(symbol) for symbol in row.split()] for row in " ".join(chain).split(" | ")]
        assert table == [[cost(s[:i], t[:j]) for j in range(n + 1)] for i in range(n + 1)]
        assert answer == (str(table[n][n]),)


def test_membership_by_counting_brackets():
    g, answers = generator(6), []
    for _ in range(60):
        question, _, answer = Membership(8).sample(g)
        depth = np.cumsum([1 if symbol == "<" else -1 for symbol in question])
        assert (answer == ("yes",)) == (depth.min() >= 0 and depth[-1] == 0)
        answers.append(answer)
    assert 0.4 < answers.count(("yes",)) / 60 < 0.8
    palindromes = Membership(
        4,
        (
            ("S", "AX"),
            ("S", "BY"),
            ("S", "AA"),
            ("S", "BB"),
            ("X", "SA"),
            ("Y", "SB"),
            ("A", "a"),
            ("B", "b"),
        ),
    )
    for word in itertools.product("ab", repeat=4):
        assert (
            palindromes.answer(word, palindromes.chain(word))
            == (("yes",) if word == word[::-1] else ("no",))
            == palindromes.solve(word)
        )
    counts = Membership(8).derivations
    assert counts["S", 2] == 1
    assert counts["S", 4] == 2  # <<>> and <><>, each by one tree
    assert len(Membership(80).sample(generator()).question) == 80, "more derivations than 64 bits hold"


def test_the_longest_expressions_attain_their_polynomial():
    def trees(k: int):
        if k == 0:
            yield "1"
        for left in range(k):
            yield from itertools.product(trees(left), "+-*", trees(k - 1 - left))

    for k, longest in ((1, 1), (2, 5), (3, 13), (4, 25)):
        task = Arithmetic(k, 2)
        assert max(len(task.chain(written(tree))) for tree in trees(k)) == longest == task.chain_length(())


def test_one_changed_symbol_changes_many_places_of_a_subsequence():
    """A symbol of arithmetic or of an edit distance depends on 2 and 5 places; the maximum of a subsequence
    depends on a growing number.
    """
    counts = [
        max(sensitivity(task, task.sample(generator(seed)), chain=True) for seed in range(4))
        for task in (LIS(6, 6), LIS(12, 12))
    ]
    assert 5 < counts[0] < counts[1]
    sums = Arithmetic(2, 5)
    sample = Sample(tuple("1+2+3"), tuple("3+3=1"), ("1",))
    assert (sensitivity(sums, sample, chain=True), sensitivity(sums, sample, chain=False)) == (2, 3)


def test_a_split_has_no_common_question():
    parts = split(LIS(4, 3), train=50, test=31, generator=generator())
    train, test = ({sample.question for sample in samples} for samples in (parts.train, parts.test))
    assert (len(train), len(test), len(train & test)) == (50, 31, 0)
    assert len(train | test) == LIS(4, 3).questions
    task, g = LIS(5, 4), generator(1)
    known = {task.sample(g).question for _ in range(700)}
    share, expected = (
        sum(task.sample(g).question in known for _ in range(2000)) / 2000,
        expected_overlap(task.questions, 700),
    )
    assert abs(share - expected) < 3 * math.sqrt(expected * (1 - expected) * (1 / 2000 + 700 / 1024**2))
    assert expected_overlap(84_375, 60_000) == pytest.approx(1 - math.exp(-60_000 / 84_375), abs=1e-5)
    assert majority([Sample((), (), ("1",)), Sample((), (), ("2",)), Sample((), (), ("2",))]) == ("2",)


def test_a_wrong_chain_is_refused_in_one_line():
    task, question = Arithmetic(2, 5), tuple("1+2*3")
    assert task.chain(question) == tuple("1+1=2")
    assert accepts(task, question, "1+1=2")
    for chain, message in (
        ("1+2=3", "symbol 2 .* must be '1', got '2'"),
        ("1+1", "symbol 3 .* must be '=', got the end"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            verify(task, question, chain)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="symbol 5 of the chain must be the end, got '='"):
        verify(task, question, "1+1=2=")
    assert not accepts(task, question, "")


def test_verification_follows_the_given_chain_and_not_the_algorithm(monkeypatch):
    """A wrong algorithm is found: the rule shares no step with it."""
    sample = LIS(6, 6).sample(generator())
    monkeypatch.setattr(LIS, "chain", lambda self, question: ("1",) * self.n)
    assert not accepts(LIS(6, 6), sample.question, LIS(6, 6).chain(sample.question))
    assert accepts(LIS(6, 6), sample.question, sample.chain)


@each_case(
    ("task", "question", "message"),
    [
        (Arithmetic(3, 5), "9+9", "symbols must be in the vocabulary of the task, got '9'"),
        (Arithmetic(3, 5), "", "must have 3 operations, got 0"),
        (Arithmetic(1, 5), "1+", "must have an operation that may be computed, got '1 \\+'"),
        (Arithmetic(1, 5), "1(2)+3", "must have an operation that may be computed"),
        (Equations(2, 5), "112|221", "exactly one solution, got '1 1 2 | 2 2 1'"),
        (Equations(2, 5), "11", "must have 7 symbols, got 2"),
        (LIS(4, 4), "12", "must have 4 symbols, got 2"),
        (LIS(4, 4), "1998", "symbol 1 of a question of .* must be one of 0 1 2 3, got '9'"),
        (LIS(4, 4), "abcd", "must be one of 0 1 2 3, got 'a'"),
        (EditDistance(3, 3), "ab|abcde", "must have 7 symbols, got 8"),
        (EditDistance(3, 3), "xyz|xyz", "must be one of a b c, got 'x'"),
        (Membership(4), "<>", "must have 4 symbols, got 2"),
    ],
)
def test_questions_of_another_task_are_refused(task, question, message):
    for call in (
        lambda: task.chain(tuple(question)),
        lambda: verify(task, question, ("1",)),
        lambda: task.check(tuple(question)),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not accepts(task, question, ("1",))


@each_case(
    ("call", "message"),
    [
        (
            lambda: split(Arithmetic(1, 2), train=10, test=3, generator=generator()),
            "train \\+ test must be at most 12, the different questions",
        ),
        (
            lambda: split(Membership(4), train=10, test=4, generator=generator()),
            "must leave questions of .* to draw, got 14 and no new one",
        ),
        (lambda: Arithmetic(0), "operations must be at least 1, got 0"),
        (lambda: Equations(2, 6), "modulus must be a prime.*got 6; take 5 or 7"),
        (lambda: LIS(3, 1), "values must be at least 2, got 1"),
        (lambda: EditDistance(3, 27), "letters must be at most 26, got 27"),
        (lambda: Membership(5), "n must be the length of a word of the language, got 5"),
        (lambda: Membership(4, (("S", "S"),)), "a rule must be a capital letter with"),
        (
            lambda: Membership(2, (("S", "AA"), ("A", "="))),
            "got A -> =; symbols other than . = : _ may be letters",
        ),
        (lambda: expected_overlap(0, 5), "questions must be at least 1, got 0"),
        (lambda: expected_overlap(10, -5), "train must be at least 0, got -5"),
        (lambda: majority([]), "samples must have at least one question"),
        (lambda: Membership(2, tuple((c, "SS") for c in "ABCDEF")), "at most 6 nonterminals, got 7"),
        (lambda: encode(Arithmetic(), "x"), "symbols must be in the vocabulary of the task, got 'x'"),
        (lambda: decode(Arithmetic(), [99]), "ids must lie in \\[0, 14\\), got 99"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
