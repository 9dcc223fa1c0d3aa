r"""A causal word decoder: the language model on which theories of next-token prediction are tested.

    Z^0 = dropout(positions(sqrt(d) embedding[ids])),      logits = Z^L U^T + b
    post-norm:  Z' = LN(Z + drop A(Z)),        Z^{l+1} = LN(Z' + drop MLP(Z'))
    pre-norm:   Z' = Z + drop A(LN(Z)),        Z^{l+1} = Z' + drop MLP(LN(Z')),     and a norm before the head

Attention A is causal, and its weights are dropped at random in training. W_Q and W_K have no bias, so the
scores are exactly x^T W z. The MLP has a ReLU. Positions are added by a module, :class:`Sinusoidal`, or
omitted with ``nn.Identity``. Position i predicts word i + 1 from words 1 ... i.
Shapes: ids [batch, n], logits [batch, n, vocabulary]. Source: :cite:t:`vaswani2017attention`; sizes and
initial weights are those of the word-language-model tutorial of :cite:t:`paszke2019pytorch`.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .attention import softmax_attention
from .embedding import check_ids
from .vit import Attention

Stream = Float[Tensor, "batch n dim"]
INITIAL_RANGE = 0.1  # the initial embedding and head are uniform in [-0.1, 0.1]


class Sinusoidal(nn.Module):
    r"""Adds :math:`\sin(t\,\omega_k)` to channel 2k, :math:`\cos(t\,\omega_k)` to 2k + 1, :math:`\omega_k =
    10^{-8k/d}`; [batch, n, dim].

    Args:
        dim: width of the tokens, an even number.
    Raises:
        ValueError: dim is odd.
    """

    frequencies: Tensor

    def __init__(self, dim: int):
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim must be even for pairs of sine and cosine, got {dim}")
        self.register_buffer(
            "frequencies", torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim)), persistent=False
        )

    def forward(self, tokens: Stream) -> Stream:
        # Angles [n, dim / 2]; interleaved sines and cosines [n, dim].
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.frequencies
        return tokens + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(tokens.dtype)


class CausalAttention(Attention):
    """Causal multi-head attention with dropout of the attention weights, [batch, n, dim] -> [batch, n, dim].

    Raises:
        ValueError: heads do not divide dim.
    """

    def __init__(self, dim: int, *, heads: int, dropout: float):
        super().__init__(dim, heads=heads)
        self.dropout = dropout
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Stream) -> Stream:
        # [batch, n, 3 dim] -> three tensors [batch, heads, n, head_dim]
        query, key, value = (
            self.qkv(tokens).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        )
        dropout = self.dropout if self.training else 0.0
        heads = softmax_attention(
            query, key, value, scale=self.head_dim**-0.5, is_causal=True, dropout_p=dropout
        )
        return self.out(heads.transpose(1, 2).flatten(-2))


class PostNorm(nn.Module):
    """A layer that normalises after each sum, as in the first publication."""

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attention_norm, self.mlp_norm, self.drop = (
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
            nn.Dropout(dropout),
        )
        self.attention = CausalAttention(dim, heads=heads, dropout=dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim)
        )

    def forward(self, tokens: Stream) -> Stream:
        tokens = self.attention_norm(tokens + self.drop(self.attention(tokens)))
        return self.mlp_norm(tokens + self.drop(self.mlp(tokens)))

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Returns the module before the head: the identity, because the stream is already normalised."""
        return nn.Identity()


class PreNorm(PostNorm):
    """A layer that normalises the inputs of attention and MLP :cite:p:`xiong2020layer`."""

    def forward(self, tokens: Stream) -> Stream:
        tokens = tokens + self.drop(self.attention(self.attention_norm(tokens)))
        return tokens + self.drop(self.mlp(self.mlp_norm(tokens)))

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Returns the module before the head: a norm, because the stream is not normalised."""
        return nn.LayerNorm(dim)


class Decoder(nn.Module):
    """A causal word-level language model.

    Args:
        vocabulary: number of different words, at least 2.
        dim, depth, heads, hidden: width, number of layers, number of heads (a divisor of dim), and hidden
            width of the MLP.
        dropout: dropout probability, in [0, 1).
        positions: constructor of the positions, called as ``positions(dim)``: :class:`Sinusoidal`, or
            ``nn.Identity`` for none.
        block: class of the layers, :class:`PostNorm` or :class:`PreNorm`.
    Raises:
        ValueError: the sizes do not fit.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        dim: int = 200,
        depth: int = 1,
        heads: int = 1,
        hidden: int = 200,
        dropout: float = 0.2,
        positions: Callable[[int], nn.Module] = Sinusoidal,
        block: type[PostNorm] = PostNorm,
    ):
        super().__init__()
        if vocabulary < 2 or min(dim, depth, hidden) < 1:
            raise ValueError(
                f"vocabulary must be at least 2, the other sizes at least 1, got {vocabulary}, {dim}, "
                f"{depth} and {hidden}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.embedding = nn.Embedding(vocabulary, dim)
        self.positions, self.drop = positions(dim), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            block(dim, heads=heads, hidden=hidden, dropout=dropout) for _ in range(depth)
        )
        self.norm = block.last(dim)
        self.head = nn.Linear(dim, vocabulary)
        for matrix in (self.embedding.weight, self.head.weight):
            nn.init.uniform_(matrix, -INITIAL_RANGE, INITIAL_RANGE)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocabulary"]:
        check_ids(ids, vocabulary=self.embedding.num_embeddings)
        # Entries of the initial embedding lie in [-0.1, 0.1], those of the positions are of order one;
        # sqrt(d) makes them comparable.
        tokens = self.drop(self.positions(self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)))
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens))
