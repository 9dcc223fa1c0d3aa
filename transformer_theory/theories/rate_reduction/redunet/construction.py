r"""The common part of the constructed networks: operators, layer-by-layer construction, and classification by
the last layer.

A layer consists of an expansion operator E and compression operators C_j, computed from the second moments of
the features that reach it:

.. math::
    E = \alpha (I + \alpha S)^{-1}, \quad C_j = \alpha_j (I + \alpha_j S_j)^{-1}, \quad
    \alpha = \frac{d}{n\epsilon^2}, \quad \alpha_j = \frac{d}{n_j\epsilon^2}, \quad S = \sum_j S_j .

The layer then moves a feature x of class j along :math:`xE - \gamma_j xC_j` and rescales it to norm 1.

**Step.** :func:`guaranteed_step` is the largest step for which the rate reduction provably does not decrease,
whatever the training features. With :math:`X = \sum_i s_i u_i v_i^\top`, :math:`a_i = \sqrt\alpha s_i`, the
second derivative of R in the plane of :math:`u_i v_p^\top` and :math:`u_p v_i^\top` has the eigenvalues
:math:`\alpha (1 \pm a_i a_p) / ((1 + a_i^2)(1 + a_p^2))`. As :math:`(1 + a_i^2)(1 + a_p^2) \ge (1 + a_i
a_p)^2`, they lie in :math:`[-\alpha/8, \alpha]`. The same holds for the share of each class in :math:`R^c`,
since :math:`\gamma_j \alpha_j = \alpha`. Hence :math:`\nabla^2 \Delta R \succeq -\tfrac98 \alpha`. On the
unit sphere :math:`x^+ \propto x + \eta g` maximises :math:`\langle g, x^+ - x\rangle - \tfrac1{2\eta}\|x^+ -
x\|^2`. This is 0 at :math:`x^+ = x`, so

.. math::
    \Delta R(X^+) \ge \Delta R(X) + \langle g, X^+ - X\rangle - \tfrac{9\alpha}{16} \|X^+ - X\|^2 \ge \Delta
    R(X) \quad\text{if}\quad \eta \le \frac{8}{9\alpha} = \frac{8 n \epsilon^2}{9 d} .

The number is :math:`2 / (9\alpha/4)`, where :math:`9\alpha/4` bounds the Hessian of R in Lemma 6 of
:cite:t:`yu2023white` (App. A.3.1 of the first version); the bounds above are sharper. The published steps (η
= 0.5, ε² = 0.1 with hundreds of samples per class in few dimensions) are far below this bound. For the
shift-invariant network with c channels, replace d by c: a grid of T places multiplies both the samples and
the dimensions by T.

Source: :cite:t:`chan2022redunet`; the bound on the step is derived here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from ....core.validation import finite, integers, positive
from ....maths.linalg import LARGEST_FLOAT32_CONDITION
from ....metrics.coding.memberships import check_eps, check_integers
from ....metrics.coding.resolvents import rate_and_inverse


def guaranteed_step(n: int, dim: int, *, eps: float) -> float:
    r"""Returns the step :math:`8 n \epsilon^2 / (9 d)` up to which no layer lowers the rate reduction of its
    training features.

    Args:
        n: number of training samples.
        dim: dimension d, or the number of channels of the shift-invariant network.
        eps: distortion; squared inside.
    Raises:
        ValueError: n or dim is below 1, or eps is not positive.
    """
    integers(n=n, dim=dim)
    positive(eps=eps)
    check_eps(eps)
    return 8 * n * eps**2 / (9 * dim)


def operators(
    moments: Inexact[Tensor, "k *frequencies d d"], sizes: Int[Tensor, " k"], *, eps: float
) -> tuple[Inexact[Tensor, "k+1 *frequencies d d"], Float[Tensor, "k+1 *frequencies"]]:
    r"""Computes E, the C_j and the rates of the features. One Cholesky factorisation per matrix gives its
    operator and its rate.

    Args:
        moments: :math:`S_j = X_j^\top X_j` (real symmetric or Hermitian), ``[k, *frequencies, d, d]``.
        sizes: n_j, each >= 1, ``[k]``.
        eps: distortion; squared inside.
    Returns:
        E, then the C_j, ``[k + 1, *frequencies, d, d]``; R, then the R_j, nats ``[k + 1, *frequencies]``.
    Raises:
        ValueError: the features are so large relative to eps that the identity is lost to rounding.
    """
    counts = torch.cat([sizes.sum()[None], sizes]).to(moments.real.dtype)
    scales = (moments.shape[-1] / (counts * eps**2)).view(-1, *[1] * (moments.ndim - 3))
    together = torch.cat([moments.sum(0, keepdim=True), moments])
    rates, inverses = rate_and_inverse(together, scales.expand(together.shape[:-2]))
    return scales[..., None, None] * inverses, rates


@dataclass(frozen=True)
class Growth:
    """The result of :func:`grow`.

    Attributes:
        operators: E, then the C_j, of each layer: L + 1 tensors ``[k + 1, *frequencies, d, d]``.
        shares: γ_j = n_j / n, ``[k]``.
        rates: R and R^c before each step and at the end, ``[L + 1, 2]`` nats.
        rows: the features after the last step.
    """

    operators: tuple[Inexact[Tensor, "one_more *frequencies d d"], ...]
    shares: Float[Tensor, " k"]
    rates: Float[Tensor, "depth 2"]
    rows: Inexact[Tensor, "*frequencies n d"]


def grow(
    rows: Inexact[Tensor, "*frequencies n d"],
    sizes: Int[Tensor, " k"],
    *,
    steps: int,
    eps: float,
    step: float,
    unit_norm: Callable[[Tensor], Tensor],
    total: Callable[[Tensor], Tensor],
) -> Growth:
    r"""Alternates between computing the operators of the features and moving the features along the gradient
    of ΔR.

    Training samples use the operators of their class. The last operators are computed from the final features
    and do not move them.

    Args:
        rows: features of norm 1, sorted by class.
        sizes: number n_j >= 1 of samples of each class, ``[k]``.
        steps: number L >= 0 of steps.
        eps: distortion ε; squared inside.
        step: step size η.
        unit_norm: function that scales features to norm 1.
        total: function that sums rates over frequencies, from ``[k + 1, *frequencies]`` to ``[k + 1]``.
    Raises:
        ValueError: eps is so small that the identity is lost to rounding.
    """
    lengths = sizes.tolist()
    layer_operators, rates = _operators(rows, sizes, lengths, eps)
    shares = sizes.to(rates.dtype) / sum(lengths)
    shape = (-1, *[1] * (layer_operators.ndim - 1))
    layers, curve = [layer_operators], [rates]
    for _ in range(steps):
        # All samples of a class move along x (E - γ_j C_j), so one product per class suffices; rows are
        # sorted by class.
        moves = layer_operators[0] - shares.view(shape) * layer_operators[1:]
        rows = unit_norm(
            rows
            + step * torch.cat([members @ move for members, move in zip(rows.split(lengths, -2), moves)], -2)
        )
        layer_operators, rates = _operators(rows, sizes, lengths, eps)
        layers.append(layer_operators)
        curve.append(rates)
    totals = torch.stack([total(layer_rates) for layer_rates in curve])
    return Growth(tuple(layers), shares, torch.stack([totals[:, 0], totals[:, 1:] @ shares], 1), rows)


def _operators(rows: Tensor, sizes: Tensor, lengths: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Computes the operators and rates of features sorted by class, in float64 if float32 would lose digits
    of the identity.
    """
    dtype = rows.dtype
    largest = rows.shape[-1] / eps**2 * float(rows.abs().square().sum(-1).amax())
    if largest > LARGEST_FLOAT32_CONDITION:
        rows = rows.to(torch.promote_types(dtype, torch.float64))
    moments = torch.stack([members.mH @ members for members in rows.split(lengths, -2)])
    layer_operators, rates = operators(moments, sizes, eps=eps)
    return layer_operators.to(dtype), rates.to(dtype.to_real())


