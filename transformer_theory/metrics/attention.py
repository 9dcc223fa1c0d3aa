r"""Concentration of attention, computed from each row of the attention weights.

A row :math:`a \in R^T` holds the weights of one query over T keys, :math:`a_t \ge 0`, :math:`\sum_t a_t = 1`.

.. math::
    H(a) = -\sum_t a_t \log a_t, \qquad \text{sharpness} = 1 - \frac{H(a)}{\log T}, \qquad \text{effective
    support} = e^{H(a)}.

Entropies are in nats. Weights are ``[*batch, queries, keys]``. A mask ``allowed``, which broadcasts to this
shape, marks the keys that a query may see; T is then the number of allowed keys of the row. Weights that are
not distributions (as in linear attention) raise ValueError. Half precision is computed, and returned, in
float32.

Source: :cite:t:`zhai2023stabilizing` (entropy and its lower bound), :cite:t:`xiao2024efficient` (sinks),
:cite:t:`abnar2020quantifying` (rollout).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.validation import converted, in_range

Weights = Float[Tensor, "*batch queries keys"]
Rows = Float[Tensor, "*batch queries"]
Mask = Bool[Tensor, "..."]


@converted(reals=("weights",))
def entropy(weights: Weights) -> Rows:
    r"""Computes the Shannon entropy of each row, :math:`-\sum_t a_t \log a_t` with :math:`0 \log 0 = 0`.

    Args:
        weights: attention weights whose rows are distributions, ``[*batch, queries, keys]``.
    Returns:
        ``[*batch, queries]``, nats, in [0, log keys].
    Raises:
        ValueError: a row is not a distribution (negative, not finite, or its sum is not one).
    """
    weights = _distributions(weights)
    # The smallest normal number stands for zero under the logarithm; twice as fast as torch.special.entr.
    return -(weights.clamp(min=torch.finfo(weights.dtype).tiny).log() * weights).sum(-1)


@converted(reals=("weights", "entropies"), masks=("allowed",))
def sharpness(weights: Weights, *, allowed: Mask | None = None, entropies: Rows | None = None) -> Rows:
    r"""Computes :math:`1 - H(a) / \log T`: 0 for uniform attention, 1 for all weight on one key. T counts the
    allowed keys of the row.

    A row with a single allowed key has sharpness 0.

    >>> from transformer_theory import metrics
    >>> uniform, sharp = [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]  # two queries, four keys
    >>> metrics.sharpness(torch.tensor([uniform, sharp]))
    tensor([0., 1.])

    Args:
        weights: attention weights whose rows are distributions, ``[*batch, queries, keys]``.
        allowed: mask of the keys that a query may see, broadcastable to the weights. None: all keys.
        entropies: :func:`entropy` of the weights, if it is known.
    Returns:
        ``[*batch, queries]``, in [0, 1], no unit.
    Raises:
        ValueError: a row is not a distribution, or has weight on a key that is not allowed, or an entropy is
            impossible for the largest weight of its row.
    """
    H = entropy(weights) if entropies is None else entropies
    keys = _allowed_keys(weights, allowed)
    if entropies is not None:
        _check_entropies(weights, H, keys)
    return torch.where(keys > 1, 1 - H / keys.clamp(min=2).log(), 0.0).clamp(0, 1)


@converted(reals=("weights",))
def top1_mass(weights: Weights) -> Rows:
    r"""Returns the largest weight of each row, :math:`\max_t a_t`.

    Args:
        weights: attention weights whose rows are distributions, ``[*batch, queries, keys]``.
    Returns:
        ``[*batch, queries]``, in [1 / keys, 1], no unit.
    Raises:
        ValueError: a row is not a distribution.
    """
    return _distributions(weights).amax(-1)


@converted(reals=("weights",))
def effective_support(weights: Weights) -> Rows:
    r"""Computes :math:`e^{H(a)}`, the number of keys over which a uniform distribution would have the same
    entropy.

    >>> from transformer_theory import metrics
    >>> print(f"{float(metrics.effective_support(torch.tensor([[0.5, 0.5, 0.0]]))):.2f} keys")
    2.00 keys

    Args:
        weights: attention weights whose rows are distributions, ``[*batch, queries, keys]``.
    Returns:
        ``[*batch, queries]``, a number of keys, in [1, keys].
    Raises:
        ValueError: a row is not a distribution.
    """
    return entropy(weights).exp()


@converted(floats=("scores",), masks=("allowed",))
def hard_max_gap(scores: Weights, *, allowed: Mask | None = None) -> Rows:
    r"""Computes the gap of each row of scores, largest minus second largest: :math:`g = s_{(1)} - s_{(2)} \ge
    0`.

    The gap bounds the difference between softmax and hard-max: all keys except the best have total weight at
    most :math:`(T - 1) e^{-g}`. To compute the gap from attention weights, pass ``weights.log()``. The gap of
    a row with a single allowed key is infinite.

    Args:
        scores: attention scores before the softmax, ``[*batch, queries, keys]``; -inf marks a key that is not
            allowed.
        allowed: mask of the keys that a query may see, broadcastable to the scores. None: all keys.
    Returns:
        ``[*batch, queries]``, in units of the scores (nats for softmax); 0 for a tie. Half precision becomes
        float32.
    Raises:
        ValueError: there is no key, a score is NaN or +inf, or a row has no allowed key.
    """
    if not scores.ndim or not scores.shape[-1]:
        raise ValueError(f"scores must hold at least one key, got the shape {list(scores.shape)}")
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    # topk needs two scores per row; the additional score -inf gives a row with a single allowed key an
    # infinite gap.
    scores = torch.nn.functional.pad(scores, (0, 1), value=-math.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(-1)
    # topk ranks NaN first, so the first score reveals NaN, +inf and rows without an allowed key.
    if not bool(torch.isfinite(first).all()):
        raise ValueError(
            "scores must be below infinity, with an allowed key in each row; got a row with NaN, +inf or no "
            "allowed key"
        )
    return first - second


@in_range
@converted(reals=("weights",))
def sink_mass(weights: Weights, *, position: int | None = None) -> Float[Tensor, "*batch"]:
    r"""Computes the mean weight on one key: ``position``, or the key with the largest mean, :math:`\max_t
    \frac1Q \sum_q a_{qt}`.

    The maximum over keys is always at least 1 / keys. To find a sink that several sequences share, average
    their maps first.

    Args:
        weights: attention weights whose rows are distributions, ``[*batch, queries, keys]``.
        position: index of the sink, e.g. 0 for the first token; negative indices count from the end. None:
            the key with the largest mean weight.
    Returns:
        ``[*batch]``, in [0, 1], no unit; 1 / keys for uniform attention.
    Raises:
        ValueError: there is no query, a row is not a distribution, or the position is outside the keys.
    """
    mean = _distributions(weights).mean(-2)
    if position is None:
        return mean.amax(-1)
    keys = weights.shape[-1]
    if not -keys <= position < keys:
        raise ValueError(f"position must lie in [-{keys}, {keys}), got {position}; choose a key that exists")
    return mean[..., position]


@converted(reals=("weights",))
def diagonal_mass(weights: Weights) -> Float[Tensor, "*batch"]:
    r"""Computes the mean weight of a token on itself, :math:`\frac1T \sum_q a_{qq}`.

    Args:
        weights: self-attention weights whose rows are distributions, ``[*batch, tokens, tokens]``.
    Returns:
        ``[*batch]``, in [0, 1], no unit; for uniform causal attention over T tokens :math:`\frac1T \sum_{i
        \le T} \frac1i`.
    Raises:
        ValueError: a row is not a distribution, or the numbers of queries and keys differ.
    """
    weights = _distributions(weights)
    if weights.shape[-1] != weights.shape[-2]:
        raise ValueError(
            f"the diagonal needs as many queries as keys, got {list(weights.shape[-2:])}; pass self-attention"
        )
    return weights.diagonal(dim1=-2, dim2=-1).mean(-1)


@converted(floats=("spread",))
def entropy_lower_bound(spread: Float[Tensor, "*batch"], *, keys: int) -> Float[Tensor, "*batch"]:
    r"""Computes the smallest entropy that softmax attention can have if its scores have a given spread.

    For T scores whose centred vector has Euclidean norm at most s,

    .. math:: H \ge \log(1 + (T-1) b) + \frac{s \sqrt{T (T-1)}\, b}{1 + (T-1) b}, \qquad b = e^{-s \sqrt{T /
        (T-1)}},

    with equality if one score stands above all others, which are equal. Entropy can therefore collapse only
    as fast as scores grow.

    Args:
        spread: s, the norm of ``scores - scores.mean(-1)``, >= 0, ``[*batch]``.
        keys: T, number of keys, >= 1.
    Returns:
        ``[*batch]``, nats, in [0, log keys].
    Raises:
        ValueError: keys < 1, or a spread is negative or NaN.
    """
    if keys < 1:
        raise ValueError(f"keys must be at least 1, got {keys}")
    if not bool((spread >= 0).all()):
        raise ValueError("spread must be >= 0 (a Euclidean norm), got a negative or NaN one")
    if keys == 1:
        return torch.zeros_like(spread)
    gap = spread * math.sqrt(keys / (keys - 1))
    rest = (keys - 1) * torch.exp(-gap)
    # With (T - 1) b = rest the second term is gap * rest / (1 + rest). For an infinite spread rest is 0, and
    # inf * 0 must not become NaN.
    return torch.log1p(rest) + torch.where(rest > 0, gap, 0.0) * rest / (1 + rest)


@converted(reals=("maps",))
def rollout(maps: Float[Tensor, "layers heads tokens tokens"]) -> Float[Tensor, "tokens tokens"]:
    r"""Computes the share of each input token in each token of the last layer, if attention and residual
    stream contribute equally.

    .. math:: R = A_L A_{L-1} \cdots A_1, \qquad A_l = \tfrac12 (\bar W_l + I),

    where :math:`\bar W_l` is the mean over the heads of layer l. The approximation ignores values and MLPs.

    Args:
        maps: attention weights of one sequence, layer by layer, whose rows are distributions, ``[layers,
            heads, tokens, tokens]``.
    Returns:
        ``[tokens, tokens]``, whose rows are distributions over the input tokens.
    Raises:
        ValueError: there is no layer, a row is not a distribution, or the numbers of queries and keys differ.
    """
    if maps.ndim != 4 or maps.shape[-1] != maps.shape[-2] or not maps.shape[0] * maps.shape[1]:
        raise ValueError(
            "maps must have shape [layers, heads, tokens, tokens] with a layer and a head, got "
            f"{list(maps.shape)}"
        )
    maps = _distributions(maps)
    total = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
    for mean in maps.mean(1):
        total = 0.5 * (mean @ total + total)
    return total


def row_deviation(
    scores: Float[Tensor, "*batch keys"], allowed: Float[Tensor, "*#batch keys"] | None = None
) -> Float[Tensor, "*batch"]:
    """Computes the standard deviation of each row of scores over its allowed keys (1 where allowed, else 0),
    ``[*batch]``.
    """
    if allowed is None:
        return (scores - scores.mean(-1, keepdim=True)).square().mean(-1).sqrt()  # faster than torch.std
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    centred = (scores - (scores * allowed).sum(-1, keepdim=True) / count) * allowed
    return (centred.square().sum(-1) / count.squeeze(-1)).sqrt()


def _distributions(weights: Tensor) -> Tensor:
    """Returns the weights, at least in float32; zero for negative rounding errors.

    Raises:
        ValueError: a row is not a distribution, up to a tolerance that depends on the dtype.
    """
    if weights.ndim < 2 or not weights.shape[-1]:
        raise ValueError(
            "weights must have shape [*batch, queries, keys] with at least one key, got "
            f"{list(weights.shape)}"
        )
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(weights.dtype, 1e-5)
    rows = weights.detach()
    errors = (rows.sum(-1) - 1).abs()
    smallest = float(rows.amin()) if rows.numel() else 0.0
    if bool((errors <= tolerance).all()) and smallest >= -tolerance:
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        return weights if smallest >= 0 else weights.clamp(min=0)
    worst = float(errors.max())
    raise ValueError(
        "weights must be distributions over the keys (>= 0, rows summing to 1), got a row sum off by "
        f"{worst:.2g} and a smallest weight of {smallest:.2g}; linear or masked-out attention has no "
        "entropy"
    )


def _check_entropies(weights: Tensor, entropies: Tensor, keys: Tensor) -> None:
    """Raises ValueError unless entropies are possible for rows with these largest weights m among T keys: H
    lies between -log m and the entropy of m and T - 1 equal weights.
    """
    if entropies.shape != weights.shape[:-1]:
        raise ValueError(
            f"entropies must have the shape of the rows of weights, {list(weights.shape[:-1])}, got "
            f"{list(entropies.shape)}"
        )
    most = weights.amax(-1).to(keys.dtype).clamp(0, 1)
    rest = 1 - most
    largest = torch.special.entr(most) + torch.special.entr(rest) + rest * (keys - 1).clamp(min=1).log()
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(
        min(weights.dtype, entropies.dtype, key=lambda dtype: -torch.finfo(dtype).eps), 1e-3
    )
    if not bool(((entropies >= -most.log() - tolerance) & (entropies <= largest + tolerance)).all()):
        raise ValueError(
            "entropies must be those of the weights, got one that no row with this largest weight has; pass "
            "metrics.entropy(weights)"
        )


def _allowed_keys(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Returns the number of allowed keys per row, in the dtype of the weights, at least float32."""
    dtype = torch.promote_types(weights.dtype, torch.float32)
    if allowed is None:
        return weights.new_full(weights.shape[:-1], weights.shape[-1], dtype=dtype)
    if weights.numel() and float(weights.masked_fill(allowed, 0.0).amax()) > 0:
        raise ValueError(
            "weights must be zero on keys that are not allowed, got weight on one; pass the mask of that "
            "attention"
        )
    # The keys are counted before the mask is expanded to all sequences and heads.
    keys = allowed.expand(*allowed.shape[:-1], weights.shape[-1]).sum(-1)
    return keys.to(dtype).expand(weights.shape[:-1])
