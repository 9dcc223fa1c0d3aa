r"""What random weights do to tokens: one layer, and a residual stream of many layers. All formulas are own
derivations.

**One layer without skip connection.** Tokens of one norm with pairwise cosine :math:`\rho`, W with
independent Gaussian entries. Let v be the variance of the scores *within a row*; if the scores of a row have
variance :math:`s^2`, then :math:`v = s^2 (1 - \rho)`. For v up to about 1 the squared contraction and the
cosine after the layer are

.. math::
    c^2 = \frac{e^v - e^{\rho v}}{n} + \frac{(1-\rho)\, v}{d}, \qquad
    1 - \rho' = \frac{(1-\rho)\, c^2}{\rho + (1-\rho) e^v / n}.

The first term: each query draws its own :math:`n e^{-v}` tokens. The second: the score rows share the
covariance of the tokens, which is the cubic law of :mod:`.residuals`. For tokens of any geometry the second
term has the *dimension* :math:`D = \mathrm{tr}(C)^2 / |C|_F^2` of the tokens of a sequence, with their
covariance C: for :math:`v \to 0`

.. math:: c^2 = \frac{\mathrm{tr}(C)}{E|x|^2} \frac{v}{D} = \Bigl(1 - \frac1n\Bigr) (1 - \rho) \frac{v}{D},

with the mean cosine :math:`\rho` of pairs of different tokens; random directions in d dimensions have
:math:`(1 - 1/n) / D = 1/n + (1 - 1/n) / d`. :func:`contraction_of_tokens` joins both.

**Any v.** Equiangular tokens have :math:`\langle y_i, y_j \rangle \propto \rho + (1-\rho) \langle a_i, a_j
\rangle` exactly.

**Depth with skip connections.** Layers :math:`X + \alpha A X V` with nearly uniform A, V of variance 1/d and
orthogonal tokens at the start end at the cosine :math:`\rho_L = G / (n + G)`, :math:`G = (1 + \alpha^2)^L -
1`: with :math:`\alpha = 1` all tokens become equal, with
:math:`\alpha^2 = a / L` the cosine stays at :math:`(e^a - 1)/(n + e^a - 1)`. That :math:`1/\sqrt L` prevents
the collapse is a result of :cite:t:`noci2022signal`.
"""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import converted, finite, in_range, integers
from ...maths.linalg import binary_scale
from .residuals import NEARLY_EQUAL, centred, weights


