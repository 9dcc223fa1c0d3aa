r"""Token-statistics self-attention: compression at a cost linear in the number of tokens, with no attention map.

Soft memberships pi_ik >= 0, sum_k pi_ik = 1, say to which subspace token i belongs; n_k = sum_i pi_ik. With W_k = Z U_k the rate of
the tokens in their subspaces, and a bound on it by Hadamard's inequality (a determinant is at most the product of its diagonal),

    R^c(Z; U, Pi) = 1/2 sum_k n_k/n logdet(I_p + p/(n_k eps^2) W_k^T diag(pi_k) W_k)
                 <= 1/2 sum_k n_k/n sum_c log(1 + p/eps^2 m_kc) = B(Z; U, Pi),      m_kc = 1/n_k sum_i pi_ik W_ikc^2,

with equality where every U_k diagonalises the second moment of its tokens. The bound reads one number a channel, the second moment m_kc.
Its gradient at fixed memberships is

    grad B = beta sum_k diag(pi_k) W_k diag(1 / (1 + p/eps^2 m_k)) U_k^T,      beta = p / (n eps^2),

so a step Z - kappa grad B with kappa < 2/L, L of :func:`~.attention.lipschitz`, lowers B. Memberships are read off the tokens,

    pi_ik = softmax_k(tau_k sum_c W_ikc^2 / sum_j W_jkc^2).

Causal form: every sum over tokens becomes a sum over those up to i. A subspace with n_k = 0 takes no part: its terms, n_k times a logarithm
of a moment, tend to zero with n_k whatever the moment.

Which dimension goes with eps^2: the authors take f(x) = log(1 + d/eps^2 x), d the dimension of the *tokens*, as in the rate of a class, and
keep it where U_k has p < d columns. Here it is p, so that with every membership one R^c(Z; U, Pi) is the R^c(Z; U_[K]) that the rest of
this room lowers; an eps of ours is eps sqrt(d/p) in theirs.

The released networks depart from this step: the change is -[... diag(pi_k) W_k diag(1 / (1 + m_k)) ...] V + b, with W_k = Z U_k + c_k, a
free V and no kappa; so eps^2 = p (theirs: d), and nothing makes the change go down B.
See :class:`~.block.ReleasedTokenStatisticsAttention`.

Source: :cite:t:`wu2024token`, released code; f as the same authors give it in the textbook that covers the paper. Notation:
docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...maths.linalg import logdet_identity_plus
from .checks import positive
from .subspace_attention import Bases, Tokens, coordinates, expansion

Coordinates = Float[Tensor, "*batch K n p"]
Memberships = Float[Tensor, "*#batch K n"]
Temperature = Float[Tensor, " K"] | float


def memberships(coords: Coordinates, *, temperature: Temperature = 1.0) -> Float[Tensor, "*batch K n"]:
    r"""Pi, to which subspace each token belongs, by its share of the energy of each channel, ``[*batch, K, n]``; they sum to one over K.

    Args:
        coords: W_k, ``[*batch, K, n, p]``.
        temperature: tau, a number or one a head.
    Source: :cite:t:`wu2024token`.
    """
    return _softmax(coords, coords.square().sum(-2, keepdim=True), temperature)


def causal_memberships(
    coords: Coordinates, *, temperature: Temperature = 1.0, offset: Float[Tensor, "K n"] | float = 0.0
) -> Float[Tensor, "*batch K n"]:
    r"""As :func:`memberships`, a token's share being that of the tokens up to itself, ``[*batch, K, n]``.

    Args:
        coords: W_k, ``[*batch, K, n, p]``.
        temperature: tau, a number or one a head.
        offset: added to the shares, which are larger the fewer tokens there are so far; learned in the released language model.
    Source: :cite:t:`wu2024token`, released code (the offset).
    """
    return _softmax(coords, coords.square().cumsum(-2), temperature, offset)


def shrinkage(coords: Coordinates, pi: Memberships, *, eps: float) -> Coordinates:
    r"""TSSA before its output matrix, :math:`\mathrm{diag}(\pi_k) W_k\,\mathrm{diag}(1 + \tfrac{p}{\varepsilon^2} m_k)^{-1}`.

    What a step takes away in each channel: most where the tokens have little energy. ``[*batch, K, n, p]``.

    Raises:
        ValueError: ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    positive(eps=eps)
    weighted = pi.unsqueeze(-1) * coords
    moments = (weighted * coords).sum(-2, keepdim=True) / _filled(pi.sum(-1))[..., None, None]
    return weighted / (1 + coords.shape[-1] / eps**2 * moments)


