"""The theory on data that it cannot use: clear errors of `analyse`, and rows with reasons from data sets."""

import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.result import Result
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.theories.scan_snap import minimal_model, on_data
from transformer_theory.theories.scan_snap.on_data import HEADLINE, ON_DATA

IDS, QUERY, NEXT = np.arange(12).reshape(4, 3), np.full(4, 20), np.array([1, 2, 1, 2])


@each_case(
    ("change", "error", "part"),
    [
        ({"ids": IDS * 1.0}, ValueError, "ids .*float64"),
        ({"ids": torch.ones(4, 3)}, ValueError, "ids .*torch.float32"),
        ({"ids": [[1, 2], [3]]}, ValueError, "ids .*unequal"),
        ({"ids": IDS[0]}, ValueError, r"ids .*\[3\]"),
        ({"query_ids": QUERY[:3]}, ValueError, "query_ids .*got 3"),
        ({"ids": -IDS}, ValueError, "ids .*got -11"),
        ({"vocab_size": 20}, ValueError, "query_ids .*got 20"),
        ({"vocab_size": 1}, ValueError, "vocab_size .*got 1"),
        ({"eta_y": 0.0}, ValueError, "eta_y must be positive"),
        ({"eta_y": math.nan}, ValueError, "eta_y must be positive"),
        ({"eta_y": "fast"}, TypeError, "eta_y must be a number, got str"),
        ({"eta_z": 1e300}, ValueError, r"eta_z must be at most 1e\+06"),
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"steps": 10**300}, ValueError, "steps must be at most"),
        ({"queries": 0}, ValueError, "queries must be at least 1"),
        ({"queries": 1.5}, TypeError, "queries must be an integer"),
        ({"max_classes": 1}, ValueError, "max_classes must be at least 2"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"draws": -1}, ValueError, "draws must be at least 0"),
        ({"draws": 1.5}, TypeError, "draws must be an integer"),
    ],
)
def test_bad_input_is_one_clear_line(change, error, part: str, unchecked):
    with pytest.raises(error, match=part) as raised:
        on_data.analyse(**{"ids": IDS, "query_ids": QUERY, "next_ids": NEXT, **change})
    assert "\n" not in str(raised.value)


def tokens_of(ids: torch.Tensor, next_id: torch.Tensor) -> TokenData:
    """Sequences of ids, the query last, with 20-dimensional tokens."""
    return TokenData(
        torch.zeros(*ids.shape, 20, dtype=torch.float64), ids=ids, next_id=next_id, vocab_size=10
    )


@each_case("draws", [0, 19])
@each_case(
    ("ids", "next_id", "reason"),
    [
        (torch.arange(60).view(12, 5) % 7, torch.zeros(12, dtype=torch.long), "two next tokens"),  # one class
        # constant tokens
        (torch.ones(12, 5, dtype=torch.long), torch.arange(12) % 2, "one contextual token only"),
        (torch.tensor([[1, 2, 3, 9]]), torch.tensor([1]), "one sequence only"),
        # two sequences
        (torch.tensor([[1, 2, 3, 9], [2, 2, 4, 9]]), torch.tensor([1, 2]), "its own next token"),
        (torch.tensor([[1, 2, 3, 9], [2, 2, 4, 9]]), torch.tensor([1, 1]), "two next tokens"),
        (
            torch.tensor([[1, 2, 9], [3, 4, 9], [5, 6, 9], [7, 8, 9]]),
            torch.tensor([1, 1, 2, 2]),
            "attention moved by less than",
        ),
        # fewer than dimensions
        (
            torch.tensor([[1, 2, 9], [3, 2, 9], [1, 4, 9], [3, 4, 9]] * 2)[:5],
            torch.tensor([1, 1, 2, 2, 1]),
            "",
        ),
    ],
)
def test_bad_data_give_one_headline_and_finite_rows(
    ids, next_id, reason: str, draws: int, unchecked, monkeypatch
):
    monkeypatch.setattr(minimal_model, "MAX_STEPS", 200)
    ids[:, -1] = 9
    problem = ON_DATA.read(tokens_of(ids, next_id))
    table, arrays = collect(ON_DATA.measure(problem, torch.Generator().manual_seed(0), draws=draws))
    result = Result("test", table=table, arrays=arrays)
    headline = result.select(quantity=HEADLINE).one()
    assert reason in headline.reason
    assert (headline.value is None) == bool(headline.reason)
    for row in result.table:
        assert row.value is not None or row.reason, row
        assert draws or row.null is None
        assert row.null is None or row.null.draws or row.value is None, row
    assert ON_DATA.plot(result).axes
