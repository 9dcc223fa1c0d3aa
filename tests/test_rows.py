"""The row schema: what a finding says, and what holds by construction."""

from typing import get_args

import numpy as np
import pytest

from transformer_theory.core.claims import Evidence
from transformer_theory.core.measurement import BASIS_WORDS, Arrays, Basis, Row, by_construction, check_row, collect, finding, select
from transformer_theory.core.sources import Source

SOURCE = Source("yu2020learning")


def test_a_finding_keeps_prediction_line_and_verdict():
    row = finding("room", "cosine", Evidence(0.97, 0.95, ">="), source=SOURCE, predicted=1.0, null=0.1)
    assert (row["value"], row["predicted"], row["bound"], row["op"], row["verdict"]) == (0.97, 1.0, 0.95, ">=", "consistent")
    assert finding("room", "cosine", Evidence(0.9, 0.95, ">="), source=SOURCE)["verdict"] == "violated"
    assert row["basis"] == "theory"
    assert finding("room", "cosine", Evidence(0.9, 0.95, ">="), source=SOURCE, basis="limit")["basis"] == "limit"


def test_every_basis_has_its_words():
    assert list(BASIS_WORDS) == list(get_args(Basis))


@pytest.mark.parametrize("note", [{}, {"note": "in nats"}])
def test_what_holds_by_construction_has_no_verdict_and_says_so(note):
    row = finding("room", "rate reduction", Evidence(1.0, 0.0, ">="), source=SOURCE, **note)
    stripped = by_construction(row)
    assert "verdict" not in stripped
    assert stripped["note"].endswith("it is no evidence")
    assert row["verdict"] == "consistent"  # the row itself is left as it was
    check_row(stripped)


def test_collect_separates_rows_and_arrays_and_refuses_twins():
    row = Row(theory="room", quantity="x", value=1.0)
    rows, arrays = collect([row, Arrays({"room/a": np.zeros(2)})])
    assert rows == [row]
    assert list(arrays) == ["room/a"]
    with pytest.raises(ValueError, match="unique"):
        collect([Arrays({"room/a": np.zeros(2)}), Arrays({"room/a": np.ones(2)})])


def test_select_takes_equal_values_and_choices():
    rows = [Row(theory="room", quantity="x", value=float(k), step=k) for k in range(4)]
    assert [row["value"] for row in select(rows, theory="room", step=(1, 3))] == [1.0, 3.0]
    with pytest.raises(ValueError, match="colour"):
        check_row({"theory": "room", "quantity": "x", "value": 1.0, "colour": "red"})
