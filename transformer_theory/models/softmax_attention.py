r"""Softmax attention of networks, by the cheaper of torch's fused kernel and plain products.

    O = softmax(s Q K^T) V

On a CPU the fused kernel has no fast path in bfloat16: plain products take half its time or less, and round scores and weights to
bfloat16, which it does not. Elsewhere it is the better one, and it is taken. A ``torch.overrides.TorchFunctionMode``, such as a probe,
sees calls of :func:`softmax_attention` whatever the kernel. With one matrix for queries, keys and values see :mod:`.tied_attention`.
Source: :cite:t:`vaswani2017attention`.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

LONGEST = 1024  # tokens up to which plain products are used in bfloat16; they keep the weights for the backward pass


def softmax_attention(
    query: Float[Tensor, "*batch q p"], key: Float[Tensor, "*batch k p"], value: Float[Tensor, "*batch k v"], *, scale: float
) -> Float[Tensor, "*batch q v"]:
    r""":math:`\mathrm{softmax}(s Q K^\top) V`, ``[*batch, q, v]``, in the dtype of the values. Every query sees every key.

    Args:
        query, key, value: ``[*batch, q, p]``, ``[*batch, k, p]`` and ``[*batch, k, v]``, of one dtype.
        scale: s, of the scores.
    Source: :cite:t:`vaswani2017attention`.
    """
    if has_torch_function((query, key, value)):
        return handle_torch_function(softmax_attention, (query, key, value), query, key, value, scale=scale)
    if query.device.type == "cpu" and query.dtype == torch.bfloat16 and max(query.shape[-2], key.shape[-2]) <= LONGEST:
        with torch.autocast("cpu", enabled=False):  # it would compute the softmax in float32
            return (query @ key.mT).mul(scale).softmax(-1) @ value
    return functional.scaled_dot_product_attention(query, key, value, scale=scale)
