"""Every theory in THEORIES, also a new one. A capability that a theory lacks is not tested."""

import functools
import math
import pkgutil
import time
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.figure
import numpy as np
import pytest
import torch
from latex2mathml.converter import convert

import transformer_theory.theories
from tests.contract.instances import DATA, few_steps, fields_of, sequences
from transformer_theory import models
from transformer_theory.core.ladder import Ladder
from transformer_theory.core.measurement import COLUMNS, Measurement
from transformer_theory.core.metric import Activations, Metric
from transformer_theory.core.result import Result
from transformer_theory.core.sources import Source
from transformer_theory.core.statistics import LEVEL
from transformer_theory.core.table import Table, collect
from transformer_theory.core.theory import Theory, Unsupported
from transformer_theory.data import TokenData
from transformer_theory.probes import probe
from transformer_theory.theories import THEORIES, list_theories

# those that read tokens
ON_DATA = [theory for theory in list_theories() if theory.on_data and theory.on_data.reads is None]
# not responses alone
IN_NETWORKS = [theory for theory in list_theories() if theory.in_networks and theory.in_networks.metrics()]
# The scope puts all tests of one theory one after the other, so that one process runs them and measures each
# data set once.
every_theory = pytest.mark.parametrize(
    "theory", list_theories(), ids=lambda theory: theory.name, scope="module"
)
every_on_data = pytest.mark.parametrize("theory", ON_DATA, ids=lambda theory: theory.name, scope="module")
every_in_networks = pytest.mark.parametrize(
    "theory", IN_NETWORKS, ids=lambda theory: theory.name, scope="module"
)
every_data = pytest.mark.parametrize("data", DATA)
REPEATED = 1.0  # CPU seconds up to which a first rung is measured twice; `reach` is tested for the others
# as the complete data
SAME_SHAPES = {"labels only", "ids without labels", "own query", "all zero", "tiny", "huge"}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def formulas(text: str) -> list[str]:
    """The formulas between dollars; fails if a dollar has no partner."""
    parts = text.split("$")
    assert len(parts) % 2 == 1, f"dollars must come in pairs: {text}"
    return parts[1::2]


def measure(theory: Theory, data: TokenData, draws: int = 19) -> Result:
    """A theory on data, as in ``compare``, with models that are trained for few steps: unsupported data give
    one row with a reason.
    """
    assert theory.on_data is not None
    problem = theory.on_data.read(data)
    if isinstance(problem, Unsupported):
        row = Measurement(theory.name, "on data", theory.on_data.headline, None, reason=problem.reason)
        return Result("compare", table=Table([row]), sources=theory.sources)
    with few_steps():
        table, arrays = collect(theory.on_data.measure(problem, generator(), draws=draws))
    return Result("compare", table=table, arrays=arrays, sources=theory.sources)


@functools.cache
def measured(theory: Theory, name: str = "complete") -> Result:
    """The result on one of DATA, computed once for all tests."""
    data = DATA[name]()
    before = [tensor.clone() for tensor in fields_of(data)]
    result = measure(theory, data) if name == "complete" else measure(theory, data, draws=2)
    assert all(torch.equal(was, now) for was, now in zip(before, fields_of(data), strict=True)), (
        "the data were changed"
    )
    return result


def test_every_folder_is_registered():
    folders = {module.name for module in pkgutil.iter_modules(transformer_theory.theories.__path__)}
    assert folders == set(THEORIES) == {theory.name for theory in list_theories()}


@every_theory
def test_the_record_is_complete(theory: Theory):
    for text in (theory.title, theory.question, theory.statement):
        assert text.strip()
    assert theory.question.endswith("?")
    assert theory.sources
    assert theory.claims
    assert all(isinstance(source, Source) for source in theory.sources)
    assert theory.assumptions
    # a tuple, not the letters of one string
    assert all(isinstance(text, str) and len(text) > 3 for text in theory.assumptions)
    assert isinstance(theory.ladder, Ladder)


@every_theory
def test_the_ladder_starts_in_the_theorys_own_setting(theory: Theory):
    assert theory.ladder is not None
    assert len(theory.ladder.rungs) >= 2
    first, *others = theory.ladder.rungs
    assert (first.column, first.covered, first.needs) == (first.columns[0], True, "")
    for rung in others:
        assert len(rung.relaxes) > 3
        assert len(rung.name) <= 24


@every_theory
def test_the_first_rung_gives_the_same_rows_again(theory: Theory, request):
    assert theory.ladder is not None
    first = theory.ladder.rungs[0]
    started = time.process_time()
    rows = tuple(first.measure(generator()))
    if time.process_time() - started < REPEATED:
        request.getfixturevalue("unchecked")  # the first run has checked the shapes
        assert rows == tuple(first.measure(generator()))
    (row,) = (row for row in rows if row.quantity == theory.ladder.quantity and not row.setting)
    assert row.kind == "rung"
    assert row.value is not None
    assert row.null is not None
    # the rungs are one family, in which a single one beyond all draws must be a finding
    assert LEVEL * (1 + len(row.null.draws)) >= len(theory.ladder.rungs)
    assert (row.side, row.unit) == (theory.ladder.side, theory.ladder.unit)


