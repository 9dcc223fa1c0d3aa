r"""Softmax attention: scores, masks, weights, parametrisations of the scores, and the kernels that networks
call.

.. math::
    s_{ij} = \text{scale}\,\langle q_i, k_j\rangle, \qquad a_{ij} = e^{s_{ij}} / \sum_{l \text{ allowed}}
    e^{s_{il}}, \qquad o_i = \sum_j a_{ij} v_j.

* Definitions, in plain tensor operations: :func:`dot_scores`, :func:`causal_mask`, :func:`softmax`,
  :func:`attention_weights`, :func:`attend`.
* Parametrisations, which map a key token x and a query token z to the score :math:`x_j^\top W z_i`:
  :class:`Combined` (one matrix W), :class:`Factored` (W_K and W_Q), :class:`Tied` (one basis for both, as in
  CRATE); :func:`token_scores`.
* Kernels, equal to :func:`attend` up to rounding: :func:`softmax_attention`, and :func:`tied_attention`,
  which uses one matrix as queries, keys and values. A ``torch.overrides.TorchFunctionMode``, such as a probe,
  intercepts calls of these two functions, whichever torch kernel they use. :func:`continued_attention`
  computes the rows of new tokens after stored ones.

Shapes: tokens ``[*batch, tokens, dim]``; queries ``[*batch, q, p]``, keys ``[*batch, k, p]``, values
``[*batch, k, v]``; scores and weights ``[*batch, q, k]``. Heads are one of the batch dimensions: ``[batch,
heads, tokens, head_dim]``.

Sources: :cite:t:`vaswani2017attention`; :cite:t:`tarzanagh2023transformers` (combined W),
:cite:t:`yu2023white` (tied).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

Queries = Float[Tensor, "*batch q p"]
Keys = Float[Tensor, "*batch k p"]
Scores = Float[Tensor, "*batch q k"]
Mask = Bool[Tensor, "*#batch q k"]
Coordinates = Float[Tensor, "*batch n p"]

# Up to these numbers of tokens, plain matrix products were measured to be faster on a CPU than torch's fused
# kernel.
PLAIN_BFLOAT16_TOKENS = 1024  # limit in bfloat16, for which the kernel has no fast path
PLAIN_TIED_TOKENS = 256  # limit in float32 and float64, with the weights stored for the backward pass
# Rows of fewer bfloat16 numbers are shorter than a vector of the processor; torch takes them entry by entry.
VECTOR_TOKENS = 32
TRANSPOSED_TOKENS = 128  # limit in bfloat16 of a sum with the transposed scores that copies them first


# scores, masks and weights


def dot_scores(queries: Queries, keys: Keys, *, scale: float = 1.0) -> Scores:
    r"""Computes the scores :math:`s_{ij} = \text{scale}\,\langle q_i, k_j\rangle`, ``[*batch, q, k]``."""
    return (queries @ keys.mT).mul(scale)


def causal_mask(queries: int, keys: int, *, device: torch.device | None = None) -> Bool[Tensor, "q k"]:
    """Returns a mask ``[queries, keys]`` that is True where query i sees key j, that is, for j <= i.

    Query 0 and key 0 are the same token, as in torch's ``is_causal``.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def softmax(scores: Scores, mask: Mask | None = None) -> Scores:
    r"""Computes the weights :math:`e^{s_{ij}} / \sum_l e^{s_{il}}`, ``[*batch, q, k]``.

    Both sums run over the keys for which ``mask`` is True. None: all keys. The weights of a query that sees
    no key are NaN.
    """
    return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)


