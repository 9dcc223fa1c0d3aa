"""The construction: a second, dense forward pass, weights that can be read, exact values of single tokens,
and bad input.
"""

import math
from fractions import Fraction

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.turing import PerezTransformer, TuringMachine, compile_machine, machines
from transformer_theory.theories.turing.claims import precision
from transformer_theory.theories.turing.claims.construction import normal_form, without_tie_break
from transformer_theory.theories.turing.claims.instances import rewriting_runs
from transformer_theory.theories.turing.construction import LAYERS, without_normal_form
from transformer_theory.theories.turing.floating import pooled, positions
from transformer_theory.theories.turing.machine import Trace
from transformer_theory.theories.turing.retrieval import first_wrong_retrieval, rounded


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense_tokens(transformer: PerezTransformer, word: str, steps: int) -> torch.Tensor:
    """The decoder's tokens by the plain definition: all layers over all tokens anew in each step, nothing
    stored, no shortcut.
    """
    W, d = {name: matrix.dense() for name, matrix in transformer.weights.items()}, transformer.d
    place = {name: k for k, name in enumerate(transformer.coordinates)}

    def position(p: int) -> torch.Tensor:
        row = torch.zeros(d, dtype=torch.float64)
        row[-4:] = torch.tensor([1, p, 1 / p, 1 / p**2], dtype=torch.float64)
        return row

    def attention(query, keys, values):
        score = -(query @ keys.mT).abs()
        best = (score - score.max()).abs() < 1e-15
        return values[best].mean(0)

    encoder = []
    for p, symbol in enumerate(word, 1):
        row = position(p)
        row[place[f"s3[{symbol}]"]] = 1
        encoder.append(row)
    memory = torch.stack(encoder)
    start = torch.zeros(d, dtype=torch.float64)
    start[[place[f"q1[{transformer.machine.start}]"], place[f"s1[{transformer.machine.blank}]"]]] = 1
    tokens = [start]
    for _ in range(steps):
        x = torch.stack([token + position(p) for p, token in enumerate(tokens, 1)])
        for layer in LAYERS:
            part = {
                name: W[f"decoder.{layer}.{name}"]
                for name in ("query", "key", "value", "output", "up", "down")
            }
            rows = []
            for i, row in enumerate(x):
                own = attention(row @ part["query"], x[: i + 1] @ part["key"], x[: i + 1] @ part["value"])
                row = row + own @ part["output"]
                row = row + attention(row, memory @ W["encoder.key"], memory @ W["encoder.value"])
                rows.append(row + (row @ part["up"]).relu() @ part["down"])
            x = torch.stack(rows)
        tokens.append(((x[-1] @ W["map.1"]).relu() @ W["map.2"]).relu() @ W["map.3"])
    return torch.stack(tokens)


@pytest.mark.parametrize(
    ("machine", "word"),
    [(machines.increment(), "1011"), (machines.palindromes(), "ab"), (machines.zigzag(2), "10")],
)
def test_a_plain_forward_pass_gives_the_same_tokens(machine: TuringMachine, word: str):
    transformer, steps = compile_machine(machine), 20
    tokens = dense_tokens(transformer, word, steps)
    for step, row in zip(transformer.steps(word, steps), tokens):
        expected = torch.zeros(transformer.d, dtype=torch.float64)
        for column, number in step.token.items():
            expected[column] = float(number)
        assert torch.allclose(row, expected, rtol=0, atol=1e-13)


@each_case("name", machines.LIBRARY)
def test_every_machine_of_the_library_runs(name: str):
    make, word = machines.LIBRARY[name]
    transformer = compile_machine(make())
    machine = transformer.machine
    assert transformer.run(word, 40) == machine.run(word, 40)
    long = machine.run(word, 200)
    assert transformer.run(word, 200, arithmetic="float64") == long
    assert (
        transformer.d
        == 2 * len(machine.states) + 4 * len(machine.alphabet) + 11
        == len(set(transformer.coordinates))
    )


