"""Searches for critical points of a problem whose Hessian is known: by ascent, and to the nearest of any kind.

Source: textbook (saddle-free Newton; Levenberg-Marquardt), for the critical points that :cite:t:`wang2024global` classify.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.parallel import single_threaded


@runtime_checkable
class Problem(Protocol):
    """A function on features ``[n, d]``, or on those that meet a constraint; derivatives are then along the constraint."""

    @property
    def unit(self) -> float:
        """The unit of gradients and eigenvalues."""
        ...

    def value(self, X: Float[Tensor, "n d"]) -> float: ...

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]: ...

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]: ...

    def move(self, X: Float[Tensor, "n d"], direction: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The end point of a step, along the constraint if there is one."""
        ...


@single_threaded
def ascend(problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 200, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    """Ascends from ``start`` to where the gradient vanishes; a start on a saddle stays there.

    Args:
        steps: largest number of steps.
        tolerance: of the gradient's norm, in the problem's unit.
    Returns:
        ``[n, d]``. The caller checks the problem's gradient: the steps may run out first.
    """
    X, value = start, problem.value(start)
    for _ in range(steps):
        g = problem.gradient(X)
        if float(g.norm()) <= tolerance * problem.unit:
            break
        # Saddle-free Newton: a step along each eigenvector of the Hessian, scaled by |eigenvalue|, so that it points upwards where the
        # curvature is positive too. The damping keeps steps finite along the flat directions of a maximiser.
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        along = vectors.mT @ g.flatten()
        direction = (vectors @ (along / (values.abs() + 1e-3 * problem.unit * float(g.norm()) ** 0.5))).view_as(X)
        for _ in range(40):  # halve the step until the value rises
            if (now := problem.value(moved := problem.move(X, direction))) > value:
                break
            direction = direction / 2
        else:
            break  # the values differ by rounding only
        X, value = moved, now
    return polish(problem, X)


@single_threaded
def polish(problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 100, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    r"""Goes from ``start`` to a nearby critical point of any kind by damped Gauss-Newton steps on :math:`\tfrac12\|\nabla F\|^2`.

    Args:
        steps: largest number of steps.
        tolerance: of the gradient's norm, in the problem's unit.
    Returns:
        ``[n, d]``. If there is no critical point nearby, the gradient has not vanished: the caller checks it.
    """
    X, g = start, problem.gradient(start)
    for _ in range(steps):
        size = float(g.norm())
        if size <= tolerance * problem.unit:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        damping = problem.unit * size
        while damping < 1e12 * problem.unit:  # raise the damping until the gradient shrinks (Levenberg-Marquardt)
            direction = -(vectors @ (values / (values.square() + damping) * (vectors.mT @ g.flatten()))).view_as(X)
            moved = problem.move(X, direction)
            now = problem.gradient(moved)
            if float(now.norm()) < size:
                break
            damping *= 4
        else:
            break
        X, g = moved, now
    return X