@every_theory
def test_formulas_can_be_rendered(theory: Theory):
    for text in (theory.statement, theory.question, *theory.assumptions):
        for formula in formulas(text):
            assert "<math" in convert(formula)
            assert formula.count("{") == formula.count("}")


@every_on_data
@every_data
def test_any_data_become_valid_rows(theory: Theory, data: str, request):
    if data in SAME_SHAPES:
        request.getfixturevalue("unchecked")  # the complete data have checked the shapes
    result = measured(theory, data)
    assert result.table
    for row in result.table:
        check_row(theory, row, ("on data", "assumption"))
    assert all(name.startswith(f"{theory.name}/") for name in result.arrays)
    assert all(array.dtype != object for array in result.arrays.values())
    assert theory.on_data is not None
    headline = (
        result.select(quantity=theory.on_data.headline, kind="on data").where(lambda row: not row.at).one()
    )
    assert headline.layer is headline.head is headline.step is None
    if data == "complete":
        assert headline.value is not None
        assert headline.note or headline.n is not None


def check_row(theory: Theory, row: Measurement, kinds: tuple[str, ...]) -> None:
    """The row belongs to this theory, a verdict has a number and a source behind it, names and notes are
    short.
    """
    assert row.theory == theory.name
    assert row.kind in kinds
    assert row.quantity.strip()
    if row.value is None:
        assert row.verdict not in ("consistent", "violated", "holds"), (
            f"no number behind the verdict of {row.quantity}"
        )
    if row.threshold is not None or row.verdict is not None:
        assert row.source is not None, f"{row.quantity} has no source"
    if row.verdict in ("consistent", "violated", "not covered"):
        assert row.op is not None
        assert row.threshold is not None
    if row.kind == "assumption":
        assert row.verdict in ("holds", "fails")
    assert len(row.note) <= 300
    assert len(row.quantity) <= 100
    assert set(row.to_json()) <= {*COLUMNS, "null", "further_nulls"} - {"nulls"}


# nulls that are at chance on noise by construction
PERMUTING = ("permuted", "models trained on shuffled", "blocks trained on shuffled")


@every_on_data
def test_scopes_and_predictions_are_those_of_the_design(theory: Theory):
    """A quantity of these data has a null that permutes labels or next tokens; an inequality is no predicted
    number.
    """
    for row in measured(theory).table:
        if (
            row.kind == "on data"
            and row.scope == "these data"
            and row.null is not None
            and row.side is not None
        ):
            assert row.null.kind.startswith(PERMUTING), f"{row.quantity}: {row.null.kind}"
        if row.predicted is not None and row.op is not None and row.basis == "theory":
            assert row.predicted != row.threshold or row.predicted in (0.0, 1.0), (
                f"{row.quantity} repeats its threshold as a prediction"
            )
        assert row.null is None or 0 < len(row.null.draws) <= 19


@every_on_data
def test_without_draws_there_is_no_null_and_the_values_stay(theory: Theory, request):
    first = measured(theory)
    request.getfixturevalue("unchecked")
    again = measure(theory, sequences(), draws=0)
    assert [row.null for row in again.table] == [None] * len(again.table)
    values = {(row.quantity, row.setting, row.split, row.kind): row.value for row in first.table}
    for row in again.table:
        expected = values[row.quantity, row.setting, row.split, row.kind]
        assert row.value == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)), (
            row.quantity
        )


@every_on_data
def test_the_seed_decides(theory: Theory, request):
    torch.manual_seed(2)
    first = measured(theory)
    request.getfixturevalue("unchecked")  # the first run has checked the shapes
    torch.manual_seed(1)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    again = measure(theory, sequences())
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    assert np.array_equal(numpy_state, np.random.get_state()[1]), "numpy's global generator was used"
    assert again.table == first.table


@every_on_data
def test_the_figure_is_made_of_the_stored_result(theory: Theory, tmp_path):
    result = measured(theory)
    stored = Result.load(result.save(tmp_path / "result"))
    assert theory.on_data is not None
    assert isinstance(theory.on_data.plot(stored), matplotlib.figure.Figure)


@every_on_data
@pytest.mark.parametrize(
    "data", ["tokens only", "one token a sequence", "one sequence", "equal tokens", "features of a network"]
)
def test_the_figure_of_other_data(theory: Theory, data: str):
    assert theory.on_data is not None
    assert isinstance(theory.on_data.plot(measured(theory, data)), matplotlib.figure.Figure)


