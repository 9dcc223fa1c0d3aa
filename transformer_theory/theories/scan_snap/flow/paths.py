"""What a flow returns. Source: :cite:t:`tian2023scan`."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

EXACT, MODIFIED, LEMMA4, CLOSED = "exact flow", "modified flow", "Lemma 4", "closed form"  # the four dynamics, one name each


@dataclass(frozen=True, eq=False)
class Flow:
    """Attention logits along a flow.

    Attributes:
        dynamics: ``EXACT``, ``MODIFIED`` or ``LEMMA4``.
        times: in steps, ``[t]``.
        logits: Z, ``[t, Q, S]``.
        error: largest difference of the logits to a second integration with a 30 times larger tolerance.
    """

    dynamics: str
    times: Float[Tensor, " t"]
    logits: Float[Tensor, "t Q S"]
    error: float


@dataclass(frozen=True, eq=False)
class DrivenFlow(Flow):
    r"""Lemma 4's flow with what drives it.

    Attributes:
        drive: :math:`B_n(t) = \eta_Z \int_0^t \xi_n`, ``[t, K]``. A distinct token of class n obeys
            :math:`\dot z_l = w_n f_{nl}^2 \dot B_n`, a single common token :math:`\dot z = -\sum_n w_n (1 - f_n^2) \dot B_n`.
    """

    drive: Float[Tensor, "t K"]
