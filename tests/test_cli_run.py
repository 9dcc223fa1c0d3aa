"""The command ``run``: what it prints, writes and explains."""

import importlib
import io
import re
from dataclasses import replace
from typing import get_args

import pytest
from rich.console import Console

from tests.stand_in import THEORY, install
from transformer_theory.cli import main
from transformer_theory.cli.catalogue import catalogue, texts_of
from transformer_theory.core import claim_table, format
from transformer_theory.core.measurement import Basis, Measurement, Null, judge
from transformer_theory.core.plotting import axes
from transformer_theory.core.result import Result


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """One made-up theory in place of the others."""
    install(monkeypatch)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_run_stores_result_and_figure(tmp_path, capsys):
    assert (
        main(
            [
                "run",
                "stand_in.coin",
                "--quick",
                "--out",
                str(tmp_path / "coin"),
                "--seed",
                "5",
                "--widths",
                "3",
                "4",
                "5",
            ]
        )
        == 0
    )
    assert names(tmp_path / "coin") == [
        "arrays.npz",
        "figure.svg",
        "result.json",
        "table.jsonl",
        "verifications.json",
    ]
    result = Result.load(tmp_path / "coin")
    assert result.settings == {"seed": 5, "throws": 20, "bias": 0.5, "fair_only": False, "widths": [3, 4, 5]}
    assert len(result.arrays["stand_in/heads"]) == 20
    assert (tmp_path / "coin" / "figure.svg").read_text().lstrip().startswith(("<?xml", "<svg"))
    assert "figure.svg" in capsys.readouterr().out


def test_run_prints_references_beside_measurements(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformer_theory.core.progress.LOGGED", 0.0)
    assert (
        main(["run", "stand_in.coin", "--out", str(tmp_path / "coin"), "--throws", "8", "--widths", "3", "4"])
        == 0
    )
    captured = capsys.readouterr()
    value = Result.load(tmp_path / "coin").table[0].value
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert re.fullmatch(r"stand_in\.coin: 3 rows in [\d.]+ s", lines[0])
    assert lines[1:3] == [
        "quantity measured reference origin",
        f"share of heads (step 8) {format.number(value)} 0.500 theory",
    ]
    assert lines[3:5] == ["area (width 3) 9", "area (width 4) 16"]  # rows without a reference come last
    assert len(lines) == 6
    assert "stand_in.coin: 2 of 2 settings (width=4)" in captured.err


SOURCE = THEORY.sources[0]


def figure(quantity: str, value: float | None, **columns) -> Measurement:
    return Measurement("stand_in", "figure", quantity, value, source=SOURCE, **columns)


def judged(
    quantity: str, value: float, op: str, threshold: float, *, covered: bool = True, **columns
) -> Measurement:
    columns = {"predicted": threshold, **columns}
    return figure(
        quantity,
        value,
        op=op,
        threshold=threshold,
        verdict=judge(value, op, threshold, covered=covered),
        **columns,
    )


def printed(monkeypatch, rows, folder, capsys) -> list[str]:
    """The lines that a run of these rows prints, without the first and the last."""
    monkeypatch.setattr(THEORY.experiments[0], "measure", lambda self: iter(rows))
    monkeypatch.setattr(THEORY.experiments[0], "plot", lambda self, result: axes()[0])
    assert main(["run", "stand_in.coin", "--out", str(folder)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()][1:-1]


def test_run_prints_every_basis(monkeypatch, tmp_path, capsys):
    rows = [figure(f"q{i}", 2.0, predicted=1.0, basis=basis) for i, basis in enumerate(get_args(Basis))]
    lines = printed(monkeypatch, rows, tmp_path / "run", capsys)[1:]
    assert [line.split(" ", 3)[3] for line in lines] == [
        "theory",
        "limit",
        "printed",
        "read off a figure",
        "recomputed",
        "own setting",
    ]


def test_run_prints_a_reason_in_place_of_a_value(monkeypatch, tmp_path, capsys):
    rows = [figure("q", None, reason="no solution exists")]
    assert printed(monkeypatch, rows, tmp_path / "run", capsys)[1] == "q no solution exists"


def test_run_prints_the_threshold_and_the_verdict(monkeypatch, tmp_path, capsys):
    rows = [
        judged("a tolerance", 3e-16, "<=", 1e-8, nulls=(Null("none", (0.2,)),)),
        judged("a limit", 0.98, ">=", 0.99, predicted=1.0, basis="limit"),
        judged("printed", 0.9, ">=", 0.99, basis="printed"),
        judged("elsewhere", 0.5, "<=", 1.0, covered=False),
        figure("no reference", 7.0),
    ]
    assert printed(monkeypatch, rows, tmp_path / "run", capsys) == [
        "quantity measured reference origin null threshold verdict",
        "a limit 0.980 1 limit ≥ 0.990 ✗ violated",
        "printed 0.900 0.990 printed ≥ 0.990 ✗ violated",
        "a tolerance 3.00·10⁻¹⁶ 0.200 ≤ 1.00·10⁻⁸ ✓ consistent",
        "elsewhere 0.500 ≤ 1 ○ not covered",
        "no reference 7",
    ]


def test_run_prints_the_first_rows_and_counts_the_others(monkeypatch, tmp_path, capsys):
    rows = [judged(f"q{i}", float(i), "<=", 20.5) for i in range(23)]
    lines = printed(monkeypatch, rows, tmp_path / "run", capsys)
    assert lines[:3] == [
        "quantity measured threshold verdict",
        "q21 21 ≤ 20.5 ✗ violated",
        "q22 22 ≤ 20.5 ✗ violated",
    ]
    assert lines[3] == "q0 0 ≤ 20.5 ✓ consistent"
    assert lines[-1] == f"... and 3 more in {tmp_path / 'run' / 'table.jsonl'}"
    rows = [judged(f"q{i}", 1.0, "<=", 0.5) for i in range(22)]
    assert "2 more (2 violated)" in printed(monkeypatch, rows, tmp_path / "more", capsys)[-1]


def widths(renderable, width: int) -> list[str]:
    shown = Console(width=width, file=io.StringIO(), force_terminal=False)
    shown.print(renderable(shown))
    return shown.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 160])
