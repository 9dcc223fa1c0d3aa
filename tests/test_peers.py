"""The table of ours against official and textbook versions: its page is that of the stored rows, and the
README quotes it.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from benchmarks import __main__ as program
from benchmarks import _rows
from benchmarks._rows import Row, page, table

ROOT = Path(__file__).parents[1]
ROW = Row("a sum", "a loop", "n = 3", [1.0, 2.0, 4.0], [2.0, 8.0, 12.0], 2e-9, "sums", target=5)
QUOTED = ("Frobenius max-margin, in a batch of 400", "cvxpy, one constraint per token", "n = 10,")


def stored() -> dict:
    return json.loads((ROOT / "docs" / "peers.json").read_text(encoding="utf-8"))


def rows() -> list[Row]:
    return [Row(**row) for row in stored()["rows"]]


def test_the_page_is_that_of_the_stored_rows():
    assert page(stored()) == (ROOT / "docs" / "peers.md").read_text(encoding="utf-8"), (
        "run python -m benchmarks peers"
    )


def test_all_benchmarks_with_rows_are_stored():
    assert list(dict.fromkeys(row.command for row in rows())) == list(program.PEERS)
    assert all(len(row.ratios) >= 3 for row in rows())


def test_a_row_by_hand():
    assert ROW.ratios == [2.0, 4.0, 3.0]
    assert ROW.gain == "3 (2 to 4)"
    assert replace(ROW, theirs=[100.0, 84.0, 402.0]).gain == "100 (42 to 100)"
    assert "| 3 (2 to 4); target 5 missed | 3 | 2e-09, sums |" in table([ROW])
    assert "missed" not in table([replace(ROW, target=3)])


def test_the_command_stores_the_rows_unless_one_benchmark_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_rows, "STORED", tmp_path / "peers.json")
    monkeypatch.setattr(_rows, "PAGE", tmp_path / "peers.md")
    monkeypatch.setattr(program, "PEERS", ("one", "two"))
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(main=lambda: [ROW]))
    assert program.main(["peers"]) == 0
    made = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert [row["command"] for row in made["rows"]] == ["one", "two"]
    assert page(made) == (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert "cores, 1 used" in made["machine"]
    assert (
        capsys.readouterr().out.rstrip().endswith("| 3 (2 to 4); target 5 missed | 3 | 2e-09, sums | `two` |")
    )

    (tmp_path / "peers.json").unlink()
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(main=lambda: 1 / 0))
    assert program.main(["peers"]) == 1
    assert not (tmp_path / "peers.json").exists()


def test_the_readme_quotes_one_row_of_the_table():
    what, other, size = QUOTED
    (row,) = (row for row in rows() if (row.what, row.other) == (what, other) and row.size.startswith(size))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"400 max-margin problems are solved [{row.gain} times faster](docs/peers.md) than by cvxpy" in readme
    )
    assert readme.count("times faster") == 1
