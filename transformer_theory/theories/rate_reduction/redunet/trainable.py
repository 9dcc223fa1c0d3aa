r"""ReduNet after its construction: the same network with its operators as parameters, to be trained by back-propagation.

:class:`TrainableReduNet` starts as the constructed network (equal outputs). Its logits are :math:`-\lambda\|xC_j\|` of the last layer, so
their softmax is the constructed network's soft prediction. Once trained, E and the :math:`C_j` need be neither symmetric nor operators of
any features.

Source: :cite:t:`chan2022redunet` (construction as initialisation).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ....metrics.coding import unit_norm
from .vector import Layer, ReduNet


class TrainableReduNet(nn.Module):
    """A constructed ReduNet with expansions ``[L, d, d]`` and compressions ``[L + 1, k, d, d]`` as parameters.

    Args:
        net: the constructed network.
    Source: :cite:t:`chan2022redunet`.
    """

    shares: Float[Tensor, " k"]

    def __init__(self, net: ReduNet):
        super().__init__()
        self.expansions = nn.Parameter(torch.stack([each.expansion for each in net.layers[:-1]]))
        self.compressions = nn.Parameter(torch.stack([each.compressions for each in net.layers]))
        self.register_buffer("shares", net.layers[0].shares.clone())
        self.step, self.sharpness = net.step, net.sharpness

    def transform(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Samples ``[n, d]`` through all layers, norms 1."""
        rows = unit_norm(features)
        for expansion, compressions in zip(self.expansions, self.compressions):
            rows = Layer(expansion, compressions, self.shares).advance(rows, step=self.step, sharpness=self.sharpness)
        return rows

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        r"""Logits :math:`-\lambda\|xC_j\|` of samples ``[n, d]``."""
        return -self.sharpness * torch.linalg.vector_norm(self.transform(features) @ self.compressions[-1], dim=-1).mT
