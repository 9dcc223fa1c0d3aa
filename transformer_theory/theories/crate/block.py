r"""The blocks of a CRATE layer as modules: three forms of compression and the sparsification.

A compression block reads tokens [batch, n, d] and returns their *change*, so that every variant stands in the same place of a layer,
``Z + block(norm(Z))``; a variant is a block one passes, never a flag. With ``norm`` the identity these are the steps of
:mod:`~transformer_theory.theories.crate.attention`. All blocks offer

* ``subspaces()``: U_k, [K, d, p];
* ``bilinear()`` (those with an attention map): [K, d, d], score(key token x, query token z) = x^T W_k z with W_k = scale U_k U_k^T.

Shapes: d = dim, K = heads, p = head_dim, inner = K p. As in the released networks the weight is
``qkv.weight`` = [U_1 ... U_K]^T, [inner, d].
Source: :cite:t:`yu2023white`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .attention import expansion, rate_gradient, subspace_attention

Batch = Float[Tensor, "batch n d"]


class _Subspaces(nn.Module):
    """What the three compression blocks share: the bases U_[K] and how tokens are split into heads."""

    def __init__(self, dim: int, *, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(dim, heads * head_dim, bias=False)

    def subspaces(self) -> Float[Tensor, "K d p"]:
        """U_k as columns, [K, d, p], as they are (networks do not keep them orthonormal)."""
        return self.qkv.weight.unflatten(0, (self.heads, self.head_dim)).mT

    def attend(self, tokens: Batch, *, scale: float) -> Float[Tensor, "batch n inner"]:
        """[SSA_1 ... SSA_K], the heads side by side."""
        coords = self.qkv(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return subspace_attention(coords, scale=scale).transpose(1, 2).flatten(-2)


class ReleasedAttention(_Subspaces):
    r"""The change of the released code: :math:`[SSA_1 \ldots SSA_K] V + b`, scores over sqrt(p), a free output matrix V (``to_out``).

    Args:
        dim, heads, head_dim: d, K, p.
        dropout: of the output.
    Source: :cite:t:`yu2023white`, released code.
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


class PaperAttention(_Subspaces):
    r"""The change of the paper's step: :math:`\kappa\beta\,(\mathrm{MSSA}(Z) - Z)`, output tied to U, :math:`\beta = p/(n\varepsilon^2)`.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size; kappa * beta should stay below 1, else the shrink changes sign.
        eps: distortion (squared inside); beta should stay below 1 too, else attention grows faster than the shrink takes away.
    Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 1.0, eps: float = 1.5):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        beta = expansion(self.subspaces(), n=tokens.shape[-2], eps=self.eps)
        return self.kappa * beta * (beta * self.attend(tokens, scale=1.0) @ self.qkv.weight - tokens)

    def bilinear(self) -> Float[Tensor, "K d d"]:
        """U_k U_k^T, [K, d, d]."""
        U = self.subspaces()
        return U @ U.mT


class ExactAttention(_Subspaces):
    r"""The change of an exact gradient step: :math:`-\kappa \nabla R^c(Z; U_{[K]})`; p x p, no attention map.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size.
        eps: distortion (squared inside).
    Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 0.5, eps: float = 1.0):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        return -self.kappa * rate_gradient(tokens, self.subspaces(), eps=self.eps)


class Ista(nn.Module):
    r"""One ISTA step from Z = Y: :math:`\mathrm{relu}(Y + \eta (Y - Y D^\top) D - \eta\lambda)`; it overwrites the tokens (no skip).

    Args:
        dim: d; the dictionary ``weight`` is d x d.
        eta: step size; descent needs eta <= 1 / ||D||_2^2, which training does not enforce.
        lam: weight of the l1 norm.
    Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, eta: float = 0.1, lam: float = 0.1):
        super().__init__()
        self.eta, self.lam = eta, lam
        self.weight = nn.Parameter(torch.empty(dim, dim))
        nn.init.kaiming_uniform_(self.weight, a=0.0)

    def forward(self, tokens: Batch) -> Batch:
        left = tokens - functional.linear(tokens, self.weight)
        return functional.relu(tokens + self.eta * functional.linear(left, self.weight.t()) - self.eta * self.lam)


class PreNorm(nn.Module):
    """``fn(LayerNorm(tokens))``, with the names of the released networks."""

    def __init__(self, dim: int, fn: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, tokens: Batch) -> Batch:
        return self.fn(self.norm(tokens))


class Layer(nn.Sequential):
    r"""A CRATE layer: compress, :math:`Z^{1/2} = Z + \mathrm{attention}(\mathrm{LN}\,Z)`, then sparsify without skip,
    :math:`Z^+ = \mathrm{sparsify}(\mathrm{LN}\,Z^{1/2})`.

    Its halves are children 0 and 1, so parameters are named ``0.norm.weight``, ``1.fn.weight``, ... as in the released networks.
    Source: :cite:t:`yu2023white`.
    """

    def __init__(self, dim: int, *, attention: nn.Module, sparsify: nn.Module):
        super().__init__(PreNorm(dim, attention), PreNorm(dim, sparsify))

    def forward(self, input: Batch) -> Batch:
        return self[1](input + self[0](input))
