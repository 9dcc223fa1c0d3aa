"""The command ``run``: what it prints, writes and explains."""

import importlib
import io
import re
from dataclasses import replace
from itertools import cycle

import pytest
from rich.console import Console

from tests.stand_in import THEORY, install, replace_theories
from transformer_theory.cli import main
from transformer_theory.cli.catalogue import catalogue
from transformer_theory.core.measurement import Basis, Measurement, Null, judge
from transformer_theory.core.plotting import axes
from transformer_theory.core.result import Result
from transformer_theory.report import terminal


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory in place of the others."""
    install(monkeypatch)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_run_stores_result_and_figure(tmp_path, capsys):
    assert main(["run", "stand_in.coin", "--quick", "--out", str(tmp_path / "coin"), "--seed", "5", "--widths", "3", "4", "5"]) == 0
    assert names(tmp_path / "coin") == ["arrays.npz", "figure.svg", "result.json", "table.jsonl", "verifications.json"]
    result = Result.load(tmp_path / "coin")
    assert result.settings == {"seed": 5, "throws": 20, "bias": 0.5, "fair_only": False, "widths": [3, 4, 5]}
    assert len(result.arrays["stand_in/heads"]) == 20
    assert (tmp_path / "coin" / "figure.svg").read_text().lstrip().startswith(("<?xml", "<svg"))
    assert "figure.svg" in capsys.readouterr().out


def test_run_prints_references_beside_measurements(tmp_path, capsys):
    assert main(["run", "stand_in.coin", "--out", str(tmp_path / "coin"), "--throws", "8", "--widths", "3", "4"]) == 0
    captured = capsys.readouterr()
    value = Result.load(tmp_path / "coin").table[0].value
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert re.fullmatch(r"stand_in\.coin: 3 rows in [\d.]+ s", lines[0])
    assert lines[1:3] == ["quantity measured reference which is verdict", f"share of heads (step 8) {value:.6g} 0.5 theory not judged"]
    assert lines[3:5] == ["area of width 3 9", "area of width 4 16"]  # what stands beside nothing comes last
    assert len(lines) == 6
    assert "stand_in.coin: 2 of 2 settings (width=4)" in captured.err


def test_run_prints_so_many_references(monkeypatch, tmp_path, capsys):
    def measure(self):
        for i, basis in zip(range(23), cycle([*BASIS_WORDS, None])):
            given = {} if basis is None else {"basis": basis}
            yield Row(theory="stand_in", quantity=f"q{i}", value=None if i else 2.0, predicted=1.0, **given)

    monkeypatch.setattr(THEORY.experiments[0], "measure", measure)
    monkeypatch.setattr(THEORY.experiments[0], "plot", lambda self, result: axes()[0])
    assert main(["run", "stand_in.coin", "--out", str(tmp_path / "coin")]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(q\d+) ", out, re.MULTILINE) == [f"q{i}" for i in range(20)]
    shown = re.findall(r"^q\d+ +(2|none) +1 *(.*?) *not judged *$", out, re.MULTILINE)
    assert shown[:6] == list(zip(["2", *["none"] * 5], ["theory", "limit", "printed", "read off a figure", "recomputed", ""]))
    assert f"... and 3 more in {tmp_path / 'coin' / 'table.jsonl'}" in out


SOURCE = THEORY.sources[0]


def printed(monkeypatch, rows, folder, capsys) -> list[str]:
    """The lines that a run of these rows prints, without the first and the last."""
    monkeypatch.setattr(THEORY.experiments[0], "measure", lambda self: iter(rows))
    monkeypatch.setattr(THEORY.experiments[0], "plot", lambda self, result: axes()[0])
    assert main(["run", "stand_in.coin", "--out", str(folder)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()][1:-1]


def test_run_prints_the_line_that_decides_and_the_verdict(monkeypatch, tmp_path, capsys):
    rows = [
        finding("stand_in", "a tolerance", Evidence(3e-16, 1e-8, "<="), source=SOURCE, null=0.2),
        finding("stand_in", "a limit", Evidence(0.98, 0.99, ">="), source=SOURCE, predicted=1.0, basis="limit"),
        finding("stand_in", "printed", Evidence(0.9, 0.99, ">="), source=SOURCE, predicted=0.99, basis="printed"),
        finding("stand_in", "elsewhere", Evidence(0.5, 1.0, "<=", covered=False), source=SOURCE),
        Row(theory="stand_in", quantity="no reference", value=7.0),
        assumption("stand_in", "few tokens", False, value=3.0, source=SOURCE),
    ]
    assert printed(monkeypatch, rows, tmp_path / "run", capsys) == [
        "quantity measured reference which is null line verdict",
        "a limit 0.98 1 limit >= 0.99 ✗ violated",
        "printed 0.9 0.99 printed >= 0.99 ✗ violated",
        "a tolerance 3e-16 0.2 <= 1e-08 ✓ consistent",
        "elsewhere 0.5 <= 1 ○ outside assumptions",
        "assumption: few tokens 3 ✗ fails",
        "no reference 7",
    ]


def test_run_leaves_out_columns_that_would_be_empty(monkeypatch, tmp_path, capsys):
    rows = [finding("stand_in", f"q{i}", Evidence(float(i), 20.5, "<="), source=SOURCE) for i in range(23)]
    lines = printed(monkeypatch, rows, tmp_path / "run", capsys)
    assert lines[:3] == ["quantity measured line verdict", "q21 21 <= 20.5 ✗ violated", "q22 22 <= 20.5 ✗ violated"]
    assert lines[3] == "q0 0 <= 20.5 ✓ consistent"
    assert lines[-1] == f"... and 3 more in {tmp_path / 'run' / 'table.jsonl'}"


def test_run_prints_measurements_that_stand_beside_nothing(monkeypatch, tmp_path, capsys):
    rows = [Row(theory="stand_in", quantity="alone", value=1.0), Row(theory="stand_in", quantity="with chance", value=2.0, null=0.5)]
    assert printed(monkeypatch, rows, tmp_path / "run", capsys) == ["quantity measured null", "alone 1", "with chance 2 0.5"]


def test_run_says_how_many_violated_rows_it_leaves_out(monkeypatch, tmp_path, capsys):
    rows = [finding("stand_in", f"q{i}", Evidence(1.0, 0.5, "<="), source=SOURCE) for i in range(22)]
    assert printed(monkeypatch, rows, tmp_path / "run", capsys)[-1].startswith("... and 2 more (2 violated) in")


def widths(renderable, width: int) -> list[str]:
    shown = Console(width=width, file=io.StringIO(), force_terminal=False)
    shown.print(renderable(shown))
    return shown.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 160])
def test_names_are_whole_in_a_terminal_of_any_width(width):
    room = importlib.import_module("transformer_theory.theories.attention_svm").THEORY  # it has the longest names
    lines = widths(lambda shown: tables.catalogue((room,)), width)
    assert max(map(len, lines)) <= width
    assert room.name in lines[0]
    assert room.question in " ".join(" ".join(lines).split())
    names = {claim.id for claim in room.claims} | {kind.name for kind in room.experiments}
    assert names <= set(" ".join(lines).split())

    longest = max(room.claims, key=lambda claim: len(claim.id))
    found = summaries(verification([replace(THEORY.claims[0], id=longest.id, source=longest.source)], range(3)))
    lines = widths(lambda shown: tables.verdicts(found, shown), width)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("claim ")
    text = " ".join(lines)
    assert all(part in text for part in (longest.id, longest.source.label, "✓ consistent", "3/3", "[0.29, 1.00]", " <= 1 "))
    assert (len(lines) == 2) == (width == 160)


def test_workers_change_no_row(tmp_path):
    for workers in ("1", "2"):
        assert main(["run", "stand_in.coin", "--quick", "--out", str(tmp_path / workers), "--workers", workers]) == 0
    one, two = (Result.load(tmp_path / workers) for workers in "12")
    assert one.table == two.table
    assert one.settings == two.settings
    assert (one.provenance["workers"], two.provenance["workers"]) == (1, 2)


def test_workers_without_a_sweep_are_said_to_be_idle(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(THEORY.experiments[0], "measure", lambda self: iter([Row(theory="stand_in", quantity="q", value=1.0)]))
    monkeypatch.setattr(THEORY.experiments[0], "plot", lambda self, result: axes()[0])
    said = "transformer-theory: stand_in.coin sweeps over no settings: it ran in one process, --workers changed nothing"
    for given, lines in ((["--workers", "2"], [said]), ([], [])):
        assert main(["run", "stand_in.coin", "--out", str(tmp_path / "coin"), "--overwrite", *given]) == 0
        assert [line for line in capsys.readouterr().err.splitlines() if " s  " not in line] == lines
        assert Result.load(tmp_path / "coin").provenance["workers"] is None


def test_workers_stand_in_the_help_of_experiments_that_sweep(monkeypatch, capsys):
    from tests.idle import Still

    monkeypatch.setattr(REGISTRY, "THEORIES", (replace(THEORY, experiments=(*THEORY.experiments, Still)),))
    for name, told in (("stand_in.coin", True), ("stand_in.still", False)):
        assert main(["run", name, "--help"]) == 0
        assert ("--workers" in capsys.readouterr().out) == told
    assert main(["run", "stand_in.still", "--wrkrs", "2"]) == 2
    assert "--workers" not in capsys.readouterr().err


def test_options_win_over_quick_and_defaults(tmp_path):
    assert main(["run", "--out", str(tmp_path / "a"), "--quick", "--throws", "9", "stand_in.coin"]) == 0
    assert Result.load(tmp_path / "a").settings["throws"] == 9
    assert main(["run", "stand_in.coin", "--out", str(tmp_path / "b"), "--fair-only", "--bias", "0.5"]) == 0
    assert Result.load(tmp_path / "b").settings["fair_only"] is True
    assert Result.load(tmp_path / "b").settings["throws"] == 1000


def test_run_help_shows_the_parameters(capsys):
    assert main(["run", "stand_in.coin", "--help"]) == 0
    out = capsys.readouterr().out
    for text in ("--throws INT", "(default: 1000)", "--fair-only, --no-fair-only", "--widths INT", "(default: 1 2)"):
        assert text in out