def test_every_coordinate_has_a_row_or_a_column_with_a_weight():
    transformer = compile_machine(machines.increment())
    used: set[str] = set()
    for matrix in transformer.weights.values():
        used |= {row for row, _ in matrix.entries if matrix.rows == transformer.coordinates}
        used |= {column for _, column in matrix.entries if matrix.columns == transformer.coordinates}
    assert used == set(transformer.coordinates)


@pytest.mark.parametrize(
    ("machine", "accepts"),
    [
        (machines.palindromes(), lambda word: word == word[::-1]),
        (machines.equal_blocks(), lambda word: word == "a" * (len(word) // 2) + "b" * (len(word) // 2)),
        (machines.parity(), lambda word: word.count("a") % 2 == 0),
    ],
)
def test_the_transformer_accepts_the_language_of_the_machine(machine: TuringMachine, accepts):
    transformer = compile_machine(machine)
    for word in ("", "a", "b", "ab", "ba", "aa", "aba", "abb", "aabb", "abba", "aaabbb", "abaab", "abbabba"):
        last = transformer.run(word, 90, arithmetic="float64").states[-1]
        assert (last in machine.accept) == accepts(word), word


def test_a_machine_that_never_starts_is_an_error():
    """A transformer that reaches fewer times than the machine is wrong at the others."""

    def reading_for_ever(machine: TuringMachine) -> PerezTransformer:
        table = {(q, s): ("read", s, 1) for q in ("init", "read") for s in machine.alphabet}
        return without_normal_form(
            TuringMachine(("init", "read"), machine.alphabet, table, "init", (), (), machine.blank, 0)
        )

    assert normal_form.check(generator(), build=reading_for_ever).value == 1


def test_the_empty_word_is_a_blank():
    transformer = compile_machine(machines.increment())
    assert transformer.run("", 12) == transformer.machine.run("", 12)
    assert machines.increment().tape("", 12) == "1"


def test_tokens_are_those_of_the_lemma():
    """After layers 1 and 2 the token holds q, v, m, m, c^(i+1)/(i+1) and c^(i)/(i+1): read from the keys of
    the third layer.
    """
    transformer = compile_machine(machines.zigzag(3))
    trace = transformer.machine.run("", 30)
    for i, step in enumerate(list(transformer.steps("", 30))[1:]):
        e = [Fraction(1, j + 1) for j in range(i + 1)]
        expected = [
            -abs(e[i] * e[j] * (trace.heads[i + 1] - trace.heads[j] + e[i] * e[j] / 3)) for j in range(i + 1)
        ]
        assert list(step.scores) == expected
        assert step.head == trace.heads[i + 1]
        assert step.attended == (trace.attended[i + 1],)


def test_without_the_tie_break_all_visits_are_averaged():
    transformer = without_tie_break(compile_machine(machines.zigzag(1)))
    several = [step.attended for step in transformer.steps("", 9) if len(step.attended) > 1]
    heads = transformer.machine.run("", 9).heads
    assert several
    assert all(len({heads[j] for j in attended}) == 1 for attended in several)


def test_the_first_move_shifts_the_heads_and_nothing_else():
    """The survey's sum of the moves starts one step late: in normal form this changes the numbers of the
    cells only.
    """
    transformer = compile_machine(machines.palindromes())
    late = transformer.changed("decoder.1.down", {("delta(init,#)", "x2"): 0})
    right, found = transformer.run("abba", 40), late.run("abba", 40)
    assert (found.states, found.symbols) == (right.states, right.symbols)
    assert [b - a for a, b in zip(found.heads[1:], right.heads[1:])] == [1] * 40


def test_a_machine_outside_normal_form_reads_wrong_symbols():
    transformer = without_normal_form(machines.increment())
    assert transformer.run("1011", 20).states != machines.increment().run("1011", 20).states


def test_weights_can_be_read():
    transformer = compile_machine(machines.busy_beaver_3())
    assert (
        str(transformer["decoder.3.query"]) == "[33, 3], 3 nonzero\nx4 -> a: 1\n1/p -> b: 1\n1/p^2 -> c: 1/3"
    )
    matrix = transformer["decoder.2.value"]
    assert matrix.entries == {("x2", "x4"): 1, ("x3", "x5"): 1}
    dense = matrix.dense()
    assert dense.shape == (33, 2)
    assert dense[transformer.coordinates.index("x2"), 0] == dense[transformer.coordinates.index("x3"), 1] == 1
    assert dense.sum() == 2
    assert str(transformer).startswith("d = 33 for 7 states and 2 symbols\nencoder.key: [33, 33], 2 nonzero")
    with pytest.raises(KeyError, match=r"did you mean 'decoder.3.query'"):
        transformer["decoder.3.queri"]


def test_number_types_fail_in_order():
    transformer = compile_machine(machines.repeated_counter())
    reference = transformer.machine.run("0" * 12, 300)
    first = {
        kind: transformer.run("0" * 12, 300, arithmetic=kind).first_difference(reference)
        for kind in ("float64", "float32", "bfloat16")
    }
    assert first["float64"] is None
    assert 100 < first["float32"] < 200
    assert 20 < first["bfloat16"] < 100


def test_softmax_gets_better_with_the_inverse_temperature():
    transformer = compile_machine(machines.zigzag(5))
    reference = transformer.machine.run("", 200)

    def first(inverse_temperature: float) -> int:
        trace = transformer.run(
            "", 200, arithmetic="float64", score="softmax", inverse_temperature=inverse_temperature
        )
        return trace.first_difference(reference) or 200

    assert first(1e2) < first(1e6) < first(1e10) < first(1e13)


def test_a_tenth_of_the_sufficient_inverse_temperature_runs_the_machines_and_a_hundredth_does_not():
    sufficient = 0.75 * 120**5 * (120 * math.log(2) + 6 * math.log(120))

    def agreements(beta: float) -> list[float]:
        return [
            run.trace(arithmetic="float64", score="softmax", inverse_temperature=beta).agreement(
                run.reference
            )
            for run in rewriting_runs(generator(), 120)
        ]

    assert min(agreements(sufficient / 10)) == 1
    assert min(agreements(sufficient / 100)) < 1
    evidence, control = precision.softmax.run(0)
    assert evidence.verdict == "consistent"
    # the exponent of the weight of the other keys is proportional to the inverse temperature
    assert control.value == pytest.approx(evidence.value / 2, rel=0.01)


def test_an_overflow_ends_the_run():
    trace = compile_machine(machines.zigzag(20)).run("", 400, arithmetic="bfloat16")
    assert len(trace) == 401
    assert isinstance(trace, Trace)
    assert trace.states[0] == "init"


def test_hard_attention_averages_ties():
    values = torch.tensor([[0.0], [2.0], [5.0]])
    scores = torch.tensor([[-1.0, -1.0, -2.0], [-3.0, -2.0, -1.0]])
    assert pooled(scores, values, None).tolist() == [[1.0], [5.0]]
    assert torch.allclose(pooled(scores, values, 1e4), torch.tensor([[1.0], [5.0]]))
    assert positions(3, torch.float64)[2].tolist() == [1, 3, 1 / 3, 1 / 9]


def test_rounding_is_that_of_float32():
    x = torch.randn(1000, generator=generator(), dtype=torch.float64)
    assert torch.equal(rounded(x, 24), x.float().double())
    assert torch.equal(rounded(x, 53), x)


@pytest.mark.parametrize(
    ("machine", "word"),
    [(machines.zigzag(5), ""), (machines.zigzag(20), ""), (machines.repeated_counter(), "0" * 12)],
)
def test_rounded_scores_fail_no_later_than_float32(machine: TuringMachine, word: str):
    """A wrong retrieval may still find the right symbol, so the run fails at the same step or later."""
    transformer = compile_machine(machine)
    reference = transformer.machine.run(word, 300)
    run = transformer.run(word, 300, arithmetic="float32").first_difference(reference)
    scores = first_wrong_retrieval(reference, digits=24)
    assert scores <= run <= 2 * scores
    assert first_wrong_retrieval(reference, 53) is None


def test_a_sweep_passes_in_float32_only():
    """No cell is visited twice after the word is read, and still bfloat16 reads a wrong symbol."""
    transformer = compile_machine(machines.parity())
    first = [
        transformer.run("ab" * 200, 400, arithmetic=kind).first_difference(
            transformer.machine.run("ab" * 200, 400)
        )
        for kind in ("float32", "bfloat16")
    ]
    assert first == [None, 204]


def test_cells_that_are_powers_of_two_cancel_exactly():
    """With products that are rounded before they are added, cells 1 and 2 never fail at float32's precision;
    cell 3 does.

    A run of the network may fail sooner: matrix products that fuse multiplication and addition round only one
    of the two terms.
    """
    passes, fails = (machines.zigzag(width).normalise() for width in (1, 2))
    assert set(passes.run("", 1000).heads) == {0, 1, 2}
    assert first_wrong_retrieval(passes.run("", 1000), digits=24) is None
    assert first_wrong_retrieval(fails.run("", 1000), digits=24) < 300


TRANSFORMER = compile_machine(machines.increment())
RUN = TRANSFORMER.run


def softly(inverse_temperature):
    return RUN("1", 3, arithmetic="float64", score="softmax", inverse_temperature=inverse_temperature)


CASES = {
    "arithmetic": (
        lambda: RUN("1", 3, arithmetic="float46"),
        "arithmetic must be one of exact, float64, .*got 'float46'; did you mean 'float64'",
    ),
    "score": (lambda: RUN("1", 3, score="sof"), "score must be one of hard, softmax, got 'sof'"),
    "exact softmax": (
        lambda: RUN("1", 3, score="softmax"),
        "softmax needs floating point, got arithmetic='exact'; pass",
    ),
    "no temperature": (
        lambda: RUN("1", 3, arithmetic="float64", score="softmax"),
        "positive, finite inverse_temperature, got None",
    ),
    "temperature 0": (lambda: softly(0.0), "inverse_temperature must be positive and finite, got 0.0"),
    "temperature as text": (lambda: softly("10"), "inverse_temperature must be a number, got str"),
    "temperature of hard-max": (
        lambda: RUN("1", 3, inverse_temperature=2.0),
        "belongs to score='softmax', got 2.0 with 'hard'",
    ),
    "steps of another type": (lambda: RUN("1", 2.5), "steps must be an integer, got float 2.5"),
    "a list of symbols": (lambda: RUN(["1"], 3), r"word must be a str, got list \['1'\]"),
    "exact steps": (lambda: TRANSFORMER.steps("1", -1), "steps must be at least 0, got -1"),
    "exact steps as text": (lambda: TRANSFORMER.steps("1", "3"), "steps must be an integer, got str '3'"),
    "exact steps of a word": (lambda: TRANSFORMER.steps("2", 3), "symbols 0 1, got '2'"),
    "a float as weight": (
        lambda: TRANSFORMER.changed("decoder.3.query", {("x4", "a"): 0.1}),
        r"got 0.1 at .*; pass e.g. Fraction\('0.1'\)",
    ),
    "unknown row": (
        lambda: TRANSFORMER.changed("decoder.3.query", {("x44", "a"): 1}),
        "unknown row or column 'x44' of 'decoder.3.query'; did",
    ),
    "unknown column": (
        lambda: TRANSFORMER.changed("decoder.3.query", {("x4", "z"): 1}),
        "unknown row or column 'z'",
    ),
    "a name as machine": (
        lambda: compile_machine("increment"),
        "machine must be a TuringMachine, got str 'increment'",
    ),
    "steps": (lambda: RUN("1", -3), "steps must be at least 0, got -3"),
    "word": (lambda: RUN("12", 3), "symbols 0 1, got '2' in '12'"),
}


@each_case("case", CASES)
def test_bad_input_is_named(unchecked, case: str):
    call, text = CASES[case]
    with pytest.raises((ValueError, TypeError, KeyError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


def test_no_steps_is_the_first_token():
    for arithmetic in ("exact", "float64", "bfloat16"):
        trace = RUN("10", 0, arithmetic=arithmetic)
        assert trace == Trace(("init",), ("#",), (0,), (-1,))