@dataclass(frozen=True)
class Constructed(ABC):
    """A constructed network. Its last layer classifies samples after the other layers have transformed them.

    Attributes:
        layers: L + 1 layers, each with ``shares`` γ_j; the last one belongs to the final features and is used
            by :meth:`predict` only.
        eps, step, sharpness: ε, η, λ.
        features: the training features after the last step, in their original order, of norm 1.
        rates: R and R^c of the training features before each layer and at the end, ``[L + 1, 2]`` nats; ΔR is
            their difference. If shifts count as samples, the rates refer to all shifts.
    """

    layers: tuple[Any, ...]
    eps: float
    step: float
    sharpness: float
    features: Float[Tensor, "n *sample"]
    rates: Float[Tensor, "depth 2"]

    @abstractmethod
    def distances(self, transformed: Float[Tensor, "n *sample"]) -> Float[Tensor, "n k"]:
        """Returns ``||x C_j||`` of transformed samples, with the operators of the last layer; the predictions
        below are made from it.

        Raises:
            ValueError: shape or dtype differ from the network's, or a sample is not finite.
        """

    @property
    def reductions(self) -> Float[Tensor, " depth"]:
        """ΔR before each layer and at the end, in nats per sample (per shifted sample, if shifts count as
        samples).
        """
        return self.rates[:, 0] - self.rates[:, 1]

    def predict(self, transformed: Float[Tensor, "n *sample"]) -> Int[Tensor, " n"]:
        """Predicts the class j of transformed samples with the smallest ``||x C_j||`` in the last layer."""
        return self.distances(transformed).argmin(-1)

    def predict_balanced(self, transformed: Float[Tensor, "n *sample"]) -> Int[Tensor, " n"]:
        """Predicts the class of transformed samples by the smallest ``γ_j ||x C_j||``, which has the same
        scale α for all classes.

        The published rule, :meth:`predict`, has the scale α / γ_j. It favours large classes if a sample lies
        outside the span of every class, which is common if there are few training samples.
        """
        return (self.layers[-1].shares * self.distances(transformed)).argmin(-1)

    def probabilities(self, transformed: Float[Tensor, "n *sample"]) -> Float[Tensor, "n k"]:
        """Returns the soft form of :meth:`predict`, ``softmax_j(-λ ||x C_j||)`` of the last layer."""
        return torch.softmax(-self.sharpness * self.distances(transformed), dim=-1)


