r"""Compression blocks: exact, paper, released and token statistics, each with a causal form.

A compression block maps tokens [batch, n, d] to their *change*, and a layer computes ``Z + block(norm(Z))``.
If ``norm`` is the identity, this is a step of :mod:`transformer_theory.theories.crate.steps`. The formulas
are in :mod:`.compression`. All blocks have

* ``subspaces()``: U_k as columns, [K, d, p];
* ``bilinear()`` (blocks with an attention map): [K, d, d], score(key token x, query token z) = x^T W_k z with
  W_k = scale U_k U_k^T.

In a causal block the change of a token depends only on that token and the tokens before it. Where beta
depends on the number of tokens, a causal block uses ``context``, the length of the longest sequence, because
no token may depend on the actual length of its sequence. The method ``extend(tokens, past)`` of a causal
block computes the change of new tokens from what it stored of the past ones (:data:`Past`).

Symbols: d = dim, K = heads, p = head_dim, inner = K p. As in the released networks the weight is
``qkv.weight`` = [U_1 ... U_K]^T, [inner, d].

Sources: :cite:t:`yu2023white` and its released code; :cite:t:`wu2025token` (token statistics) and its
released code.
"""

from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ...core.validation import integers, positive
from ..attention import Tied, continued_attention, tied_attention
from .compression import (
    causal_memberships,
    causal_rate_gradient,
    causal_shrinkage,
    check_length,
    continued_rate_gradient,
    continued_shrinkage,
    expansion,
    memberships,
    rate_gradient,
    shrinkage,
)

Past = tuple[int, Any]
"""Number of past tokens, and what a causal block stores of them: coordinates, or sums."""

Batch = Float[Tensor, "batch n d"]
Heads = Float[Tensor, "batch K n p"]


