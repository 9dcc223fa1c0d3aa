r"""Dispersion: how small the weights of softmax attention must become over n keys, and how much one key can
hold or change.

Let :math:`s_1, \dots, s_n` be the scores of a query, :math:`a = \mathrm{softmax}(s)`, and :math:`\delta =
\max_j s_j - \min_j s_j`.

* **Dispersion.** :math:`e^{-\delta}/n \le a_j \le e^{\delta}/n`, so bounded scores disperse. In a trained
  head :math:`\delta` is about 100, and the bound says nothing at any length that can be run.
* **Gap.** With :math:`g = s_{\max} - \log \mathrm{mean}_{j \ne \max} e^{s_j}` the largest weight is exactly
  :math:`a_{\max} = 1 / (1 + (n - 1) e^{-g})`. So the ratio :math:`\gamma = g / \log(n - 1)` has the critical
  value 1, at which the winner holds one half.
* **Further keys.** If a query sees further keys as well, each weight is multiplied by the *share* :math:`R`
  of the first ones, :math:`R = Z_1 / (Z_1 + Z_2 + \dots)` with the sums Z of the exponentials of each set. If
  the m sets are exchangeable, :math:`E R = 1/m` exactly, whatever the law of the scores.
* **One token.** If one key and its value change, the output changes by at most :math:`2 a' \max_j \|v_j\|`
  with the larger a' of the two weights of this key, before and after; hence by :math:`O(e^{\delta}/n)`.
* **Sinks.** If each query has weight m on one key with value v, and A' is the attention to the others, the
  output is :math:`(1 - m) A' V + m 1 v^\top`. A sink shared by all queries therefore contracts the
  differences between tokens by 1 - m.

Sources: :cite:t:`velickovic2025softmax` (dispersion), :cite:t:`hahn2020theoretical` (one token),
:cite:t:`xiao2024efficient` (sinks). The gap, the share and the constant 2 are our own derivations.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import SHARES_ATOL, converted, finite, in_range, integers, number
from ...maths.linalg import vector_norm

SMALL_GAP, LARGE_SCORE = 0.5, 16.0  # nats
Scores = Float[Tensor, "*batch n"]
Rows = Float[Tensor, "*batch"]


@converted(floats=("scores",))
def log_dispersion_bound(scores: Scores) -> Rows:
    r"""Returns :math:`\delta - \log n`, the logarithm of the bound on all weights, ``[*batch]``; above 0 the
    bound is vacuous.

    Args:
        scores: scores of a query, ``[*batch, n]``; -inf for a key without weight.
    Raises:
        ValueError: there is no key, a score is NaN or +inf, or all scores of a row are -inf.
    """
    check_scores(scores, keys=1, weight=True)
    return scores.amax(-1) - scores.amin(-1) - math.log(scores.shape[-1])


@converted(floats=("scores",), masks=("allowed",))
def score_gap(scores: Scores, *, allowed: Bool[Tensor, "..."] | None = None) -> Rows:
    r"""Computes the gap :math:`g = s_{\max} - \log \mathrm{mean}_{j \ne \max} e^{s_j}` of each row, nats,
    ``[*batch]``.

    Logarithms of attention weights can be passed as scores, as g does not change if a constant is added to a
    row.

    Args:
        scores: scores of a query, ``[*batch, n]``; -inf for a key that is not allowed or has no weight.
        allowed: mask of the keys that a query may see, broadcastable to the scores. None: all keys.
    Returns:
        The gaps; infinite if no other key has weight, NaN if fewer than two keys are allowed or
            no key has weight. Half precision becomes float32.
    Raises:
        ValueError: there are fewer than two keys, a score is NaN or +inf, or the mask does not fit.
    """
    check_scores(scores, keys=2)
    keys, count = None, torch.full_like(scores[..., 0], scores.shape[-1])
    if allowed is not None:
        if allowed.ndim > scores.ndim or any(
            a not in (1, s) for a, s in zip(allowed.shape[::-1], scores.shape[::-1])
        ):
            raise ValueError(
                f"allowed must be broadcastable to the scores {list(scores.shape)}, got {list(allowed.shape)}"
            )
        scores, keys = scores.masked_fill(~allowed, -math.inf), allowed.expand(scores.shape)
        count = keys.sum(-1).to(scores)
    best = scores.argmax(-1, keepdim=True)
    # differences, since large scores have no digits left for a logarithm
    scores = scores - scores.gather(-1, best)
    # The others are summed without the largest score: 1 - a_max would lose all digits in a sharp head.
    others = scores.scatter(-1, best, -math.inf).logsumexp(-1)
    rivals = (count - 1).clamp(min=1)
    gap = rivals.log() - others
    if bool((gap < SMALL_GAP).any()):
        # A small gap is the difference of two logarithms of about the same size. Then the mean of
        # e^(s_j - s_max) - 1 has all digits; the largest score adds zero to it.
        change = torch.expm1(scores)
        change = change if keys is None else change.masked_fill(~keys, 0)
        gap = torch.where(gap < SMALL_GAP, -torch.log1p(change.sum(-1) / rivals), gap)
    return torch.where(count >= 2, gap, math.nan)


@in_range
@converted(floats=("gap",))
def winner_weight(gap: Float[Tensor, "*batch"], n: float) -> Rows:
    r"""Returns :math:`1 / (1 + (n - 1) e^{-g})`, the weight of a key with gap g among n keys, ``[*batch]``.

    With the gap of a shorter sequence this is the prediction for n keys if the winner stays the only one of
    its kind.

    Raises:
        ValueError: n is below 1 or not finite, or a gap is NaN.
    """
    if not 1 <= number("n", n) < math.inf:
        raise ValueError(f"n must be at least 1 and finite, got {n}")
    return torch.sigmoid(gap - math.log(max(n - 1, 1e-300)))


@converted(floats=("first", "others"))
def kept_share(first: Float[Tensor, "*batch n"], others: Float[Tensor, "*batch m"]) -> Rows:
    r"""Computes the share :math:`R = Z_1 / (Z_1 + Z_2)` of the first keys in the sum of exponentials,
    ``[*batch]``.

    A query that sees the other keys as well multiplies the weight of each of the first keys by R.

    Args:
        first, others: scores of one query for the first and for further keys, ``[*batch, n]`` and ``[*batch,
            m]``.

    Raises:
        ValueError: a set has no key, a score is NaN or +inf, the batches differ, or all scores of both sets
            are -inf.
    """
    check_scores(first, keys=1)
    check_scores(others, keys=1)
    if first.shape[:-1] != others.shape[:-1]:
        raise ValueError(
            f"first and others must share their batch, got {list(first.shape)} and {list(others.shape)}"
        )
    largest = torch.stack([first.amax(-1), others.amax(-1)], -1)
    check_scores(largest, keys=1, weight=True)
    largest = largest.amax(-1, keepdim=True)
    if bool((largest.abs() > LARGE_SCORE).any()):
        # differences, since large scores have no digits left for a logarithm
        first, others = first - largest, others - largest
    return torch.sigmoid(first.logsumexp(-1) - others.logsumexp(-1))


@in_range
@converted(float64=("scores", "values", "new_score", "new_value"))
def one_token_change(
    scores: Float[Tensor, "*batch n"],
    values: Float[Tensor, "*batch n d"],
    new_score: Float[Tensor, "*batch"],
    new_value: Float[Tensor, "*batch d"],
    *,
    key: int = 0,
) -> tuple[Rows, Rows]:
    """Computes the change of the output when one key and its value change, and its bound, both ``[*batch]``.

    Args:
        scores, values: scores of the query and values, ``[*batch, n]`` and ``[*batch, n, d]``.
        new_score, new_value: score and value of the changed key, ``[*batch]`` and ``[*batch, d]``.
        key: index of the key.
    Returns:
        The norm of the change, and twice the larger of the two weights times the largest norm of a value.

    Raises:
        ValueError: shapes do not fit, a score is NaN or +inf, all scores before or after the change are
            -inf, a value is not finite, or there is no such key.
    """
    check_scores(scores, keys=1)
    check_scores(new_score[..., None], keys=1)
    n, d = scores.shape[-1], values.shape[-1] if values.ndim else 0
    if (
        values.shape != (*scores.shape, d)
        or new_score.shape != scores.shape[:-1]
        or new_value.shape != (*scores.shape[:-1], d)
    ):
        shapes = ", ".join(str(list(x.shape)) for x in (scores, values, new_score, new_value))
        raise ValueError(
            f"shapes must be [*batch, n], [*batch, n, d], [*batch] and [*batch, d], got {shapes}"
        )
    check_key("key", key, n)
    after_scores, after_values = scores.clone(), values.clone()
    after_scores[..., key], after_values[..., key, :] = new_score, new_value
    finite(values=values, new_value=new_value)
    for each in (scores, after_scores):
        check_scores(each, keys=1, weight=True)
    before, after = scores.softmax(-1), after_scores.softmax(-1)
    change = ((after[..., None, :] @ after_values) - (before[..., None, :] @ values))[..., 0, :]
    largest = torch.cat([vector_norm(values, -1), vector_norm(new_value, -1)[..., None]], -1).amax(-1)
    return vector_norm(change, -1), 2 * torch.maximum(before[..., key], after[..., key]) * largest


@in_range
@converted(float64=("weights", "values"))
def without_sink(
    weights: Float[Tensor, "*batch q n"], values: Float[Tensor, "*batch n d"], *, sink: int = 0
) -> tuple[Float[Tensor, "*batch q"], Float[Tensor, "*batch q d"]]:
    """Splits attention at a sink: its mass m for each query, ``[*batch, q]``, and the output A' V of the
    other keys, ``[*batch, q, d]``.

    The output of the head is (1 - m) A' V + m v with the value v of the sink.

    Args:
        weights, values: attention weights and values, ``[*batch, q, n]`` and ``[*batch, n, d]``.
        sink: index of the sink.
    Raises:
        ValueError: a query has all its weight on the sink, rows of weights do not sum to 1, a value is not
            finite, shapes do not fit, or there is no such key.
    """
    if weights.ndim < 2 or values.ndim < 2 or weights.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"weights and values must be [*batch, q, n] and [*batch, n, d], got {list(weights.shape)} and "
            f"{list(values.shape)}"
        )
    check_key("sink", sink, weights.shape[-1])
    if not bool(((weights.sum(-1) - 1).abs() <= SHARES_ATOL).all()):
        raise ValueError("rows of weights must sum to 1, got a row that does not; pass scores.softmax(-1)")
    mass = weights[..., sink]
    if bool((mass >= 1).any()):
        raise ValueError(
            "each query must have weight on other keys, got a query with all of it on the sink; A' is not "
            "defined there"
        )
    rest = weights.clone()
    rest[..., sink] = 0.0
    return mass, (rest / (1 - mass)[..., None]) @ values


def check_key(name: str, key: int, keys: int) -> None:
    """Checks that ``key`` is an index of one of ``keys`` keys.

    Raises:
        ValueError: it is not.
    """
    integers(minimum=-keys, **{name: key})
    if key >= keys:
        raise ValueError(f"{name} must be an index of one of {keys} keys, got {key}")


def check_scores(scores: Float[Tensor, "..."], *, keys: int, weight: bool = False) -> None:
    """Checks that scores have at least ``keys`` keys and neither NaN nor +inf; with ``weight`` also that each
    row has a key with weight.

    Raises:
        ValueError: they have fewer keys, such a score, or a row of -inf.
    """
    if scores.ndim < 1 or scores.shape[-1] < keys:
        raise ValueError(f"scores must be [*batch, n] with at least {keys} keys, got {list(scores.shape)}")
    if bool(scores.isnan().any()) or bool((scores == math.inf).any()):
        raise ValueError("scores must be below infinity and not NaN; got such a score")
    if weight and bool((scores.amax(-1) == -math.inf).any()):
        raise ValueError(
            "scores must give weight to a key in each row, got a row of -inf, which has no softmax; leave it "
            "out"
        )
