"""The quantity of the ladder on outputs whose values are known, and its rungs."""

import pytest
import torch

from transformer_theory import universal
from transformer_theory.theories.universal.ladder import (
    BLIND_KIND,
    LADDER,
    NULL_KIND,
    AllGrids,
    context_free,
    learnt,
    permuted,
    reproduced,
)


def drawn(seed: int = 0) -> torch.Tensor:
    return torch.rand(64, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens() -> torch.Tensor:
    return torch.from_numpy(universal.all_grids(4, 1, 3)[..., 0])


def test_the_target_itself_has_one_and_the_best_context_free_function_zero():
    targets, best = drawn(), torch.empty(64, 3, dtype=torch.float64)
    for position in range(3):
        for token in range(4):
            rows = tokens()[:, position] == token
            best[rows, position] = targets[rows, position].quantile(0.5)
    assert float(reproduced(targets, targets)) == 1
    assert float(reproduced(best, targets)) == pytest.approx(0, abs=1e-12)
    assert (
        float(reproduced(torch.full_like(targets, 1e9), targets))
        == float(reproduced(torch.ones_like(targets), targets))
        < 0
    )


def test_the_null_permutes_within_token_and_position_only():
    targets = drawn()
    draws = permuted(targets, 7, torch.Generator().manual_seed(1))
    assert not torch.equal(draws[0], draws[1])
    for position in range(3):
        for token in range(4):
            rows = tokens()[:, position] == token
            assert torch.equal(
                draws[:, rows, position].sort(1).values, targets[rows, position].sort().values.expand(7, -1)
            )


def test_a_context_free_function_is_as_good_on_its_null():
    targets = drawn()
    outputs = torch.tensor([0.2, 0.9, 0.4, 0.6], dtype=torch.float64)[tokens()]
    values = reproduced(outputs, permuted(targets, 5, torch.Generator().manual_seed(1)))
    assert values.tolist() == pytest.approx([float(reproduced(outputs, targets))] * 5)


def test_functions_of_token_and_position_alone_are_just_below_zero():
    targets = drawn()
    draws = context_free(targets, 50, torch.Generator().manual_seed(1))
    for position in range(3):
        for token in range(4):
            assert (draws[:, tokens()[:, position] == token, position].std(1) < 1e-12).all()
    assert -0.2 < float(reproduced(draws, targets).min()) < float(reproduced(draws, targets).max()) <= 0


def test_the_constructed_rungs():
    values = {}
    for rung in LADDER.rungs[:6]:
        (row,) = (
            each
            for each in rung.measure(torch.Generator().manual_seed(3))
            if each.quantity == LADDER.quantity
        )
        values[rung.name] = row.value
        first, second = row.nulls
        assert (first.kind, second.kind) == (NULL_KIND, BLIND_KIND)
        assert len(first.draws) == len(second.draws) == 399
        assert row.predicted == 1
        assert (row.value > second.high) == (rung.name not in ("float32", "softmax, 100"))
    assert values["integers"] == pytest.approx(1, abs=1e-12)
    assert values["float64"] > 0.999
    assert values["float32"] < 0
    assert values["softmax, 10,000"] > 0.999
    assert values["softmax, 100"] < 0


def test_the_trained_network_learns_and_has_as_many_parameters(request):
    request.getfixturevalue("unchecked")
    share, parameters = learnt(torch.Generator().manual_seed(0), steps=100)
    short = next(iter(learnt(torch.Generator().manual_seed(0), steps=2)))
    assert short.value is not None
    assert share.value is not None
    assert share.value > short.value
    built = next(
        row
        for row in LADDER.rungs[1].measure(torch.Generator().manual_seed(0))
        if row.quantity == parameters.quantity
    )
    assert parameters.value == pytest.approx(built.value, rel=0.05)


def test_the_task_has_all_grids():
    task = AllGrids(drawn())
    assert len({tuple(row) for row in task.inputs.tolist()}) == 64
    assert torch.equal(task.inputs + 1.5, tokens().float())