def attention_weights(
    queries: Queries, keys: Keys, *, scale: float | None = None, mask: Mask | None = None
) -> Scores:
    r"""Computes the distribution of each query over the keys, ``[*batch, q, k]``.

    Args:
        queries, keys: vectors, ``[*batch, q, p]`` and ``[*batch, k, p]``; they may come from different tokens
            (cross-attention).
        scale: factor of the scores. Defaults to :math:`1/\sqrt p`.
        mask: True where a query sees a key, ``[*batch, q, k]`` or a shape that broadcasts to it. None: all
            keys.
    Raises:
        ValueError: the widths or the mask do not fit, or a query sees no key.
    """
    if queries.ndim < 2 or keys.ndim < 2 or queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"queries [*batch, q, p] and keys [*batch, k, p] must share p, got {list(queries.shape)} and "
            f"{list(keys.shape)}"
        )
    q, k = queries.shape[-2], keys.shape[-2]
    if k == 0:
        raise ValueError("attention needs at least one key, got none")
    if mask is not None:
        if mask.dtype != torch.bool or mask.ndim < 2 or mask.shape[-2:] != (q, k):
            raise ValueError(
                f"mask must be boolean, [*batch, {q}, {k}], got {mask.dtype} {list(mask.shape)}; True is "
                "visible"
            )
        if not bool(mask.any(-1).all()):
            index = mask.logical_not().all(-1).nonzero()[0].tolist()
            raise ValueError(
                f"each query must see at least one key, got none for the query at {index}; its weights are "
                "undefined"
            )
    return softmax(
        dot_scores(queries, keys, scale=queries.shape[-1] ** -0.5 if scale is None else scale), mask
    )


def attend(
    queries: Queries,
    keys: Keys,
    values: Float[Tensor, "*batch k v"],
    *,
    scale: float | None = None,
    mask: Mask | None = None,
) -> Float[Tensor, "*batch q v"]:
    """Computes weighted means of the values, ``[*batch, q, v]``; for the other arguments see
    :func:`attention_weights`.

    Raises:
        ValueError: the shapes do not fit, or a query sees no key.
    """
    if values.ndim < 2 or values.shape[-2] != keys.shape[-2]:
        raise ValueError(f"values must hold one row per key, {keys.shape[-2]}, got {list(values.shape)}")
    return attention_weights(queries, keys, scale=scale, mask=mask) @ values


# parametrisations: score(key token x, query token z) = x^T W z; matrices may have a leading head dimension


@dataclass(frozen=True)
class Combined:
    r"""One matrix for keys and queries: :math:`s = x^\top W z`.

    Attributes:
        W: matrix, ``[dim, dim]`` or ``[heads, dim, dim]``.
    """

    W: Float[Tensor, "*heads d_x d_z"]

    def bilinear(self) -> Float[Tensor, "*heads d_x d_z"]:
        """Returns W."""
        return self.W


@dataclass(frozen=True)
class Factored:
    r"""Two matrices: :math:`s = \text{scale}\,\langle K^\top x, Q^\top z\rangle`, so :math:`W =
    \text{scale}\, K Q^\top`.

    Attributes:
        K, Q: matrices W_K and W_Q, ``[dim, head_dim]`` or ``[heads, dim, head_dim]``.
        scale: factor of the scores, often :math:`1/\sqrt{\text{head\_dim}}`.
    """

    K: Float[Tensor, "*heads d_x p"]
    Q: Float[Tensor, "*heads d_z p"]
    scale: float = 1.0

    def bilinear(self) -> Float[Tensor, "*heads d_x d_z"]:
        """Returns W = scale K Q^T, ``[(heads,) dim, dim]``."""
        return self.K @ self.Q.mT * self.scale


@dataclass(frozen=True)
class Tied:
    r"""One basis for keys and queries: :math:`s = \text{scale}\,\langle U^\top x, U^\top z\rangle`; W is
    symmetric positive semidefinite.

    Attributes:
        U: basis as columns, ``[dim, head_dim]`` or ``[heads, dim, head_dim]``.
        scale: factor of the scores.
    """

    U: Float[Tensor, "*heads d p"]
    scale: float = 1.0

    def bilinear(self) -> Float[Tensor, "*heads d d"]:
        """Returns W = scale U U^T, ``[(heads,) dim, dim]``."""
        return self.U @ self.U.mT * self.scale


Parametrisation = Combined | Factored | Tied


def token_scores(
    tokens: Float[Tensor, "*batch k d"],
    parameters: Parametrisation,
    *,
    query_tokens: Float[Tensor, "*batch q d_z"] | None = None,
) -> Float[Tensor, "..."]:
    r"""Computes the scores :math:`x_j^\top W z_i` of key tokens x for query tokens z, ``[*batch, (heads,) q,
    k]``.

    Args:
        tokens: x, ``[*batch, k, dim]``.
        parameters: :class:`Combined`, :class:`Factored` or :class:`Tied`.
        query_tokens: z, ``[*batch, q, dim]``. None: the key tokens (self-attention).
    Raises:
        ValueError: the width of the tokens does not fit the parameters.
    """
    W = parameters.bilinear()
    queries = tokens if query_tokens is None else query_tokens
    for name, vectors, width in (("tokens", tokens, W.shape[-2]), ("query_tokens", queries, W.shape[-1])):
        if vectors.ndim < 2 or vectors.shape[-1] != width:
            raise ValueError(
                f"{name} must have shape [*batch, tokens, {width}] to fit the parameters, got "
                f"{list(vectors.shape)}"
            )
    if W.ndim > 2:  # add a head dimension to the batch dimensions
        queries, tokens = queries.unsqueeze(-3), tokens.unsqueeze(-3)
    return queries @ W.mT @ tokens.mT


