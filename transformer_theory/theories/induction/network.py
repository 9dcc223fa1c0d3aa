r"""Small causal networks of ids with learnt positions, from attention only to the full block: the networks in
which induction heads form.

.. math:: x^0 = W_E[\text{ids}] + p, \qquad x' = x + \text{attention}(\text{LN}(x)), \qquad x \leftarrow x' +
    \text{MLP}(\text{LN}(x')),
    \quad \text{logits} = \text{LN}(x) W_U .

Norms and MLPs are optional. Without both the network is linear but for its attention weights
(:mod:`.circuits`). Source: :cite:t:`elhage2021mathematical`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.validation import integers
from ...models.decoder import CausalAttention
from ...models.embedding import check_ids

# of the entries of embedding and positions; with 1/sqrt(dim) attention without norms takes several times as
# long
INITIAL_STD = 0.5


class Layer(nn.Module):
    """Causal attention, with a norm before it and an MLP after it if asked for; both add to the residual
    stream ``[batch, n, dim]``.
    """

    def __init__(self, dim: int, *, heads: int, norm: bool, mlp: bool):
        super().__init__()
        self.attention = CausalAttention(dim, heads=heads, dropout=0.0)
        self.attention.out = nn.Linear(dim, dim, bias=False)  # biases would add paths that read no token
        self.attention_norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.mlp_norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) if mlp else None

    def forward(self, x: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        x = x + self.attention(self.attention_norm(x))
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))


class Network(nn.Module):
    """A causal network of ids with learnt positions: ids ``[batch, n]`` to logits ``[batch, n, vocabulary]``.

    Args:
        vocabulary, length: number of ids, and longest sequence.
        layers, heads, dim: numbers of layers and of heads, and width.
        norm, mlp: whether the layers have a LayerNorm before each part, and an MLP.
    Raises:
        ValueError: a number is below 1, or heads do not divide dim.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int,
        layers: int = 2,
        heads: int = 2,
        dim: int = 64,
        norm: bool = False,
        mlp: bool = False,
    ):
        super().__init__()
        integers(vocabulary=vocabulary, length=length, layers=layers)
        self.embedding, self.positions = nn.Embedding(vocabulary, dim), nn.Parameter(torch.empty(length, dim))
        self.layers = nn.ModuleList(Layer(dim, heads=heads, norm=norm, mlp=mlp) for _ in range(layers))
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.head = nn.Linear(dim, vocabulary, bias=False)
        for matrix in (self.embedding.weight, self.positions):
            nn.init.normal_(matrix, std=INITIAL_STD)

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        check_ids(ids, vocabulary=self.embedding.num_embeddings, context=len(self.positions))
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
