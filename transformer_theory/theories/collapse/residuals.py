r"""Pure attention shrinks the differences between tokens: the bound of the source, and the exact law for
small differences.

A layer without skip connection maps tokens X [n, d] to :math:`Y = \sum_h A_h X V_h` with :math:`A_h =
\mathrm{softmax}(X W_h X^\top)` by rows. The residual :math:`R = \mathrm{res}(X) = X - 1 \bar x^\top` holds
the differences between tokens, :math:`\bar x` the mean token.

* **Bound** (:cite:t:`dong2021attention`). With :math:`|M|_{1,\infty} = \sqrt{|M|_1 |M|_\infty}` (largest
  column sum times largest row sum of absolute values) and :math:`|W|_1 |V|_{1,\infty} \le \beta` for each of
  H heads, L layers have :math:`|\mathrm{res}(X_L)|_{1,\infty} \le (4 \beta H)^{(3^L - 1)/2}
  |\mathrm{res}(X_0)|_{1,\infty}^{3^L}`. The scale :math:`1/\sqrt{d_{qk}}` of the scores is part of W here.
  The source minimises the norm of the residual over its base point; we take the mean token on both sides.
* **Cubic law** (own derivation). As :math:`R \to 0`, with one head,
  :math:`\mathrm{res}(Y) = R W C_a V \, (1 + O(|R|^2))`, where :math:`a = \mathrm{softmax}(X W^\top \bar x)`
  are the weights of the mean token and :math:`C_a` is the covariance of the tokens under a. The residual
  enters once on the left and twice through :math:`C_a`, hence :math:`3^L`.
* **Gradients** (own derivation; :cite:t:`noci2022signal` state that queries and keys get no gradient under
  collapse). With a fixed gradient G of the loss by Y, :math:`\partial L / \partial W = X^\top D X`,
  :math:`D_{ij} = A_{ij} (P_{ij} - \sum_l A_{il} P_{il})`, :math:`P = G V^\top X^\top`. The rows of D sum to 0
  and P varies within a row by :math:`O(|R|)`, so this gradient is :math:`O(|R|^2)`. :math:`\partial L /
  \partial V = (A X)^\top G` does not vanish.
"""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import converted, in_range
from ...maths.linalg import binary_scale
from ...models.attention import Combined, softmax, token_scores

ROUNDING = 1e-13  # residuals below this share of the tokens are rounding errors of float64
NEARLY_EQUAL = 1e-2  # residual, relative to the tokens, next to which the error of their mean is visible
Tokens = Float[Tensor, "*batch n d"]


@in_range
@converted(floats=("tokens",))
def residual(tokens: Tokens) -> Tokens:
    r"""Computes :math:`X - 1 \bar x^\top`, ``[*batch, n, d]``.

    Raises:
        ValueError: a token is not finite, or a sum of tokens leaves the range of floating point.
    """
    return centred(centred(tokens))  # twice, since the mean of large tokens has a rounding error


def centred(tokens: Tokens) -> Tokens:
    """Computes :func:`residual` without checks."""
    return tokens - tokens.mean(-2, keepdim=True)


