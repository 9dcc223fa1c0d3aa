"""What every room keeps: a new one is tested here by standing in THEORIES."""

import functools
import importlib
import math
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import fields, replace

import matplotlib.figure
import numpy as np
import pytest
import torch
from latex2mathml.converter import convert

from tests.contract.instances import DATA, fields_of, sequences
from transformer_theory import models, theories
from transformer_theory.core.measurement import Row, collect, not_applicable
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.theory import Theory
from transformer_theory.data import TokenData
from transformer_theory.probes import Observation, Reducer, probe
from transformer_theory.report.html import html
from transformer_theory.theories import THEORIES

VERDICTS = {"consistent", "violated", "inconclusive", "outside assumptions", "holds", "fails"}
every_theory = pytest.mark.parametrize("theory", THEORIES, ids=lambda theory: theory.name)
every_data = pytest.mark.parametrize("data", DATA)
AS_COMPLETE = {"labels only", "ids without labels", "own query", "all zero", "tiny", "huge"}  # in its shapes


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def formulas(text: str) -> list[str]:
    """What stands between dollars; fails if a dollar is left over."""
    parts = text.split("$")
    assert len(parts) % 2 == 1, f"dollars must come in pairs: {text}"
    return parts[1::2]


def measured(theory: Theory, data: TokenData) -> Result:
    rows, arrays = collect(theory.measure(data, generator()))
    return Result("contract", table=rows, arrays=arrays, sources=theory.sources)


@functools.cache
def reading(theory: Theory, data: str = "complete") -> Result:
    """What is measured on one of DATA, once for all tests that only look at it."""
    subject = DATA[data]()
    before = [tensor.clone() for tensor in fields_of(subject)]
    result = measured(theory, subject)
    assert all(torch.equal(was, now) for was, now in zip(before, fields_of(subject), strict=True)), "the data were changed"
    return result


def test_every_room_is_registered():
    rooms = importlib.import_module("transformer_theory.theories")
    assert {room.name for room in pkgutil.iter_modules(rooms.__path__)} == {theory.name for theory in THEORIES}
    assert len({theory.name for theory in THEORIES}) == len(THEORIES) >= 4
    assert [*theories()] == [*THEORIES]


@every_theory
def test_the_record_is_complete(theory: Theory):
    for text in (theory.title, theory.question, theory.statement, theory.order_parameter, theory.answer):
        assert text.strip()
    assert theory.question.endswith("?")
    assert theory.sources
    assert theory.assumptions
    assert theory.claims
    assert theory.experiments
    assert all(isinstance(source, Source) for source in theory.sources)
    assert all(isinstance(text, str) and len(text) > 3 for text in theory.assumptions)  # a tuple, not the letters of one string
    assert set(theory.needs) <= {field.name for field in fields(TokenData)} - {"name", "sources"}


@every_theory
def test_formulas_can_be_rendered(theory: Theory):
    texts = [theory.statement, theory.question, *theory.assumptions]
    for formula in [formula for text in texts for formula in formulas(text)]:
        assert "<math" in convert(formula)
        assert formula.count("{") == formula.count("}")


@every_theory
@every_data
def test_any_data_become_valid_rows(theory: Theory, data: str, request):
    if data in AS_COMPLETE:
        request.getfixturevalue("unchecked")  # shapes are checked once
    result = reading(theory, data)
    assert result.table
    for row in result.table:
        check_row_of(theory, row)
    assert all(name.startswith(f"{theory.name}/") for name in result.arrays)
    assert all(array.dtype != object for array in result.arrays.values())
    silent = any(row["verdict"].startswith("not applicable") for row in result.table if "verdict" in row)
    answers = result.select(quantity=theory.answer)
    assert len(answers) == 1 or (silent and not answers), f"exactly one row must be {theory.answer!r}, got {len(answers)}"
    assert all("layer" not in row and "step" not in row and "head" not in row for row in answers)
    if data == "complete":
        assert answers
        assert math.isfinite(answers[0]["value"] or 0.0)
        assert answers[0].get("note")


def check_row_of(theory: Theory, row: Row) -> None:
    """The row is of this room, its values are numbers, its verdict one of ours, its source known, its note short."""
    assert row["theory"] == theory.name
    assert row["quantity"].strip()
    for column in ("value", "predicted", "bound", "null"):
        assert isinstance(row.get(column), int | float | None), f"{column} of {row['quantity']} is a {type(row.get(column)).__name__}"
    verdict = row.get("verdict")
    assert verdict is None or verdict in VERDICTS or re.match(r"not applicable: .+", verdict), verdict
    if row["value"] is None or math.isnan(row["value"]):
        assert verdict not in ("consistent", "violated"), f"no number behind the verdict of {row['quantity']}"
    if "bound" in row or verdict in VERDICTS:  # made by finding() or assumption()
        assert row.get("source"), f"{row['quantity']} has no source"
    if verdict in ("consistent", "violated", "outside assumptions"):
        assert {"bound", "op"} <= row.keys()
    if "source" in row:
        Source.parse(row["source"])
    assert len(row.get("note", "")) <= 300
    assert len(row["quantity"]) <= 120


@every_theory
def test_the_seed_decides(theory: Theory, request):
    torch.manual_seed(2)
    first = reading(theory)
    request.getfixturevalue("unchecked")  # shapes were checked once
    torch.manual_seed(1)
    state, python_state = torch.get_rng_state(), np.random.get_state()[1]
    again = measured(theory, sequences())
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    assert np.array_equal(python_state, np.random.get_state()[1]), "numpy's global generator was used"
    assert repr(again.table) == repr(first.table)


