"""The written decoder, training and generation, and what a chain buys in networks whose answer is known."""

import math

import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.models.decoder import Decoder
from transformer_theory.probes import respond
from transformer_theory.probes.respond import responses
from transformer_theory.theories import chain_of_thought
from transformer_theory.theories.chain_of_thought import (
    LIS,
    THEORY,
    Arithmetic,
    Equations,
    Recipe,
    WrittenDecoder,
    chain_gain,
    correct,
    generate,
    split,
    train,
    vocabulary,
)
from transformer_theory.theories.chain_of_thought.in_networks import (
    EXAMPLES,
    GAP,
    TASK,
    ChainGap,
    few_shot,
    gap_inputs,
)
from transformer_theory.theories.chain_of_thought.ladder import exchanged, gap_rows
from transformer_theory.theories.chain_of_thought.learning import (
    continuation,
    equal_compute_steps,
    given,
    prompt,
    rows,
    symbols_per_step,
)
from transformer_theory.theories.chain_of_thought.written import attention, whole

LIMITS = {"vocabulary": 40, "length": 200, "sequences": 16}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Solver(nn.Module):
    """Continues every text as the task requires: the question after the last end, its chain, its answer."""

    def __init__(self, ids: dict[str, int], size: int):
        super().__init__()
        self.names, self.ids, self.size = {number: symbol for symbol, number in ids.items()}, ids, size

    def following(self, text: list[str]) -> str:
        text = text[len(text) - text[::-1].index(".") :] if "." in text else text
        question = tuple(text[: text.index("=")] if "=" in text else text[:-1])
        chain = TASK.chain(question)
        written = text[len(question) :]
        if ":" in written:  # the answer is the last symbol of the chain that is there
            before = written[: written.index(":")]
            return (before[-1] if before else "0") if written[-1] == ":" else "."
        return (*chain, ":")[len(written) - 1]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, self.size)
        for row, sequence in enumerate(ids.tolist()):
            logits[row, -1, self.ids[self.following([self.names[each] for each in sequence])]] = 1
        return logits


@pytest.mark.parametrize("n", [5, 12])
def test_the_written_decoder_generates_chains_freely(n: int):
    task, g = LIS(n, 8), generator(n)
    samples = [task.sample(g) for _ in range(12)]
    model = WrittenDecoder(task)
    assert correct(model, task, samples, "chain").all()
    assert whole(model, task, samples).all()
    for sample in samples[:3]:
        ids = torch.tensor([[vocabulary(task).index(symbol) for symbol in prompt(sample, "chain")]])
        expected = [vocabulary(task).index(symbol) for symbol in continuation(sample, "chain")]
        assert generate(model, ids, limit=n + 3, end=0)[0].tolist() == expected
    assert not correct(model, task, samples, "filler").any()


def test_the_written_decoder_in_other_precisions():
    task, g = LIS(60, 60), generator()
    samples = [task.sample(g) for _ in range(10)]
    for dtype, scale in ((torch.bfloat16, math.inf), (torch.float32, 5.0)):
        assert whole(WrittenDecoder(task, dtype=dtype, scale=scale), task, samples).all()
    assert not whole(WrittenDecoder(task, scale=0.5), task, samples).any()