@in_range
@converted(floats=("M",))
def composite_norm(M: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`\sqrt{|M|_1 |M|_\infty}`, the root of the largest column sum times the largest row
    sum, ``[*batch]``.

    Raises:
        ValueError: M is empty or not finite.
    """
    scale = binary_scale(M, (-2, -1))
    size = M.abs() / scale  # the product of the two sums is then in range
    return scale[..., 0, 0] * (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()


def weights(tokens: Tokens, W: Float[Tensor, "*heads d d"]) -> Float[Tensor, "..."]:
    r"""Computes :math:`A = \mathrm{softmax}(X W X^\top)` by rows: query i, row i of X, is on the left.
    ``[*batch, (heads,) n, n]``.
    """
    return softmax(token_scores(tokens, Combined(W.mT)))


@in_range
@converted(floats=("tokens", "W", "V"))
def pure_attention(
    tokens: Tokens, W: Float[Tensor, "heads d d"], V: Float[Tensor, "heads d e"]
) -> Float[Tensor, "*batch n e"]:
    r"""Computes :math:`\sum_h A_h X V_h`, one layer without skip connection, ``[*batch, n, e]``.

    Raises:
        ValueError: a number is not finite, or a score leaves the range of floating point.
    """
    return (weights(tokens, W) @ tokens.unsqueeze(-3) @ V).sum(-3)


@in_range
@converted(float64=("tokens", "W", "V"))
def log_bound(
    tokens: Float[Tensor, "n d"], W: Float[Tensor, "layers heads d d"], V: Float[Tensor, "layers heads d d"]
) -> float:
    r"""Computes the logarithm of the bound on :math:`|\mathrm{res}(X_L)|_{1,\infty}` for L layers of H heads.

    The logarithm, since the bound leaves the range of float64 after a few layers.

    Raises:
        ValueError: the matrices do not belong to the same layers and heads, are zero, or are not finite.
    """
    if W.ndim != 4 or V.shape[:2] != W.shape[:2] or W.shape[-1] != tokens.shape[-1]:
        raise ValueError(
            f"W and V must be [layers, heads, d, d] with d = {tokens.shape[-1]}, got {list(W.shape)} and "
            f"{list(V.shape)}"
        )
    L, H = W.shape[:2]
    # The product of two norms may leave the range of float64, its logarithm does not.
    log_beta = float((W.abs().sum(-2).amax(-1).log() + composite_norm(V).log()).max())
    size = float(composite_norm(residual(tokens)))
    if not (log_beta > -math.inf and size > 0):
        raise ValueError(
            f"the bound needs tokens that differ and weights that are not zero, got norms {size:g} and "
            f"{math.exp(min(log_beta, 700.0)):g}"
        )
    return (3**L - 1) / 2 * (math.log(4 * H) + log_beta) + 3**L * math.log(size)


@in_range
@converted(float64=("before", "after", "W", "V"))
def bound_ratio(
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n e"],
    W: Float[Tensor, "layers heads d d"],
    V: Float[Tensor, "layers heads d d"],
) -> float:
    r"""Computes :math:`|\mathrm{res}(X_L)|_{1,\infty}` divided by its bound; the source states that it is at
    most 1.

    Args:
        before, after: :math:`X_0` and :math:`X_L`.
        W, V: the matrices of the layers between them.
    Raises:
        ValueError: as in :func:`log_bound`, or a number is not finite, or the ratio exceeds the largest one.
    """
    # Equal tokens have a residual of rounding errors, which the bound, a power of 3^L, can undercut: it is
    # not counted.
    size = float(composite_norm(residual(after)) - ROUNDING * composite_norm(after))
    if size <= 0:
        return 0.0
    return math.exp(math.log(size) - log_bound(before, W, V))


def mean_weights(tokens: Tokens, W: Float[Tensor, "d d"]) -> Float[Tensor, "*batch n"]:
    r"""Computes :math:`a = \mathrm{softmax}_j(\bar x^\top W x_j)`, the weights of the mean token, ``[*batch,
    n]``.
    """
    mean = tokens.mean(-2, keepdim=True)
    return softmax(token_scores(tokens, Combined(W.mT), query_tokens=mean)).squeeze(-2)


def weighted_covariance(tokens: Tokens, a: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch d d"]:
    r"""Computes :math:`C_a = \sum_j a_j (x_j - x_a)(x_j - x_a)^\top` with :math:`x_a = \sum_j a_j x_j`,
    ``[*batch, d, d]``.
    """
    differences = tokens - a.unsqueeze(-2) @ tokens
    return (differences * a.unsqueeze(-1)).mT @ differences


@in_range
@converted(floats=("tokens", "W", "V"))
def cubic_law(
    tokens: Tokens, W: Float[Tensor, "d d"], V: Float[Tensor, "d e"]
) -> Float[Tensor, "*batch n e"]:
    r"""Computes :math:`\mathrm{res}(X) W C_a V`, the residual after one head up to a relative error
    :math:`O(|\mathrm{res}(X)|^2)`.

    Raises:
        ValueError: a number is not finite, or becomes so.
    """
    return residual(tokens) @ W @ weighted_covariance(tokens, mean_weights(tokens, W)) @ V


def exact_differences(
    mean: Float[Tensor, "1 d"],
    differences: Float[Tensor, "n d"],
    W: Float[Tensor, "d d"],
    V: Float[Tensor, "d e"],
) -> tuple[Float[Tensor, "1 e"], Float[Tensor, "n e"]]:
    r"""Computes the mean token and :math:`\mathrm{res}(Y)` after one head, from those before, without loss of
    precision.

    In float64 :math:`Y` itself leaves no digits of differences below :math:`10^{-16}` of the tokens. With the
    weights a of the mean token and :math:`\delta_{ij} = R_i W R_j^\top`, row i of A is :math:`a + D_i`,
    :math:`D_{ij} = a_j (e^{\delta_{ij}} - 1 - t_i) / (1 + t_i)`, :math:`t_i = \sum_j a_j (e^{\delta_{ij}} -
    1)`, and
    :math:`\mathrm{res}(Y) = \mathrm{res}(D R) V`.
    """
    a = softmax(mean @ W @ differences.mT)
    change = (differences @ W @ differences.mT).expm1()
    total = (change * a).sum(-1, keepdim=True)
    moved = (a * (change - total) / (1 + total)) @ differences
    return (mean + a @ differences + moved.mean(-2, keepdim=True)) @ V, residual(moved) @ V


@in_range
@converted(floats=("tokens", "W", "V", "gradient", "values"))
def score_gradient(
    tokens: Float[Tensor, "n d"],
    W: Float[Tensor, "d d"],
    V: Float[Tensor, "d e"],
    gradient: Float[Tensor, "n e"],
    *,
    values: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "d d"]:
    r"""Computes :math:`\partial L / \partial W` for :math:`Y = A X V` and :math:`\partial L / \partial Y` =
    ``gradient``, ``[d, d]``.

    Args:
        tokens, W, V: X, W and V.
        gradient: :math:`\partial L / \partial Y`.
        values: the tokens that are averaged, if they are not X.
    Raises:
        ValueError: a number is not finite, or becomes so.
    """
    A = weights(tokens, W)
    P = gradient @ V.mT @ (tokens if values is None else values).mT
    # The derivative of the softmax: each row of D sums to 0, so constants within a row of P drop out. Without
    # the entry of the largest weight, sharp rows keep their digits.
    P = P - P.gather(-1, A.argmax(-1, keepdim=True))
    D = A * (P - (A * P).sum(-1, keepdim=True))
    return tokens.mT @ D @ tokens


@in_range
@converted(floats=("tokens", "W", "gradient"))
def value_gradient(
    tokens: Float[Tensor, "n d"], W: Float[Tensor, "d d"], gradient: Float[Tensor, "n e"]
) -> Float[Tensor, "d e"]:
    r"""Computes :math:`\partial L / \partial V = (A X)^\top` ``gradient``, ``[d, e]``.

    Raises:
        ValueError: a number is not finite, or becomes so.
    """
    return (weights(tokens, W) @ tokens).mT @ gradient


def near_tokens(
    n: int, d: int, size: float, generator: Generator, *, differences: Float[Tensor, "n d"] | None = None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Draws tokens that differ from a Gaussian mean token by ``size`` times Gaussian differences.

    Returns:
        The tokens, and the differences before the scaling, so that tokens at another size can be made from
        the same draw.
    """
    mean = torch.randn(1, d, generator=generator, dtype=torch.float64)
    drawn = (
        residual(torch.randn(n, d, generator=generator, dtype=torch.float64))
        if differences is None
        else differences
    )
    return mean + size * drawn, drawn
