"""The experiments: a machine from a file on the command line, the tape that is drawn, and the
first errors.
"""

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.theories.turing import compile_machine, machines
from transformer_theory.theories.turing.figures.precision import FIRST, RETRIEVAL, precision
from transformer_theory.theories.turing.figures.trace import HALTED, run_with_scores, space_time, trace
from transformer_theory.theories.turing.ladder import FIRST_ERROR

FLIP = "start: go\naccept: end\ngo 0 -> go 1 R\ngo 1 -> go 0 R\ngo # -> end # L\n"


def test_a_machine_file_runs_from_the_command_line(tmp_path):
    path = tmp_path / "flip.tm"
    path.write_text(FLIP, encoding="utf-8")
    out = tmp_path / "run"
    assert main(["run", "turing.trace", "--machine", str(path), "--word", "1011", "--out", str(out)]) == 0
    result = Result.load(out)
    assert result.select(quantity=FIRST_ERROR).one().value == 1
    assert result.select(quantity=HALTED).one().value == 2 * 4 + 3 + 5
    last = result.arrays["turing/tape"][-1]
    low = int(result.arrays["turing/low"])
    alphabet = [chr(code) for code in result.arrays["turing/alphabet"]]
    assert "".join(alphabet[code] for code in last[1 - low : 5 - low]) == "0100"
    path.unlink()
    assert trace.of(result).plot(result) is not None  # the figure needs the stored result only


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--machine", "nothing.tm"], "readable text file"),
        (["--word", "12"], "symbols 0 1, got '2'"),
        (["--arithmetic", "float8"], "arithmetic must be one of exact"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, capsys, options, text):
    assert main(["run", "turing.trace", "--out", str(tmp_path / "run"), *options]) != 0
    message = capsys.readouterr().err
    assert text in message
    assert "Traceback" not in message


@each_case("machine", machines.LIBRARY)
def test_every_machine_of_the_library_has_a_word(machine: str):
    result = trace(machine=machine, steps=30).run()
    assert result.select(quantity=FIRST_ERROR).one().value == 1
    assert result.arrays["turing/scores"].shape == (30, 30)


def test_the_scores_are_those_of_the_run():
    """In exact arithmetic and float64 the closed form; in bfloat16 the scores that chose the attended
    positions.
    """
    transformer = compile_machine(machines.zigzag(5))
    c = transformer.machine.run("", 50).heads
    closed = np.array(
        [
            [-abs(c[i + 1] - c[j] + 1 / (3 * (i + 1) * (j + 1))) / ((i + 1) * (j + 1)) for j in range(50)]
            for i in range(50)
        ]
    )
    for arithmetic in ("exact", "float64"):
        _, scores = run_with_scores(transformer, "", 50, arithmetic)
        assert np.isnan(scores[np.triu_indices(50, 1)]).all()
        assert np.allclose(np.tril(scores), np.tril(closed), rtol=1e-4, atol=1e-14)
    trace, coarse = run_with_scores(transformer, "", 50, "bfloat16")
    assert not np.allclose(np.tril(coarse), np.tril(closed), rtol=1e-1)
    assert all(np.nanmax(coarse[i]) == coarse[i, trace.attended[i + 1]] for i in range(50))


def test_both_panels_show_the_first_error_at_the_same_height():
    experiment = trace(machine="repeated_counter", word="0" * 12, steps=200, arithmetic="float32")
    result = experiment.run()
    left, right = experiment.plot(result).axes[:2]
    assert left.get_ylim() == right.get_ylim() == (200.5, -0.5)
    dashed = [
        [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == "--"] for ax in (left, right)
    ]
    assert dashed == [[result.arrays["turing/wrong"][0]]] * 2
    attended, times = right.lines[0].get_data()
    assert (attended[:3].tolist(), times[:3].tolist()) == (
        list(result.arrays["turing/attended"][1:4]),
        [1, 2, 3],
    )


def test_the_tape_is_the_machines():
    machine = machines.palindromes().normalise()
    tape, low = space_time(machine, machine.run("abba", 40), "abba")
    for (_, _, cells), row in zip(machine.configurations("abba", 40), tape):
        expected = [cells.get(cell, "#") for cell in range(low, low + tape.shape[1])]
        assert [machine.alphabet[code] for code in row] == expected


def test_a_failing_run_is_not_covered():
    result = trace(machine="repeated_counter", word="0" * 12, steps=200, arithmetic="float32").run()
    row = result.select(quantity=FIRST_ERROR).one()
    assert row.value < 1
    assert row.verdict == "not covered"
    assert int(result.arrays["turing/wrong"][0]) - 1 == round(200 * row.value)


def test_first_errors_come_later_with_more_digits():
    result = precision(steps=200, widths=(5,), counter=12, period=20, digits=(8, 24), powers=(4, 12)).run()
    for machine in ("zigzag of width 5", "counter of 12 digits", "random walk"):
        first = [
            result.select(quantity=FIRST, at={"machine": machine, "arithmetic": kind}).one().value
            for kind in ("bfloat16", "float32", "float64")
        ]
        assert first[0] < (first[1] or 201)
        assert first[2] is None
        scores = result.select(quantity=RETRIEVAL, at={"machine": machine, "digits": 8}).one().value
        assert scores <= first[0]
        soft = [
            result.select(quantity=FIRST, at={"machine": machine, "power": power}).one().value
            for power in (4, 12)
        ]
        assert soft[0] < (soft[1] or 201)
