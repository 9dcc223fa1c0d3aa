r"""Softmax attention whose queries, keys and values are one matrix W (n x p), by the cheapest kernel at hand.

    P = softmax(s W W^T),      O = P W,
    dW = P^T dO + s (dS + dS^T) W,      dS = P o (dP - rowsum(P o dP)),      dP = dO W^T.

Only W and P are kept for the backward pass, which has three products in place of four. With many tokens, or on an accelerator, torch's
fused kernel is better, as it keeps no P; in bfloat16 on a CPU it is slow. A ``torch.overrides.TorchFunctionMode``, such as a probe, sees
calls of :func:`tied_attention` whatever the kernel.
Source: :cite:t:`yu2023white` (one matrix for all three); the gradient is the chain rule.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

LARGEST = {torch.bfloat16: 1024}  # tokens up to which keeping P is faster than the fused kernel, on a CPU
USUALLY = 256

Coordinates = Float[Tensor, "*batch n p"]


def tied_attention(coords: Coordinates, *, scale: float, is_causal: bool = False) -> Coordinates:
    r""":math:`\mathrm{softmax}(s W W^\top) W`, ``[*batch, n, p]``, in the dtype of W; may be differentiated twice.

    Args:
        coords: W, ``[*batch, n, p]``.
        scale: s, of the scores.
        is_causal: a token sees none after it.
    Source: :cite:t:`yu2023white`.
    """
    if has_torch_function_unary(coords):
        return handle_torch_function(tied_attention, (coords,), coords, scale=scale, is_causal=is_causal)
    if coords.device.type != "cpu" or coords.shape[-2] > LARGEST.get(coords.dtype, USUALLY):
        return functional.scaled_dot_product_attention(coords, coords, coords, scale=scale, is_causal=is_causal)
    with torch.autocast("cpu", enabled=False):
        # products of contiguous batches are up to four times as fast
        flat = coords.reshape(-1, *coords.shape[-2:]).contiguous()
        return _TiedAttention.apply(flat, scale, is_causal)[0].view(coords.shape)  # pyright: ignore[reportOptionalSubscript]


def _weights(W: Tensor, scale: float, is_causal: bool) -> Tensor:
    scores = torch.baddbmm(W.new_zeros(()), W, W.mT, beta=0, alpha=scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(W.shape[-2], W.shape[-2], dtype=torch.bool, device=W.device).triu(1), -math.inf)
    return scores.softmax(-1)


class _TiedAttention(torch.autograd.Function):
    """O and P from W [batch, n, p]; the backward pass is the formula of the module's docstring."""

    generate_vmap_rule = True

    @staticmethod
    def forward(W: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        P = _weights(W, scale, is_causal)
        return P @ W, P

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, float, bool], output: tuple[Tensor, Tensor]) -> None:
        W, ctx.scale, ctx.is_causal = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(W, output[1])

    @staticmethod
    def backward(ctx, dO: Tensor, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        W, P = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph P must be a differentiable function of W
            P = _weights(W, ctx.scale, ctx.is_causal)
        dO = dO.contiguous()
        dS = torch.ops.aten._softmax_backward_data(dO @ W.mT, P, -1, P.dtype)
        both = dS.mT.contiguous().add_(dS)
        return torch.baddbmm(P.mT @ dO, both, W, alpha=ctx.scale), None, None
