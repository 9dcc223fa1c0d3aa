r"""The bilinear form of attention, :math:`s(x, z) = x^\top W z` for key token x and query token z, from the projections of its module.

A module may say it itself, ``bilinear()``. Otherwise W is made from the projections that go by a well-known name, and kept only if it
gives the observed scores: :math:`QK^\top` and :math:`X W X^\top`, both centred over queries and keys (biases of the projections drop out
there), must agree but for one factor. With rotary or relative positions, normalised queries, or attention to other tokens they do not,
and there is none.
Source: :cite:t:`vaswani2017attention`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("to_q", "to_k"), ("wq", "wk"), ("q", "k"))  # transformers, diffusers, llama
STACKED = ("qkv", "to_qkv", "c_attn", "in_proj")  # queries, keys and values in one matrix: timm, lucidrains, GPT-2
SEQUENCES = 3  # on which W is held against the scores
CLOSE = 1e-3  # relative error accepted, for networks in float32; in shorter types 3e-2


def told(module: nn.Module) -> Float[Tensor, "heads dim dim"] | None:
    """W of a module that offers ``bilinear()``, or of a ``torch.nn.MultiheadAttention`` with keys and queries of one width
    (without their biases, which add a term linear in x); None of any other."""
    own = getattr(module, "bilinear", None)
    if callable(own):
        found = own()
        return found.detach() if isinstance(found, Tensor) and found.ndim == 3 else None
    if not isinstance(module, nn.MultiheadAttention):
        return None
    stacked = module.in_proj_weight
    query, key = (module.q_proj_weight, module.k_proj_weight) if stacked is None else stacked.detach().chunk(3)[:2]
    return _form(query, key, module.num_heads, module.head_dim**-0.5) if query.shape == key.shape else None


def guessed(
    module: nn.Module,
    tokens: Float[Tensor, "n seq dim"] | None,
    query: Float[Tensor, "batch heads q head_dim"],
    key: Float[Tensor, "batch heads k head_dim"],
    scale: float | None,
) -> Float[Tensor, "heads dim dim"] | None:
    """W from projections with well-known names, if it gives the observed scores ``scale * query key^T``; None otherwise.

    Args:
        tokens: what the module read; None if it read no stream of vectors.
        scale: of the scores; None if it is not one number.
    """
    if tokens is None or scale is None or not query.shape[0] == key.shape[0] == len(tokens):
        return None
    if not query.shape[2] == key.shape[2] == tokens.shape[1]:
        return None
    pair = _projections(module, tokens.shape[-1])
    if pair is None or len(pair[0]) != query.shape[1] * query.shape[3] or len(pair[0]) % len(pair[1]):
        return None
    W = _form(*pair, query.shape[1], 1.0)
    factor = _factor(W, tokens, query, key)
    return None if factor is None else factor * scale * W


def _projections(module: nn.Module, dim: int) -> tuple[Tensor, Tensor] | None:
    """Weights of queries and keys, ``[heads * head_dim, dim]``."""
    for names in PAIRS:
        query, key = (_weight(getattr(module, name, None), dim) for name in names)
        if query is not None and key is not None:
            return query, key
    for name in STACKED:
        stacked = _weight(getattr(module, name, None), dim)
        if stacked is not None and not len(stacked) % 3:
            query, key, _ = stacked.chunk(3)
            return query, key
    return None


def _weight(layer: object, dim: int) -> Tensor | None:
    """The matrix of a linear layer as ``[out, dim]``; that of transformers' ``Conv1D`` lies the other way round."""
    weight: Callable | Tensor | None = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    weight = weight.detach() if isinstance(layer, nn.Linear) else weight.detach().mT
    return weight if weight.shape[1] == dim else None


def _form(query: Tensor, key: Tensor, heads: int, scale: float) -> Tensor:
    """W_K W_Q^T of each head, times the scale; groups of heads that share keys are repeated."""
    query, key = query.detach().unflatten(0, (heads, -1)), key.detach().unflatten(0, (-1, len(query) // heads))
    return key.repeat_interleave(heads // len(key), 0).mT @ query * scale


def _factor(W: Tensor, tokens: Tensor, query: Tensor, key: Tensor) -> float | None:
    """From x^T W z to query key^T on the first few finite sequences (queries may come scaled); None if they differ by more than that."""
    some = (torch.isfinite(tokens).flatten(1).all(1) & torch.isfinite(query).flatten(1).all(1)).nonzero()[:SEQUENCES, 0]
    x = tokens[some, None].double()
    observed, form = _centred(query[some].double() @ key[some].double().mT), _centred((x @ W.double().mT) @ x.mT)
    size = float(form.square().sum())
    factor = float((observed * form).sum()) / size if size > 0 else 0.0
    close = CLOSE if query.dtype in (torch.float32, torch.float64) else 30 * CLOSE
    return factor if factor > 0 and float((factor * form - observed).norm()) <= close * float(observed.norm()) else None


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True) - scores.mean(-2, keepdim=True) + scores.mean((-1, -2), keepdim=True)
