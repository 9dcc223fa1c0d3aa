r"""Losses of a prediction f, the label included: :math:`f = Y h(\cdot)`, large where the head is right.

A loss is decreasing with a bounded slope on the predictions that a run visits: logistic :math:`\log(1 + e^{-f})`, exponential
:math:`e^{-f}`, linear :math:`-f`. This is the class of :cite:t:`tarzanagh2023transformers` and :cite:t:`tarzanagh2023maxmargin`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..validation import describe


@dataclass(frozen=True)
class Loss:
    r"""A decreasing loss :math:`\ell`.

    Attributes:
        name: for tables.
        value: :math:`f \mapsto \ell(f)`, entry by entry.
        slope: :math:`f \mapsto -\ell'(f) > 0`, entry by entry.
        log: the logarithm of the slope, exact also where the slope itself underflows or overflows; None takes the logarithm of ``slope``.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    log: Callable[[Tensor], Tensor] | None = None

    def log_slope(self, f: Tensor) -> Tensor:
        r""":math:`\log(-\ell'(f))`, entry by entry."""
        return self.slope(f).log() if self.log is None else self.log(f)


def check_loss(loss: object) -> None:
    """Checks that a value is a :class:`Loss`, not the name of one.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(loss, Loss):
        raise TypeError(f"loss must be a Loss such as LOGISTIC, EXPONENTIAL or LINEAR, got {describe(loss)}")


LOGISTIC = Loss(
    "logistic", lambda f: torch.nn.functional.softplus(-f), lambda f: torch.sigmoid(-f), lambda f: torch.nn.functional.logsigmoid(-f)
)
EXPONENTIAL = Loss("exponential", lambda f: (-f).exp(), lambda f: (-f).exp(), torch.neg)
LINEAR = Loss("linear", lambda f: -f, torch.ones_like, torch.zeros_like)
