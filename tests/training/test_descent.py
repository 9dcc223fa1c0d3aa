"""Descent of a loss: runs that diverge."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from transformer_theory.core.errors import NotConverged
from transformer_theory.training.descent import descend


def diverge(model: nn.Module, *, steps: int, rate: float = 1e20) -> torch.Tensor:
    """Steps on -w^2 by which a weight of 1 grows to infinity in float32 after two of them."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = LambdaLR(optimiser, lambda step: 1.0)
    batches = iter([torch.ones(1, 1)] * steps)
    generator = torch.Generator().manual_seed(0)
    return descend(model, lambda x: -model(x).square().sum(), batches, steps=steps, optimiser=optimiser, schedule=schedule,
                   generator=generator)  # fmt: skip


@pytest.fixture
def model() -> nn.Module:
    line = nn.Linear(1, 1, bias=False)
    nn.init.ones_(line.weight)
    return line


def test_divergence_in_the_last_step_is_noticed(model):
    with pytest.raises(
        NotConverged, match="parameters must stay finite, got others after the last of 1 steps; lower learning_rate=3e"
    ) as error:
        diverge(model, steps=1, rate=3e38)
    assert error.value.state is model
    assert not model.training


def test_a_loss_that_is_not_finite_leaves_the_model_in_evaluation_mode(model):
    with pytest.raises(NotConverged, match="loss must stay finite"):
        diverge(model, steps=5)
    assert not model.training


def test_a_run_that_stays_finite_ends_in_evaluation_mode(model):
    assert diverge(model, steps=3, rate=0.1).shape == (3,)
    assert not model.training
    assert float(model.weight.detach()) == pytest.approx(1.2**3)
