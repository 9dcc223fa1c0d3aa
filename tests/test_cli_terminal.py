"""What a pipe gets: lines as wide as COLUMNS says, which end where their text does."""

from rich.cells import cell_len

from tests.cases import each_case
from transformer_theory.cli import main
from transformer_theory.cli.terminal import WIDTH
from transformer_theory.theories import list_theories


@each_case(
    ("columns", "least", "most"), [("80", 70, 80), ("120", 90, 120), (None, 121, WIDTH), ("wide", 121, WIDTH)]
)
def test_lines_are_as_wide_as_asked_and_end_with_their_text(columns, least, most, monkeypatch, capsys):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert least <= max(map(cell_len, lines)) <= most  # an accent takes no cell
    assert all(line == line.rstrip() for line in lines)
    assert any(line.startswith("    attention_svm/") for line in lines)
    assert not any(character in line for line in lines for character in "\\${}")  # formulas are in Unicode
    claims = [line.split()[0] for line in lines if line.startswith("    ") and "/" in line.split()[0]]
    assert claims == [claim.id for theory in list_theories() for claim in theory.claims]  # one line each
    assert sum(line.endswith("…") for line in lines) > len(claims) / 4