def equiangular(n: int, d: int, rho: float, generator: Generator) -> Float[Tensor, "n d"]:
    r"""Draws n tokens of norm :math:`\sqrt d` in random directions whose pairwise cosines are :math:`\rho` up
    to :math:`O(1/\sqrt d)`.

    Raises:
        ValueError: rho is not in [0, 1], or a size is below 1.
    """
    integers(n=n, d=d)
    if not 0 <= rho <= 1:
        raise ValueError(f"the cosine rho must lie in [0, 1], got {rho:g}")
    common = torch.randn(1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(n, d, generator=generator, dtype=torch.float64)
    # Each part has norm sqrt(d) exactly, so the cosines are those of the mixture up to the overlaps of random
    # directions.
    common, own = (d**0.5 * each / each.norm(dim=-1, keepdim=True) for each in (common, own))
    tokens = rho**0.5 * common + (1 - rho) ** 0.5 * own
    return d**0.5 * tokens / tokens.norm(dim=-1, keepdim=True)


def exactly_equiangular(n: int, d: int, rho: float, generator: Generator) -> Float[Tensor, "n d"]:
    r"""Draws n unit tokens whose pairwise cosines are :math:`\rho` exactly; needs d > n.

    Raises:
        ValueError: there are too few dimensions.
    """
    if d <= n:
        raise ValueError(
            f"n = {n} tokens and a common direction need more than {n} dimensions, got {d}; raise d"
        )
    frame = torch.linalg.qr(torch.randn(d, n + 1, generator=generator, dtype=torch.float64)).Q.mT
    return rho**0.5 * frame[:1] + (1 - rho) ** 0.5 * frame[1:]


def gaussian_scores_matrix(d: int, deviation: float, generator: Generator) -> Float[Tensor, "d d"]:
    r"""Draws W such that tokens of norm :math:`\sqrt d` have scores :math:`x_i W x_j^\top` of this standard
    deviation, ``[d, d]``.
    """
    return deviation / d * torch.randn(d, d, generator=generator, dtype=torch.float64)


@converted(floats=("tokens",))
def mean_cosine(tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Computes the mean inner product of pairs of different tokens over the mean squared norm, ``[*batch]``.

    Raises:
        ValueError: there are fewer than two tokens, they are all zero, or one is not finite.
    """
    n = _number_of(tokens)
    scaled = tokens / binary_scale(tokens, (-2, -1))  # squares are then in range
    squares = scaled.square().sum((-2, -1))
    _refuse(squares, tokens, "mean cosine needs tokens that are not all zero")
    return (scaled.sum(-2).square().sum(-1) - squares) / ((n - 1) * squares)


@converted(floats=("tokens",))
def dimension(tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`\mathrm{tr}(C)^2 / |C|_F^2` of the covariance C of the tokens of a sequence,
    ``[*batch]``.

    Raises:
        ValueError: there are fewer than two tokens, they are all equal, or one is not finite.
    """
    _number_of(tokens)
    # Sums of scaled tokens and fourth powers of scaled differences are in range.
    R = centred(tokens / binary_scale(tokens, (-2, -1)))
    size = binary_scale(R, (-2, -1))
    R = R / size
    if bool((size < NEARLY_EQUAL).any()):
        R = centred(R)  # again, without the rounding error of the first mean
    gram = R @ R.mT  # its eigenvalues are n times those of C
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    _refuse(trace, tokens, "dimension needs tokens that differ")
    return trace.square() / gram.square().sum((-2, -1))


def _number_of(tokens: Tensor) -> int:
    """Returns the number of tokens of a sequence, at least two, with at least one entry each."""
    if tokens.ndim < 2 or tokens.shape[-2] < 2 or not tokens.numel():
        raise ValueError(f"tokens must be [*batch, n, d] with n >= 2 and d >= 1, got {list(tokens.shape)}")
    return tokens.shape[-2]


def _refuse(squares: Tensor, tokens: Tensor, need: str) -> None:
    """Raises a ValueError unless the sum of squares of each sequence is positive and finite."""
    if not bool(((squares > 0) & torch.isfinite(squares)).all()):
        finite(tokens=tokens)
        zero = squares == 0
        raise ValueError(f"the {need}, got {int(zero.sum())} of {zero.numel()} sequences; leave them out")


@in_range
def squared_contraction(v: float, rho: float, n: int, d: float) -> float:
    """Returns the squared contraction of one layer of equiangular tokens; see the module's docstring.

    Raises:
        ValueError: v, rho, n or d are outside the formula.
    """
    if not (0 <= v < 700 and 0 <= rho <= 1 and n >= 2 and d > 0):
        raise ValueError(
            f"the formula needs 0 <= v < 700, rho in [0, 1], n >= 2 and d > 0, got v = {v:g}, rho = "
            f"{rho:g}, n = {n}, d = {d:g}"
        )
    # e^v - e^(rho v), without the cancellation at small v (1 - rho)
    return math.exp(rho * v) * math.expm1((1 - rho) * v) / n + (1 - rho) * v / d


@in_range
def cosine_after(v: float, rho: float, n: int, d: float) -> float:
    """Returns the cosine of the tokens after one layer without skip connection."""
    return 1 - (1 - rho) * squared_contraction(v, rho, n, d) / (rho + (1 - rho) * math.exp(v) / n)


def largest_variance(n: int) -> float:
    """Returns the largest variance of the scores within a row for which the formulas of one layer hold,
    min(1, (log n) / 2).
    """
    return min(1.0, math.log(n) / 2)


@in_range
@converted(floats=("v", "rho", "D"))
def contraction_of_tokens(
    v: Float[Tensor, "*batch"], rho: Float[Tensor, "*#batch"], n: int, D: Float[Tensor, "*#batch"]
) -> Float[Tensor, "*batch"]:
    r"""Computes the contraction that random weights have on tokens of dimension D, mean cosine rho and score
    variance v, ``[*batch]``.

    To first order in v this is :math:`(1 - 1/n)(1 - \rho) v / D`; the rest is that of equiangular tokens.

    Raises:
        ValueError: n is below 1, or a number is not finite or leaves the range of floating point.
    """
    integers(n=n)
    shared = ((1 - 1 / n) / D - 1 / n).clamp(min=0)  # D is at most n - 1
    spread = (rho * v).exp() * ((1 - rho) * v).expm1()  # e^v - e^(rho v)
    return (spread / n + (1 - rho) * v * shared).clamp(min=0).sqrt()


def equiangular_cosines(A: Float[Tensor, "n n"], rho: float) -> Float[Tensor, "n n"]:
    r"""Computes the cosines of the averages :math:`A X` of equiangular tokens from A and :math:`\rho` alone,
    ``[n, n]``.
    """
    gram = rho + (1 - rho) * A @ A.mT
    norm = gram.diagonal().sqrt()
    return gram / (norm[:, None] * norm)


def depth_cosine(alpha: float, layers: int, n: int) -> float:
    r"""Returns :math:`G / (n + G)` with :math:`G = (1 + \alpha^2)^L - 1`, the cosine after L layers of an
    orthogonal start.

    Raises:
        ValueError: alpha is not finite, there is no token, or the number of layers is negative.
    """
    if n < 1 or layers < 0 or not math.isfinite(alpha):
        raise ValueError(
            f"n must be at least 1, layers at least 0 and alpha finite, got n = {n}, layers = {layers} and "
            f"alpha = {alpha:g}"
        )
    alpha = min(abs(alpha), 1e150)  # the square of 1e155 leaves the range of float64, as does exp(710)
    growth = math.expm1(min(layers * math.log1p(alpha**2), 700.0))
    return growth / (n + growth)


@in_range
def stream(
    n: int,
    d: int,
    layers: int,
    alpha: float,
    generator: Generator,
    *,
    deviation: float = 0.0,
    skip: float = 1.0,
) -> Float[Tensor, "n d"]:
    r"""Runs :math:`\beta X + \alpha A X V` with new random weights in each layer from orthogonal tokens, and
    returns the last tokens.

    The scores read tokens divided by their norm, as after a layer norm, so they keep their standard
    deviation. V has entries of variance 1/d.

    Args:
        n, d, layers, alpha: number of tokens, width (at least n), number of layers, factor of the branch.
        generator: random generator.
        deviation: standard deviation of the scores; 0: uniform attention.
        skip: :math:`\beta`, factor of the skip connection; 0: none.
    Raises:
        ValueError: d < n, or a number is not finite or leaves the range of floating point.
    """
    if d < n:
        raise ValueError(f"{n} orthogonal tokens need at least as many dimensions, got {d}; raise d")
    x = d**0.5 * torch.linalg.qr(torch.randn(d, n, generator=generator, dtype=torch.float64)).Q.mT
    for _ in range(layers):
        read = d**0.5 * x / x.norm(dim=-1, keepdim=True)
        A = weights(read, gaussian_scores_matrix(d, deviation, generator))
        V = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
        x = skip * x + alpha * A @ x @ V
    return x