def test_names_are_whole_in_a_terminal_of_any_width(width):
    # it has the longest names
    theory = importlib.import_module("transformer_theory.theories.attention_svm").THEORY
    lines = widths(lambda shown: catalogue([texts_of(theory)]), width)
    assert max(map(len, lines)) <= width
    assert theory.name in lines[0]
    assert theory.question in " ".join(" ".join(lines).split())
    names = {claim.id for claim in theory.claims} | {kind.name for kind in theory.experiments}
    assert names <= set(" ".join(lines).split())

    longest = max(theory.claims, key=lambda claim: len(claim.id))
    result = replace(THEORY.claims[0], id=longest.id, source=longest.source).verify(range(3))
    lines = widths(lambda shown: claim_table.verifications([result], shown), width)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("claim ")
    text = " ".join(lines)
    assert all(part in text for part in (longest.id, "✓ consistent", "3/3", "[0.29, 1.00]", " ≤\u00a01 "))
    assert (len(lines) == 2) == (width == 160)


def test_workers_change_no_row(tmp_path):
    for workers in ("1", "2"):
        assert (
            main(["run", "stand_in.coin", "--quick", "--out", str(tmp_path / workers), "--workers", workers])
            == 0
        )
    one, two = (Result.load(tmp_path / workers) for workers in "12")
    assert one.table == two.table
    assert one.settings == two.settings
    assert (one.provenance["workers"], two.provenance["workers"]) == (1, 2)


def test_idle_workers_are_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(THEORY.experiments[0], "measure", lambda self: iter([figure("q", 1.0)]))
    monkeypatch.setattr(THEORY.experiments[0], "plot", lambda self, result: axes()[0])
    for given, count in ((["--workers", "2"], 1), ([], 0)):
        assert main(["run", "stand_in.coin", "--out", str(tmp_path / "coin"), "--overwrite", *given]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if " s  " not in line]
        assert [("stand_in.coin" in line and "--workers" in line) for line in lines] == [True] * count
        assert Result.load(tmp_path / "coin").provenance["workers"] is None


def test_options_win_over_quick_and_defaults(tmp_path):
    assert main(["run", "--out", str(tmp_path / "a"), "--quick", "--throws", "9", "stand_in.coin"]) == 0
    assert Result.load(tmp_path / "a").settings["throws"] == 9
    assert main(["run", "stand_in.coin", "--out", str(tmp_path / "b"), "--fair-only", "--bias", "0.5"]) == 0
    assert Result.load(tmp_path / "b").settings["fair_only"] is True
    assert Result.load(tmp_path / "b").settings["throws"] == 1000


def test_run_help_shows_the_settings(capsys):
    assert main(["run", "stand_in.coin", "--help"]) == 0
    out = capsys.readouterr().out
    for text in (
        "--throws INT",
        "(default: 1000)",
        "--fair-only, --no-fair-only",
        "--widths INT",
        "(default: 1 2)",
    ):
        assert text in out
