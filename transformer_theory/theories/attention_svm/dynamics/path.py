r"""The regularisation path: the weights of least loss within a ball, as the ball grows.

.. math:: W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad (K_R, Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K Q^\top).

If the optimal tokens are unique and can be selected, :math:`W_R / R` tends to the direction of :math:`W_{mm}` (Frobenius norm), and
:math:`K_R Q_R^\top / R` to the max-margin solutions in the nuclear norm: the second ball is :math:`\|W\|_\star \le R`, written in factors.

The problem is not convex: descent from a random start can end at other tokens. So it is solved from many starts, and followed from small
balls to large ones (for small R the loss is nearly linear, and any start does); both shares of success are reported. Steps are normalised
and projected onto the ball, with momentum, and a step is kept only if the loss above its infimum falls, which
:func:`~.polyak.log_excess_loss` decides however small that is.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin` on regularisation paths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import Instance
from .descent import check_steps, descent_direction
from .losses import LOGISTIC, Loss
from .polyak import log_excess_loss

MOMENTUM = 0.9


@dataclass(frozen=True)
class RegularisationPath:
    r"""The best weights found within each ball.

    Attributes:
        radii: R, ``[r]``, increasing.
        W: the best weights, ``[r, d, d_z]``.
        log_excess: :math:`\log(L(W_R) - L_\star)`, ``[r]``.
        residual: how far the step is from pointing straight out of the ball, ``[r]``: one minus the cosine of the weights and the negative
            gradient (of the factors and theirs); zero at a stationary point.
        fresh: share of the random starts at this radius that end at the tokens that the best weights select, ``[r]``.
        followed: the same of the starts that come from the previous radius, ``[r]``; at the first, those are random too.
    """

    radii: Float[Tensor, " r"]
    W: Float[Tensor, "r d d_z"]
    log_excess: Float[Tensor, " r"]
    residual: Float[Tensor, " r"]
    fresh: Float[Tensor, " r"]
    followed: Float[Tensor, " r"]


def regularisation_path(
    instance: Instance, radii: Sequence[float], *, generator: torch.Generator, starts: int = 8, steps: int = 600, loss: Loss = LOGISTIC
) -> RegularisationPath:
    r"""Least loss over :math:`\|W\|_F \le R` of a single instance.

    Args:
        radii: R, increasing and positive.
        starts: how many random starts at each radius, and how many are followed from one radius to the next.
        steps: of descent at each radius.
    Raises:
        ValueError: radii that do not increase from above zero, no start, negative steps, or a batch of instances.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    def push(batch: Instance, W: Tensor) -> tuple[Tensor, Tensor]:
        return W, descent_direction(batch, W, loss=loss)[0]

    return _follow(instance, radii, push, lambda R: R, (d, d_z), generator, starts, steps, loss)


def factored_path(
    instance: Instance, radii: Sequence[float], *, generator: torch.Generator, starts: int = 8, steps: int = 600, loss: Loss = LOGISTIC
) -> RegularisationPath:
    r"""Least loss over :math:`\|K\|_F^2 + \|Q\|_F^2 \le 2R` of a single instance, with :math:`W = K Q^\top` and K, Q of
    :math:`\min(d, d_z)` columns.

    Args:
        radii, starts, steps: as in :func:`regularisation_path`.
    Raises:
        ValueError: as :func:`regularisation_path`.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    def push(batch: Instance, KQ: Tensor) -> tuple[Tensor, Tensor]:
        K, Q = KQ[..., :d, :], KQ[..., d:, :]
        W = K @ Q.mT
        M, _ = descent_direction(batch, W, loss=loss)
        return W, torch.cat([M @ Q, M.mT @ K], -2)

    return _follow(instance, radii, push, lambda R: (2 * R) ** 0.5, (d + d_z, min(d, d_z)), generator, starts, steps, loss)


Push = Callable[[Instance, Tensor], tuple[Tensor, Tensor]]  # parameters [*, rows, cols] -> W [*, d, d_z], negative gradient up to a factor


def _follow(
    instance: Instance,
    radii: Sequence[float],
    push: Push,
    norm: Callable[[float], float],
    shape: tuple[int, int],
    generator: torch.Generator,
    starts: int,
    steps: int,
    loss: Loss,
) -> RegularisationPath:
    """Best of ``2 starts`` descents at each radius; ``norm`` says how large the parameters may be at radius R."""
    if instance.trials:
        raise ValueError(f"instance must be a single one, got a batch {list(instance.trials)}; take one trial of it")
    if starts < 1 or not len(radii) or radii[0] <= 0 or any(b <= a for a, b in pairwise(radii)):
        raise ValueError(f"radii must increase from above zero and starts be at least 1, got {list(radii)} and {starts}")
    check_steps(steps, 1.0)
    batch = instance[None][torch.zeros(2 * starts, dtype=torch.long)]
    carried, columns = torch.randn(starts, *shape, generator=generator, dtype=torch.float64), []
    for R in radii:
        fresh = torch.randn(starts, *shape, generator=generator, dtype=torch.float64)
        parameters, W, excess, residual = _descend(batch, torch.cat([carried, fresh]), push, norm(R), steps, loss)
        best, select = excess.argmin(), batch.selected(W)
        reached = (select == select[best]).all(-1).double()
        columns.append((W[best], excess[best], residual[best], reached[starts:].mean(), reached[:starts].mean()))
        carried = parameters[:starts]
    W, excess, residual, fresh, followed = (torch.stack(column) for column in zip(*columns))
    return RegularisationPath(torch.tensor([float(R) for R in radii], dtype=torch.float64), W, excess, residual, fresh, followed)


def _descend(batch: Instance, parameters: Tensor, push: Push, norm: float, steps: int, loss: Loss) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projected normalised descent with momentum, which follows narrow valleys; each start has its own step, longer after success, shorter
    and without momentum after failure."""

    def size(V: Tensor) -> Tensor:
        return torch.linalg.vector_norm(V, dim=(-2, -1), keepdim=True).clamp(min=1e-300)

    parameters = parameters * (norm / size(parameters))
    W, up = push(batch, parameters)
    excess, rate, drift = log_excess_loss(batch, W, loss=loss), parameters.new_full((len(parameters), 1, 1), 0.3), parameters * 0
    for _ in range(steps):
        tried = parameters + MOMENTUM * drift + up * (rate * norm / size(up))
        tried = tried * (norm / size(tried)).clamp(max=1.0)
        new_W, new_up = push(batch, tried)
        new_excess = log_excess_loss(batch, new_W, loss=loss)
        better = (new_excess < excess)[:, None, None]
        drift = torch.where(better, tried - parameters, 0.0)
        rate = (rate * torch.where(better, 1.1, 0.5)).clamp(1e-9, 10.0)
        parameters, W, up = (torch.where(better, new, old) for new, old in ((tried, parameters), (new_W, W), (new_up, up)))
        excess = torch.where(better.flatten(), new_excess, excess)
    residual = 1 - (parameters * up).sum((-2, -1)) / (size(parameters) * size(up)).flatten()
    return parameters, W, excess, residual
