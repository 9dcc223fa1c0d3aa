r"""Nonlinear MLP under uniform attention: the velocity of one unit whose input is drawn from a mixture of
isotropic components.

Let :math:`x = \bar x_j + \sigma r` with probability :math:`P(j)` and isotropic r, and let g, the gradient
that reaches the output
:math:`\phi(v^\top x)` of the unit, be constant within a component. With :math:`a_j = E[g \mid j] P(j)`, the
affinity :math:`r_j = v^\top \bar x_j` and one coordinate :math:`\xi` of r,

.. math:: \dot v = E[g\, \phi'(v^\top x)\, x] = \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)]\, \bar x_j
    + \sigma \sum_j a_j E[\phi'(r_j + \sigma \|v\| \xi)\, \xi]\, \frac{v}{\|v\|} ,

since r enters :math:`\phi'` only through its coordinate along v, and the part orthogonal to v has mean zero.
This is exact for any isotropic r; here r is Gaussian. The paper's form, :math:`\|v\|^{-1} \sum_j a_j
\theta_1(r_j) \bar x_j + \|v\|^{-3} \sum_j a_j \theta_2(r_j) v`, is the same with both means written as
integrals over :math:`r' = \sigma\|v\|\xi`, so :math:`\theta_1, \theta_2` depend on :math:`\|v\|` too.

Hence :math:`\dot v = A(v) - c(v)\, v`. Near a critical point :math:`\mu` the paper continues with :math:`\dot
v \propto \mu - v` and then restores the factor :math:`e^{v^2/2}` (elementwise), which trained attention
contributes and uniform attention lacks. **This step is heuristic**: A and c change as fast as v does.
Moreover, with a g that does not depend on v and a ReLU there is in general no critical point, because
:math:`v^\top \dot v = \sum_j a_j E_j[\phi(v^\top x)]` would have to vanish as well. The gradient must change
with v for the unit to come to rest. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import as_float64, converted

Affinity = Float[Tensor, " C"]
Vector = Float[Tensor, " d"]
Averages = Callable[[Affinity, Tensor], tuple[Affinity, Affinity]]
# The trapezoidal rule with 1001 nodes has an error of 1e-9 up to a width of 20.
_NODES = torch.linspace(-10, 10, 1001, dtype=torch.float64)
_WEIGHTS = torch.softmax(-_NODES.square() / 2, dim=0)


@converted(float64=("affinity", "width"))
def relu_averages(affinity: Affinity, width: Float[Tensor, ""]) -> tuple[Affinity, Affinity]:
    r"""Returns :math:`E[\phi'(r + w \xi)]` and :math:`E[\phi'(r + w \xi) \xi]` for a ReLU and Gaussian
    :math:`\xi`.

    They are the normal distribution function and density at r/w.

    Args:
        affinity: r, ``[C]``.
        width: w > 0.
    Returns:
        Both means, ``[C]`` each.
    """
    u = affinity / width
    return torch.special.ndtr(u), torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)


@converted(float64=("affinity", "width"))
def tanh_averages(affinity: Affinity, width: Float[Tensor, ""]) -> tuple[Affinity, Affinity]:
    """Returns the same means as :func:`relu_averages` for tanh, by the trapezoidal rule."""
    slope = 1 - torch.tanh(affinity[:, None] + width * _NODES).square()
    return slope @ _WEIGHTS, slope @ (_WEIGHTS * _NODES)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Components of a mixture, and the gradient that the unit receives from each.

    Attributes:
        centres: centres of the components, ``[C, d]``.
        pulls: a_j = E[g | j] P(j), ``[C]``.
        spread: sigma, the standard deviation of every coordinate, > 0.
        averages: function that returns the two means of the activation's slope, :func:`relu_averages` or
            :func:`tanh_averages`.

    Raises:
        ValueError: the numbers of pulls and centres differ, or the spread is not positive.
    """

    centres: Float[Tensor, "C d"]
    pulls: Float[Tensor, " C"]
    spread: float
    averages: Averages

    def __post_init__(self):
        for name in ("centres", "pulls"):
            object.__setattr__(self, name, as_float64(name, getattr(self, name)))
        if len(self.pulls) != len(self.centres) or not self.spread > 0:
            raise ValueError(
                f"a mixture needs one pull for each of its {len(self.centres)} centres and spread > 0, "
                f"got {len(self.pulls)} pulls and spread {self.spread:g}"
            )

    @converted(float64=("v",))
    def terms(self, v: Vector) -> tuple[Vector, Float[Tensor, ""]]:
        """Returns A(v), ``[d]``, and c(v) of the velocity A - c v.

        Raises:
            ValueError: v is zero or not finite.
        """
        size = v.norm()
        if not 0 < float(size) < math.inf:
            raise ValueError(
                f"v must be finite and not zero, got norm {float(size):g}; the term along v has no "
                "direction there"
            )
        first, second = self.averages(self.centres @ v, self.spread * size)
        return (self.pulls * first) @ self.centres, -self.spread / size * (self.pulls @ second)

    @converted(float64=("v",))
    def velocity(self, v: Vector) -> Vector:
        """Returns E[g phi'(v x) x], ``[d]``.

        Raises:
            ValueError: v is zero or not finite.
        """
        pull, drag = self.terms(v)
        return pull - drag * v
