r"""The regularisation path: the weights of least loss within a ball, as the ball grows.

.. math:: W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad (K_R, Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K Q^\top).

If the optimal tokens are unique and can be selected, :math:`W_R / R` tends to the direction of :math:`W_{mm}` (Frobenius norm), and
:math:`K_R Q_R^\top / R` to the max-margin solutions in the nuclear norm: the second ball is :math:`\|W\|_\star \le R`, written in factors
(:cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`).

The problem is not convex: descent from a random start can end at other tokens. So it is solved from many starts, and followed from small
balls to large ones (for small R the loss is nearly linear, and any start works); both shares of success are reported. Steps are normalised
and projected onto the ball, with momentum, and a step is kept only if the loss above its infimum falls, which
:func:`~.polyak.log_excess_loss` decides at any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.parallel import single_threaded
from ....core.validation import integers, positive
from ..problem import Instance
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss
from .polyak import ExcessLoss
from .states import check_instance

MOMENTUM = 0.9
FIRST_STEP, STEP_RANGE = 0.3, (1e-9, 10.0)  # lengths of steps, relative to the radius
LONGER, SHORTER = 1.1, 0.5  # factors of the step after success and after failure

Push = Callable[[Gradient, Tensor], tuple[Tensor, Tensor]]  # parameters [*, rows, cols] -> W [*, d, d_z], negative gradient up to a factor


@dataclass(frozen=True)
class RegularisationPath:
    r"""The best weights within each ball.

    Attributes:
        radii: R, ``[r]``, increasing.
        W: the best weights, ``[r, d, d_z]``.
        log_excess: :math:`\log(L(W_R) - L_\star)`, ``[r]``.
        residual: one minus the cosine of the weights and the negative gradient (of the factors and theirs), ``[r]``: zero at a stationary
            point, where the step points straight out of the ball, and where the gradient is zero.
        fresh: share of the random starts at this radius that end at the tokens that the best weights select, ``[r]``.
        followed: the same of the starts that come from the previous radius, ``[r]``; at the first, those are random too.
    """

    radii: Float[Tensor, " r"]
    W: Float[Tensor, "r d d_z"]
    log_excess: Float[Tensor, " r"]
    residual: Float[Tensor, " r"]
    fresh: Float[Tensor, " r"]
    followed: Float[Tensor, " r"]


@single_threaded
def regularisation_path(
    instance: Instance, radii: Sequence[float], *, generator: torch.Generator, starts: int = 8, steps: int = 600, loss: Loss = LOGISTIC
) -> RegularisationPath:
    r"""Least loss over :math:`\|W\|_F \le R` of a single instance.

    Args:
        instance: a single problem.
        radii: R, increasing, positive and finite.
        generator: of the random starts.
        starts: number of random starts at each radius, and of starts that are followed from one radius to the next.
        steps: of descent at each radius.
        loss: of the prediction, label included.
    Returns:
        The best weights within each ball.
    Raises:
        ValueError: radii that do not increase from above zero or are not finite, no start, ``steps`` negative, a batch of instances, inputs
            of one token, no query but zero, or data out of range (:func:`~.gradient.check_scale`).
        TypeError: an argument of another type, or the instance has no scores but another head.
    """
    check_instance(instance, Instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    @no_type_check
    def push(data: Gradient, W: Tensor) -> tuple[Tensor, Tensor]:
        return W, data.descent(W)[0]

    return _follow(instance, radii, push, lambda R: R, (d, d_z), generator, starts, steps, loss)


@single_threaded
def factored_path(
    instance: Instance, radii: Sequence[float], *, generator: torch.Generator, starts: int = 8, steps: int = 600, loss: Loss = LOGISTIC
) -> RegularisationPath:
    r"""Least loss over :math:`\|K\|_F^2 + \|Q\|_F^2 \le 2R` of a single instance, with :math:`W = K Q^\top` and K, Q of
    :math:`\min(d, d_z)` columns.

    Args:
        instance, radii, generator, starts, steps, loss: as in :func:`regularisation_path`.
    Returns:
        The best weights within each ball.
    Raises:
        ValueError, TypeError: as :func:`regularisation_path`.
    """
    check_instance(instance, Instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    @no_type_check
    def push(data: Gradient, KQ: Tensor) -> tuple[Tensor, Tensor]:
        K, Q = KQ[..., :d, :], KQ[..., d:, :]
        W = K @ Q.mT
        M, _ = data.descent(W)
        return W, torch.cat([M @ Q, M.mT @ K], -2)

    return _follow(instance, radii, push, lambda R: (2 * R) ** 0.5, (d + d_z, min(d, d_z)), generator, starts, steps, loss)


@torch.no_grad()
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
    """The best of ``2 starts`` descents at each radius.

    Args:
        push: the weights and the negative gradient, for parameters in any form.
        norm: the largest norm of the parameters, given R.
        shape: of the parameters.
    """
    if instance.trials:
        raise ValueError(f"instance must be a single one, got a batch {list(instance.trials)}; select one trial of it")
    for R in radii:
        positive(radii=R)
    if not len(radii) or any(b <= a for a, b in pairwise(radii)):
        raise ValueError(f"radii must increase from above zero, got {list(radii)}")
    integers(minimum=0, steps=steps)
    integers(starts=starts)
    # All starts descend together, as trials of one batch: first those that continue from the previous radius, then the fresh ones.
    batch = instance[None][torch.zeros(2 * starts, dtype=torch.long)]
    data, log_excess = Gradient(batch, loss), ExcessLoss(batch, loss)
    carried, columns = torch.randn(starts, *shape, generator=generator, dtype=torch.float64), []
    for R in radii:
        fresh = torch.randn(starts, *shape, generator=generator, dtype=torch.float64)
        parameters, W, excess, residual = _descend(data, log_excess, torch.cat([carried, fresh]), push, norm(R), steps)
        best, select = excess.argmin(), batch.selected(W)
        reached = (select == select[best]).all(-1).double()
        columns.append((W[best], excess[best], residual[best], reached[starts:].mean(), reached[:starts].mean()))
        carried = parameters[:starts]
    W, excess, residual, fresh, followed = (torch.stack(column) for column in zip(*columns))
    return RegularisationPath(torch.tensor([float(R) for R in radii], dtype=torch.float64), W, excess, residual, fresh, followed)


def _descend(
    data: Gradient, log_excess: ExcessLoss, parameters: Tensor, push: Push, norm: float, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projected normalised descent with momentum, which follows narrow valleys. Each start has its own step length.

    The parameters are kept in units of the ball, where no square leaves the range of float64.
    """

    @no_type_check
    def pushed(tried: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        W, up = push(data, norm * tried)
        return W, unit(up)[0], log_excess(W)

    parameters, _ = unit(parameters)
    W, up, excess = pushed(parameters)
    rate, drift = parameters.new_full((len(parameters), 1, 1), FIRST_STEP), parameters * 0
    for _ in range(steps):
        tried = parameters + MOMENTUM * drift + up * rate
        tried = tried / torch.linalg.vector_norm(tried, dim=(-2, -1), keepdim=True).clamp(min=1.0)
        new_W, new_up, new_excess = pushed(tried)
        # A step that does not lower the loss is undone, its momentum is dropped and the next step is shorter. The comparison uses the
        # logarithm of the excess loss, which still has digits where the losses themselves are equal in float64.
        better = (new_excess < excess)[:, None, None]
        drift = torch.where(better, tried - parameters, 0.0)
        rate = (rate * torch.where(better, LONGER, SHORTER)).clamp(*STEP_RANGE)
        parameters, W, up = (torch.where(better, new, old) for new, old in ((tried, parameters), (new_W, W), (new_up, up)))
        excess = torch.where(better.flatten(), new_excess, excess)
    apart = (unit(parameters)[0] - up).square().sum((-2, -1)) / 2  # one minus the cosine, to more digits
    return parameters, W, excess, torch.where((up == 0).all(-1).all(-1), 0.0, apart)
