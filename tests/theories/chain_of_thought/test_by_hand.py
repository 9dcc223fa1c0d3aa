"""Accuracies with and without the chain, their nulls and the rows of the ladder, counted by hand."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.theories.chain_of_thought import in_networks, ladder, vocabulary
from transformer_theory.theories.chain_of_thought.arithmetic import Arithmetic
from transformer_theory.theories.chain_of_thought.claims import steps
from transformer_theory.theories.chain_of_thought.dynamic import LIS, EditDistance
from transformer_theory.theories.chain_of_thought.in_networks import GAP, IN_NETWORKS, TASK, ChainGap
from transformer_theory.theories.chain_of_thought.tasks import Sample, majority
from transformer_theory.theories.chain_of_thought.written import WrittenDecoder

NAMES = dict(enumerate(vocabulary(TASK), 3))
IDS = {symbol: number for number, symbol in NAMES.items()}
LIMITS = {"vocabulary": 40, "length": 200}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Reader(nn.Module):
    """Answers with the digit before the ":", or 0 if there is none; its own chain is a single 1."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, 40)
        for row, (*_, before, last) in enumerate(ids.tolist()):
            symbol = NAMES[before] if NAMES[before].isdigit() else "0"
            chosen = symbol if NAMES[last] == ":" else "1" if NAMES[last] == "=" else ":"
            logits[row, -1, IDS[chosen]] = 1
        return logits


@pytest.fixture(name="asked")
def fixture_asked(monkeypatch) -> list[Sample]:
    """The questions that are asked, which are not balanced, so that the shares differ."""
    asked: list[Sample] = []

    def uneven(samples, n, generator):
        ranked = sorted(samples, key=lambda sample: (sample.answer, sample.question[-1], sample.question))
        asked.extend((*ranked[: n - 3], *ranked[-3:]))
        return tuple(asked)

    monkeypatch.setattr(in_networks, "balanced", uneven)
    return asked


def test_the_gap_and_its_null_are_less_the_accuracy_without_the_chain(asked: list[Sample]):
    gap, *rows = in_networks.chain_gain(Reader(), ids=IDS, limits=LIMITS, questions=17, generator=generator())
    answers = [int(sample.answer[0]) for sample in asked]
    read = [int(last) if (last := sample.question[-1]).isdigit() else 0 for sample in asked]
    expected = {
        "generated chain": [answer == 1 for answer in answers],
        "given chain": [True] * 17,
        "filler symbols": [answer == 0 for answer in answers],
        "chain of another question": [a == b for a, b in zip(answers, (*answers[1:], answers[0]))],
        "without chain": [a == b for a, b in zip(answers, read)],
        "most frequent answer": [a == Counter(answers).most_common(1)[0][0] for a in answers],
    }
    shares = {name: sum(right) / 17 for name, right in expected.items()}
    assert len({shares[name] for name in expected}) >= 4
    assert {row.at["chain"]: row.value for row in rows} == pytest.approx(shares)
    base = shares["without chain"]
    assert base > 0
    assert gap.value == pytest.approx(shares["generated chain"] - base)
    others = ("filler symbols", "chain of another question")
    assert gap.null.draws == pytest.approx([shares[name] - base for name in others])
    assert (gap.side, gap.n) == (IN_NETWORKS.side, 17) == (">=", 17)


