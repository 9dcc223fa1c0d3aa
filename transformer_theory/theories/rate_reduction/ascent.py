"""Ways to critical points of a problem whose Hessian is at hand: upwards, and to whichever is near.

Source: textbook (saddle-free Newton; Levenberg-Marquardt), for the critical points that :cite:t:`wang2024global` sort.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Problem(Protocol):
    """A function on features ``[n, d]``, or on those of them that meet a constraint; derivatives are then along the constraint."""

    @property
    def unit(self) -> float:
        """What gradients and eigenvalues are measured by."""
        ...

    def value(self, X: Float[Tensor, "n d"]) -> float: ...

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]: ...

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]: ...

    def move(self, X: Float[Tensor, "n d"], direction: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Where a step ends, along the constraint if there is one."""
        ...


def ascend(problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 200, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    """Follows the value upwards from ``start`` to where its gradient vanishes, which may be a saddle that it was started on.

    Newton steps along the eigenvectors of the Hessian, upwards along all (saddle-free), halved until the value rises.

    Args:
        steps: most of them.
        tolerance: of the gradient's norm, in the problem's unit.
    Source: textbook.
    """
    X, value = start, problem.value(start)
    for _ in range(steps):
        g = problem.gradient(X)
        if float(g.norm()) <= tolerance * problem.unit:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        along = vectors.mT @ g.flatten()
        direction = (vectors @ (along / (values.abs() + 1e-3 * problem.unit * float(g.norm()) ** 0.5))).view_as(X)
        for _ in range(40):
            if (now := problem.value(moved := problem.move(X, direction))) > value:
                break
            direction = direction / 2
        else:
            break  # the values cannot tell the points apart any more
        X, value = moved, now
    return polish(problem, X)


def polish(problem: Problem, start: Float[Tensor, "n d"], *, steps: int = 100, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    r"""Goes from ``start`` to a critical point near by, of whichever kind, by damped Gauss-Newton steps on :math:`\tfrac12\|\nabla F\|^2`.

    Args:
        steps: most of them.
        tolerance: of the gradient's norm, in the problem's unit.
    Returns:
        ``[n, d]`` where the gradient has not vanished if there is none: look at the problem's gradient.
    Source: textbook.
    """
    X, g = start, problem.gradient(start)
    for _ in range(steps):
        size = float(g.norm())
        if size <= tolerance * problem.unit:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        damping = problem.unit * size
        while damping < 1e12 * problem.unit:
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
