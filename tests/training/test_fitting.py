"""The loop: runs that diverge, the number of steps, callbacks, schedules, and training that is resumed."""

import math

import pytest
import torch
from torch import nn

from transformer_theory.core.errors import NotConverged
from transformer_theory.training.fitting import State, Task, at_steps, fit
from transformer_theory.training.tasks import Classification, StreamTask


def growing(generator: torch.Generator):
    while True:
        yield torch.ones(1, 1)


TASK = StreamTask(lambda model, x: -model(x).square().sum(), growing)


def run(model: nn.Module, *, rate: float = 1e20, **options):
    """Steps on -w^2, by which a weight of 1 grows to infinity in float32 after two steps at the
    default rate.
    """
    return fit(model, TASK, optimiser=torch.optim.SGD(model.parameters(), lr=rate), **options)


@pytest.fixture
def model() -> nn.Module:
    line = nn.Linear(1, 1, bias=False)
    nn.init.ones_(line.weight)
    return line


def test_divergence_in_the_last_step_is_noticed(model):
    with pytest.raises(NotConverged, match="step 1: a parameter") as error:
        run(model, steps=1, rate=3e38)
    assert error.value.state is model
    assert not model.training


def test_a_loss_that_is_not_finite_names_its_step_and_place_and_leaves_the_model_in_evaluation_mode(model):
    with pytest.raises(NotConverged, match="step 2: the loss is -inf"):
        run(model, steps=5)
    assert not model.training


def test_an_error_of_the_task_that_has_another_cause_is_not_changed(model):
    def loss(network: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ValueError("labels are missing")

    with pytest.raises(ValueError, match="labels are missing") as error:
        fit(model, StreamTask(loss, growing), optimiser=torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
    assert not isinstance(error.value, NotConverged)


def test_a_run_that_stays_finite_ends_in_evaluation_mode(model):
    result = run(model, steps=3, rate=0.1)
    assert result.losses.shape == (3,)
    assert result.steps == 3
    assert not model.training
    assert float(model.weight.detach()) == pytest.approx(1.2**3)


def test_callbacks_see_every_step_in_order(model):
    calls = []
    callbacks = [
        lambda state: calls.append(("a", state.step, state.done)),
        lambda state: calls.append(("b", state.step, state.loss is None)),
    ]
    run(model, steps=2, rate=0.1, callbacks=callbacks)
    assert calls == [
        ("a", 0, 0.0),
        ("b", 0, True),
        ("a", 1, 0.5),
        ("b", 1, False),
        ("a", 2, 1.0),
        ("b", 2, False),
    ]


def test_the_schedule_multiplies_the_rate_of_each_group(model):
    optimiser, rates = torch.optim.SGD([{"params": list(model.parameters()), "lr": 0.5}], lr=0.1), []

    def schedule(state: State) -> float:
        return 1.0 / (1 + state.step)

    def remember(state: State) -> None:
        rates.append(optimiser.param_groups[0]["lr"])

    fit(model, TASK, optimiser=optimiser, steps=3, schedule=schedule, callbacks=[remember])
    assert rates == [0.5, 0.5, 0.25, 0.5 / 3]


def test_the_gradient_is_clipped(model):
    run(model, steps=1, rate=1.0, clip=0.25)
    assert float(model.weight.detach()) == pytest.approx(1.25)


def test_training_ends_by_the_clock(model):
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.1), 0, None)
    seen = []
    run(model, rate=0.0, minutes=0.002, callbacks=[lambda state: seen.append((state.seconds, state.done))])
    assert seen[0] == (0.0, 0.0)
    assert seen[-1][0] >= 0.12
    assert seen[-1][1] == 1.0
    assert state.steps is None


def noisy(generator: torch.Generator):
    while True:
        yield torch.randn(4, 1, generator=generator)


def test_a_training_resumed_at_a_step_gets_the_same_batches():
    task = StreamTask(lambda model, x: (model(x) - 3 * x).square().mean(), noisy)
    whole, parts = nn.Linear(1, 1), nn.Linear(1, 1)
    parts.load_state_dict(whole.state_dict())
    fit(
        whole,
        task,
        optimiser=torch.optim.SGD(whole.parameters(), lr=0.1),
        steps=5,
        generator=torch.Generator().manual_seed(1),
    )
    for start, steps in ((0, 2), (2, 5)):
        optimiser = torch.optim.SGD(parts.parameters(), lr=0.1)
        fit(
            parts,
            task,
            optimiser=optimiser,
            steps=steps,
            start=start,
            generator=torch.Generator().manual_seed(1),
        )
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters()))


def test_the_global_random_state_is_restored_and_does_not_matter(model):
    task = StreamTask(lambda network, x: nn.functional.dropout(network(x), 0.5).sum(), noisy)
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        losses.append(fit(model, task, optimiser=torch.optim.SGD(model.parameters(), lr=0.0), steps=6).losses)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*losses)


def test_tasks_need_no_registration():
    assert isinstance(TASK, Task)
    assert issubclass(Classification, Task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "steps=None and minutes=None"),
        ({"steps": 3, "minutes": 1.0}, "steps=3 and minutes=1"),
        ({"steps": 0}, "got 0"),
        ({"steps": 2, "start": 3}, "at least 3, got 2"),
        ({"steps": 2, "start": -1}, "start must be at least 0, got -1"),
        ({"minutes": -1.0}, "got -1"),
        ({"minutes": math.nan}, "got nan"),
    ],
)
def test_lengths_out_of_range_are_named(model, options, message):
    with pytest.raises(ValueError, match=message):
        run(model, **options)


def test_a_task_with_too_few_batches_is_named(model):
    task = StreamTask(lambda model, x: model(x).sum(), lambda generator: iter([torch.ones(1, 1)]))
    with pytest.raises(ValueError, match="after step 1"):
        fit(model, task, optimiser=torch.optim.SGD(model.parameters(), lr=0.1), steps=2)


def test_callback_steps_outside_the_training_are_named():
    with pytest.raises(ValueError, match=r"\[0, 5\].*got 6"):
        at_steps([0, 6], lambda step, model: None, limit=5)