class Blind(nn.Module):
    """Knows the answer of some questions and never looks at the chain."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, 40)
        for row, numbers in enumerate(ids.tolist()):
            text = "".join(NAMES[number] for number in numbers).split(".")[-1]
            question = text.split("=")[0].split(":")[0]
            known = str(eval(question) % 3) if question.count("-") else "0"  # digits only
            logits[row, -1, IDS[known if text[-1] == ":" else ":"]] = 1
        return logits


def test_a_network_that_ignores_the_chain_has_the_gap_and_the_null_zero():
    gap, *rows = in_networks.chain_gain(Blind(), ids=IDS, limits=LIMITS, questions=30, generator=generator())
    assert 0.4 < {row.at["chain"]: row.value for row in rows}["without chain"] < 1
    assert gap.value == 0
    assert set(gap.null.draws) == {0.0}


def test_answers_are_equally_frequent():
    samples = [Sample((str(i),), (), ("012"[min(i // 6, 2)],)) for i in range(30)]  # 6, 6 and 18 times
    for n, expected in ((9, [3, 3, 3]), (10, [3, 3, 4]), (18, [6, 6, 6])):
        chosen = in_networks.balanced(samples, n, generator(n))
        assert sorted(Counter(sample.answer for sample in chosen).values()) == expected
        assert len({sample.question for sample in chosen}) == n
    assert [sample.answer for sample in chosen] != sorted(sample.answer for sample in chosen)


def test_the_inputs_of_the_response(asked: list[Sample], monkeypatch):
    """Thirty questions with their chain and without, each in ids of its own."""
    drawn: list[dict[str, int]] = []

    def shifted(*_) -> dict[str, int]:
        drawn.append({symbol: number + len(drawn) for symbol, number in IDS.items()})
        return drawn[-1]

    monkeypatch.setattr(in_networks, "symbol_ids", shifted)
    inputs = in_networks.gap_inputs(torch.zeros(1, 1).long(), LIMITS, generator(2))
    assert len(drawn) == 30

    def ends(rows: torch.Tensor) -> list[str]:
        texts = ["".join(NAMES[int(each) - shift] for each in row) for shift, row in enumerate(rows)]
        return [text.split(".")[-1] for text in texts]

    with_chain, without = inputs["value"][:30], inputs["value"][30:]
    assert len(without) == 30
    assert ends(with_chain) == ["".join(s.question) + "=" + "".join(s.chain) + ":" for s in asked]
    assert ends(without) == ["".join(s.question) + ":" for s in asked]
    assert not any((row == IDS["="] + shift).any() for shift, row in enumerate(without))
    four = [int((row == IDS["="] + shift).sum()) for shift, row in enumerate(with_chain)]
    assert min(four) >= 5, "four examples and the question"
    kinds, questions, places, answers = inputs["targets"].tensor_split([1, 2, 3], dim=1)
    assert kinds[:, 0].tolist() == [1] * 30 + [0] * 30
    assert questions[:, 0].tolist() == [*range(30)] * 2
    assert answers.tolist() == [[each[symbol] for symbol in "012"] for each in drawn] * 2
    assert places[:, 0].tolist() == [int(sample.answer[0]) for sample in asked] * 2
    assert "null" not in inputs


def test_the_ids_of_questions_are_drawn_independently():
    inputs = in_networks.gap_inputs(torch.zeros(1, 1).long(), LIMITS, generator(2))
    answers = inputs["targets"][:30, 3:]
    assert len({tuple(each) for each in answers.tolist()}) == 30
    assert torch.equal(inputs["targets"][30:, 3:], answers)
    for row, number in zip(inputs["value"], [*range(30)] * 2):
        assert set(answers[number].tolist()) <= set(row.tolist())


def measured_gap(kind, question, answer, ids, logits):
    metric, tokens = ChainGap(), torch.zeros(len(kind), 3, 1)
    targets = torch.from_numpy(np.column_stack([kind, question, answer, ids]))
    for part in (slice(0, 4), slice(4, None)):  # two batches
        parts = {"outputs": torch.from_numpy(logits[part]), "targets": targets[part]}
        metric.update(Activations("", 0, "outputs", tokens[part], tokens[part], **parts))
    (row,) = metric.compute(draws=1199)
    return row


def test_the_gap_of_the_response_is_a_difference_of_accuracies():
    """The answer is chosen among the ids of the answers, at the last place; rows in any order."""
    rng = np.random.default_rng(4)
    order = rng.permutation(24)
    kind, question = np.repeat([1, 0], 12)[order], np.tile(np.arange(12), 2)[order]
    logits = rng.normal(size=(24, 3, 9))
    logits[..., 8] = 9.0  # no answer
    ids = rng.permuted(np.tile(np.arange(8), (24, 1)), axis=1)[:, :2]
    answer = rng.integers(2, size=24)
    right = np.array([np.argmax(logits[i, -1, ids[i]]) == answer[i] for i in range(24)])
    row = measured_gap(kind, question, answer, ids, logits)
    gap = np.array(
        [
            int(right[(question == q) & (kind == 1)][0]) - int(right[(question == q) & (kind == 0)][0])
            for q in range(12)
        ]
    )
    assert row.value == pytest.approx(gap.mean())
    assert row.value != 0
    assert (row.n, row.side, row.quantity, len(row.null.draws)) == (12, ">=", GAP, 1199)
    # the sum of as many fair signs as there are questions answered in one way only
    different = int(np.abs(gap).sum())
    assert 2 < different < 12
    assert {round(draw * 12) for draw in row.null.draws} <= set(range(-different, different + 1, 2))
    tail = sum(
        math.comb(different, ups) for ups in range(different + 1) if 2 * ups - different >= gap.sum()
    ) / (2**different)
    assert row.null.p(row.value, ">=") == pytest.approx(tail, abs=0.05)


def test_rows_without_their_other_half_have_no_null():
    ids = np.tile([0, 1], (6, 1))
    logits = np.random.default_rng(0).normal(size=(6, 3, 2))
    row = measured_gap(
        np.array([1, 1, 1, 0, 0, 0]), np.array([0, 1, 2, 0, 1, 3]), np.zeros(6, int), ids, logits
    )
    assert row.value is not None
    assert row.null is None


# ---- the ladder


def test_outcomes_are_exchanged_question_by_question():
    """With D of n outcomes that differ, draws have mean 0, deviation root D over n, and the parity of D."""
    with_chain, without = torch.zeros(50).bool(), torch.zeros(50).bool()
    with_chain[:20], without[15:24] = True, True  # 15 gained, 4 lost
    null = ladder.exchanged(with_chain, without, generator(3))
    draws = np.array(null.draws)
    deviation = math.sqrt(19) / 50
    assert len(draws) == 399
    assert draws.mean() == pytest.approx(0, abs=4 * deviation / math.sqrt(399))
    assert draws.std() == pytest.approx(deviation, rel=0.15)
    assert set(np.round(draws * 50) % 2) == {1.0}
    gap, *accuracies = ladder.gap_rows(with_chain, without, torch.arange(50) < 7, generator(3))
    assert gap.value == pytest.approx(11 / 50)
    assert gap.predicted == pytest.approx(1 - 9 / 50)
    assert gap.null.draws == null.draws
    assert [row.value for row in accuracies] == pytest.approx([20 / 50, 9 / 50, 7 / 50])
    assert [row.quantity for row in accuracies] == [ladder.WITH, ladder.WITHOUT, ladder.MAJORITY]
    assert (gap.side, gap.n) == (">=", 50)


def test_a_written_decoder_is_compared_with_the_most_frequent_answer_of_other_questions(monkeypatch):
    """Rows with a wrong symbol are generated; every third row has one, and every second of these is right."""
    seen: dict[str, tuple[Sample, ...]] = {}

    def whole(model, task, samples):
        seen["test"] = tuple(samples)
        return torch.arange(len(samples)) % 3 > 0

    def correct(model, task, samples, mode):
        assert mode == "chain"
        seen["generated"] = tuple(samples)
        return torch.arange(len(samples)) % 2 == 0

    def parts(task, train, test):
        seen["train"] = train
        return made(task, train, test)

    made = ladder.Split
    for name, known in (("whole", whole), ("correct", correct), ("Split", parts)):
        monkeypatch.setattr(ladder, name, known)
    monkeypatch.setattr(ladder, "WrittenDecoder", lambda task, **settings: settings_of.update(settings))
    settings_of: dict[str, object] = {}
    gap, _, without, common, every = ladder.written(generator(4), n=6, dtype=torch.float32, scale=2.0)
    assert settings_of == {"dtype": torch.float32, "scale": 2.0}
    assert seen["generated"] == seen["test"][::3]
    answer = Counter(sample.answer for sample in seen["train"]).most_common(1)[0][0]
    guessed = np.mean([sample.answer == answer for sample in seen["test"]])
    assert gap.value == pytest.approx(50 / 60 - guessed)
    assert without.value == common.value == pytest.approx(guessed)
    assert every.value == pytest.approx(40 / 60)
    assert not {id(sample) for sample in seen["train"]} & {id(sample) for sample in seen["test"]}
    assert len(seen["train"]) == len(seen["test"]) == 60


def test_two_learnt_decoders_are_compared_on_the_same_questions(monkeypatch):
    """Twelve test questions: nine right with the chain, five without, four have the frequent answer."""
    train = [Sample((str(i),), (), ("1",)) for i in range(3)]
    test = [Sample((str(i),), (), ("1" if i < 4 else "0",)) for i in range(12)]
    split, known = ladder.Split(TASK, tuple(train), tuple(test)), {"chain": 9, "direct": 5}
    made = {mode: type("Made", (), {"model": mode}) for mode in known}
    monkeypatch.setattr(ladder, "parts_of", lambda seed, operations: split)
    monkeypatch.setattr(ladder, "network", lambda seed, operations, depth, mode: made[mode])

    def correct(model, task, samples, mode, *, dtype):
        assert (model, samples, dtype) == (mode, split.test, torch.bfloat16)
        return torch.arange(12) < known[mode]

    monkeypatch.setattr(ladder, "correct", correct)
    gap, *accuracies = ladder.learnt(generator(5), depth=2, dtype=torch.bfloat16)
    assert gap.value == pytest.approx(4 / 12)
    assert gap.predicted == pytest.approx(7 / 12)
    assert [row.value for row in accuracies] == pytest.approx([9 / 12, 5 / 12, 4 / 12])


@pytest.mark.parametrize("number", [0, 4])
def test_the_written_decoder_reads_questions_of_numbers_below_its_limit_only(number: int):
    """LIS(5, 4) has the numbers 0 to 3; 4 is a length. Every place of the question is checked."""
    task = LIS(5, 4)
    known = {symbol: place for place, symbol in enumerate(vocabulary(task))}
    model, right = WrittenDecoder(task), [known[each] for each in ("1", "3", "0", "2", "3", "=")]
    assert int(model(torch.tensor([right]))[0, -1].argmax()) == known["1"]  # d_1 = 1
    for wrong in (known["4"], known["="], known[":"]):
        ids = list(right)
        ids[number] = wrong
        with pytest.raises(ValueError, match="must be"):
            model(torch.tensor([ids]))


def test_written_weights_are_judged_by_the_share_of_wrong_questions():
    right, control = steps.written.function(generator(3)), steps.written.change
    assert (right.value, right.detail["free-running"]) == (0.0, 0.0)
    wrong = steps.written.function(generator(3), **control.changed)
    assert wrong.value == pytest.approx(1.0)
    assert wrong.detail["free-running"] * 3 == pytest.approx(round(wrong.detail["free-running"] * 3))


@each_case(("wrong", "free"), [(3, 0), (1, 1), (0, 2), (0, 0)])
def test_the_claim_about_written_weights_counts_shares_of_questions(monkeypatch, wrong: int, free: int):
    """Of twenty questions with right beginnings, and of the first three that run free."""
    asked = []
    monkeypatch.setattr(
        steps,
        "whole",
        lambda model, task, samples, *, filler: (
            asked.append((len(samples), filler)),
            torch.arange(20) >= wrong,
        )[1],
    )
    monkeypatch.setattr(
        steps,
        "correct",
        lambda model, task, samples, kind: (asked.append((len(samples), kind)), torch.arange(3) >= free)[1],
    )
    found = steps.written.function(generator(5))
    assert found.value == pytest.approx(max(wrong / 20, free / 3))
    assert found.detail["free-running"] == pytest.approx(free / 3)
    assert 10 <= found.detail["n"] <= 40
    assert asked == [(20, False), (3, "chain")]
    steps.written.function(generator(5), filler=True)
    assert asked[2:] == [(20, True), (3, "filler")]


def test_the_claim_about_bounded_steps_takes_the_worst_question_over_two_and_five_places(monkeypatch):
    """The bounds are those of the statement: two places in arithmetic, five in edit distance."""
    asked, known = [], iter([1, 4, 15, 3, 2, 3, 20, 5])

    def sensitivity(task, sample, *, chain: bool) -> int:
        asked.append((str(task), chain))
        return next(known)

    monkeypatch.setattr(steps, "sensitivity", sensitivity)
    found = steps.bounded.function(generator(6))
    tasks = [
        str(task) for task in (Arithmetic(3, 7), EditDistance(4, 3), Arithmetic(6, 7), EditDistance(8, 3))
    ]
    assert found.detail == pytest.approx(dict(zip(tasks, (4 / 2, 15 / 5, 3 / 2, 20 / 5))))
    assert found.value == pytest.approx(4)
    assert asked == [(task, True) for task in tasks for _ in range(2)]


@each_case(
    ("arithmetic", "other", "worst"),
    [([8, 13], [11, 10], 0.3), ([9, 8], [10, 7], 0.3), ([5, 8], [10, 10], 0.0), ([10, 8], [11, 10], 0.1)],
)
def test_lengths_of_chains_are_compared_with_their_polynomials(monkeypatch, arithmetic, other, worst: float):
    """An expression may have a shorter chain, another task may not. Polynomials are 10 in both tasks."""
    tasks = Arithmetic(3, 7), LIS(4, 4)
    lengths = dict(zip(tasks, (arithmetic, other)))
    monkeypatch.setattr(steps, "SMALL", tasks[:1])
    monkeypatch.setattr(steps, "LARGE", tasks[1:])
    monkeypatch.setattr(
        steps, "draw_samples", lambda task, n, _: [Sample((), ("1",) * each, ()) for each in lengths[task]]
    )
    ten = SimpleNamespace(chain_length=lambda question: 10)
    found = steps.length.function(generator(), bounds=(ten, ten))
    assert found.value == pytest.approx(worst)
    expected = max(0.0, max(arithmetic) / 10 - 1), max(abs(each / 10 - 1) for each in other)
    assert tuple(found.detail.values()) == pytest.approx(expected)


@each_case(("answers", "expected"), [("2113", "1"), ("2112", "2"), ("1221", "1"), ("3", "3")])
def test_of_answers_that_are_equally_frequent_the_first_one_is_taken(answers: str, expected: str):
    assert majority([Sample((), (), (each,)) for each in answers]) == (expected,)