def class_sizes(labels: Int[Tensor, " n"], count: int) -> Int[Tensor, " k"]:
    """Counts the samples of each class, ``[k]``.

    Raises:
        ValueError: labels are not integers or are negative, their number is not ``count``, or a class has no
            sample.
    """
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(f"labels must hold one label per sample, [{count}], got {list(labels.shape)}")
    check_integers(labels)
    if not count:
        raise ValueError("labels must name at least one class, got no labels")
    # bincount would allocate up to the largest label, which may be any number
    present, sizes = labels.unique(return_counts=True)
    if not torch.equal(present, torch.arange(len(present), dtype=present.dtype, device=present.device)):
        absent = (present != torch.arange(len(present), device=present.device)).nonzero()
        missing = "a negative label" if int(present[0]) < 0 else f"no sample of class {int(absent[0, 0])}"
        raise ValueError(
            f"labels must name each class 0..{max(int(present[-1]), 0)} at least once, got {missing}; "
            "relabel with labels.unique(return_inverse=True)[1]"
        )
    return sizes


def check_samples(samples: Float[Tensor, "n *rest"]) -> None:
    """Checks that samples can be normalised.

    Raises:
        ValueError: a sample is not finite, or is zero and therefore has no direction.
    """
    finite(features=samples)
    zero = (samples == 0).flatten(1).all(1)
    if bool(zero.any()):
        raise ValueError(
            f"features must have a direction, got {int(zero.sum())} of {len(zero)} that are zero, the first "
            f"at {int(zero.nonzero()[0, 0])}; drop them"
        )


def check_settings(*, layers: int, eps: float, step: float, sharpness: float) -> None:
    """Checks L >= 1, and positive finite ε, η, λ.

    Raises:
        ValueError: a setting is out of range.
        TypeError: layers is not an integer, or another setting is not a number.
    """
    integers(layers=layers)
    positive(eps=eps)
    check_eps(eps)
    positive(step=step, sharpness=sharpness)