class Subspaces(nn.Module):
    r"""Base class of the compression blocks: holds the bases U_[K], and computes the coordinates of tokens in
    them.

    Args:
        dim, heads, head_dim: d, K, p.
    Raises:
        ValueError: a size is below 1.
    """

    is_causal = False

    def __init__(self, dim: int, *, heads: int, head_dim: int):
        super().__init__()
        integers(dim=dim, heads=heads, head_dim=head_dim)
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(dim, heads * head_dim, bias=False)

    def subspaces(self) -> Float[Tensor, "K d p"]:
        """Returns U_k as columns, [K, d, p]. Training does not keep them orthonormal unless the block is
        passed to :func:`orthogonal`.
        """
        return self.qkv.weight.unflatten(0, (self.heads, self.head_dim)).mT

    def coordinates(self, tokens: Batch) -> Heads:
        """Computes W_k = Z U_k for every head, [batch, K, n, p]."""
        return self.qkv(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def attend(self, tokens: Batch, *, scale: float) -> Float[Tensor, "batch n inner"]:
        r"""Computes heads :math:`\mathrm{SSA}_k = \mathrm{softmax}(\text{scale}\, W_k W_k^\top) W_k`,
        concatenated, [batch, n, inner].
        """
        return joined(tied_attention(self.coordinates(tokens), scale=scale, is_causal=self.is_causal))

    def attend_after(
        self, tokens: Batch, past: Past | None, *, scale: float
    ) -> tuple[Float[Tensor, "batch m inner"], Past]:
        """Computes the rows of :meth:`attend` of tokens [batch, m, d] that follow past ones."""
        coords = self.coordinates(tokens)
        count, stored = (0, coords[..., :0, :]) if past is None else past
        heads, stored = continued_attention(coords, stored, scale=scale)
        return joined(heads), (count + tokens.shape[-2], stored)


def joined(heads: Heads) -> Float[Tensor, "batch n inner"]:
    """Concatenates the heads, [batch, K, n, p] -> [batch, n, K p]."""
    return heads.transpose(1, 2).flatten(-2)


class ReleasedAttention(Subspaces):
    r"""The change in the released code, :math:`[SSA_1 \ldots SSA_K] V + b`, with scores divided by sqrt(p)
    and free V (``to_out``).

    Args:
        dim, heads, head_dim: d, K, p.
        dropout: dropout probability of the output.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(dropout))

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(self.attend(tokens, scale=self.head_dim**-0.5))

    def bilinear(self) -> Float[Tensor, "K d d"]:
        """Returns U_k U_k^T / sqrt(p), [K, d, d]."""
        return Tied(self.subspaces(), scale=self.head_dim**-0.5).bilinear()


class PaperAttention(Subspaces):
    r"""The change in the paper, :math:`\kappa\beta\,(\mathrm{MSSA}(Z) - Z)`, with output tied to U and
    :math:`\beta = p/(n\varepsilon^2)`.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size. kappa * beta should stay below 1; otherwise the shrinkage changes sign.
        eps: distortion (squared inside). beta should stay below 1 too; otherwise attention grows faster than
            the shrinkage.
    Raises:
        ValueError: ``kappa`` or ``eps`` is not positive and finite, or a size is below 1.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 1.0, eps: float = 1.5):
        positive(kappa=kappa, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        beta = expansion(self.subspaces(), n=self.token_count(tokens), eps=self.eps)
        # The output matrix is [U_1 ... U_K]^T itself, so one product with the weight sums the heads. MSSA
        # carries a second factor beta.
        return self.kappa * beta * (beta * self.attend(tokens, scale=1.0) @ self.qkv.weight - tokens)

    def token_count(self, tokens: Batch) -> int:
        """Returns n in beta = p / (n eps^2)."""
        return tokens.shape[-2]

    def bilinear(self) -> Float[Tensor, "K d d"]:
        """Returns U_k U_k^T, [K, d, d]."""
        return Tied(self.subspaces()).bilinear()


class ExactAttention(Subspaces):
    r"""The change in an exact gradient step, :math:`-\kappa \nabla R^c(Z; U_{[K]})`, without an attention
    map.

    Args:
        dim, heads, head_dim: d, K, p.
        kappa: step size.
        eps: distortion (squared inside).
    Raises:
        ValueError: ``kappa`` or ``eps`` is not positive and finite, or a size is below 1.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, kappa: float = 0.5, eps: float = 1.0):
        positive(kappa=kappa, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.kappa, self.eps = kappa, eps

    def forward(self, tokens: Batch) -> Batch:
        return -self.kappa * self.gradient(tokens)

    def gradient(self, tokens: Batch) -> Batch:
        """Computes the gradient of the rate that the block descends."""
        return rate_gradient(tokens, self.subspaces(), eps=self.eps)


class TokenStatisticsAttention(Subspaces):
    r"""The change in a gradient step on the variational bound, :math:`-\kappa \nabla B(Z; U, \Pi)`. Linear
    cost in n, no attention map.

    The step size is ``step`` = kappa beta, independent of the number of tokens. The bound decreases for
    ``step`` below :math:`2 / \|\sum_k U_k U_k^\top\|_2`, which is 2 for orthogonal subspaces. The
    temperatures tau_k are learnt.

    Args:
        dim, heads, head_dim: d, K, p.
        step: kappa beta.
        eps: distortion (squared inside).
    Raises:
        ValueError: ``step`` or ``eps`` is not positive and finite, or a size is below 1.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, step: float = 1.0, eps: float = 4.0):
        positive(step=step, eps=eps)
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.step, self.eps = step, eps
        self.temperature = nn.Parameter(torch.ones(heads))

    def forward(self, tokens: Batch) -> Batch:
        return -self.step * joined(self.shrink(self.coordinates(tokens))) @ self.qkv.weight

    def shrink(self, coords: Heads) -> Heads:
        """Computes the amount that the step subtracts from each coordinate, in units of ``step``."""
        return shrinkage(coords, memberships(coords, temperature=self.temperature), eps=self.eps)


