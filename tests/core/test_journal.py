"""Files that grow: no flipped bit and no cut passes, and what was whole is found again."""

import random

import pytest

from tests.cases import each_case
from transformer_theory.core.files import checked_line, checked_record
from transformer_theory.core.journal import Journal, Pieces
from transformer_theory.core.measurement import Measurement
from transformer_theory.training.image.folder import GrowingTable

ROWS = [Measurement("crate", "on data", "é", 1 / 3 + step, step=step, n=7) for step in range(4)]


def journal(path):
    """Returns what a journal holds."""
    pieces = Pieces(path, {"seed": 0})
    for row in ROWS:
        pieces(("copy", str(row.step)), lambda row=row: [row])
    return pieces.done


def lines(path):
    """Returns what a journal of records holds."""
    found = Journal(path, {"format": 1})
    for row in ROWS:
        found.append({"cell": row.step, "rows": [row.to_json()]})
    return found.read()


def growing(path):
    """Returns the rows of a table."""
    table = GrowingTable(path)
    table.rows += ROWS
    table.write()
    return table.rows


READ = {
    journal: lambda path: Pieces(path, {"seed": 0}).done,
    lines: lambda path: Journal(path, {"format": 1}).read(),
    growing: lambda path: GrowingTable.read(path, len(ROWS)).rows,
}


@pytest.mark.parametrize("write", READ)
def test_a_flipped_bit_is_noticed_or_costs_a_piece(tmp_path, write):
    path = tmp_path / "file.jsonl"
    write(path)
    content, read = path.read_bytes(), READ[write]
    whole, draw = read(path), random.Random(0)
    noticed = 0
    for _ in range(400):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = read(path)
        except ValueError:
            noticed += 1
            continue
        # a last line that has lost its end is dropped, as if the process had been killed
        assert place == len(content) - 1
        assert found != whole
    assert noticed > 390


@pytest.mark.parametrize("write", [journal, lines])
def test_what_stands_before_a_cut_is_found_again(tmp_path, write):
    path = tmp_path / "file.jsonl"
    write(path)
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        READ[write](path)
        assert path.read_bytes() == content[: content.rfind(b"\n", 0, size) + 1]


@each_case("record", [{}, {"a": [1, {"b": None}]}, {"text": 'a "crc32": "0"}'}, {"crc32": "x"}])
def test_a_line_gives_its_record(record):
    line = checked_line(record)
    assert line.endswith('"}\n')
    assert checked_record(line) == record
    assert checked_record(line, required=False) == record


def test_a_line_without_a_checksum():
    assert checked_record('{"a": 1}', required=False) == {"a": 1}
    with pytest.raises(ValueError, match="has no checksum"):
        checked_record('{"a": 1}')
