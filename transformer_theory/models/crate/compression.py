r"""Mathematics of the compression blocks: gradient of the rate, its causal form, and token statistics.

Tokens are rows, Z is n x d; U_k is d x p, W_k = Z U_k are the tokens' coordinates in subspace k, and beta = p
/ (n eps^2).

**Rate.** Compression lowers

    R^c(Z; U_[K]) = 1/2 sum_k logdet(I_n + beta W_k W_k^T).

By the push-through identity its gradient needs p x p matrices only:

    grad R^c = beta sum_k (I_n + beta W_k W_k^T)^-1 W_k U_k^T = beta sum_k W_k (I_p + beta W_k^T W_k)^-1
        U_k^T.

**Causal form.** By the chain rule of log-determinants the rate of a sequence is the sum of terms r_i, the
increase of the rate when token i joins the tokens before it. Each token descends its own term. With w_i =
U_k^T z_i and S_i = sum_{j <= i} w_j w_j^T:

    r_i = 1/2 sum_k log(1 + beta w_i^T (I_p + beta S_{i-1})^-1 w_i),
        grad_{z_i} r_i = beta sum_k U_k (I_p + beta S_i)^-1 w_i.

Here beta = p / (N eps^2) with N = ``context``, the length of the longest sequence. The actual length would
make earlier tokens depend on later ones. The last of N tokens moves as in the exact non-causal step.

**Token statistics.** Soft memberships pi_ik >= 0, sum_k pi_ik = 1, assign token i to subspaces; n_k = sum_i
pi_ik. By Hadamard's inequality

    R^c(Z; U, Pi) <= B(Z; U, Pi) = 1/2 sum_k n_k/n sum_c log(1 + p/eps^2 m_kc),
        m_kc = 1/n_k sum_i pi_ik W_ikc^2,

which needs only one second moment per channel. At fixed memberships

    grad B = beta sum_k diag(pi_k) W_k diag(1 / (1 + p/eps^2 m_k)) U_k^T,
        pi_ik = softmax_k(tau_k sum_c W_ikc^2 / sum_j W_jkc^2).

In the causal form every sum over tokens becomes a sum over the tokens up to i. A subspace with n_k = 0
contributes nothing.

The authors of token statistics write d / eps^2, with d the dimension of the *tokens*, in place of p / eps^2.
With p, R^c(Z; U, Pi) equals R^c(Z; U_[K]) if every membership is one. Our eps corresponds to their eps
sqrt(d/p).

Sources: :cite:t:`yu2023white`; :cite:t:`wu2025token`. The chain rule of the causal form is derived here.
Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers, positive, same_dtype
from ...maths.linalg import LARGEST_FLOAT32_CONDITION

EPS_RANGE = 1e150  # its square is finite
BETA_RANGE = 1e30  # beyond it, and below its inverse, beta is not multiplied in float32

Tokens = Float[Tensor, "*batch n d"]
Bases = Float[Tensor, "K d p"]
Coordinates = Float[Tensor, "*batch K n p"]
Memberships = Float[Tensor, "*#batch K n"]
Temperature = Float[Tensor, " K"] | float


def expansion(bases: Bases, *, n: int, eps: float) -> float:
    r"""Returns the factor :math:`\beta = p / (n \varepsilon^2)` of n tokens in subspaces of dimension p
    (``eps`` is squared here).

    Raises:
        ValueError: there is no token, or ``eps`` or its square is not positive and finite.
    """
    positive(eps=eps)
    if n < 1 or not 1 / EPS_RANGE <= eps <= EPS_RANGE:
        raise ValueError(
            f"beta = p / (n eps^2) must have n >= 1 and eps between {1 / EPS_RANGE:g} and {EPS_RANGE:g}, got "
            f"n = {n} and eps = {eps:g}; rescale the tokens"
        )
    return bases.shape[-1] / (n * eps**2)


def coordinates(tokens: Tokens, bases: Bases) -> Coordinates:
    r"""Computes W_k = Z U_k for every subspace, ``[*batch, K, n, p]``.

    Raises:
        ValueError: tokens and bases differ in dimension d or in dtype, or are float16 on a CPU.
    """
    same_dtype(tokens=tokens, bases=bases)
    if tokens.shape[-1] != bases.shape[-2]:
        raise ValueError(
            f"tokens [..., n, d] and bases [K, d, p] must share d, got {list(tokens.shape)} and "
            f"{list(bases.shape)}"
        )
    return tokens.unsqueeze(-3) @ bases


# the rate and its causal form


def rate_gradient(tokens: Tokens, bases: Bases, *, eps: float) -> Tokens:
    r"""Computes the gradient of R^c(Z; U_[K]) with respect to Z, ``[*batch, n, d]``, in nats per unit of Z.

    The cost is one p x p Cholesky factor per head. Autocast is switched off: bfloat16 tokens are promoted to
    float32, and float32 to float64 where necessary (:func:`precise_coordinates`).

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
    Raises:
        ValueError: shapes or dtypes do not fit, ``eps`` is not positive and finite, or tokens are so large
            that the identity is lost to rounding.
    """
    beta = expansion(bases, n=tokens.shape[-2], eps=eps)
    with torch.autocast(tokens.device.type, enabled=False):
        coords, frames = precise_coordinates(tokens, bases, beta=beta)
        # W_k (I + beta W_k^T W_k)^-1 = (solve(I + beta W_k^T W_k, W_k^T))^T, because the matrix is symmetric.
        inner = beta * coords.mT @ coords + torch.eye(
            bases.shape[-1], dtype=coords.dtype, device=coords.device
        )
        solved = torch.cholesky_solve(coords.mT, cholesky(inner)).mT
        return (beta * (solved @ frames.mT).sum(-3)).to(tokens.dtype)


def causal_rate_gradient(tokens: Tokens, bases: Bases, *, eps: float, context: int) -> Tokens:
    r"""Computes the gradient of each term r_i with respect to token i, ``[*batch, n, d]``; n Cholesky factors
    of size p x p per head.

    Args:
        tokens, bases, eps: as in :func:`rate_gradient`.
        context: N in beta = p / (N eps^2).
    Raises:
        ValueError: the sequence is longer than the context; otherwise see :func:`rate_gradient`.
    """
    check_length(tokens, context)
    beta = expansion(bases, n=context, eps=eps)
    with torch.autocast(tokens.device.type, enabled=False):
        coords, frames = precise_coordinates(tokens, bases, beta=beta)
        # With M = (I + beta S_{i-1})^-1 the gradient of r_i is beta M w_i / (1 + beta w_i^T M w_i). By
        # Sherman-Morrison this is beta (I + beta S_i)^-1 w_i, so one solve per token is enough.
        solved = torch.cholesky_solve(coords.unsqueeze(-1), cholesky(prefix_matrices(coords, beta))).squeeze(
            -1
        )
        return (beta * (solved @ frames.mT).sum(-3)).to(tokens.dtype)


def continued_rate_gradient(
    tokens: Tokens, bases: Bases, past: Float[Tensor, "*batch K p p"] | float, *, eps: float, context: int
) -> tuple[Tokens, Float[Tensor, "*batch K p p"]]:
    r"""Computes :func:`causal_rate_gradient` of tokens that follow past ones, of which only :math:`S = \sum_j
    w_j w_j^\top` is stored.

    Args:
        tokens: Z of the new tokens, ``[*batch, m, d]``.
        bases: U_k, [K, d, p].
        past: S of the past tokens, float64 ``[*batch, K, p, p]``; 0 if there are none.
        eps, context: as in :func:`causal_rate_gradient`.
    Returns:
        The gradients, ``[*batch, m, d]``, and S of all tokens. Everything is computed in float64.
    Raises:
        ValueError: shapes do not fit, ``eps`` is not positive and finite, or tokens are so large that the
            identity is lost to rounding.
    """
    beta = expansion(bases, n=context, eps=eps)
    with torch.autocast(tokens.device.type, enabled=False):
        frames = bases.double()
        coords = coordinates(tokens.double(), frames)
        inner = prefix_matrices(coords, beta)
        inner = inner + beta * (past.unsqueeze(-3) if isinstance(past, Tensor) else past)
        solved = torch.cholesky_solve(coords.unsqueeze(-1), cholesky(inner)).squeeze(-1)
        return (beta * (solved @ frames.mT).sum(-3)).to(tokens.dtype), past + coords.mT @ coords


def precise_coordinates(tokens: Tokens, bases: Bases, *, beta: float) -> tuple[Coordinates, Bases]:
    r"""Returns coordinates W_k and bases, in a precision in which I + beta W_k^T W_k keeps three digits of
    the identity.

    bfloat16 tokens are promoted to float32; float32 is promoted to float64 if :math:`\beta \|W_k\|_F^2`
    exceeds 1e4 in any head, as in :func:`~transformer_theory.maths.linalg.logdet_identity_plus`, or if beta
    or these squares leave the range of float32.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    tokens = tokens.to(bases.dtype) if tokens.dtype == torch.bfloat16 else tokens
    coords = coordinates(tokens, bases)
    with torch.no_grad():
        large = coords.dtype == torch.float32 and not (
            1 / BETA_RANGE < beta < BETA_RANGE
            and bool((beta * coords.square().sum((-2, -1)) <= LARGEST_FLOAT32_CONDITION).all())
        )
    # Repeat the products in float64 instead of converting their float32 results: the inverse shrinks the
    # leading directions so much that rounding errors in the others would become visible.
    return (coordinates(tokens.double(), bases.double()), bases.double()) if large else (coords, bases)


