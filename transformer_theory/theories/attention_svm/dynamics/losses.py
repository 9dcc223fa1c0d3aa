r"""Losses of a prediction :math:`f = Y h(\cdot)`, which includes the label and is large if the head is right.

A loss is decreasing, with a bounded slope on the predictions that occur in a run: logistic :math:`\log(1 +
e^{-f})`, exponential :math:`e^{-f}`, linear :math:`-f`. :cite:t:`tarzanagh2023transformers` and
:cite:t:`tarzanagh2023maxmargin` study this class.
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
        name: name of the loss in tables.
        value: the function :math:`f \mapsto \ell(f)`, entrywise.
        slope: the function :math:`f \mapsto -\ell'(f) > 0`, entrywise.
        log: logarithm of the slope, exact even if the slope itself underflows or overflows. None: the
            logarithm of ``slope``.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    log: Callable[[Tensor], Tensor] | None = None

    def log_slope(self, f: Tensor) -> Tensor:
        r"""Returns :math:`\log(-\ell'(f))`, entrywise."""
        return self.slope(f).log() if self.log is None else self.log(f)


def check_loss(loss: object) -> None:
    """Checks that a value is a :class:`Loss` and not, for example, its name.

    Raises:
        TypeError: the value is not a :class:`Loss`.
    """
    if not isinstance(loss, Loss):
        raise TypeError(f"loss must be a Loss such as LOGISTIC, EXPONENTIAL or LINEAR, got {describe(loss)}")


LOGISTIC = Loss(
    "logistic",
    lambda f: torch.nn.functional.softplus(-f),
    lambda f: torch.sigmoid(-f),
    lambda f: torch.nn.functional.logsigmoid(-f),
)
EXPONENTIAL = Loss("exponential", lambda f: (-f).exp(), lambda f: (-f).exp(), torch.neg)
LINEAR = Loss("linear", lambda f: -f, torch.ones_like, torch.zeros_like)
