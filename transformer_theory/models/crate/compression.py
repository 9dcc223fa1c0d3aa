r"""Compression blocks: exact, paper, released, and token statistics, derived and released.

A compression block reads tokens [batch, n, d] and returns their *change*, so that every variant stands in the same place of a layer,
``Z + block(norm(Z))``; a variant is a block one passes, never a flag. With ``norm`` the identity these are the steps of
:mod:`~transformer_theory.models.crate.subspace_attention` and :mod:`~transformer_theory.models.crate.token_statistics`. All blocks offer

* ``subspaces()``: U_k, [K, d, p];
* ``bilinear()`` (those with an attention map): [K, d, d], score(key token x, query token z) = x^T W_k z with W_k = scale U_k U_k^T.

Shapes: d = dim, K = heads, p = head_dim, inner = K p. As in the released networks the weight is
``qkv.weight`` = [U_1 ... U_K]^T, [inner, d].
Source: :cite:t:`yu2023white`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .checks import positive
from .subspace_attention import expansion, rate_gradient, subspace_attention
from .token_statistics import memberships, shrinkage

Batch = Float[Tensor, "batch n d"]


class Subspaces(nn.Module):
    r"""What the compression blocks share: the bases U_[K] and how tokens are split into heads.

    Args:
        dim, heads, head_dim: d, K, p.
    Raises:
        ValueError: a size is below 1. Source: :cite:t:`yu2023white`.
    """

    is_causal = False  # the variants of :mod:`.causal` look at the past alone

    def __init__(self, dim: int, *, heads: int, head_dim: int):
        super().__init__()
        if min(dim, heads, head_dim) < 1:
            raise ValueError(f"dim, heads and head_dim must be at least 1, got {dim}, {heads} and {head_dim}")
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(dim, heads * head_dim, bias=False)

    def subspaces(self) -> Float[Tensor, "K d p"]:
        """U_k as columns, [K, d, p], as they are (networks do not keep them orthonormal; :func:`.orthogonal` does)."""
        return self.qkv.weight.unflatten(0, (self.heads, self.head_dim)).mT

    def coordinates(self, tokens: Batch) -> Float[Tensor, "batch K n p"]:
        """W_k = Z U_k of every head."""
        return self.qkv(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def attend(self, tokens: Batch, *, scale: float) -> Float[Tensor, "batch n inner"]:
        """[SSA_1 ... SSA_K], the heads side by side."""
        heads = subspace_attention(self.coordinates(tokens), scale=scale, is_causal=self.is_causal)
        return heads.transpose(1, 2).flatten(-2)


class ReleasedAttention(Subspaces):
    r"""The change of the released code: :math:`[SSA_1 \ldots SSA_K] V + b`, scores over sqrt(p), a free output matrix V (``to_out``).

    Args:
        dim, heads, head_dim: d, K, p.
        dropout: of the output.
    Raises:
        ValueError: a size is below 1. Source: :cite:t:`yu2023white`, released code.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(dropout))

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(self.attend(tokens, scale=self.head_dim**-0.5))

    def bilinear(self) -> Float[Tensor, "K d d"]:
        """U_k U_k^T / sqrt(p), [K, d, d]."""
        U = self.subspaces()
        return U @ U.mT * self.head_dim**-0.5


class PaperAttention(Subspaces):
    r"""The change of the paper's step: :math:`\kappa\beta\,(\mathrm{MSSA}(Z) - Z)`, output tied to U, :math:`\beta = p/(n\varepsilon^2)`.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size; kappa * beta should stay below 1, else the shrink changes sign.
        eps: distortion (squared inside); beta should stay below 1 too, else attention grows faster than the shrink takes away.
    Raises:
        ValueError: ``kappa`` or ``eps`` is not positive and finite, or a size is below 1. Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 1.0, eps: float = 1.5):
        positive(kappa=kappa, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        beta = expansion(self.subspaces(), n=self.counted(tokens), eps=self.eps)
        return self.kappa * beta * (beta * self.attend(tokens, scale=1.0) @ self.qkv.weight - tokens)

    def counted(self, tokens: Batch) -> int:
        """The number of tokens in beta."""
        return tokens.shape[-2]

    def bilinear(self) -> Float[Tensor, "K d d"]:
        """U_k U_k^T, [K, d, d]."""
        U = self.subspaces()
        return U @ U.mT


class ExactAttention(Subspaces):
    r"""The change of an exact gradient step: :math:`-\kappa \nabla R^c(Z; U_{[K]})`; p x p, no attention map.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size.
        eps: distortion (squared inside).
    Raises:
        ValueError: ``kappa`` or ``eps`` is not positive and finite, or a size is below 1. Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 0.5, eps: float = 1.0):
        positive(kappa=kappa, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        return -self.kappa * rate_gradient(tokens, self.subspaces(), eps=self.eps)


class TokenStatisticsAttention(Subspaces):
    r"""The change of a step down the variational bound, :math:`-\kappa \nabla B(Z; U, \Pi)`: linear in tokens, no attention map.

    The step is given as its share kappa beta, whatever the number of tokens: the bound falls for ``step`` below
    :math:`2 / \|\sum_k U_k U_k^\top\|_2`, which is 2 for orthogonal subspaces. The temperatures tau_k are learned.

    Args:
        dim, heads, head_dim: d, K, p.
        step: kappa beta.
        eps: distortion (squared inside).
    Raises:
        ValueError: ``step`` or ``eps`` is not positive and finite, or a size is below 1. Source: :cite:t:`wu2024token`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, step: float = 1.0, eps: float = 4.0):
        positive(step=step, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.step, self.eps = step, eps
        self.temperature = nn.Parameter(torch.ones(heads))

    def forward(self, tokens: Batch) -> Batch:
        return -self.step * self.shrink(self.coordinates(tokens)).transpose(1, 2).flatten(-2) @ self.qkv.weight

    def shrink(self, coords: Float[Tensor, "batch K n p"]) -> Float[Tensor, "batch K n p"]:
        """What is taken away in each channel."""
        return shrinkage(coords, memberships(coords, temperature=self.temperature), eps=self.eps)


class ReleasedTokenStatisticsAttention(Subspaces):
    r"""The change of the released code of token statistics, :math:`-[S_1 \ldots S_K] V + b` with
    :math:`S_k = \mathrm{diag}(\pi_k) W_k\,\mathrm{diag}(1 + m_k)^{-1}`.

    Against :class:`TokenStatisticsAttention`: the output matrix V is free (``to_out``), so the change need not go down the bound; the
    coordinates have a bias, :math:`W_k = Z U_k + c_k`; V takes the place of the step; and :math:`1 + m_k` means that
    :math:`\varepsilon^2 = p`. Parameter names and shapes are those of the released attention: ``qkv``, ``temp`` [K, 1], ``to_out``.

    Args:
        dim, heads, head_dim: d, K, p.
        dropout: of the output.
    Raises:
        ValueError: a size is below 1. Source: :cite:t:`wu2024token`, released code.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.qkv = nn.Linear(dim, heads * head_dim)
        self.temp = nn.Parameter(torch.ones(heads, 1))
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(dropout))

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(-self.shrink(self.coordinates(tokens)).transpose(1, 2).flatten(-2))

    def shrink(self, coords: Float[Tensor, "batch K n p"]) -> Float[Tensor, "batch K n p"]:
        """What the output matrix reads, with the opposite sign."""
        return shrinkage(coords, memberships(coords, temperature=self.temp.squeeze(-1)), eps=self.head_dim**0.5)