def cholesky(inner: Float[Tensor, "*batch p p"]) -> Float[Tensor, "*batch p p"]:
    r"""Returns the Cholesky factor of I + beta W^T W.

    Raises:
        ValueError: the matrix is not finite, or after rounding not positive definite.
    """
    lower, failed = torch.linalg.cholesky_ex(inner)
    if bool(failed.any()):
        raise ValueError(
            "I + beta W^T W must be finite and positive definite, and after rounding it is not; drop "
            "infinite tokens, normalise the others"
        )
    return lower


def prefix_matrices(coords: Coordinates, beta: float) -> Float[Tensor, "*batch K n p p"]:
    """Returns I + beta S_i for every head and token; O(n p^2) memory per head."""
    sums = (coords.unsqueeze(-1) * coords.unsqueeze(-2)).cumsum(-3)
    return torch.eye(coords.shape[-1], dtype=coords.dtype, device=coords.device) + beta * sums


def check_length(tokens: Tokens, context: int) -> None:
    """Checks that a sequence ``[*batch, n, d]`` is not longer than the context.

    Raises:
        ValueError: the sequence is longer.
        TypeError: the context is not an integer.
    """
    integers(context=context)
    if tokens.shape[-2] > context:
        raise ValueError(
            f"context must count at least the tokens of a sequence, {tokens.shape[-2]}, got {context}; pass "
            "a longer one"
        )


