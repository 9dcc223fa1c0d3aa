r"""The local regularisation path: the weights of least loss within a growing ball and a cone around the
max-margin solution of a selection.

.. math:: W_R = \arg\min \{L(W): R_0 \le \|W\|_F \le R,\ \langle W, W_a\rangle \ge (1 - \epsilon)\, \|W\|_F
    \|W_a\|_F\} .

Let a be a selection and :math:`W_a` its max-margin solution. If a is locally optimal, then :math:`W_R / R`
tends to :math:`W_a / \|W_a\|_F` for every small enough :math:`\epsilon` and large enough :math:`R_0`; if a
neighbour of some selected token scores higher, it does not (:cite:t:`tarzanagh2023transformers`,
:cite:t:`tarzanagh2023maxmargin`).

Far out the loss differs from its limit :math:`L_a = \tfrac1n \sum_i \ell(\gamma_{i,a_i})` by less than the
rounding error of either. With :math:`g_i = \sum_t s_{i,t} (\gamma_{i,a_i} - \gamma_{i,t})` the difference is

.. math:: L - L_a = \frac1n \sum_i g_i \int_0^1 |\ell'(\gamma_{i,a_i} - u\, g_i)|\,du ,

whose terms have both signs but a common factor :math:`e^C`, the largest share of a token that is not
selected. :class:`SelectionLoss` returns an increasing function of it that needs the logarithm of this factor
only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted, integers
from ..problem import Instance, token_logits
from ..validation import check_positions, check_real, check_shape
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss, check_loss
from .path import check_radii, projected_descent
from .polyak import LOG_WEIGHTS, NODES
from .states import check_instance

OFFSET = 1e6  # above the size of every logarithm of the loss


class SelectionLoss:
    r"""An increasing function of :math:`L - L_a`: with the sign and the logarithm of the difference,
    :math:`\pm(10^6 + \log|L - L_a|)`.
    """

    def __init__(self, instance: Instance, select: Tensor, loss: Loss):
        self.instance, self.select, self.loss = instance, select[..., None], loss
        self.score = instance.scores.gather(-1, self.select)
        self.deficit = self.score - instance.scores

    @no_type_check
    def __call__(self, W: Tensor) -> Tensor:
        """Evaluates the function at W ``[*trials, d, d_z]``; returns ``[*trials]``."""
        log_share = token_logits(self.instance.tokens, self.instance.query, W).log_softmax(-1)
        log_share = log_share.scatter(-1, self.select, -torch.inf)
        C = log_share.amax((-2, -1), keepdim=True)
        gap = ((log_share - C).exp() * self.deficit).sum(-1, keepdim=True)  # e^-C g
        # Gauss-Legendre quadrature of the slope; it is exact to rounding, since g is at most the range of the
        # scores.
        slope = (self.loss.slope(self.score - gap * C.exp() * NODES) * LOG_WEIGHTS.exp()).sum(-1)
        difference = (gap.squeeze(-1) * slope).mean(-1)
        log_size = difference.abs().log() + C[..., 0, 0]
        return torch.where(difference == 0, 0.0, difference.sign() * (OFFSET + log_size))


def into_cone(
    centre: Float[Tensor, "*trials d d_z"], cosine: Tensor, least: float
) -> Callable[[Tensor], Tensor]:
    r"""Returns a projection onto the matrices with cosine to ``centre`` at least ``cosine`` ``[*trials, 1,
    1]`` and norm in [``least``, 1].

    It is the Euclidean projection onto the cone, followed by a change of length.
    """
    axis, _ = unit(centre)
    sine = (1 - cosine**2).sqrt()

    @no_type_check
    def project(W: Tensor) -> Tensor:
        along = (W * axis).sum((-2, -1), keepdim=True)
        across, _ = unit(W - along * axis)
        height = (W * across).sum((-2, -1), keepdim=True)
        inside = along * sine > height * cosine
        # Outside the cone, the nearest point lies on the ray (cosine, sine) in the plane of the axis and W.
        direction, _ = unit(torch.where(inside, W, cosine * axis + sine * across))
        length = torch.where(inside, torch.hypot(along, height), cosine * along + sine * height)
        return direction * length.clamp(least, 1.0)

    return project


@dataclass(frozen=True)
class LocalPath:
    r"""The best weights in each set.

    Attributes:
        W: the weights, ``[r, trials, d, d_z]``.
        below: whether their loss is below the limit :math:`L_a` of the selection, ``[r, trials]``.
        residual: one minus the cosine between weights and negative gradient, ``[r, trials]``: zero at a
            minimum of norm R inside the cone.
    """

    W: Float[Tensor, "r trials d d_z"]
    below: Bool[Tensor, "r trials"]
    residual: Float[Tensor, "r trials"]


@single_threaded
@torch.no_grad()
@converted(float64=("centre", "starts", "width"), int64=("select",))
def local_path(
    instance: Instance,
    select: Int[Tensor, "trials n"],
    centre: Float[Tensor, "trials d d_z"],
    starts: Float[Tensor, "k trials d d_z"],
    radii: Sequence[float],
    *,
    width: Float[Tensor, " trials"],
    steps: int = 300,
    loss: Loss = LOGISTIC,
) -> LocalPath:
    r"""Minimises the loss in a cone around :math:`W_a` over :math:`\rho_0 \|W_a\|_F \le \|W\|_F \le
    \rho\|W_a\|_F`, for growing radii.

    Each set is searched from the boundary of the cone, at the cosine ``1 - width`` in the direction of every
    start, and from the best weights in the previous, smaller set; :math:`\rho_0` is the first radius.

    Args:
        instance: a batch of problems.
        select: a, the selected tokens, ``[trials, n]``.
        centre: :math:`W_a`, ``[trials, d, d_z]``, for example from :func:`~..solvers.frobenius_max_margins`.
        starts: any matrices, ``[k, trials, d, d_z]``; their part across :math:`W_a` gives the direction.
        radii: :math:`\rho`, positive and increasing; :math:`\rho W_a` has logits of selected tokens at least
            :math:`\rho` above the others.
        width: :math:`\epsilon`, in (0, 1), ``[trials]``: the cone contains weights with 1 - cosine to
            :math:`W_a` of at most this.
        steps: number of steps of projected descent from each start.
        loss: loss of the prediction, label included.
    Returns:
        The weights of least loss in each set.
    Raises:
        ValueError: ``instance`` is a single problem or has a mask, shapes do not fit, radii are not positive
            and increasing, a width is outside (0, 1), or inputs have one token.
        TypeError: an argument has the wrong type.
    """
    check_instance(instance, Instance)
    check_loss(loss)
    integers(minimum=0, steps=steps)
    if len(instance.trials) != 1 or instance.allowed is not None:
        raise ValueError(
            f"instance must be a batch of problems without a mask, got trials {list(instance.trials)}; use "
            "instance[None]"
        )
    trials, n, T, d = instance.tokens.shape
    check_positions("select", select, (trials, n), T)
    for name, value, shape in (
        ("centre", centre, (trials, d, instance.query.shape[-1])),
        ("starts", starts, (max(len(starts), 1), trials, d, instance.query.shape[-1])),
        ("width", width, (trials,)),
    ):
        check_real(name, value, str(list(shape)), len(shape))
        check_shape(name, value, shape)
    if not bool(((width > 0) & (width < 1)).all()):
        raise ValueError(
            f"width must lie between 0 and 1, got {width.tolist()}; it is the largest 1 - cosine to the "
            "centre"
        )
    check_radii(radii)
    data, excess = Gradient(instance, loss), SelectionLoss(instance, select, loss)

    @no_type_check
    def push(data: Gradient, W: Tensor) -> tuple[Tensor, Tensor]:
        return W, data.descent(W)[0]

    size, axis = torch.linalg.matrix_norm(centre)[:, None, None], unit(centre)[0]
    across = starts - (starts * axis).sum((-2, -1), keepdim=True) * axis
    previous, results = [], []
    for radius in radii:
        project = into_cone(centre, 1 - width[:, None, None], radii[0] / radius)
        runs = [
            projected_descent(data, excess, project(W), push, radius * size, steps, project)
            for W in (*across, *previous)
        ]
        # A run returns weights in units of the radius, weights, the increasing function of the loss, and the
        # residual.
        columns = [torch.stack(column) for column in zip(*runs)]
        best = columns[2].argmin(0)
        W, weights, least, residual = (column[best, torch.arange(trials)] for column in columns)
        previous = [W]
        results.append((weights, least < 0, residual))
    return LocalPath(*(torch.stack(column) for column in zip(*results)))
