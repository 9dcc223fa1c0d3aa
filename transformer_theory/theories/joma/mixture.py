r"""Nonlinear MLP under uniform attention: how one unit moves when its input comes from a mixture of isotropic components.

Let :math:`x = \bar x_j + \sigma r` with probability :math:`P(j)`, r isotropic, and let the gradient that reaches the unit
:math:`\phi(v^\top x)` be constant within a component. With :math:`a_j = E[g \mid j] P(j)`, the affinity :math:`r_j = v^\top \bar x_j` and
:math:`\xi` one coordinate of r,

.. math:: \dot v = E[g\, \phi'(v^\top x)\, x] = \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)]\, \bar x_j
    + \sigma \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)\, \xi]\, \frac{v}{\|v\|} ,

since r enters :math:`\phi'` through its coordinate along v alone, and what is orthogonal to v averages out. This is exact for any
isotropic r; here r is Gaussian. (The paper's form, :math:`\|v\|^{-1} \sum_j a_j \theta_1(r_j) \bar x_j + \|v\|^{-3} \sum_j a_j
\theta_2(r_j) v`, is the same one with both means as integrals over :math:`r' = \sigma\|v\|\xi`; so :math:`\theta_1, \theta_2` depend on
:math:`\|v\|` too.)

So :math:`\dot v = A(v) - c(v)\, v`, and the paper goes on, near a critical point :math:`\mu`, with :math:`\dot v \propto \mu - v` and puts
:math:`e^{v^2/2}` of the moving attention back into it. **That is heuristic.** A and c move as fast as v does. And with a constant gradient
and a ReLU there is in general no critical point: then :math:`v^\top \dot v = \sum_j a_j E_j[\phi(v^\top x)]`, which must vanish as well.
The gradient has to change with v for the unit to come to rest. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Affinity = Float[Tensor, " C"]
Vector = Float[Tensor, " d"]
Averages = Callable[[Affinity, Tensor], tuple[Affinity, Affinity]]
_NODES = torch.linspace(-10, 10, 1001, dtype=torch.float64)
_SHARES = torch.softmax(-_NODES.square() / 2, dim=0)


def relu_averages(affinity: Affinity, width: Float[Tensor, ""]) -> tuple[Affinity, Affinity]:
    r""":math:`E[\phi'(r + w \xi)]` and :math:`E[\phi'(r + w \xi) \xi]` for a ReLU and Gaussian :math:`\xi`: normal cdf and density at r/w.

    Args:
        affinity: r, ``[C]``.
        width: w > 0.
    Source: textbook.
    """
    u = affinity / width
    return torch.special.ndtr(u), torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def tanh_averages(affinity: Affinity, width: Float[Tensor, ""]) -> tuple[Affinity, Affinity]:
    """As :func:`relu_averages` for tanh, by the trapezoidal rule (1001 nodes: good to 1e-9 up to w = 20). Source: textbook."""
    nodes, shares = _NODES.to(affinity.dtype), _SHARES.to(affinity.dtype)
    slope = 1 - torch.tanh(affinity[:, None] + width * nodes).square()
    return slope @ shares, slope @ (shares * nodes)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Components and what reaches the unit from them. Source: :cite:t:`tian2024joma`.

    Attributes:
        centres: ``[C, d]``.
        pulls: a_j = E[g | j] P(j), ``[C]``.
        spread: sigma of every coordinate, > 0.
        averages: of the activation: :func:`relu_averages` or :func:`tanh_averages`.

    Raises:
        ValueError: as many pulls as centres are needed, and a positive spread.
    """

    centres: Float[Tensor, "C d"]
    pulls: Float[Tensor, " C"]
    spread: float
    averages: Averages

    def __post_init__(self):
        if len(self.pulls) != len(self.centres) or not self.spread > 0:
            raise ValueError(
                f"a mixture needs a pull for each of its {len(self.centres)} centres and spread > 0, "
                f"got {len(self.pulls)} and {self.spread:g}"
            )

    def terms(self, v: Vector) -> tuple[Vector, Float[Tensor, ""]]:
        """A(v), ``[d]``, and c(v) of the velocity A - c v.

        Raises:
            ValueError: v is zero or not finite. Source: :cite:t:`tian2024joma`.
        """
        size = v.norm()
        if not 0 < float(size) < math.inf:
            raise ValueError(f"v must be finite and not zero, got norm {float(size):g}; the term along v has no direction there")
        first, second = self.averages(self.centres @ v, self.spread * size)
        return (self.pulls * first) @ self.centres, -self.spread / size * (self.pulls @ second)

    def velocity(self, v: Vector) -> Vector:
        """E[g phi'(v x) x], ``[d]``; raises as :meth:`terms`. Source: :cite:t:`tian2024joma`."""
        pull, drag = self.terms(v)
        return pull - drag * v
