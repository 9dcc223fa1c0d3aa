r"""The regularisation path: the weights of least loss within a ball, as the ball grows.

.. math:: W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad (K_R, Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K
    Q^\top).

If the optimal tokens are unique and one W can select them, :math:`W_R / R` tends to the direction of the
max-margin solution in the Frobenius norm, and :math:`K_R Q_R^\top / R` to the directions of the max-margin
solutions in the nuclear norm: the second ball is
:math:`\|W\|_\star \le R`, written in factors (:cite:t:`tarzanagh2023transformers`,
:cite:t:`tarzanagh2023maxmargin`).

The problem is not convex: descent from a random start can end at other tokens. Each ball is therefore solved
from two sets of starts: new random ones, and the solutions in the previous, smaller ball. (For small R the
loss is nearly linear, and every start works.) The path reports how many starts of each set succeed. Steps are
normalised, with momentum, and projected onto the ball. A step is accepted only if the loss decreases;
:func:`~.polyak.log_excess_loss` resolves any decrease, however small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import integers, positive
from ..problem import Instance
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss
from .polyak import ExcessLoss
from .states import check_instance

MOMENTUM = 0.9
FIRST_STEP, STEP_RANGE = 0.3, (1e-9, 10.0)  # lengths of steps, relative to the radius
LONGER, SHORTER = 1.1, 0.5  # factors of the step length after an accepted and after a rejected step

# parameters [*, rows, cols] -> W [*, d, d_z], and the negative gradient in the parameters up to a positive
# factor
Push = Callable[[Gradient, Tensor], tuple[Tensor, Tensor]]


@no_type_check
def into_ball(parameters: Tensor) -> Tensor:
    """Projects matrices ``[*, rows, cols]`` onto the unit ball of the Frobenius norm."""
    return parameters / torch.linalg.vector_norm(parameters, dim=(-2, -1), keepdim=True).clamp(min=1.0)


@dataclass(frozen=True)
class RegularisationPath:
    r"""The best weights within each ball.

    Attributes:
        radii: R, ``[r]``, increasing.
        W: the best weights, ``[r, d, d_z]``.
        log_excess: :math:`\log(L(W_R) - L_\star)`, ``[r]``.
        residual: one minus the cosine between parameters (weights or factors) and negative gradient, ``[r]``.
            It is zero at stationary points, where the gradient is zero or points straight out of the ball.
        fresh: share of the new random starts that end at the tokens that the best weights select, ``[r]``.
        followed: the same share for the starts from the previous radius, ``[r]``; at the first radius these
            are random too.
    """

    radii: Float[Tensor, " r"]
    W: Float[Tensor, "r d d_z"]
    log_excess: Float[Tensor, " r"]
    residual: Float[Tensor, " r"]
    fresh: Float[Tensor, " r"]
    followed: Float[Tensor, " r"]


@single_threaded
def regularisation_path(
    instance: Instance,
    radii: Sequence[float],
    *,
    generator: torch.Generator,
    starts: int = 8,
    steps: int = 600,
    loss: Loss = LOGISTIC,
) -> RegularisationPath:
    r"""Minimises the loss of a single instance over :math:`\|W\|_F \le R`, for growing R.

    Args:
        instance: a single problem.
        radii: R, increasing, positive and finite.
        generator: random generator of the starts.
        starts: number of random starts at each radius, and number of starts that are followed from one radius
            to the next.
        steps: number of steps of descent at each radius.
        loss: loss of the prediction, label included.
    Returns:
        The best weights within each ball.
    Raises:
        ValueError: the radii are not positive, finite and increasing, ``starts`` is less than one, ``steps``
            is negative, ``instance`` is a batch, inputs have one token, all queries are zero, or data are out
            of range (:func:`~.gradient.check_scale`).
        TypeError: an argument has the wrong type; heads other than a linear one
            (:class:`~.heads.HeadInstance`) are not supported.
    """
    check_instance(instance, Instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    @no_type_check
    def push(data: Gradient, W: Tensor) -> tuple[Tensor, Tensor]:
        return W, data.descent(W)[0]

    return _follow(instance, radii, push, lambda R: R, (d, d_z), generator, starts, steps, loss)


@single_threaded
def factored_path(
    instance: Instance,
    radii: Sequence[float],
    *,
    generator: torch.Generator,
    starts: int = 8,
    steps: int = 600,
    loss: Loss = LOGISTIC,
) -> RegularisationPath:
    r"""Minimises the loss of a single instance over :math:`\|K\|_F^2 + \|Q\|_F^2 \le 2R`, for growing R.

    The weights are :math:`W = K Q^\top`; K and Q have :math:`\min(d, d_z)` columns.

    Args:
        instance, radii, generator, starts, steps, loss: as in :func:`regularisation_path`.
    Returns:
        The best weights within each ball.
    Raises:
        ValueError, TypeError: as for :func:`regularisation_path`.
    """
    check_instance(instance, Instance)
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]

    @no_type_check
    def push(data: Gradient, KQ: Tensor) -> tuple[Tensor, Tensor]:
        K, Q = KQ[..., :d, :], KQ[..., d:, :]
        W = K @ Q.mT
        M, _ = data.descent(W)
        return W, torch.cat([M @ Q, M.mT @ K], -2)

    return _follow(
        instance,
        radii,
        push,
        lambda R: (2 * R) ** 0.5,
        (d + d_z, min(d, d_z)),
        generator,
        starts,
        steps,
        loss,
    )


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
    """Returns the best of ``2 starts`` runs of descent at each radius.

    Args:
        push: function that returns the weights and the negative gradient for the parameters.
        norm: function that returns the largest norm of the parameters for the radius R.
        shape: shape of the parameters of one start.
    """
    if instance.trials:
        raise ValueError(
            f"instance must be a single problem, got a batch {list(instance.trials)}; select one trial of it"
        )
    check_radii(radii)
    integers(minimum=0, steps=steps)
    integers(starts=starts)
    # All starts form one batch of trials: first those that continue from the previous radius, then the new
    # random ones.
    batch = instance[None][torch.zeros(2 * starts, dtype=torch.long)]
    data, log_excess = Gradient(batch, loss), ExcessLoss(batch, loss)
    previous, columns = torch.randn(starts, *shape, generator=generator, dtype=torch.float64), []
    for R in radii:
        fresh = torch.randn(starts, *shape, generator=generator, dtype=torch.float64)
        parameters, W, excess, residual = projected_descent(
            data, log_excess, torch.cat([previous, fresh]), push, norm(R), steps
        )
        best, select = excess.argmin(), batch.selected(W)
        same = (select == select[best]).all(-1).double()
        columns.append((W[best], excess[best], residual[best], same[starts:].mean(), same[:starts].mean()))
        previous = parameters[:starts]
    W, excess, residual, fresh, followed = (torch.stack(column) for column in zip(*columns))
    return RegularisationPath(
        torch.tensor([float(R) for R in radii], dtype=torch.float64), W, excess, residual, fresh, followed
    )


def check_radii(radii: Sequence[float]) -> None:
    """Checks that radii are positive, finite and increasing, and that there is one.

    Raises:
        ValueError, TypeError: they are not.
    """
    for R in radii:
        positive(radii=R)
    if not len(radii) or any(b <= a for a, b in pairwise(radii)):
        raise ValueError(f"radii must increase from above zero, got {list(radii)}")


def projected_descent(
    data: Gradient,
    log_excess: Callable[[Tensor], Tensor],
    parameters: Tensor,
    push: Push,
    norm: float | Tensor,
    steps: int,
    project: Callable[[Tensor], Tensor] = into_ball,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs projected normalised descent; momentum helps it along narrow valleys, and every start adapts its
    own step length.

    The parameters are stored in units of the radius, so that no square leaves the range of float64.

    Args:
        log_excess: increasing function of the loss at W ``[starts, d, d_z]``, ``[starts]``; a step is
            accepted if it decreases.
        parameters: first parameters ``[starts, rows, cols]``, scaled to norm one.
        push: function that returns the weights and the negative gradient for the parameters.
        norm: the radius, one number or ``[starts, 1, 1]``.
        project: projection onto the set of parameters, in units of the radius.
    Returns:
        Parameters in units of the radius, weights, ``log_excess``, and one minus the cosine of parameters and
        negative gradient.
    """

    @no_type_check
    def evaluate(candidate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        W, direction = push(data, norm * candidate)
        return W, unit(direction)[0], log_excess(W)

    parameters, _ = unit(parameters)
    W, direction, excess = evaluate(parameters)
    rate, momentum = parameters.new_full((len(parameters), 1, 1), FIRST_STEP), parameters * 0
    for _ in range(steps):
        candidate = parameters + MOMENTUM * momentum + direction * rate
        candidate = project(candidate)
        new_W, new_direction, new_excess = evaluate(candidate)
        # A step that does not lower the loss is rejected: the momentum is reset, and the next step is
        # shorter. The comparison uses the logarithm of the excess loss, which has correct digits even if the
        # losses themselves are equal in float64.
        better = (new_excess < excess)[:, None, None]
        momentum = torch.where(better, candidate - parameters, 0.0)
        rate = (rate * torch.where(better, LONGER, SHORTER)).clamp(*STEP_RANGE)
        updates = ((candidate, parameters), (new_W, W), (new_direction, direction))
        parameters, W, direction = (torch.where(better, new, old) for new, old in updates)
        excess = torch.where(better.flatten(), new_excess, excess)
    # one minus the cosine, without cancellation
    residual = (unit(parameters)[0] - direction).square().sum((-2, -1)) / 2
    return parameters, W, excess, torch.where((direction == 0).all(-1).all(-1), 0.0, residual)
