r"""Attention logits predicted by each of the four dynamics from counts alone, without any training.

The flows start at zero and use the probabilities :math:`P(l | n)` and the shares of the classes in the
counted sequences. The exact flow assumes long sequences only. The modified flow and Lemma 4's also need
classes with linearly independent features, and they are good approximations only if the classes overlap
weakly. The closed form describes a single common token of classes that are all alike. Where a prediction does
not exist, its record states the reason. Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from .closed_form import B
from .flow import CLOSED, EXACT, LEMMA4, MODIFIED, exact_flow, lemma4_flow, modified_flow
from .problem import SequenceClasses

FLOWS: tuple[tuple[str, Callable], ...] = (
    (EXACT, exact_flow),
    (MODIFIED, modified_flow),
    (LEMMA4, lemma4_flow),
)
# in the order of the attempts; the first one that resolves the movement is used
TOLERANCES = (1e-8, 1e-10, 1e-12)
INTEGRATION_RTOL = 0.01  # largest accepted error of the integration, as a share of the largest logit
MOVEMENT_ATOL = 1e-8  # changes of logits up to this are rounding: equal classes do not move attention at all
PREDICTION_RTOL = 0.25  # relative error of logits up to which a prediction counts as right
ALIKE_RTOL = 0.1  # relative spread of overlaps and shares up to which classes count as alike


@dataclass(frozen=True, eq=False)
class Prediction:
    """Attention logits over time by one of the dynamics.

    Attributes:
        dynamics: name of the dynamics.
        tokens: numbers of the predicted tokens, ``[some]``; empty if the prediction does not exist.
        logits: logits at the times, ``[t, some]``.
        reason: reason for a missing prediction; empty if the prediction exists.
        resolved: False if the flow exists but its integration failed.
    """

    dynamics: str
    tokens: Int[Tensor, " some"]
    logits: Float[Tensor, "t some"]
    reason: str = ""
    resolved: bool = True


def predictions(
    classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float
) -> tuple[Prediction, ...]:
    """Returns the predictions of the four dynamics.

    Args:
        classes: classes with one query.
        times: times in steps, increasing, ``[t]``.
        eta_y, eta_z: learning rates of decoder and attention.
    Raises:
        ValueError: a rate or time is out of range, see :func:`~.flow.exact_flow`.
    """
    flows = [_flow(name, flow, classes, times, eta_y, eta_z) for name, flow in FLOWS]
    return (*flows, _closed_form(classes, times, eta_y, eta_z))


def _flow(
    name: str, flow: Callable, classes: SequenceClasses, times: Tensor, eta_y: float, eta_z: float
) -> Prediction:
    # Where attention hardly moves, a loose tolerance can exceed the movement itself, so sharper ones are
    # tried in turn.
    reason = ""
    for tolerance in TOLERANCES:
        try:
            path = flow(classes, times, eta_y=eta_y, eta_z=eta_z, tolerance=tolerance)
        except Infeasible:
            return _none(name, times, "Lemma 3 needs linearly independent classes, which these do not have")
        except NotConverged as error:
            reason = f"not resolved: {error}"
            continue
        logits = path.logits[:, 0]
        if (moved := float(logits[-1].abs().max())) < MOVEMENT_ATOL:
            return _none(name, times, f"attention moves by less than {MOVEMENT_ATOL:g}")
        if path.error <= INTEGRATION_RTOL * moved:
            return Prediction(name, torch.arange(classes.tokens), logits)
        reason = f"not resolved: attention moves by {moved:.1e}, two integrations differ by {path.error:.1e}"
    return _none(name, times, reason, resolved=False)


def _closed_form(classes: SequenceClasses, times: Tensor, eta_y: float, eta_z: float) -> Prediction:
    K, common = classes.classes, classes.common().nonzero()[:, 0]
    if len(common) != 1:
        return _none(CLOSED, times, f"needs a single common token, got {len(common)}")
    overlaps = classes.overlap()[~torch.eye(K, dtype=torch.bool)]
    for name, values in (("overlaps", overlaps), ("shares", classes.weights)):
        spread = float((values.max() - values.min()) / values.mean())
        if spread > ALIKE_RTOL:
            return _none(
                CLOSED,
                times,
                f"needs classes that are all alike, got {name} that differ by {spread:.0%} of their mean",
            )
    z = -B(
        times,
        classes=K,
        vocab_size=classes.vocab_size,
        eta_y=eta_y,
        eta_z=eta_z,
        overlap=float(overlaps.mean()),
    )
    return Prediction(CLOSED, common, z[:, None])


def _none(name: str, times: Tensor, reason: str, *, resolved: bool = True) -> Prediction:
    return Prediction(
        name,
        torch.empty(0, dtype=torch.long),
        torch.empty(len(times), 0, dtype=torch.float64),
        reason,
        resolved,
    )


def half_way_step(times: Float[Tensor, " t"], logits: Float[Tensor, "t some"]) -> float:
    """Returns the time at which the logits have made half of their movement, interpolated linearly; 0 if no
    logit moves.

    Movement is the Euclidean distance from the start, divided by its final value. If it crosses one half
    several times, the last crossing counts.

    Args:
        times: times, increasing from the start, ``[t]``.
        logits: logits at the times, ``[t, some]``.
    """
    moved = torch.linalg.vector_norm(logits - logits[0], dim=-1)
    if not float(moved[-1]) > 0:
        return 0.0
    share = moved / moved[-1]
    # last time below one half; the share ends at 1, so time k + 1 exists
    k = int((share < 0.5).nonzero()[-1])
    return float(times[k] + (times[k + 1] - times[k]) * (0.5 - share[k]) / (share[k + 1] - share[k]))


def relative_error(predicted: Float[Tensor, " S"], change: Float[Tensor, "runs S"]) -> Float[Tensor, " runs"]:
    """Returns the Euclidean distance of predicted and measured change of the logits over the norm of the
    measured change.
    """
    return torch.linalg.vector_norm(predicted - change, dim=1) / torch.linalg.vector_norm(
        change, dim=1
    ).clamp(min=1e-300)
