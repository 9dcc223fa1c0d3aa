r"""Compression blocks for sequences: a token is changed by those before it and itself alone. Steps: :mod:`~..causal`, :mod:`~..tssa`.

Where beta counts tokens it counts ``context`` of them, the longest sequence there will be. Shapes as in :mod:`.compression`.
Source: :cite:t:`yu2023white`, :cite:t:`wu2024token`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .causal import causal_rate_gradient, check_length
from .compression import (
    Batch,
    ExactAttention,
    PaperAttention,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
    TokenStatisticsAttention,
)
from .token_statistics import causal_memberships, causal_shrinkage


class CausalReleasedAttention(ReleasedAttention):
    r"""The released form with a causal mask, :math:`\sum_{j \le i}` in every softmax, as in the released language model.

    Source: :cite:t:`yu2023white`, released code.
    """

    is_causal = True


class CausalPaperAttention(PaperAttention):
    r"""The paper's step with a causal mask, :math:`\beta = p / (N \varepsilon^2)`.

    Args:
        dim, heads, head_dim, kappa, eps: as :class:`.PaperAttention`.
        context: N.
    Raises:
        ValueError: a number is not positive and finite; on use, a sequence longer than the context. Source: :cite:t:`yu2023white`.
    """

    is_causal = True

    def __init__(self, dim: int, *, heads: int, head_dim: int, context: int, kappa: float = 1.0, eps: float = 1.5):
        super().__init__(dim, heads=heads, head_dim=head_dim, kappa=kappa, eps=eps)
        self.context = context

    def counted(self, tokens: Batch) -> int:
        """The number of tokens in beta."""
        check_length(tokens, self.context)
        return self.context


class CausalExactAttention(ExactAttention):
    r"""Every token descends what it adds to the rate of those before it: :math:`-\kappa \nabla_{z_i} r_i`, prefix sums, no attention map.

    Args:
        dim, heads, head_dim, kappa, eps: as :class:`.ExactAttention`.
        context: N in :math:`\beta = p / (N \varepsilon^2)`.
    Raises:
        ValueError: a number is not positive and finite; on use, a sequence longer than the context. Source: :cite:t:`yu2023white`.
    """

    is_causal = True

    def __init__(self, dim: int, *, heads: int, head_dim: int, context: int, kappa: float = 0.5, eps: float = 1.0):
        super().__init__(dim, heads=heads, head_dim=head_dim, kappa=kappa, eps=eps)
        self.context = context

    def forward(self, tokens: Batch) -> Batch:
        return -self.kappa * causal_rate_gradient(tokens, self.subspaces(), eps=self.eps, context=self.context)


class CausalTokenStatisticsAttention(TokenStatisticsAttention):
    r"""Token statistics of the tokens up to each, by cumulative sums. Source: :cite:t:`wu2024token`."""

    is_causal = True

    def shrink(self, coords: Float[Tensor, "batch K n p"]) -> Float[Tensor, "batch K n p"]:
        """What is taken away in each channel."""
        return causal_shrinkage(coords, causal_memberships(coords, temperature=self.temperature), eps=self.eps)


class CausalReleasedTokenStatisticsAttention(ReleasedTokenStatisticsAttention):
    r"""Released token statistics of the tokens up to each, by cumulative sums; a learned number a head and position is added to every
    channel's share (``denom_bias``, [K, N, 1], zero at first).

    Args:
        dim, heads, head_dim, dropout: as :class:`.ReleasedTokenStatisticsAttention`.
        context: N.
    Raises:
        ValueError: a size is below 1; on use, a sequence longer than the context. Source: :cite:t:`wu2024token`, released code, where
            ``qkv`` and ``to_out.0`` are called ``c_attn`` and ``c_proj``.
    """

    is_causal = True

    def __init__(self, dim: int, *, heads: int, head_dim: int, context: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim, dropout=dropout)
        self.context = context
        self.denom_bias = nn.Parameter(torch.zeros(heads, context, 1))

    def forward(self, tokens: Batch) -> Batch:
        check_length(tokens, self.context)
        return super().forward(tokens)

    def shrink(self, coords: Float[Tensor, "batch K n p"]) -> Float[Tensor, "batch K n p"]:
        """What the output matrix reads, with the opposite sign."""
        offset = self.head_dim * self.denom_bias[:, : coords.shape[-2], 0]
        pi = causal_memberships(coords, temperature=self.temp.squeeze(-1), offset=offset)
        return causal_shrinkage(coords, pi, eps=self.head_dim**0.5)