@every_on_data
def test_the_figure_without_arrays_or_rows(theory: Theory):
    assert theory.on_data is not None
    for result in (replace(measured(theory), arrays={}), Result("empty")):
        assert isinstance(theory.on_data.plot(result), matplotlib.figure.Figure)


class Recorder(Metric):
    """Stores the activations of a forward pass, which the tests pass to metrics in another order."""

    takes_padding = True

    def __init__(self):
        self.activations: list[Activations] = []
        super().__init__()

    def update(self, activations: Activations) -> None:
        self.activations.append(activations)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        return [Measurement("network", "network", "number of activations", float(len(self.activations)))]


def network(kind: str, data: TokenData) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(models, kind).for_tokens(
            data.tokens.shape[1], data.tokens.shape[2], data.classes, dim=16, depth=2, heads=2
        )


def record(model: torch.nn.Module, data: TokenData, *, labels: bool = True) -> list[Activations]:
    recorder = Recorder()
    with probe(model, [recorder]) as p, torch.no_grad():
        p.labels = data.labels if labels else None
        model(data.tokens.float())
    return recorder.activations


def rows_of(metrics: Sequence[Metric]) -> list[Measurement]:
    return [row for metric in metrics for row in metric.compute(draws=3)]


@every_in_networks
def test_metrics_draw_as_many_nulls_as_they_are_asked_for(theory: Theory, model: torch.nn.Module):
    """None without draws; never more than asked for; the same values and draws in every call."""
    assert theory.in_networks is not None
    metrics = theory.in_networks.metrics()
    for metric in metrics:
        for each in record(model, sequences()):
            if each.kind in metric.kinds:
                metric.update(each)
    none, few, again = (
        [row for metric in metrics for row in metric.compute(draws=draws)] for draws in (0, 3, 3)
    )
    assert not [row for row in none if row.null is not None]
    assert few == again
    assert [row.value for row in none] == [row.value for row in few]
    for row in few:
        assert row.null is None or len(row.null.draws) <= 3
        if row.scope == "these data" and row.side is not None:
            assert row.null is not None
            assert row.null.kind == "permuted labels"


@pytest.fixture(scope="module", params=["ViT", "CRATE"])
def model(request) -> torch.nn.Module:
    return network(request.param, sequences())


@every_in_networks
def test_metrics_of_a_network(theory: Theory, model: torch.nn.Module):
    assert theory.in_networks is not None
    data = sequences()
    with probe(model, theory.in_networks.metrics()) as p, torch.no_grad():
        p.labels = data.labels
        logits = model(data.tokens.float())
    with torch.no_grad():
        assert torch.equal(logits, model(data.tokens.float())), "the probe changed the network's output"
    table = p.result().table
    for row in table:
        check_row(theory, row, ("in network",))
    headlines = table.select(quantity=theory.in_networks.headline)
    assert set(headlines.column("layer")) == {0, 1}
    assert all(row.value is not None for row in headlines)
    places = [(row.quantity, row.setting, row.layer, row.head) for row in table]
    assert len(set(places)) == len(places), "two rows are about the same place"


@every_in_networks
def test_metrics_merge_reset_and_are_stored(theory: Theory, model: torch.nn.Module):
    assert theory.in_networks is not None
    data = sequences(n=48)
    first, second = record(model, data[:24]), record(model, data[24:])
    whole, left, right = (theory.in_networks.metrics() for _ in range(3))
    for metrics, activations in ((whole, first + second), (left, first), (right, second)):
        for metric in metrics:
            for each in activations:
                if each.kind in metric.kinds:
                    metric.update(each)
    for one, other in zip(left, right):
        assert isinstance(one, Metric)
        assert all(isinstance(state, torch.Tensor) for state in one.state_dict().values())
        one.merge(other)
    streamed, merged = rows_of(whole), rows_of(left)
    assert [(row.quantity, row.layer, row.head) for row in merged] == [
        (row.quantity, row.layer, row.head) for row in streamed
    ]
    for row, twin in zip(merged, streamed):
        assert (row.value is None) == (twin.value is None)
        if row.value is not None:
            assert row.value == pytest.approx(twin.value, rel=1e-4, abs=1e-6), row.quantity
    for metric in whole:
        metric.reset()
    assert not [row for row in rows_of(whole) if row.value is not None]


@every_in_networks
@pytest.mark.parametrize("case", ["no labels", "one sequence", "equal tokens", "one token a sequence"])
def test_metrics_of_poor_batches(theory: Theory, case: str):
    assert theory.in_networks is not None
    data = DATA["complete" if case == "no labels" else case]()
    activations = record(network("ViT", data), data, labels=case != "no labels")
    for metric in theory.in_networks.metrics():
        for each in activations:
            if each.kind in metric.kinds:
                metric.update(each)
        for row in metric.compute():
            assert row.value is None or math.isfinite(row.value)
            check_row(theory, row, ("in network",))