class ReleasedTokenStatisticsAttention(Subspaces):
    r"""The change in the released code of token statistics, :math:`-[S_1 \ldots S_K] V + b` with
    :math:`S_k = \mathrm{diag}(\pi_k) W_k\,\mathrm{diag}(1 + m_k)^{-1}`.

    It differs from :class:`TokenStatisticsAttention` in three points. The output matrix V is free
    (``to_out``) and replaces the step, so the change need not descend the bound. The coordinates have a bias,
    :math:`W_k = Z U_k + c_k`. The distortion is fixed: :math:`1 + m_k` corresponds to :math:`\varepsilon^2 =
    p`. Parameters have the names and shapes of the released attention: ``qkv``, ``temp`` [K, 1], ``to_out``.

    Args:
        dim, heads, head_dim: d, K, p.
        dropout: dropout probability of the output.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim)
        self.qkv = nn.Linear(dim, heads * head_dim)
        self.temp = nn.Parameter(torch.ones(heads, 1))
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, dim), nn.Dropout(dropout))

    def forward(self, tokens: Batch) -> Batch:
        return self.to_out(-joined(self.shrink(self.coordinates(tokens))))

    def shrink(self, coords: Heads) -> Heads:
        """Computes the input of the output matrix, with the opposite sign."""
        return shrinkage(
            coords, memberships(coords, temperature=self.temp.squeeze(-1)), eps=self.head_dim**0.5
        )


# causal forms


class CausalReleasedAttention(ReleasedAttention):
    r"""The released form with a causal mask, :math:`\sum_{j \le i}` in every softmax, as in the released
    language model.
    """

    is_causal = True

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the change of tokens [batch, m, d] that follow past ones, and what is stored of all
        tokens.
        """
        heads, past = self.attend_after(tokens, past, scale=self.head_dim**-0.5)
        return self.to_out(heads), past


class CausalTokenStatisticsAttention(TokenStatisticsAttention):
    r"""Token statistics of the prefix that ends at each token, computed by cumulative sums."""

    is_causal = True

    def shrink(self, coords: Heads) -> Heads:
        """Computes the amount that the step subtracts from each coordinate, in units of ``step``."""
        return causal_shrinkage(
            coords, causal_memberships(coords, temperature=self.temperature), eps=self.eps
        )

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the change of tokens [batch, m, d] that follow past ones, and what is stored of all
        tokens.
        """
        count, sums = past or (0, None)
        shrunk, sums = continued_shrinkage(
            self.coordinates(tokens), sums, eps=self.eps, temperature=self.temperature
        )
        return -self.step * joined(shrunk) @ self.qkv.weight, (count + tokens.shape[-2], sums)


class WithContext(Subspaces):
    """Mixin of the causal blocks that depend on N, the length of the longest sequence. It must precede the
    block among the base classes.

    Args:
        dim, heads, head_dim: d, K, p.
        context: N, the length of the longest sequence.
        settings: other arguments of the block.
    Raises:
        ValueError: an argument of the block is out of range; in a forward pass, a sequence is longer than the
            context.
    """

    is_causal = True

    def __init__(self, dim: int, *, heads: int, head_dim: int, context: int, **settings: Any):
        integers(context=context)
        super().__init__(dim, heads=heads, head_dim=head_dim, **settings)
        self.context = context

    def forward(self, tokens: Batch) -> Batch:
        check_length(tokens, self.context)
        return super().forward(tokens)

    def total(self, tokens: Batch, past: Past | None) -> int:
        """Returns the number of past and new tokens.

        Raises:
            ValueError: it exceeds the context.
        """
        count = tokens.shape[-2] + (past[0] if past else 0)
        if count > self.context:
            raise ValueError(
                f"context must count at least the tokens of a sequence, {count}, got {self.context}; pass a "
                "longer one"
            )
        return count


class CausalPaperAttention(WithContext, PaperAttention):
    r"""The paper's step with a causal mask, :math:`\beta = p / (N \varepsilon^2)`; arguments as in
    :class:`PaperAttention`.
    """

    def token_count(self, tokens: Batch) -> int:
        """Returns N, whatever the length of the sequence."""
        return self.context

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the change of tokens [batch, m, d] that follow past ones, and what is stored of all
        tokens.
        """
        self.total(tokens, past)
        beta = expansion(self.subspaces(), n=self.context, eps=self.eps)
        heads, past = self.attend_after(tokens, past, scale=1.0)
        return self.kappa * beta * (beta * heads @ self.qkv.weight - tokens), past


