r"""Several units that share attention: the stable rank of the lower layer falls while few tokens are learnt, and comes back.

By the exponential invariant the logits of a query are :math:`z_l = \tfrac12 \sum_k v_{kl}^2`, the same for all units. So if unit k has the
critical point :math:`\mu_k` (:mod:`.nonlinear`; near it the equation is the paper's, farther off a heuristic),

.. math:: \dot v_{kl} = (\mu_{kl} - v_{kl})\, e^{\sum_j v_{jl}^2 / 2} .

The factor is common to the units, so from zero they learn a token all at once:

.. math:: V(t) = M \operatorname{diag}(1 - \delta(t)), \qquad \dot\delta_l = -\delta_l\, e^{\|M_{:l}\|^2 (1 - \delta_l)^2 / 2} ,

with M the matrix of critical points and :math:`\delta_l` that of one component as large as the column. At first V is tM, at last M; in
between the largest columns are learnt and the others are not, and V has few directions. With a linear MLP,
:math:`\dot v_{kl} = \Delta_{kl}\, e^{\sum_j v_{jl}^2/2}`, the columns grow along the orbit of their lengths, and one of them leaves all
others behind: the stable rank tends to one, as slowly as that column's length :math:`\sqrt{2 \ln(1/r)}` grows, r what is left of the time
to the blow-up (in 20 draws it is 1.22 to 1.59 at :math:`r = 10^{-12}`, 1.03 to 1.07 at :math:`10^{-100}`). Columns of equal length fall
together: the rank does not move at all.
Source: :cite:t:`tian2024joma`; the several units are derived here.
"""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...maths.linalg import stable_rank
from .nonlinear import Bounce, bounce, log_remaining
from .orbit import orbit

Layer = Float[Tensor, "K M"]


def nonlinear_layer(points: Layer, times: Float[Tensor, " t"], *, tolerance: float = 1e-10) -> Float[Tensor, "t K M"]:
    """V at the given times, from zero.

    Args:
        points: mu, where each unit ends, ``[K, M]``; no column zero.
        times: increasing, >= 0, ``[t]``.
        tolerance: as in :func:`~.nonlinear.log_remaining`.
    Raises:
        ValueError: a column is zero or not finite, or the times do not increase from 0 on.
        NotConverged: the integrator gave up.
    Source: :cite:t:`tian2024joma`.
    """
    return points * -torch.expm1(log_remaining(points.norm(dim=0), times, tolerance=tolerance))[:, None]


def linear_layer(discriminancy: Layer, remaining: Float[Tensor, " t"]) -> Float[Tensor, "t K M"]:
    """V of linear units at the times (1 - r) t*, from zero, where t* is the blow-up of the largest column.

    Args:
        discriminancy: Delta, ``[K, M]``; no column zero.
        remaining: r in (0, 1], ``[t]``.
    Raises:
        ValueError: a column is zero or not finite, or a share outside (0, 1].
    Source: :cite:t:`tian2024joma`.
    """
    lengths = discriminancy.norm(dim=0)
    if not bool((torch.isfinite(lengths) & (lengths > 0)).all()):
        raise ValueError("columns must be finite and not zero, got one that is not; leave tokens out that do not move")
    return discriminancy / lengths * orbit(lengths, remaining)[:, None]


def gaussian_points(generator: Generator, *, units: int = 12, tokens: int = 20, scale: float = 1.0) -> Layer:
    """Critical points with independent normal entries of this standard deviation, ``[units, tokens]``."""
    return scale * torch.randn(units, tokens, generator=generator, dtype=torch.float64)


def alike(points: Layer) -> Layer:
    """The same columns at equal length, the mean square of the given ones: no token is salient, ``[K, M]``."""
    lengths = points.norm(dim=0)
    return points * lengths.square().mean().sqrt() / lengths


def rank_bounce(points: Layer, layers: Float[Tensor, "t K M"]) -> Bounce:
    """Drop and rebound of the stable rank from the start on, where V is a multiple of these points, over V at later times.

    Source: :cite:t:`tian2024joma`.
    """
    return bounce(torch.cat([stable_rank(points)[None], stable_rank(layers)]))