def test_attention_is_causal_and_hard():
    scores = torch.tensor([[0.0, 9.0, 9.0], [1.0, 1.0, 9.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    assert attention(scores, math.inf).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]
    soft = attention(scores, 1.0)
    assert float(soft[2, 1]) == pytest.approx(math.exp(2) / (1 + math.exp(2) + math.exp(1)))


def test_the_question_is_masked():
    task = Arithmetic(2, 5)
    sample = task.sample(generator())
    for mode in ("chain", "direct", "filler"):
        ids, targets = rows(task, [sample], mode)
        found = targets[targets >= 0].tolist()
        assert found == [vocabulary(task).index(symbol) for symbol in continuation(sample, mode)]
        assert (targets[0, : len(prompt(sample, mode)) - 1] < 0).all()
        assert ids.shape[1] == len(prompt(sample, mode)) + len(continuation(sample, mode)) - 1
    with_chain, filler = rows(task, [sample], "chain")[0], rows(task, [sample], "filler")[0]
    assert with_chain.shape == filler.shape, "filler symbols must be as many as those of the chain"


def test_training_learns_one_operation():
    parts = split(Arithmetic(1, 3), train=22, test=5, generator=generator())
    found = train(
        parts,
        "direct",
        steps=150,
        generator=generator(),
        recipe=Recipe(dim=32, depth=1, batch=22),
        measured=(0, 150),
        questions=5,
    )
    assert correct(found.model, parts.task, parts.train, "direct").double().mean() > 0.9
    assert set(found.accuracies) == {0, 150}
    assert symbols_per_step(parts, "direct", Recipe(batch=10)) == 10 * 5
    assert symbols_per_step(parts, "chain") == 22 * 7
    assert equal_compute_steps(parts, "direct", 100) == 140
    again = train(parts, "direct", steps=5, generator=generator(1), recipe=Recipe(dim=32, depth=1))
    twin = train(parts, "direct", steps=5, generator=generator(1), recipe=Recipe(dim=32, depth=1))
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), twin.model.parameters())), (
        "the generator does not decide"
    )
    with pytest.raises(ValueError, match="mode must be one of chain, direct, filler, got 'dots'"):
        train(parts, "dots", steps=1, generator=generator())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        correct(found.model, parts.task, [], "chain")
    for sizes, message in (
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"rate": math.nan}, "rate must be positive and finite, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe(**sizes)
    with pytest.raises(ValueError, match="questions must be at least 1, got 0"):
        train(parts, "chain", steps=1, generator=generator(), questions=0)
    with pytest.raises(TypeError, match="steps must be an integer"):
        train(parts, "chain", steps=1.5, generator=generator())  # pyright: ignore[reportArgumentType]


@each_case("change", [{"task": Arithmetic()}, {"scale": -1.0}, {"scale": math.nan}, {"dtype": torch.int64}])
def test_the_written_decoder_is_for_one_task(change):
    with pytest.raises(
        ValueError, match="the decoder must have a task LIS\\(n, values\\), a scale > 0 and a float dtype"
    ):
        WrittenDecoder(**{"task": LIS(4, 4), **change})
    model = WrittenDecoder(LIS(4, 4))
    with pytest.raises(ValueError, match=r"ids must be .* begin with 4 numbers of LIS"):
        correct(model, LIS(6, 4), [LIS(6, 4).sample(generator())], "chain")
    with pytest.raises(ValueError, match="ids must be"):
        model(torch.tensor([[4, 5]]))


def test_a_given_chain_decides_the_answer_of_the_written_decoder():
    task, g = LIS(8, 8), generator(2)
    samples = [task.sample(g) for _ in range(10)]
    others = [sample.chain for sample in samples[1:] + samples[:1]]
    found = given(WrittenDecoder(task), task, samples, others)
    assert found == [(vocabulary(task).index(max(chain, key=int)),) for chain in others]


def test_the_null_exchanges_outcomes():
    right, wrong = torch.ones(100, dtype=torch.bool), torch.zeros(100, dtype=torch.bool)
    null = exchanged(right, wrong, generator())
    assert len(null.draws) == 399
    assert abs(null.median) < 0.05
    assert max(abs(draw) for draw in null.draws) < 0.5
    gap, *accuracies = gap_rows(right, wrong, wrong, generator())
    assert (gap.value, gap.predicted) == (1, 1)
    assert [row.value for row in accuracies] == [1, 0, 0]
    assert set(exchanged(right, right, generator()).draws) == {0.0}