# token statistics


def memberships(coords: Coordinates, *, temperature: Temperature = 1.0) -> Float[Tensor, "*batch K n"]:
    r"""Computes Pi, soft assignments of tokens to subspaces, ``[*batch, K, n]``, from shares of each
    channel's energy; sums over K are one.

    Args:
        coords: W_k, ``[*batch, K, n, p]``.
        temperature: tau, one number for all heads or one per head.
    """
    return _softmax(coords, coords.square().sum(-2, keepdim=True), temperature)


def causal_memberships(
    coords: Coordinates, *, temperature: Temperature = 1.0, offset: Float[Tensor, "K n"] | float = 0.0
) -> Float[Tensor, "*batch K n"]:
    r"""Computes memberships as :func:`memberships` does, from the energy of the prefix that ends at each
    token, ``[*batch, K, n]``.

    Args:
        coords, temperature: as in :func:`memberships`.
        offset: number added to the shares. Shares of short prefixes are large; the released language model
            learns to compensate.
    """
    return _softmax(coords, coords.square().cumsum(-2), temperature, offset)


def shrinkage(coords: Coordinates, pi: Memberships, *, eps: float) -> Coordinates:
    r"""Computes :math:`\mathrm{diag}(\pi_k) W_k\,\mathrm{diag}(1 + \tfrac p{\varepsilon^2} m_k)^{-1}`,
    ``[*batch, K, n, p]``.

    This is the gradient of B in coordinates, divided by beta. Channels with little energy shrink most,
    relative to their size.

    Raises:
        ValueError: ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    weighted = pi.unsqueeze(-1) * coords
    moments = (weighted * coords).sum(-2, keepdim=True) / group_sizes(pi)[..., None, None]
    return weighted / (1 + coords.shape[-1] / eps**2 * moments)


def causal_shrinkage(coords: Coordinates, pi: Memberships, *, eps: float) -> Coordinates:
    r"""Computes :func:`shrinkage` with the second moments of the prefix that ends at each token, ``[*batch,
    K, n, p]``.

    Raises:
        ValueError: ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    weighted = pi.unsqueeze(-1) * coords
    moments = (weighted * coords).cumsum(-2) / _positive_sizes(pi.cumsum(-1)).unsqueeze(-1)
    return weighted / (1 + coords.shape[-1] / eps**2 * moments)