@every_theory
def test_missing_fields_are_said_in_one_row(theory: Theory):
    for name in set(theory.needs) - {"tokens", "query", "vocab_size"}:
        rows, arrays = collect(theory.measure(replace(sequences(), **{name: None}), generator()))
        assert len(rows) == 1
        assert not arrays
        assert rows[0]["verdict"].startswith("not applicable: needs")
        assert name in rows[0]["verdict"]


@every_theory
def test_draw_is_a_figure_of_the_stored_result(theory: Theory, tmp_path):
    result = reading(theory)
    stored = Result.load(result.save(tmp_path / "result"))
    assert isinstance(theory.draw(stored), matplotlib.figure.Figure)


@every_theory
def test_the_report_draws_the_figure(theory: Theory):
    page = html(reading(theory), theories=(theory,))
    assert theory.title in page
    assert "could not be drawn" not in page


@every_theory
@pytest.mark.parametrize("data", ["tokens only", "one token a sequence", "one sequence", "equal tokens", "features of a network"])
def test_draw_of_other_data(theory: Theory, data: str):
    assert isinstance(theory.draw(reading(theory, data)), matplotlib.figure.Figure)


@every_theory
def test_draw_without_arrays_or_rows(theory: Theory):
    whole = reading(theory)
    for result in (replace(whole, arrays={}), replace(whole, table=[not_applicable(theory.name, "needs ids")], arrays={}), Result("empty")):
        assert isinstance(theory.draw(result), matplotlib.figure.Figure)


class Recorder:
    """A reducer that keeps what it saw, to hand it to others in another order."""

    def __init__(self):
        self.seen: list[tuple[Observation, torch.Tensor | None]] = []

    def update(self, seen: Observation, labels: torch.Tensor | None) -> None:
        self.seen.append((seen, labels))

    def compute(self) -> Sequence[Row]:
        return [Row(theory="network", quantity="observations", value=float(len(self.seen)))]

    def reset(self) -> None:
        pass

    def merge(self, other: "Recorder") -> None:
        self.seen += other.seen


def network(kind: str, data: TokenData) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(models, kind).for_tokens(data.tokens.shape[1], data.tokens.shape[2], data.classes, dim=16, depth=2, heads=2)


def observed(model: torch.nn.Module, data: TokenData, *, labels: bool = True) -> list[tuple[Observation, torch.Tensor | None]]:
    recorder = Recorder()
    with probe(model, (recorder,)) as p, torch.no_grad():
        p.labels = data.labels if labels else None
        model(data.tokens.float())
    return recorder.seen


def rows_of(reducers: Sequence[Reducer]) -> list[Row]:
    return [row for reducer in reducers for row in reducer.compute()]


@pytest.fixture(scope="module", params=["ViT", "CRATE"])
def model(request) -> torch.nn.Module:
    return network(request.param, sequences())


@every_theory
def test_reducers_read_a_network(theory: Theory, model: torch.nn.Module):
    data = sequences()
    with probe(model, theory.reducers()) as p, torch.no_grad():
        p.labels = data.labels
        logits = model(data.tokens.float())
    with torch.no_grad():
        assert torch.equal(logits, model(data.tokens.float())), "the probe changed the network's output"
    rows = p.result().table
    for row in rows:
        check_row_of(theory, row)
    order = [row for row in rows if row["quantity"] == theory.order_parameter]
    assert {row.get("layer") for row in order} == {0, 1}
    assert all(row["value"] is not None and math.isfinite(row["value"]) for row in order)
    places = [(row["quantity"], row.get("layer"), row.get("head")) for row in rows]
    assert len(set(places)) == len(places), "two rows speak of the same place"


@every_theory
def test_reducers_merge_and_reset(theory: Theory, model: torch.nn.Module):
    data = sequences(n=48)
    first, second = observed(model, data[:24]), observed(model, data[24:])
    whole, left, right = theory.reducers(), theory.reducers(), theory.reducers()
    for reducers, seen in ((whole, first + second), (left, first), (right, second)):
        for reducer in reducers:
            for observation, labels in seen:
                reducer.update(observation, labels)
    for one, other in zip(left, right):
        one.merge(other)
    streamed, merged = rows_of(whole), rows_of(left)
    assert [(r["quantity"], r.get("layer"), r.get("head")) for r in merged] == [
        (r["quantity"], r.get("layer"), r.get("head")) for r in streamed
    ]
    for row, twin in zip(merged, streamed):
        assert row["value"] == pytest.approx(twin["value"], rel=1e-4, abs=1e-6, nan_ok=True), row["quantity"]
    for reducer in whole:
        reducer.reset()
    assert not [row for row in rows_of(whole) if row["value"] is not None]


@every_theory
@pytest.mark.parametrize("case", ["no labels", "one sequence", "equal tokens", "one token a sequence"])
def test_reducers_read_poor_batches(theory: Theory, case: str):
    data = DATA["complete" if case == "no labels" else case]()
    seen = observed(network("ViT", data), data, labels=case != "no labels")
    for reducer in theory.reducers():
        for observation, labels in seen:
            reducer.update(observation, labels)
        for row in reducer.compute():
            check_row_of(theory, row)