def test_what_a_chain_buys_a_perfect_solver():
    ids = {symbol: number + 3 for number, symbol in enumerate(vocabulary(TASK))}
    table = list(chain_gain(Solver(ids, 40), ids=ids, limits=LIMITS, questions=40, generator=generator()))
    shares = {row.at["chain"]: row.value for row in table if row.quantity != GAP}
    gap = next(row for row in table if row.quantity == GAP)
    assert shares["generated chain"] == shares["given chain"] == 1
    assert shares["without chain"] < 0.7
    assert shares["chain of another question"] < 0.7
    assert gap.value == 1 - shares["without chain"]
    assert gap.null is not None
    assert gap.null.high < 0.5
    shorter = list(
        chain_gain(Solver(ids, 40), ids=ids, limits=LIMITS, examples=0, questions=40, generator=generator())
    )
    assert shorter[1].value == 1, "without examples too"


def test_the_response_measures_the_same():
    class Reader(nn.Module):
        """Puts the id two places before: the last symbol of a chain before the colon."""

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(ids.roll(1, 1), 40).float()

    data = torch.zeros(4, 6, dtype=torch.long)
    limits = LIMITS | {"sequences": 32}
    (row,) = responses(Reader(), THEORY, data, limits=limits, generator=generator())
    inputs = gap_inputs(data, limits, generator())
    assert row.value is not None
    assert 0.2 < row.value <= 1
    assert row.n == 16
    assert row.null is not None
    assert len(row.null.draws) == 1199
    assert row.null.p(row.value, row.side) < 0.01
    n = len(inputs["targets"]) // 2
    kind, answer, ids = inputs["targets"][:n, 0], inputs["targets"][:n, 2], inputs["targets"][:n, 3:]
    assert (kind == 1).all()
    assert torch.equal(inputs["value"][:n, -2], ids.gather(1, answer[:, None])[:, 0]), (
        "the chain must end in the answer"
    )
    assert inputs["value"].shape[1] <= LIMITS["length"]
    assert responses(Reader(), THEORY, torch.zeros(1, 2, 3), limits=LIMITS, generator=generator()) == [], (
        "floats are no ids"
    )


def test_one_question_is_no_certainty():
    """The answers to choose from are those of the task, not those of the sample."""
    values = set()
    for seed in range(6):
        model = Decoder(vocabulary=40, dim=8, heads=1, hidden=8)
        values |= {
            row.value
            for row in list(chain_gain(model, limits=LIMITS, questions=1, generator=generator(seed)))[1:-1]
        }
    assert values == {0, 1}


def test_any_decoder_of_ids_is_measured():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Decoder(vocabulary=40, dim=16, heads=2, hidden=16)
    rows_ = responses(
        model, THEORY, torch.zeros(1, 2, dtype=torch.long), limits=LIMITS, generator=generator()
    )
    assert abs(rows_[0].value or 0) < 0.6
    table = list(chain_gain(model, limits=LIMITS, questions=8, generator=generator()))
    assert len(table) == 7
    assert (
        respond(model, torch.zeros(2, 5, dtype=torch.long), [ChainGap()]).table.select(quantity=GAP)
        == chain_of_thought_empty()
    )