PastStatistics = tuple[Tensor, Tensor, Tensor]
"""Sums over past tokens: W^2 ``[*batch, K, 1, p]``, memberships ``[*batch, K, 1]``, and W^2 weighted by
memberships, as the first.
"""


def continued_shrinkage(
    coords: Coordinates,
    past: PastStatistics | None,
    *,
    eps: float,
    temperature: Temperature = 1.0,
    offset: Tensor | float = 0.0,
) -> tuple[Coordinates, PastStatistics]:
    r"""Computes :func:`causal_memberships` and :func:`causal_shrinkage` of tokens that follow past ones, of
    which only sums are stored.

    Args:
        coords: W_k of the new tokens, ``[*batch, K, m, p]``.
        past: sums over the past tokens; None if there are none.
        eps, temperature, offset: as in these functions; ``offset`` is that of the new tokens.
    Returns:
        The shrinkage of the new tokens, ``[*batch, K, m, p]``, and the sums over all tokens.
    Raises:
        ValueError: ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    energy, sizes, second = past or (0.0, 0.0, 0.0)
    energy = energy + coords.square().cumsum(-2)
    pi = _softmax(coords, energy, temperature, offset)
    weighted = pi.unsqueeze(-1) * coords
    sizes, second = sizes + pi.cumsum(-1), second + (weighted * coords).cumsum(-2)
    moments = second / _positive_sizes(sizes).unsqueeze(-1)
    return weighted / (1 + coords.shape[-1] / eps**2 * moments), (
        energy[..., -1:, :],
        sizes[..., -1:],
        second[..., -1:, :],
    )


def group_sizes(pi: Memberships) -> Float[Tensor, "*batch K"]:
    """Returns n_k, ``[*batch, K]``, bounded away from zero."""
    return _positive_sizes(pi.sum(-1))


def _positive_sizes(sizes: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    # A softmax over subspaces may underflow to n_k = 0. Every numerator over n_k then contains memberships of
    # the same size, so any positive number may replace n_k. The square root of the smallest normal number
    # keeps 1 / n_k^2 in the gradient finite.
    return sizes.clamp(min=torch.finfo(sizes.dtype).tiny ** 0.5)


def _softmax(
    coords: Tensor, energy: Tensor, temperature: Temperature, offset: Tensor | float = 0.0
) -> Tensor:
    """Computes memberships from each token's share of the energies; a channel without energy contributes a
    share of zero.
    """
    # Divide before squaring: the gradient of squares divided by an energy near the smallest positive number
    # would overflow.
    norms = energy.clamp(min=torch.finfo(coords.dtype).tiny).sqrt()
    shares = (coords / norms).square().sum(-1) + offset
    tau = temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
    return (tau * shares).softmax(-2)