# kernels


def softmax_attention(
    query: Float[Tensor, "*batch q p"],
    key: Float[Tensor, "*batch k p"],
    value: Float[Tensor, "*batch k v"],
    *,
    scale: float,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch q v"]:
    r"""Computes :math:`\mathrm{softmax}(\text{scale}\, Q K^\top) V`, ``[*batch, q, v]``, in the dtype of the
    values.

    On a CPU in bfloat16, with at most ``PLAIN_BFLOAT16_TOKENS`` tokens, scores and weights are rounded to
    bfloat16. Otherwise torch's fused kernel is used, which does not round them.

    Args:
        query, key, value: tensors of one dtype.
        scale: factor of the scores.
        is_causal: whether query i sees keys 0..i only.
        dropout_p: probability that a weight is dropped.
    """
    # torch's own functions dispatch to a TorchFunctionMode automatically; a Python function has to dispatch
    # before it calls them.
    if has_torch_function((query, key, value)):
        options = {"scale": scale, "is_causal": is_causal, "dropout_p": dropout_p}
        return handle_torch_function(softmax_attention, (query, key, value), query, key, value, **options)
    slow_kernel = query.device.type == "cpu" and query.dtype == torch.bfloat16
    if (
        slow_kernel
        and not is_causal
        and not dropout_p
        and max(query.shape[-2], key.shape[-2]) <= PLAIN_BFLOAT16_TOKENS
    ):
        # Autocast would compute the softmax in float32 and lose the gain in speed.
        with torch.autocast("cpu", enabled=False):
            return _short_softmax(dot_scores(query, key, scale=scale)) @ value
    return functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout_p, is_causal=is_causal, scale=scale
    )


def tied_attention(coords: Coordinates, *, scale: float, is_causal: bool = False) -> Coordinates:
    r"""Computes :math:`\mathrm{softmax}(\text{scale}\, W W^\top) W`, ``[*batch, n, p]``, in the dtype of W;
    twice differentiable.

    Derivatives exist in reverse mode, in forward mode and in both together, as in ``torch.func.hessian``.

    With P the weights and O = P W the output,

    .. math::
        dW = P^\top dO + s (dS + dS^\top) W, \qquad dS = P \circ (dP - \mathrm{rowsum}(P \circ dP)), \qquad dP
        = dO\, W^\top.

    Only W and P are stored for the backward pass, which needs three products instead of four. For many
    tokens, or on an accelerator, torch's fused kernel is used, which does not store P.

    Args:
        coords: W, ``[*batch, n, p]``.
        scale: s, factor of the scores.
        is_causal: whether token i attends to tokens 0..i only.
    """
    if has_torch_function_unary(coords):
        return handle_torch_function(tied_attention, (coords,), coords, scale=scale, is_causal=is_causal)
    largest = PLAIN_BFLOAT16_TOKENS if coords.dtype == torch.bfloat16 else PLAIN_TIED_TOKENS
    if coords.device.type != "cpu" or coords.shape[-2] > largest:
        return functional.scaled_dot_product_attention(
            coords, coords, coords, scale=scale, is_causal=is_causal
        )
    with torch.autocast("cpu", enabled=False):
        # Products of contiguous batches are up to four times as fast as products of transposed views.
        flat = coords.reshape(-1, *coords.shape[-2:]).contiguous()  # one batch dimension: [batch, n, p]
        return _TiedAttention.apply(flat, scale, is_causal)[0].view(coords.shape)  # pyright: ignore[reportOptionalSubscript]


