r"""An exponential moving average of a network's weights, which is often the better network.

    W̄ ← d_t W̄ + (1 - d_t) W,        d_0 = 0,  d_t = min(d, (1 + t) / (10 + t)) after t ≥ 1 averages

The first weights that it is given it takes as they are, then d_1 = 2/11, d_2 = 1/4 and so on: the initial weights, which would else stay
for 1 / (1 - d) steps, are forgotten. Until d_t is d, after (10 d - 1) / (1 - d) averages (8,990 for d = 0.999), the memory is t / 9.
Source: the moving averages of TensorFlow, ``tf.train.ExponentialMovingAverage``; d_0 is of torch's ``AveragedModel``.
"""

# pyright: reportPrivateImportUsage=false

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Weights = list[Tensor] | tuple[Tensor, ...]


def exponential_average(model: nn.Module, *, decay: float = 0.999) -> AveragedModel:
    """A copy of a network that ``update_parameters(model)`` moves towards it; call it as the network, save it by its ``state_dict``.

    Buffers are copied, not averaged.

    Args:
        model: as it is at the start.
        decay: d, in [0, 1).
    Raises:
        ValueError: decay is out of its range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), got {decay}")

    @torch.no_grad()
    def update(averaged: Weights, current: Weights, count: Tensor | int) -> None:
        t = int(count)  # 1 at least: the first time torch copies
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + t) / (10 + t)))

    return AveragedModel(model, multi_avg_fn=update)