class CausalExactAttention(WithContext, ExactAttention):
    r"""A gradient step of each token on its own term in the rate, :math:`-\kappa \nabla_{z_i} r_i`, without
    an attention map.

    The arguments ``kappa`` and ``eps`` are those of :class:`ExactAttention`; :math:`\beta = p / (N
    \varepsilon^2)`.
    """

    def gradient(self, tokens: Batch) -> Batch:
        """Computes the gradient of each token's own term with respect to that token."""
        return causal_rate_gradient(tokens, self.subspaces(), eps=self.eps, context=self.context)

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the change of tokens [batch, m, d] that follow past ones, and what is stored of all
        tokens.
        """
        count, sums = self.total(tokens, past), past[1] if past else 0.0
        gradient, sums = continued_rate_gradient(
            tokens, self.subspaces(), sums, eps=self.eps, context=self.context
        )
        return -self.kappa * gradient, (count, sums)


class CausalReleasedTokenStatisticsAttention(WithContext, ReleasedTokenStatisticsAttention):
    r"""Released token statistics of the prefix that ends at each token. A learnt offset per head and position
    is added to the share of every channel (``denom_bias``, [K, N, 1], initially zero).

    In the released code ``qkv`` and ``to_out.0`` are called ``c_attn`` and ``c_proj``.
    The argument ``dropout`` is that of :class:`ReleasedTokenStatisticsAttention`.
    """

    def __init__(self, dim: int, *, heads: int, head_dim: int, context: int, dropout: float = 0.0):
        super().__init__(dim, heads=heads, head_dim=head_dim, context=context, dropout=dropout)
        self.denom_bias = nn.Parameter(torch.zeros(heads, context, 1))

    def shrink(self, coords: Heads) -> Heads:
        """Computes the input of the output matrix, with the opposite sign."""
        pi = causal_memberships(
            coords, temperature=self.temp.squeeze(-1), offset=self.offset(0, coords.shape[-2])
        )
        return causal_shrinkage(coords, pi, eps=self.head_dim**0.5)

    def offset(self, start: int, end: int) -> Float[Tensor, "K m"]:
        """Returns the offset of the shares of tokens ``start`` to ``end`` - 1, [K, end - start]."""
        # The released code adds the bias to each of the p channels before it sums over them.
        return self.head_dim * self.denom_bias[:, start:end, 0]

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the change of tokens [batch, m, d] that follow past ones, and what is stored of all
        tokens.
        """
        end, sums = self.total(tokens, past), past[1] if past else None
        offset = self.offset(end - tokens.shape[-2], end)
        settings = {"eps": self.head_dim**0.5, "temperature": self.temp.squeeze(-1), "offset": offset}
        shrunk, sums = continued_shrinkage(self.coordinates(tokens), sums, **settings)
        return self.to_out(-joined(shrunk)), (end, sums)


Block = TypeVar("Block", bound=Subspaces)


def orthogonal(block: Block) -> Block:
    r"""Constrains a block to :math:`[U_1 \ldots U_K]^\top [U_1 \ldots U_K] = I`: orthonormal bases of
    mutually orthogonal subspaces.

    Training then updates an unconstrained matrix, and ``qkv.weight`` is computed from it. To build a network
    with such blocks, pass ``attention=lambda dim, **sizes: orthogonal(PaperAttention(dim, **sizes))``.

    Args:
        block: compression block, changed in place and returned.
    Raises:
        ValueError: K p > d, so that K orthogonal subspaces do not exist.
    """
    inner, dim = block.qkv.weight.shape
    if inner > dim:
        raise ValueError(
            f"heads * head_dim must be at most dim for orthogonal subspaces, got {block.heads} * "
            f"{block.head_dim} > {dim}"
        )
    parametrizations.orthogonal(block.qkv, "weight")
    return block