def continued_attention(
    coords: Float[Tensor, "*batch m p"], past: Float[Tensor, "*batch t p"], *, scale: float
) -> tuple[Float[Tensor, "*batch m p"], Float[Tensor, "*batch n p"]]:
    r"""Computes causal tied attention of tokens that follow past ones, whose coordinates are stored.

    The result equals the last rows of :func:`tied_attention` of all tokens with ``is_causal=True``, up to
    rounding.

    Args:
        coords: W of the new tokens, ``[*batch, m, p]``.
        past: W of the tokens before them, ``[*batch, t, p]``; t may be 0.
        scale: s, factor of the scores.
    Returns:
        The output of the new tokens, ``[*batch, m, p]``, and W of all tokens, ``[*batch, n, p]`` with n = t +
        m.
    """
    if not past.shape[-2]:
        return tied_attention(coords, scale=scale, is_causal=True), coords
    everything = torch.cat([past, coords], dim=-2)
    m, n = coords.shape[-2], everything.shape[-2]
    # New token j is token n - m + j of the sequence and sees all tokens up to itself; a single new token sees
    # everything.
    mask = None if m == 1 else torch.ones(m, n, dtype=torch.bool, device=coords.device).tril(n - m)
    return softmax(dot_scores(coords, everything, scale=scale), mask) @ everything, everything


def _short_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes :func:`softmax`; short rows of bfloat16 numbers take about half the time in float32, which
    rounds once as well.
    """
    if scores.dtype == torch.bfloat16 and scores.shape[-1] < VECTOR_TOKENS:
        return softmax(scores.float(), mask).to(scores.dtype)
    return softmax(scores, mask)


def _softmax_gradient(dP: Tensor, P: Tensor) -> Tensor:
    """Computes P * (dP - rowsum(P * dP)), with short rows of bfloat16 numbers in float32."""
    if dP.dtype == torch.bfloat16 and dP.shape[-1] < VECTOR_TOKENS:
        return torch.ops.aten._softmax_backward_data(dP.float(), P.float(), -1, torch.float32).to(dP.dtype)
    return torch.ops.aten._softmax_backward_data(dP, P, -1, P.dtype)


def _tied_weights(W: Tensor, scale: float, is_causal: bool) -> Tensor:
    # baddbmm computes beta * first + alpha * product, so beta = 0 ignores the first argument. Scaling inside
    # the product saves a pass over the scores.
    scores = torch.baddbmm(W.new_zeros(()), W, W.mT, beta=0, alpha=scale)
    mask = causal_mask(W.shape[-2], W.shape[-2], device=W.device) if is_causal else None
    return _short_softmax(scores, mask)


class _TiedAttention(torch.autograd.Function):
    """Computes O and P from W [batch, n, p]; the backward pass is the formula of :func:`tied_attention`."""

    generate_vmap_rule = True  # torch.func.vmap derives the batched form from the methods below

    @staticmethod
    def forward(W: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        P = _tied_weights(W, scale, is_causal)
        return P @ W, P

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, float, bool], output: tuple[Tensor, Tensor]) -> None:
        W, ctx.scale, ctx.is_causal = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(W, output[1])
        ctx.save_for_forward(W, output[1])

    @staticmethod
    def jvp(ctx, dW: Tensor, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        W, P = ctx.saved_tensors
        # dS = s (dW W^T + W dW^T); the softmax maps it to P * (dS - rowsum(P * dS)).
        half = dW @ W.mT
        dS = ctx.scale * (half + half.mT)
        dP = P * (dS - (P * dS).sum(-1, keepdim=True))
        return dP @ W + P @ dW, None

    @staticmethod
    def backward(ctx, dO: Tensor, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        W, P = ctx.saved_tensors
        # With create_graph=True, or in forward mode, the gradient is differentiated again. Autograd treats
        # the saved P as a constant, so recompute P from W.
        if torch.is_grad_enabled() or forward_ad.unpack_dual(W).tangent is not None:
            P = _tied_weights(W, ctx.scale, ctx.is_causal)
        dO = dO.contiguous()
        dS = _softmax_gradient(dO @ W.mT, P)
        # W is both query and key, so the scores contribute dS W and dS^T W. Add first: one product instead of
        # two.
        short = dS.dtype == torch.bfloat16 and dS.shape[-1] <= TRANSPOSED_TOKENS
        symmetric = dS.mT.contiguous().add_(dS) if short else dS + dS.mT
        return torch.baddbmm(P.mT @ dO, symmetric, W, alpha=ctx.scale), None, None
