"""Searches for critical points of a problem with a known Hessian: ascent to a maximiser, and polishing to a
nearby critical point.

The methods are saddle-free Newton and Levenberg-Marquardt. Source of the critical points:
:cite:t:`wang2024global`.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.threads import single_threaded


@runtime_checkable
class Problem(Protocol):
    """A function of features ``[n, d]``. If the features are constrained, derivatives are taken along the
    constraint.
    """

    @property
    def unit(self) -> float:
        """The unit of gradients and eigenvalues."""
        ...

    def value(self, X: Float[Tensor, "n d"]) -> float: ...

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]: ...

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]: ...

    def move(self, X: Float[Tensor, "n d"], direction: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns the end point of a step, along the constraint if there is one."""
        ...


@single_threaded
def ascend(
    problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 200, tolerance: float = 1e-12
) -> Float[Tensor, "n d"]:
    """Ascends from ``start`` until the gradient vanishes; a start on a saddle stays there.

    Args:
        problem: function to maximise.
        start: features, ``[n, d]``.
        steps: largest number of steps.
        tolerance: largest norm of the gradient, in the unit of the problem.
    Returns:
        The last features, ``[n, d]``. The caller must check the gradient there, because the steps may run out
        first.
    """
    X, value = start, problem.value(start)
    for _ in range(steps):
        g = problem.gradient(X)
        if float(g.norm()) <= tolerance * problem.unit:
            break
        # Saddle-free Newton divides the gradient by |eigenvalue| along each eigenvector of the Hessian, so
        # the step points upwards even where the curvature is positive. The damping keeps steps finite along
        # the flat directions of a maximiser (rotations). It tends to zero with the gradient, so the
        # convergence is still superlinear.
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        components = vectors.mT @ g.flatten()
        direction = (
            vectors @ (components / (values.abs() + 1e-3 * problem.unit * float(g.norm()) ** 0.5))
        ).view_as(X)
        # Halve the step until the value rises. If 40 halvings do not help, the values differ by rounding
        # only, and the gradient decides.
        for _ in range(40):
            if (value_there := problem.value(moved := problem.move(X, direction))) > value:
                break
            direction = direction / 2
        else:
            break
        X, value = moved, value_there
    # Near the maximiser the values are equal up to rounding while the gradient still shrinks. The last digits
    # come from the gradient alone.
    return polish(problem, X)


@single_threaded
def polish(
    problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 100, tolerance: float = 1e-12
) -> Float[Tensor, "n d"]:
    r"""Moves from ``start`` to a nearby critical point of any kind by damped Gauss-Newton steps on
    :math:`\tfrac12\|\nabla F\|^2`.

    Args:
        problem: function F.
        start: features, ``[n, d]``.
        steps: largest number of steps.
        tolerance: largest norm of the gradient, in the unit of the problem.
    Returns:
        The last features, ``[n, d]``. The caller must check the gradient there: it does not vanish without a
        critical point nearby.
    """
    X, g = start, problem.gradient(start)
    for _ in range(steps):
        size = float(g.norm())
        if size <= tolerance * problem.unit:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        # Levenberg-Marquardt: -(H^2 + damping)^-1 H g in the eigenbasis of H. Raise the damping until the
        # gradient shrinks. A damping proportional to the gradient keeps quadratic convergence although H is
        # singular along rotations.
        damping = problem.unit * size
        while damping < 1e12 * problem.unit:
            direction = -(
                vectors @ (values / (values.square() + damping) * (vectors.mT @ g.flatten()))
            ).view_as(X)
            moved = problem.move(X, direction)
            gradient_there = problem.gradient(moved)
            if float(gradient_there.norm()) < size:
                break
            damping *= 4
        else:
            break
        X, g = moved, gradient_there
    return X
