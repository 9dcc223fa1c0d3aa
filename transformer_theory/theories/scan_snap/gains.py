r"""The relative gain of two tokens of a class: Theorem 3's law and its bounds, corrected and as printed.

For distinct tokens l, l' of a class, with r = (c_l / c_l')^2 - 1 and :math:`\chi_l = e^{2 \Delta z_l}`, Lemma
4's flow satisfies exactly

    r(t) = r(0) chi_l(t)         equivalently   y_n(t) = (1 - e^{-2 dz_l}) / P(l|n)^2
                                 is the same for all distinct tokens of class n

since :math:`\dot z_l = w_n f_{nl}^2 \dot B_n`. The likeliest distinct token l0 of a class gains most. As long
as :math:`f_{nl_0}` grows,

    exp(2 f_nl0(0)^2 w_n B_n) <= chi_l0 <= exp(2 w_n B_n)

The printed bounds have B_n instead of :math:`w_n B_n`, which is :math:`B_n / K` for equal shares. The factor
:math:`w_n` is needed because class n gets only a share :math:`w_n` of the steps. Without it the lower bound
fails.

Source: :cite:t:`tian2023scan` (Thm. 3).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted
from .flow import DrivenFlow
from .problem import SequenceClasses


@dataclass(frozen=True, eq=False)
class RelativeGains:
    """Theorem 3 for pairs of tokens of a class.

    Attributes:
        pairs: class, likelier token l, other token l', ``[pairs, 3]``.
        start: r(0), ``[pairs]``.
        measured: r(t) from the logits, ``[t, pairs]``.
        predicted: r(0) chi_l(t), ``[t, pairs]``.
    """

    pairs: Tensor
    start: Float[Tensor, " pairs"]
    measured: Float[Tensor, "t pairs"]
    predicted: Float[Tensor, "t pairs"]

    @property
    def error(self) -> float:
        """Largest relative error of the closed form, over times and pairs; NaN if there is no pair."""
        if not self.measured.numel():
            return math.nan
        # 1e-300 avoids 0 / 0 where both gains are zero.
        return float(((self.measured - self.predicted).abs() / self.measured.abs().clamp(min=1e-300)).max())


@converted(float64=("logits",))
def relative_gains(
    classes: SequenceClasses, logits: Float[Tensor, "t Q S"], *, tokens: Tensor | None = None
) -> RelativeGains:
    r"""Returns measured and predicted gains :math:`r = (c_l / c_{l'})^2 - 1` of all pairs of distinct tokens
    of each class.

    Pairs with equal probabilities are omitted, since r(0) = 0. A gain beyond the largest number is infinite.

    Args:
        classes: K classes over S tokens.
        logits: Z over time in a flow that starts at zero, ``[t, Q, S]``.
        tokens: tokens to pair in each class, bool ``[K, S]``. None: its distinct tokens.
    Raises:
        ValueError: the logits do not belong to the tokens of the classes.
    """
    pairable = classes.distinct() if tokens is None else tokens
    P = classes.conditional
    needed = [int(classes.query.max()) + 1, P.shape[1]]
    if logits.ndim != 3 or logits.shape[1] < needed[0] or logits.shape[2] != needed[1]:
        raise ValueError(f"logits must be [t, Q, S] with [Q, S] = {needed}, got {list(logits.shape)}")
    triples = []
    for n in range(classes.classes):
        candidates = pairable[n].nonzero()[:, 0]
        first, second = torch.meshgrid(candidates, candidates, indexing="ij")
        # probabilities that differ by rounding count as equal
        likelier = P[n, first] > P[n, second] * (1 + 1e-9)
        triples.append(
            torch.stack([torch.full_like(first[likelier], n), first[likelier], second[likelier]], dim=1)
        )
    pairs = torch.cat(triples)
    n, first, second = pairs.T
    log_ratio = 2 * (P[n, first].log() - P[n, second].log())
    z = logits[:, classes.query[n]]  # [t, pairs, S]
    change, other = (
        z.gather(2, token[None, :, None].expand(len(z), -1, 1))[..., 0] for token in (first, second)
    )
    # Compute r = e^{log_ratio} - 1 by expm1: gains of nearly equal tokens are small differences of numbers
    # near 1.
    start = torch.expm1(log_ratio)
    return RelativeGains(
        pairs, start, torch.expm1(log_ratio + 2 * (change - other)), start * torch.exp(2 * change)
    )


@dataclass(frozen=True, eq=False)
class GainBounds:
    """Bounds on ln chi of the likeliest distinct token of each class.

    Attributes:
        token: number of this token, ``[K]``.
        log_chi: ln chi = 2 dz of this token, ``[t, K]``.
        lower, upper: bounds on ``log_chi``, ``[t, K]``.
    """

    token: Int[Tensor, " K"]
    log_chi: Float[Tensor, "t K"]
    lower: Float[Tensor, "t K"]
    upper: Float[Tensor, "t K"]

    @property
    def slack(self) -> Float[Tensor, "t K"]:
        r"""Distance to the nearer bound, divided by :math:`|\ln \chi|`; negative outside the bounds."""
        return torch.minimum(self.log_chi - self.lower, self.upper - self.log_chi) / self.log_chi.abs().clamp(
            min=1e-300
        )


def gain_bounds(classes: SequenceClasses, flow: DrivenFlow) -> GainBounds:
    """Returns Theorem 3's bounds with the shares of the classes, w_n B_n.

    Raises:
        ValueError: a class has no distinct token.
    """
    return _bounds(classes, flow, flow.drive * classes.weights)


def printed_gain_bounds(classes: SequenceClasses, flow: DrivenFlow) -> GainBounds:
    """Returns Theorem 3's bounds as printed, with B_n.

    Raises:
        ValueError: a class has no distinct token.
    """
    return _bounds(classes, flow, flow.drive)


def _bounds(classes: SequenceClasses, flow: DrivenFlow, drive: Float[Tensor, "t K"]) -> GainBounds:
    distinct: Bool[Tensor, "K S"] = classes.distinct()
    if not bool(distinct.any(1).all()):
        k = int((~distinct.any(1)).nonzero()[0])
        raise ValueError(
            f"every class must have a distinct token, but all tokens of class {k} are common; drop that class"
        )
    f = torch.where(distinct, classes.features(), 0.0)
    start, token = f.max(1)
    change = flow.logits[:, classes.query, token]
    return GainBounds(token, 2 * change, 2 * start**2 * drive, 2 * drive)
