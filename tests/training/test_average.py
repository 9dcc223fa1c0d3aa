"""The moving average of weights: its law, its start, its buffers, and that it comes back from a checkpoint
bit for bit.
"""

import pytest
import torch
from torch import nn

from transformer_theory.training.optimisers import exponential_average


def network(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    return model


def moved(model, step):
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
        model[1].num_batches_tracked.fill_(step)
    return model


def test_it_is_the_average_of_the_law():
    model = network()
    average, expected = exponential_average(model, decay=0.7), None
    for step in range(20):
        average.update_parameters(moved(model, step))
        decay = min(0.7, (1 + step) / (10 + step))
        current = model[0].weight.detach()
        expected = current.clone() if expected is None else decay * expected + (1 - decay) * current
        assert torch.allclose(average.module[0].weight, expected, rtol=1e-12)
    assert not torch.allclose(expected, current)
    assert torch.equal(average.module[1].running_mean, model[1].running_mean)  # copied
    assert int(average.module[1].num_batches_tracked) == 19


def test_the_initial_weights_are_soon_forgotten():
    model = network()
    average = exponential_average(model, decay=0.999)
    with torch.no_grad():
        for step in range(100):
            model[0].weight.fill_(float(step > 0))
            average.update_parameters(model)
    # without the warm-up .999^99, .91 of the start, would be left
    assert float(average.module[0].weight.detach().min()) > 0.99


def test_it_comes_back_bit_for_bit():
    model = network()
    average = exponential_average(model)
    for step in range(5):
        average.update_parameters(moved(model, step))
    again = exponential_average(network(1))
    again.load_state_dict(average.state_dict())
    for step in range(5, 8):
        moved(model, step)
        average.update_parameters(model)
        again.update_parameters(model)
    assert all(torch.equal(a, b) for a, b in zip(average.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_bad_input_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\), got"):
        exponential_average(network(), decay=decay)
