"""The plain formulation of CRATE's two blocks, with our parameters.

Attention uses one matrix as queries, keys and values; the ISTA step takes three matrix products.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SoftmaxAttention(nn.Module):
    """softmax(W W^T / sqrt(p)) W per head with W the coordinates, then a free output matrix; tokens [batch,
    n, d].
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(0.0))

    def forward(self, tokens: Tensor) -> Tensor:
        # [batch, heads, n, head_dim]
        coords = self.qkv(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return self.to_out(self.mix(coords).transpose(1, 2).flatten(-2))

    def mix(self, coords: Tensor) -> Tensor:
        weights = (coords @ coords.mT * self.head_dim**-0.5).softmax(-1)
        return weights @ coords


class FusedAttention(SoftmaxAttention):
    """The same function by torch's fused kernel."""

    def mix(self, coords: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(coords, coords, coords)


class ThreeProductIsta(nn.Module):
    """relu(Y + eta (Y D - (Y D^T) D) - eta lambda), each product computed separately; tokens [batch,
    n, d].
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1):
        super().__init__()
        self.eta, self.lam = eta, lam
        self.weight = nn.Parameter(torch.empty(dim, dim))
        nn.init.kaiming_uniform_(self.weight, a=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        projected = functional.linear(tokens, self.weight)
        down = functional.linear(projected, self.weight.t())
        up = functional.linear(tokens, self.weight.t())
        return functional.relu(tokens + self.eta * (up - down) - self.eta * self.lam)
