"""The ladder: its rungs, and its null distributions against plain simulations."""

import numpy as np
import torch

from tests.cases import each_case
from transformer_theory.core.ladder import CONSTRUCTION_COLUMNS
from transformer_theory.core.statistics import LADDER_DRAWS
from transformer_theory.theories.turing import ladder
from transformer_theory.theories.turing.claims.instances import Run, rewriting_runs
from transformer_theory.theories.turing.ladder import LADDER, NULL_KIND, VISITS, chance
from transformer_theory.theories.turing.machines import repeated_counter, zigzag

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_rungs_are_those_of_a_construction():
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["exact arithmetic"]
    columns = [rung.column for rung in LADDER.rungs]
    assert sorted(columns, key=CONSTRUCTION_COLUMNS.index) == columns
    assert {rung.needs for rung in LADDER.rungs} == {""}


@each_case("name", RUNGS)
def test_a_rung_has_a_value_and_two_nulls(name: str, monkeypatch):
    monkeypatch.setattr(ladder, "STEPS", 60)
    (row,) = RUNGS[name].measure(generator(1))
    first, second = row.nulls
    assert (row.predicted, row.side, row.unit) == (1.0, ">=", "share")
    assert (first.kind, second.kind) == (NULL_KIND, VISITS)
    assert len(first.draws) == len(second.draws) == LADDER_DRAWS
    assert second.median > first.median
    assert list(RUNGS[name].measure(generator(1))) == [row]


def test_the_rungs_are_in_order():
    values = {
        name: next(iter(RUNGS[name].measure(generator(2)))).value
        for name in RUNGS
        if name != "exact arithmetic"
    }
    assert values["float64"] == 1
    assert 1 > values["float32"] > values["bfloat16"]
    soft = [values[name] for name in RUNGS if RUNGS[name].column == "softmax"]
    assert soft == sorted(soft, reverse=True)


def simulated(run: Run, draws: int, seed: int, *, same_cell: bool) -> np.ndarray:
    """The null by its definition: a machine whose memory returns the symbol of a random earlier time or
    visit.
    """
    rng, shares = np.random.default_rng(seed), []
    for _ in range(draws):
        written, state, symbol, head = [], run.machine.start, run.machine.blank, 0
        heads, first = [], run.steps
        for time in range(run.steps):
            heads.append(head)
            state, wrote, move = run.machine.step(state, symbol)
            written.append(wrote)
            head += move
            visits = [j for j in range(time + 1) if heads[j] == head]
            if visits:
                symbol = written[rng.choice(visits) if same_cell else rng.integers(time + 1)]
            else:
                symbol = run.word[head - 1] if 1 <= head <= len(run.word) else run.machine.blank
            if (state, symbol, head) != (
                run.reference.states[time + 1],
                run.reference.symbols[time + 1],
                run.reference.heads[time + 1],
            ):
                first = time
                break
        shares.append(first / run.steps)
    return np.array(shares)


@each_case("kind", [NULL_KIND, VISITS])
@each_case(
    "run",
    [
        Run("counter", repeated_counter().normalise(), "0000", 60),
        Run("zigzag", zigzag(5).normalise(), "", 60),
    ],
)
def test_the_null_is_a_memory_that_returns_random_symbols(kind: str, run: Run):
    drawn, simulation = (
        chance(run, 2000, generator())[kind],
        simulated(run, 2000, 0, same_cell=kind == VISITS),
    )
    error = 5 * np.hypot(drawn.std(), simulation.std()) / 2000**0.5
    assert abs(drawn.mean() - simulation.mean()) <= error + 1e-12
    assert drawn.min() == simulation.min()


def test_a_memory_without_a_choice_is_always_right():
    """A machine that never comes back to a cell needs no memory."""
    run = Run("sweep", repeated_counter().normalise(), "0" * 50, 40)  # it is still reading its word
    assert set(chance(run, 20, generator())[NULL_KIND]) == {1.0}


def test_the_machines_are_drawn_and_rewrite_cells():
    one, other = rewriting_runs(generator(1), 300), rewriting_runs(generator(2), 300)
    assert [run.name for run in one] == ["counter", "zigzag", "random walk"]
    assert any(a.reference != b.reference for a, b in zip(one, other))
    for run in one:
        assert len(set(run.reference.heads)) < 50