def causal_shrinkage(coords: Coordinates, pi: Memberships, *, eps: float) -> Coordinates:
    r"""As :func:`shrinkage` with the second moments of the tokens up to each, ``[*batch, K, n, p]``.

    Raises:
        ValueError: ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    positive(eps=eps)
    weighted = pi.unsqueeze(-1) * coords
    moments = (weighted * coords).cumsum(-2) / _filled(pi.cumsum(-1)).unsqueeze(-1)
    return weighted / (1 + coords.shape[-1] / eps**2 * moments)


def tssa_gradient(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Tokens:
    r"""Gradient of B(Z; U, Pi) with respect to Z at fixed memberships, ``[*batch, n, d]``, nats per unit of Z.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        pi: ``[*batch, K, n]``.
        eps: distortion (squared inside).
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    heads = shrinkage(coordinates(tokens, bases), pi, eps=eps)
    return expansion(bases, n=tokens.shape[-2], eps=eps) * (heads @ bases.mT).sum(-3)


def tssa_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float, temperature: Temperature = 1.0) -> Tokens:
    r"""Compression linear in tokens, :math:`Z - \kappa \nabla B(Z; U, \Pi)` with the memberships of Z, ``[*batch, n, d]``.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    positive(kappa=kappa)
    pi = memberships(coordinates(tokens, bases), temperature=temperature)
    return tokens - kappa * tssa_gradient(tokens, bases, pi, eps=eps)


def variational_rate(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""B(Z; U, Pi), the upper bound on the rate that TSSA descends, nats, ``[*batch]``. Arguments as in :func:`tssa_gradient`.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    positive(eps=eps)
    coords = coordinates(tokens, bases)
    size = _filled(pi.sum(-1))
    moments = (pi.unsqueeze(-1) * coords.square()).sum(-2) / size.unsqueeze(-1)
    logs = torch.log1p(coords.shape[-1] / eps**2 * moments).sum(-1)
    return 0.5 * (size / tokens.shape[-2] * logs).sum(-1)


def membership_rate(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""R^c(Z; U, Pi), the rate of tokens in the subspaces they belong to, nats, ``[*batch]``. Arguments as in :func:`tssa_gradient`.

    With every membership one, in place of a distribution, it is R^c(Z; U_[K]).

    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite. Source: :cite:t:`wu2024token`.
    """
    positive(eps=eps)
    coords = coordinates(tokens, bases)
    size = _filled(pi.sum(-1))
    logs = logdet_identity_plus(pi.sqrt().unsqueeze(-1) * coords, coords.shape[-1] / (size * eps**2))
    return 0.5 * (size / tokens.shape[-2] * logs).sum(-1)


def _softmax(coords: Tensor, energy: Tensor, temperature: Temperature, offset: Tensor | float = 0.0) -> Tensor:
    """Memberships from each token's share of the energies; a channel without any has no share to give."""
    norms = energy.clamp(min=torch.finfo(coords.dtype).tiny).sqrt()  # dividing before squaring: 1 / tiny would overflow in the gradient
    shares = (coords / norms).square().sum(-1) + offset
    tau = temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
    return (tau * shares).softmax(-2)


def _filled(size: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """n_k, kept off zero, where a softmax over subspaces underflows. What it divides is multiplied by memberships as small, so a size that
    counts for nothing beside the others (they add up to the tokens) may be any; the square root leaves room for gradients."""
    return size.clamp(min=torch.finfo(size.dtype).tiny ** 0.5)