class Broken(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.full((*ids.shape, 40), math.nan)


def test_a_constant_guess_gains_nothing():
    """It has the share of one answer with and without the chain."""

    class Constant(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.sin(torch.arange(40.0)).expand(*ids.shape, 40)

    data = torch.zeros(1, 2, dtype=torch.long)
    (row,) = responses(Constant(), THEORY, data, limits=LIMITS, generator=generator())
    assert row.value == 0
    assert set(row.null.draws) == {0.0}
    (row,) = responses(Broken(), THEORY, data, limits=LIMITS, generator=generator())
    assert (row.value, row.reason) == (None, "the logits of 16 rows are NaN")
    gap, *shares = chain_gain(Constant(), limits=LIMITS, questions=30, generator=generator())
    assert gap.value == 0
    assert {share.value for share in shares} == {10 / 30}


def test_limits_of_the_response():
    data = torch.full((2, 3), 11)
    inputs = gap_inputs(data, {}, generator())
    assert len(inputs["value"]) == 60
    assert int(inputs["value"].max()) < 12, "ids above those of the data"
    assert gap_inputs(data, {"sequences": 8, "length": 60}, generator())["value"].shape[0] == 8
    for limits, message in (
        ({"vocabulary": 11}, "the vocabulary must hold the 12 symbols"),
        ({"length": 12}, "the context must hold"),
        ({"sequences": 3}, "sequences must be at least 4, .* got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            gap_inputs(data, limits, generator())


def test_a_model_of_transformers_is_measured():
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=40, n_positions=128, n_embd=16, n_layer=2, n_head=2)
        )
    limits = {"vocabulary": 40, "length": 128}
    rows_ = responses(
        model, THEORY, torch.zeros(1, 2, dtype=torch.long), limits=limits, generator=generator()
    )
    assert rows_[0].value is not None
    table = list(chain_gain(model, limits=limits, questions=4, generator=generator()))
    assert [row.value is not None for row in table] == [True] * 7


def chain_of_thought_empty():
    from transformer_theory.core.table import Table

    return Table()


def test_a_prompt_of_examples():
    sample = TASK.sample(generator())
    text = few_shot([sample], sample, sample.chain)
    assert text[-1] == ":"
    assert text.count("=") == 2 * (1 + sample.chain.count("="))
    assert EXAMPLES >= 1


@each_case(
    ("change", "message"),
    [
        (
            {"limits": {"vocabulary": 8, "length": 200}},
            "the vocabulary must hold the 12 symbols of .*, got 8 ids; take a smaller task",
        ),
        (
            {"limits": {"vocabulary": 40, "length": 20}},
            "the context must hold .* ids, one example, a question and its chain, got a limit of 20",
        ),
        (
            {"limits": {"vocabulary": 40, "length": 5}, "examples": 0},
            "the context must hold .* ids, a question and its chain, got a limit of 5",
        ),
        ({"ids": {"0": 1}}, "ids must have every symbol of .*, got none for"),
        ({"ids": dict.fromkeys(vocabulary(TASK), 99)}, "ids must lie in \\[0, 40\\), got 99"),
        ({"ids": dict.fromkeys(vocabulary(TASK), 0)}, "ids must be different, got 1 for 12 symbols"),
        ({"limits": {}}, "limits must have 'vocabulary' and 'length', got no 'vocabulary'"),
        ({"examples": -1}, "examples must be at least 0, got -1"),
        ({"questions": 0}, "questions must be at least 1, got 0"),
        ({"model": Broken()}, "the model must return numbers as logits, got NaN"),
        ({"task": Equations(2, 5)}, "answers must have one symbol, got"),
        ({"model": nn.Linear(4, 4)}, "the model must take ids \\[n, seq\\], got Linear"),
        (
            {"model": nn.Embedding(40, 4).requires_grad_(False), "task": TASK, "model_": "pooled"},
            "the model must return logits",
        ),
    ],
)
def test_bad_input_gets_one_line(change, message):
    class Pooled(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(ids), 40)

    arguments = {
        "model": Decoder(vocabulary=40, dim=8, heads=1, hidden=8),
        "limits": LIMITS,
        "questions": 4,
        "generator": generator(),
    } | change
    if arguments.pop("model_", ""):
        arguments["model"] = Pooled()
    model = arguments.pop("model")
    with pytest.raises(ValueError, match=message) as caught:
        list(chain_gain(model, **arguments))
    assert "\n" not in str(caught.value)


def test_the_record():
    assert chain_of_thought.THEORY.in_networks is not None
    assert chain_of_thought.THEORY.in_networks.metrics() == ()
    assert [rung.covered for rung in THEORY.ladder.rungs][:2] == [True, False] if THEORY.ladder else False
