r"""Where attention goes by each of the four dynamics, from counts alone: nothing is trained here.

The flows start at zero with the class probabilities :math:`P(l | n)` and shares of the counted sequences. Each has assumptions of its own:
the exact flow needs long sequences only; the modified and Lemma 4's need classes with linearly independent features as well, and weak
overlap to be a good approximation; the closed form speaks of a single common token of classes that are all alike. What does not exist for
given data says why.

Source: :cite:t:`tian2023scan`.
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

FLOWS: tuple[tuple[str, Callable], ...] = ((EXACT, exact_flow), (MODIFIED, modified_flow), (LEMMA4, lemma4_flow))
TOLERANCES = (1e-8, 1e-10, 1e-12)  # tried in turn until two integrations agree
PRECISE = 0.01  # error of the integration as a share of the largest logit, up to which it is taken
UNRESOLVED = "not resolved"  # so begins the reason if a flow exists but its integration failed
UNMOVED = 1e-8  # largest change of a logit that counts as none: smaller ones are rounding where classes are equal
CLOSE = 0.25  # relative error of logits up to which a prediction counts as right
ALIKE = 0.1  # relative spread of overlaps and shares up to which classes count as alike


@dataclass(frozen=True, eq=False)
class Prediction:
    """Attention logits over time by one of the dynamics.

    Attributes:
        dynamics: its name.
        tokens: numbers of the tokens that it speaks of, ``[some]``; none if it does not exist.
        logits: at the times, ``[t, some]``.
        reason: why it does not exist; empty if it does.
    """

    dynamics: str
    tokens: Int[Tensor, " some"]
    logits: Float[Tensor, "t some"]
    reason: str = ""


def predictions(classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float) -> tuple[Prediction, ...]:
    """The four dynamics at the times, in steps, for classes with one query.

    Raises:
        ValueError: a rate or time is out of range, see :func:`~.flow.exact_flow`.

    Source: :cite:t:`tian2023scan`.
    """
    found = [_flow(name, flow, classes, times, eta_y, eta_z) for name, flow in FLOWS]
    return (*found, _closed_form(classes, times, eta_y, eta_z))


def _flow(name: str, flow: Callable, classes: SequenceClasses, times: Tensor, eta_y: float, eta_z: float) -> Prediction:
    reason = ""
    for tolerance in TOLERANCES:
        try:
            path = flow(classes, times, eta_y=eta_y, eta_z=eta_z, tolerance=tolerance)
        except Infeasible as error:
            return _none(name, times, str(error).split(",")[0] + ", which these do not have")
        except NotConverged as error:
            reason = f"{UNRESOLVED}: {error}"
            continue
        logits = path.logits[:, 0]
        if (moved := float(logits[-1].abs().max())) < UNMOVED:
            return _none(name, times, f"attention moves by less than {UNMOVED:g}")
        if path.error <= PRECISE * moved:
            return Prediction(name, torch.arange(classes.tokens), logits)
        reason = f"{UNRESOLVED}: attention moves by {moved:.1e}, two integrations differ by {path.error:.1e}"
    return _none(name, times, reason)


def _closed_form(classes: SequenceClasses, times: Tensor, eta_y: float, eta_z: float) -> Prediction:
    K, common = classes.classes, classes.common().nonzero()[:, 0]
    if len(common) != 1:
        return _none(CLOSED, times, f"needs a single common token, got {len(common)}")
    overlaps = classes.overlap()[~torch.eye(K, dtype=torch.bool)]
    for name, values in (("overlaps", overlaps), ("shares", classes.weights)):
        spread = float((values.max() - values.min()) / values.mean())
        if spread > ALIKE:
            return _none(CLOSED, times, f"needs classes that are all alike, got {name} that differ by {spread:.0%} of their mean")
    z = -B(times, classes=K, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z, overlap=float(overlaps.mean()))
    return Prediction(CLOSED, common, z[:, None])


def _none(name: str, times: Tensor, reason: str) -> Prediction:
    return Prediction(name, torch.empty(0, dtype=torch.long), torch.empty(len(times), 0, dtype=torch.float64), reason)


def half_way(times: Float[Tensor, " t"], logits: Float[Tensor, "t some"]) -> float:
    """The time from which on the logits have made half of their movement, interpolated linearly between the times; 0 if none moved.

    Movement is the Euclidean distance from the start, as a share of that at the end; the last crossing of one half counts.

    Args:
        times: increasing, the first one of the start.

    Source: ours.
    """
    moved = torch.linalg.vector_norm(logits - logits[0], dim=-1)
    if not float(moved[-1]) > 0:
        return 0.0
    share = moved / moved[-1]
    k = int((share < 0.5).nonzero()[-1])
    return float(times[k] + (times[k + 1] - times[k]) * (0.5 - share[k]) / (share[k + 1] - share[k]))
